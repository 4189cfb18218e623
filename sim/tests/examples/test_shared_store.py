"""``SharedConnector``, call by call: slots of a store, who finds what is there, and what a reset forgets."""

from types import SimpleNamespace
from typing import Any

import pytest

from kv_sim.config import GroupConfig, WorldConfig
from kv_sim.examples.catalogue import SHARED
from kv_sim.examples.memory import Plan
from kv_sim.examples.shared import SharedScheduler, Store, meaning
from kv_sim.world import World

BLOCK = 4


def key(letter: str, what: str = "model") -> tuple[Any, ...]:
    return what, letter.encode()


@pytest.fixture
def store() -> Store:
    return Store(2)


def full(store: Store, letters: str, ranks: int = 1) -> dict[str, int]:
    """Chunks of which all is there, and their slots."""
    slots = {}
    for letter in letters:
        chunk = store.begin(key(letter), ranks)
        assert chunk is not None
        slots[letter] = chunk.slot
        for rank in range(ranks):
            store.put(chunk.slot, rank, [[f"{letter}{rank}"]])
    store.check()
    return slots


def found(store: Store) -> str:
    return "".join(letter for letter in "abcd" if store.has(key(letter)))


def test_a_chunk_is_there_when_all_ranks_have_put_their_parts(store: Store) -> None:
    chunk = store.begin(key("a"), 2)
    assert chunk is not None
    assert (found(store), store.use(key("a"))) == ("", chunk)
    store.put(chunk.slot, 1, [["a1"]])
    assert found(store) == ""
    with pytest.raises(AssertionError, match="is not there"):
        store.pin(key("a"), 2)
    store.put(chunk.slot, 0, [["a0"]])
    assert found(store) == "a"


def test_what_was_used_longest_ago_goes_first(store: Store) -> None:
    full(store, "ab")
    assert store.use(key("a")) is not None
    full(store, "c")
    assert found(store) == "ac"
    slot = store.pin(key("a"), 1).slot
    store.take(slot, 0)
    full(store, "d")
    assert found(store) == "ad", "to pin is to use"
    assert store.use(key("b")) is None


def test_what_is_in_use_stays(store: Store) -> None:
    assert store.begin(key("a"), 2) is not None
    full(store, "b", 2)
    slot = store.pin(key("b"), 2).slot
    assert store.begin(key("c"), 1) is None
    assert store.take(slot, 1) == [["b1"]]
    assert store.begin(key("c"), 1) is None, "the other rank has yet to take its part"
    assert store.take(slot, 0) == [["b0"]]
    full(store, "c")
    assert found(store) == "c"


def test_a_slot_in_use_is_free_when_that_ends(store: Store) -> None:
    slots = full(store, "a")
    chunk = store.pin(key("a"), 1)
    storing = store.begin(key("b"), 1)
    assert storing is not None
    for one in (chunk, storing):
        store.forget(one)
        store.check()
    assert store.begin(key("c"), 1) is None
    store.take(chunk.slot, 0)
    store.check()
    assert full(store, "c")["c"] == slots["a"]
    store.put(storing.slot, 0, [["b"]])
    store.check()
    assert full(store, "d")["d"] == storing.slot
    assert found(store) == "cd"


def test_what_was_forgotten_and_is_stored_anew_has_another_slot(store: Store) -> None:
    full(store, "a")
    old = store.pin(key("a"), 1)
    store.forget(old)
    new = full(store, "a")["a"]
    store.take(old.slot, 0)
    store.check()
    assert (found(store), full(store, "b")["b"]) == ("a", old.slot)
    assert new != old.slot


def test_a_recount_finds_slots_that_are_lost_or_count_twice(store: Store) -> None:
    full(store, "ab")
    lost = store.chunk_in.pop(0)
    with pytest.raises(AssertionError, match="free 0 "):
        store.check()
    store.chunk_in[0] = lost
    store.check()
    store.chunks[key("c")] = lost
    with pytest.raises(AssertionError, match="3 chunks are in 2 slots"):
        store.check()


# -- the connector -----------------------------------------------------------------------------


def side_of(**config: Any) -> SharedScheduler:
    side: SharedScheduler = (
        World(WorldConfig(**{"block_size": BLOCK, "host_slots": 4, **config}), SHARED).engine.connectors[-1].side
    )  # type: ignore[attr-defined]
    return side


def test_what_bytes_mean_is_all_by_which_they_differ() -> None:
    configs: list[dict[str, Any]] = [
        {},
        {"block_size": 8},
        {"tp_size": 2},
        {"pp_size": 2},
        {"layers": 2},
        {"groups": (GroupConfig(), GroupConfig())},
    ]
    sides = [side_of(**config) for config in configs]
    meanings = [meaning(side._vllm_config, side._kv_cache_config) for side in sides]
    assert len({one[1:] for one in meanings}) == len(configs)
    assert len({one[0] for one in meanings}) == len(configs), "no two worlds have one model"


def request(name: str, blocks: str, more: int = 1) -> Any:
    tokens = BLOCK * len(blocks) + more
    return SimpleNamespace(request_id=name, block_hashes=[one.encode() for one in blocks], num_tokens=tokens)


def step(name: str, table: list[int], tokens: int, computed: int = 0) -> Any:
    """A step that begins a request."""
    new = SimpleNamespace(req_id=name, block_ids=(table,), num_computed_tokens=computed)
    return SimpleNamespace(
        finished_req_ids=set(),
        scheduled_new_reqs=[new],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[], new_block_ids=[], num_computed_tokens=[], resumed_req_ids=set()
        ),
        num_scheduled_tokens={name: tokens},
    )


def goes_on(name: str, computed: int, tokens: int) -> Any:
    cached = SimpleNamespace(
        req_ids=[name], new_block_ids=[None], num_computed_tokens=[computed], resumed_req_ids=set()
    )
    made = step(name, [], tokens)
    made.scheduled_new_reqs, made.scheduled_cached_reqs = [], cached
    return made


def blocks_of(moves: list[Any]) -> list[int]:
    return [page[0] for _, page in moves]


def test_full_blocks_are_stored_once_and_those_that_have_a_page_and_a_hash() -> None:
    """Under run-ahead hashes come later than steps; a block that a window has let go of has no page."""
    side = side_of()
    one = request("r1", "abc")
    side.on_new_request(one)
    one.block_hashes = one.block_hashes[:2]
    assert blocks_of(side.build_connector_meta(step("r1", [0, 11, 12], 13)).stores) == [11]
    one.block_hashes.append(b"c")
    assert blocks_of(side.build_connector_meta(goes_on("r1", 13, 1)).stores) == [12]
    side.on_new_request(request("r2", "bcd"))
    assert blocks_of(side.build_connector_meta(step("r2", [21, 22, 23], 13)).stores) == [23], (
        "b and c are on their way"
    )
    side.check()


def test_what_was_looked_at_is_not_looked_at_again() -> None:
    side = side_of()
    side.on_new_request(request("r1", "ab"))
    assert blocks_of(side.build_connector_meta(step("r1", [11, 12], 8)).stores) == [11, 12]
    side.reset_cache()
    assert side.build_connector_meta(goes_on("r1", 8, 1)).stores == []


def test_what_a_step_would_store_is_used_if_it_is_there() -> None:
    side = side_of(host_slots=2)
    for place, letter in enumerate("ab"):
        side.on_new_request(request(letter, letter))
        [(at, _)] = side.build_connector_meta(step(letter, [11 + place], 4)).stores
        side._store.put(at, 0, [[letter]])
    side.on_new_request(request("again", "a"))
    assert side.build_connector_meta(step("again", [13], 4)).stores == []
    side.on_new_request(request("c", "c"))
    assert len(side.build_connector_meta(step("c", [14], 4)).stores) == 1
    assert [side._store.has(side._key(letter)) for letter in (b"a", b"b")] == [True, False]


def test_a_request_is_forgotten_when_it_ends() -> None:
    """Whether anything of it was seen or not; what comes under its name later is another one."""
    side = side_of()
    for ends in (False, True):
        side.on_new_request(request("r1", "ab"))
        assert side.get_num_new_matched_tokens(request("r1", "ab"), 4) == (0, False)
        if ends:
            side.request_finished(request("r1", "ab"), [])
        assert ("r1" in side._local_tokens) != ends
        assert ("r1" in side._progress._arriving) != ends
    side.get_num_new_matched_tokens(request("r2", "ab"), 4)
    side.update_state_after_alloc(request("r2", "ab"), SimpleNamespace(get_block_ids=lambda: ([1, 2],)), 0)
    assert side._local_tokens == {}


def test_a_reset_forgets_what_means_the_same_here_and_nothing_else() -> None:
    side = side_of()
    strange = ("another model", 4), b"x"
    for one in (side._key(b"a"), strange):
        chunk = side._store.begin(one, 1)
        assert chunk is not None
        side._store.put(chunk.slot, 0, [[]])
    assert side.reset_cache()
    assert [side._store.has(one) for one in (side._key(b"a"), strange)] == [False, True]


def test_of_a_block_that_a_window_has_let_go_of_nothing_is_written() -> None:
    config = WorldConfig(block_size=BLOCK, groups=(GroupConfig(), GroupConfig("sliding", 4)), prefix_caching=False)
    world = World(config, SHARED)
    worker = world.engine.connectors[0].side  # type: ignore[attr-defined]
    written: list[tuple[int, str]] = []
    layer = SimpleNamespace(write=lambda block, page: written.append((block, page)))
    worker._layers = [[layer], [layer]]
    chunk = worker._store.begin(("m", b"a"), 1)
    worker._store.put(chunk.slot, 0, [["full"], ["window"]])
    worker._store.pin(("m", b"a"), 1)
    worker.bind_connector_metadata(Plan(loads=[(chunk.slot, (7, 0))]))
    worker.start_load_kv(None)
    assert written == [(7, "full")]
