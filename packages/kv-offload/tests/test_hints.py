"""Hints that come with a request are the medium's to read; they reach it as they are."""

from kv_offload_configs import Request


def test_hints_reach_the_manager(make, manager):
    """As vLLM's `test_create_req_context_preserves_kv_hints` wants it."""
    told = []
    manager.on_new_request = lambda context: told.append(context) or type(manager).on_new_request(manager, context)
    connector, hints = make(), object()
    request = Request("a", range(8))
    connector.on_new_request(request)
    request = Request("b", range(8))
    request.kv_hints = hints
    connector.on_new_request(request)
    assert [context.req_id for context in told] == ["a", "b"]
    assert told[0].kv_hints is None and told[1].kv_hints is hints
