"""Which layouts of KV cache groups have tails, why others have none, and what is asked then."""

from types import SimpleNamespace

import pytest
from kv_offload_configs import FULL, STATE, WINDOW, kv_cache_config, step
from kv_offload_tails import CACHE, request

from kv_api import make_offload_key

F, S = (FULL, 8, 0), (STATE, 8, 0)


@pytest.mark.parametrize(
    ("cache", "extra", "why"),
    [
        (CACHE, {}, None),
        (kv_cache_config((S,), tokens_per_hash=2, hands_over=True), {}, None),
        (kv_cache_config((F,), tokens_per_hash=2, hands_over=True), {}, "the engine hands over no states"),
        (kv_cache_config((F, S), tokens_per_hash=2), {}, "the engine hands over no states"),
        (CACHE, {"blocks_per_chunk": 2}, "chunks have several blocks"),
        (
            kv_cache_config(((FULL, 4, 0), S), tokens_per_hash=2, hands_over=True),
            {},
            "groups have blocks of [4, 8] tokens",
        ),
        (kv_cache_config((F, S), tokens_per_hash=8, hands_over=True), {}, "a block has one hash"),
        (
            kv_cache_config((F, (WINDOW, 8, 5), S), tokens_per_hash=2, hands_over=True),
            {},
            "a group has a window, whose blocks before the boundary may be missing",
        ),
        (CACHE, {"context_parallel": 2}, "workers share the tokens of a block"),
    ],
)
def test_which_layouts_have_none_and_why(make, cache, extra, why):
    connector = make(cache=cache, **extra)
    layout = connector.side._books.layout
    assert (layout.why_no_tails, layout.has_tails) == (why, why is None)
    assert (connector.side._tails is None) is (why is not None)


def test_all_states_must_be_handed_over(make):
    cache = kv_cache_config((F, S, S), tokens_per_hash=2, hands_over=True)
    cache.kv_cache_groups[2].kv_cache_spec.hands_over_states = False
    assert make(cache=cache).side._books.layout.why_no_tails == "the engine hands over no states"


def test_where_there_are_none_nobody_asks_for_one(make, manager):
    connector = make(cache=kv_cache_config((F,), tokens_per_hash=2))
    a = request(count=15)
    manager.resident[make_offload_key(a.block_hashes[3], 0)] = 0
    asked, lookup = set(), manager.lookup
    manager.lookup = lambda key, context: asked.add(key) or lookup(key, context)
    connector.on_new_request(a)
    assert connector.get_num_new_matched_tokens(a, 0) == (8, True)
    assert asked == {*manager.resident}
    connector.build_connector_meta(step())


def test_a_draft_models_layers(make):
    cache = kv_cache_config((F, S), tokens_per_hash=2, hands_over=True)
    cache.kv_cache_groups[0] = SimpleNamespace(**vars(cache.kv_cache_groups[0]), is_eagle_group=True)
    layout = make(cache=cache).side._books.layout
    assert layout.why_no_tails == (
        "a group is of a draft model, which keeps of a token what depends on the token after it"
    )


@pytest.mark.parametrize("only", [S, (WINDOW, 8, 5)], ids=["states", "a window"])
def test_a_failed_load_of_what_isnt_all_there_is_told_by_request(make, only):
    """By block an engine goes on where the first failed one begins, and needs the state, or the window, there."""
    cache = kv_cache_config((only,), tokens_per_hash=2, hands_over=True)
    assert make(cache=cache, sync_load_budget_bytes=1 << 20).side._books.engine.fails_requests
    assert not make(cache=kv_cache_config((F,))).side._books.engine.fails_requests
