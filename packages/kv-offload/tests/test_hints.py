"""What the medium is told of a request: hints are its own to read, and keys have places."""

from kv_offload_calls import arrive, key
from kv_offload_configs import FULL, WINDOW, Request, kv_cache_config


def test_hints_reach_the_manager(make, manager):
    """As vLLM's `test_create_req_context_preserves_kv_hints` wants it."""
    told = []
    manager.on_new_request = lambda context: told.append(context) or type(manager).on_new_request(manager, context)
    connector, hints = make(), object()
    request = arrive(connector, Request("a", range(8)))
    request = Request("b", range(8))
    request.kv_hints = hints
    connector.on_new_request(request)
    assert [context.req_id for context in told] == ["a", "b"]
    assert told[0].kv_hints is None and told[1].kv_hints is hints


def test_the_manager_may_ask_where_a_chunk_of_any_group_ends(make, manager):
    asked = []

    def lookup(offload_key, context):
        asked.append((offload_key, context.get_offload_key_position(offload_key)))
        return type(manager).lookup(manager, offload_key, context)

    manager.lookup = lookup
    cache = kv_cache_config(((FULL, 4, 0), (WINDOW, 8, 9)), tokens_per_hash=4)
    connector, request = make(cache=cache), Request("a", range(25))
    connector.on_new_request(request)
    for chunk in range(6):
        manager.resident[key(request, chunk)] = chunk
    connector.get_num_new_matched_tokens(request, 0)
    places = {key(request, chunk): 4 * (chunk + 1) for chunk in range(6)}
    places |= {key(request, chunk, 2, group=1): 8 * (chunk + 1) for chunk in range(3)}
    assert {offload_key: places[offload_key] for offload_key, _ in asked} == dict(asked)
    assert {offload_key[-1] for offload_key, _ in asked} == {0, 1}
