"""ACCOUNTING, rule by rule: sources, stats, sums of bytes, shares of the memory, and a mirror of the KV events."""

import re
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
from kv_sim_notes import Notes

from kv_api import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheHitSource,
    Direction,
    KVCacheEvent,
    KVConnectorStats,
)
from kv_sim.actions import Action, Kind
from kv_sim.checkers import accounting
from kv_sim.checkers.accounting import Counted, Mirror
from kv_sim.config import WorldConfig
from kv_sim.engine.request import SimRequest
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import OFFLOAD, SUBJECTS
from kv_sim.fuzz import replay
from kv_sim.memory.copy import Copy, State
from kv_sim.violation import Violation
from kv_sim.world import World

HOST, DISK = CacheHitSource.HOST, CacheHitSource.DISK
LOADED = ("vllm:kv_offload_load_bytes", "vllm:kv_offload_load_size_sum")
STORED = ("vllm:kv_offload_store_bytes", "vllm:kv_offload_store_size_sum")
WHOLE, WRITTEN, READ = (f"vllm:kv_offload_cpu_cache_{part}usage_perc" for part in ("", "write_", "read_"))


class Tier(Enum):
    """Sources of somebody else's."""

    PEERS = "p2p"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({HOST: 8}, None),
        ({HOST: 7, DISK: 1}, None),
        ([(HOST, 4), (DISK, 4)], None),
        ({"p2p": 8}, None),
        ({}, "{}"),
        ({HOST: 7}, "{'host': 7}"),
        ({HOST: 8, DISK: 1}, "{'host': 8, 'disk': 1}"),
        ({HOST: 9, DISK: -1}, "{'host': 9, 'disk': -1}"),
        ({HOST: 8, "p2p": 0}, "{'host': 8, 'p2p': 0}"),
        ({Tier.PEERS: 4}, "{'p2p': 4}"),
    ],
)
def test_sources_are_positive_and_add_up(answer: Any, told: str | None) -> None:
    notes = Notes()
    accounting.check_sources("r1", 8, answer, notes)
    whole = f"ACCOUNTING  request r1: 8 tokens are loaded, but get_external_cache_hit_sources answered {told}"
    assert notes.told == ([whole] if told else [])


class Stats(KVConnectorStats):
    def reduce(self) -> dict[str, Any]:
        return dict(self.data)

    def is_empty(self) -> bool:
        return not self.data


class Rebuilder:
    """A connector's class: stats that crosses lose what it doesn't know."""

    asked: list[dict[str, Any]]

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any]) -> Stats | None:
        cls.asked.append(data)
        return None if "strange" in data else Stats({name: data[name] for name in data if name != "lost"})


def test_stats_arrive_as_they_were_sent() -> None:
    """Those that are empty need not cross, and nobody has to rebuild any."""
    notes, connector = Notes(), type("Fresh", (Rebuilder,), {"asked": []})
    sent: list[Stats | None] = [
        None,
        Stats({}),
        Stats({"a": 1}),
        Stats({"strange": 1}),
        Stats({"a": 1, "lost": 2}),
    ]
    for stats in sent:
        accounting.check_stats(connector, stats, notes)  # type: ignore[arg-type]
    assert connector.asked == [{"a": 1}, {"strange": 1}, {"a": 1, "lost": 2}]  # type: ignore[attr-defined]
    assert notes.told == [
        "ACCOUNTING  stats {'a': 1, 'lost': 2} become {'a': 1} by to_dict and build_kv_connector_stats"
    ]


BLOCK_BYTES = 64


def devices(*ranks: tuple[list[Copy], list[Copy]]) -> Any:
    """What devices tell of their copies: of each rank those that ended and those under way."""
    return [
        SimpleNamespace(
            copies=SimpleNamespace(
                ended=ended, running={copy.copy_id: copy for copy in running}, has_unheard=False
            ),
            block_bytes=BLOCK_BYTES,
        )
        for ended, running in ranks
    ]


def copy(number: int, direction: Direction, pages: int, state: State) -> Copy:
    return Copy(number, direction, tuple((page, page) for page in range(pages)), "", 0, state=state)


LOAD, STORE = Direction.LOAD, Direction.STORE
HAPPENED = devices(
    (
        [
            copy(0, STORE, 2, State.DONE),
            copy(1, STORE, 4, State.FAILED),
            copy(2, LOAD, 1, State.DONE),
            copy(3, LOAD, 8, State.FAILED),
        ],
        [],
    ),
    ([copy(0, STORE, 3, State.DONE)], []),
)
"""Five blocks were stored and one was loaded."""
RIGHT = {**dict.fromkeys(STORED, 5 * BLOCK_BYTES), **dict.fromkeys(LOADED, BLOCK_BYTES)}


def test_the_bytes_that_are_counted_are_those_of_copies_that_ended_well() -> None:
    notes = Notes()
    counted = Counted(notes, is_on=True)
    counted.take(None)
    for numbers in (
        {STORED[0]: 5 * BLOCK_BYTES - 1, LOADED[1]: 64},
        dict.fromkeys(STORED, 1),
        {STORED[1]: 5 * BLOCK_BYTES - 1},
        {},
    ):
        counted.take(Stats(numbers))
    counted.check(HAPPENED)
    wrong = "ACCOUNTING  vllm:kv_offload_load_bytes adds up to 0, but 1 load copies that succeeded moved 64 bytes"
    assert notes.take() == [wrong]
    counted.take(Stats({LOADED[0]: 64}))
    counted.check(HAPPENED)
    assert notes.take() == []
    counted.take(Stats(dict.fromkeys(RIGHT, 1)))
    counted.check(HAPPENED)
    assert notes.take() == [
        f"ACCOUNTING  {name} adds up to {sum_ + 1}, but {copies} {way} copies that succeeded moved {sum_} bytes"
        for names, sum_, copies, way in ((LOADED, 64, 1, "load"), (STORED, 320, 2, "store"))
        for name in names
    ]


@pytest.mark.parametrize(
    ("shares", "adds_up"),
    [
        ((0.5, 0.25, 0.25), True),
        ((0.3, 0.1, 0.2), True),  # but for rounding
        ((0.25, 0.25, None), True),
        ((0.25, None, 0.25), True),
        ((0.0, 0.0, 0.0), True),
        ((0.5, 0.25, 0.0), False),
        ((0.25, 0.25, 0.25), False),
        ((0.25, 0.5, -0.25 - 1e-8), False),
    ],
)
def test_shares_of_the_memory_add_up(shares: tuple[float | None, ...], adds_up: bool) -> None:
    notes = Notes()
    numbers = {
        name: share for name, share in zip((WHOLE, WRITTEN, READ), shares, strict=True) if share is not None
    }
    Counted(notes, is_on=True).take(Stats(numbers))
    shown = dict(zip((WHOLE, WRITTEN, READ), (0 if share is None else share for share in shares), strict=True))
    told = f"ACCOUNTING  the first of these metrics should be the sum of the others: {shown}"
    assert notes.told == ([] if adds_up else [told])


def test_of_a_copy_that_was_found_after_the_last_step_nobody_has_heard() -> None:
    """It was given up, so the engine doesn't go on for it, and its chunks stay in use until that is told."""
    history = [Action(Kind.ADD, {"spec": RequestSpec("r1", 0, 9, 0, 1, 1).to_json()}), *[Action(Kind.STEP)] * 2]
    the_store = {"rank": 0, "copy": 0}
    late = [Action(Kind.LOSE, the_store), Action(Kind.STEP), Action(Kind.FIND, the_store)]
    made, violation = replay(SUBJECTS["offload-hasty"], WorldConfig(), [*history, *late])
    assert violation is None
    assert made is not None
    assert made.history[-1].kind is Kind.FIND


def test_the_last_shares_are_nothing_if_nothing_is_under_way() -> None:
    notes = Notes()
    counted = Counted(notes, is_on=True)
    counted.take(Stats(RIGHT))
    counted.take(Stats({WHOLE: 0.5, READ: 0.5}))
    counted.take(Stats({READ: 0.1, "other": 1}))  # without the whole the parts are none
    busy = devices(([], []), (HAPPENED[0].copies.ended, [copy(4, LOAD, 1, State.LOST)]))
    busy[0].copies.ended.append(copy(5, STORE, 3, State.DONE))
    counted.check(busy)
    assert notes.take() == []
    HAPPENED[0].copies.has_unheard = True
    counted.check(HAPPENED)
    assert notes.take() == []
    HAPPENED[0].copies.has_unheard = False
    counted.check(HAPPENED)
    shown = {WHOLE: 0.5, WRITTEN: 0, READ: 0.5}
    assert notes.take() == [f"ACCOUNTING  no job is under way, but these gauges are not all 0: {shown}"]
    counted.take(Stats({WHOLE: 0.0}))
    counted.check(HAPPENED)
    assert notes.take() == []


def test_what_was_found_late_may_be_counted_or_given_up() -> None:
    late = copy(6, STORE, 2, State.DONE)
    late.was_lost = True
    made = devices(([*HAPPENED[0].copies.ended, late], []), (HAPPENED[1].copies.ended, []))
    for more, is_right in ((0, True), (2 * BLOCK_BYTES, True), (-1, False), (2 * BLOCK_BYTES + 1, False)):
        notes = Notes()
        counted = Counted(notes, is_on=True)
        counted.take(Stats({**RIGHT, **{name: RIGHT[name] + more for name in STORED}}))
        counted.check(made)
        assert (notes.told == []) is is_right


def test_what_children_count_adds_up() -> None:
    notes = Notes()
    counted = Counted(notes, is_on=True)
    some = {**dict.fromkeys(STORED, 3 * BLOCK_BYTES), WHOLE: 0.5, READ: 0.5}
    rest = {**dict.fromkeys(STORED, 2 * BLOCK_BYTES), **dict.fromkeys(LOADED, BLOCK_BYTES), WHOLE: 0.0}
    counted.take(Stats({"a": some, "quarantined": {"b": "broke down"}}))
    counted.take(Stats({"c": {"d": rest}}))
    HAPPENED[0].copies.has_unheard = True
    counted.check(HAPPENED)
    assert notes.take() == []
    HAPPENED[0].copies.has_unheard = False
    counted.check(HAPPENED)
    shown = {WHOLE: 0.5, WRITTEN: 0, READ: 0.5}
    assert notes.take() == [f"ACCOUNTING  a: no job is under way, but these gauges are not all 0: {shown}"]
    counted.take(Stats({"a": {WHOLE: 0.0}, "c": {"d": {WHOLE: 0.5}}}))
    shown = {WHOLE: 0.5, WRITTEN: 0, READ: 0}
    assert notes.take() == [
        f"ACCOUNTING  d: c: the first of these metrics should be the sum of the others: {shown}"
    ]
    counted.take(Stats({"a": {STORED[0]: 1}, "c": {"d": {WHOLE: 0.0}}}))
    counted.check(HAPPENED)
    (told,) = notes.take()
    assert told.startswith(f"ACCOUNTING  {STORED[0]} adds up to {5 * BLOCK_BYTES + 1}, but")


def test_who_does_not_claim_to_count_is_not_held_to_it() -> None:
    notes = Notes()
    counted = Counted(notes, is_on=False)
    counted.take(Stats({WHOLE: 0.5, STORED[0]: 3}))
    counted.check(HAPPENED)
    assert notes.told == []


# -- events -------------------------------------------------------------------------------------


def request(name: str = "r1", hashes_per_block: int = 1, **changes: Any) -> SimRequest:
    spec = RequestSpec(
        name, 0, **{"shared_tokens": 12, "own_tokens": 0, "output_tokens": 1, "max_tokens": 4, **changes}
    )
    return SimRequest(spec, 4, 0, hashes_per_block)


def stored(*names: bytes, group: int | None = None, medium: str = "CPU", **told: Any) -> BlockStored:
    plain = {"parent_block_hash": None, "token_ids": [], "block_size": 4, "lora_id": None, "lora_name": None}
    return BlockStored([*names], medium=medium, group_idx=group, **{**plain, **told})


def removed(*names: bytes, group: int | None = None, medium: str = "CPU") -> BlockRemoved:
    return BlockRemoved([*names], medium, group)


GONE = "ACCOUNTING  an event removes block b'%s' of group %s from %s, but no event has stored it there"
TWICE = (
    "ACCOUNTING  an event stores block b'%s' of group %s in %s, but an earlier event stored it, and no event "
    "has removed it since"
)


@pytest.mark.parametrize("is_exact", [False, True])
@pytest.mark.parametrize(
    ("events", "left", "told", "exactly"),
    [
        ([stored(b"x"), removed(b"x")], {}, [], []),
        ([stored(b"x", b"y"), stored(b"x", b"z"), removed(b"x", b"y")], {b"x": 1, b"z": 1}, [], []),
        ([stored(b"x", b"y"), stored(b"z", b"y")], {b"x": 1, b"y": 2, b"z": 1}, [], [TWICE % ("y", None, "CPU")]),
        ([stored(b"x"), removed(b"x"), stored(b"x")], {b"x": 1}, [], []),
        ([stored(b"x"), AllBlocksCleared(), removed(b"x")], {}, [GONE % ("x", None, "CPU")], []),
        ([removed(b"a", b"b"), stored(b"x")], {b"x": 1}, [GONE % (name, None, "CPU") for name in "ab"], []),
        ([stored(b"x"), removed(b"x", b"x", b"x")], {}, [GONE % ("x", None, "CPU")] * 2, []),
        ([stored(b"a"), removed(b"x", b"a")], {}, [GONE % ("x", None, "CPU")], []),
        ([stored(b"x"), removed(b"x", group=1)], {b"x": 1}, [GONE % ("x", 1, "CPU")], []),
        ([stored(b"x"), removed(b"x", medium="DISK")], {b"x": 1}, [GONE % ("x", None, "DISK")], []),
        ([stored(b"x"), KVCacheEvent()], {b"x": 1}, [], []),
        (
            [stored(b"x", group=1), stored(b"x", group=2), stored(b"x", group=2)],
            {b"x": 3},
            [],
            [TWICE % ("x", 2, "CPU")],
        ),
        ([stored(b"x"), stored(b"x", medium="DISK"), removed(b"x")], {b"x": 1}, [], []),
    ],
)
def test_a_mirror_holds_what_was_stored_and_not_removed(
    is_exact: bool, events: list[KVCacheEvent], left: dict[bytes, int], told: list[str], exactly: list[str]
) -> None:
    """Chunks may share blocks, but of an exact one the last is stored once."""
    notes = Notes()
    mirror = Mirror(notes, is_exact=is_exact)
    mirror.take(events)
    assert notes.told == told + (exactly if is_exact else [])
    counts: dict[bytes, int] = {}
    for (_, _, name), count in mirror.blocks.items():
        assert count > 0
        counts[name] = counts.get(name, 0) + count
    assert counts == left


def test_where_a_store_is_shared_a_block_of_anybody_may_be_removed_with_others() -> None:
    notes = Notes()
    mirror = Mirror(notes, is_shared=True)
    mirror.take([stored(b"x", b"y"), removed(b"another's", b"x")])
    assert (notes.told, [name for _, _, name in mirror.blocks]) == ([], [b"y"])


def test_what_is_told_of_blocks_is_true() -> None:
    """Of several at once: the block before the first, all their tokens, a block's size and the adapter."""
    notes, known = Notes(), request(adapter="a")
    mirror = Mirror(notes, is_exact=True)
    mirror.know(known)
    first, second, third = known.prompt_hashes
    tokens = list(known.prompt_token_ids)
    true = {"parent_block_hash": first, "token_ids": tokens[4:], "lora_name": "a"}
    mirror.take([stored(first, token_ids=tokens[:4], lora_name="a"), stored(second, third, **true)])
    assert notes.told == []
    for wrong in (
        {"parent_block_hash": None},
        {"parent_block_hash": second},
        {"token_ids": tokens[3:]},
        {"token_ids": tokens[8:]},
        {"block_size": 8},
        {"lora_name": None},
    ):
        told = {**true, "block_size": 4, **wrong}
        mirror.take([AllBlocksCleared(), stored(second, third, **told)])
        shown = tuple(told[name] for name in ("parent_block_hash", "token_ids", "block_size", "lora_name"))
        assert notes.take() == [
            f"ACCOUNTING  an event for blocks {[second, third]} has (parent, tokens, block size, adapter) "
            f"{shown}, expected {(first, tokens[4:], 4, 'a')}"
        ]


def test_what_is_told_of_hashes_is_true() -> None:
    """The adapter of each block, and the salt of the first one; or nothing, as vLLM's own connector does."""
    notes, known = Notes(), request(adapter="a", salt="s", hashes_per_block=2)
    mirror = Mirror(notes, is_exact=True)
    mirror.know(known)
    half, first, _, second = known.fine_hashes_up_to(8)
    tokens = list(known.prompt_token_ids)
    true: dict[str, Any] = {"token_ids": tokens[:8], "lora_name": "a"}
    part: dict[str, Any] = {"token_ids": tokens[:2], "lora_name": "a", "block_size": 2}
    for events in (
        [stored(first, second, **true), stored(half, **part)],
        [stored(first, second, **true, extra_keys=[("a", "s"), ("a",)])],
        [stored(half, **part, extra_keys=[("a", "s")])],
    ):
        mirror.take([AllBlocksCleared(), *events])
        assert notes.take() == []
    for wrong in ([None, None], [("a", "s"), ("a", "s")], [("a", "s")], [("s", "a"), ("a",)], []):
        mirror.take([AllBlocksCleared(), stored(first, second, **true, extra_keys=wrong)])
        assert notes.take() == [
            f"ACCOUNTING  an event for blocks {[first, second]} has the extra keys {wrong}, expected "
            f"{[('a', 's'), ('a',)]}"
        ]


def test_what_is_told_of_a_block_has_its_image() -> None:
    """With the adapter before it and the salt after it, and in the block that has its token alone."""
    notes, known = Notes(), request(image="i", image_at=5, salt="s", adapter="a")
    first, second, _ = known.prompt_hashes
    tokens = list(known.prompt_token_ids)
    right = [("a", "s"), ("a", ("i", 1))]
    mirror = Mirror(notes, is_exact=True)
    mirror.know(known)
    for extras in (right, [("a", "s"), ("a",)], [("a", ("i", 1), "s"), ("a", ("i", 1))]):
        mirror.take([stored(first, second, token_ids=tokens[:8], lora_name="a", extra_keys=extras)])
        mirror.take([AllBlocksCleared()])
    assert [told.split(" has ")[1] for told in notes.take()] == [
        f"the extra keys {[('a', 's'), ('a',)]}, expected {right}",
        f"the extra keys {[('a', ('i', 1), 's'), ('a', ('i', 1))]}, expected {right}",
    ]


def test_an_engine_knows_the_blocks_of_whoever_arrives() -> None:
    engine = World(WorldConfig(), OFFLOAD).engine
    (first, *_) = engine.add(RequestSpec("r1", 0, 9, 0, 1, 1)).prompt_hashes
    with pytest.raises(Violation, match=f"^ACCOUNTING  an event for blocks {re.escape(repr([first]))} has "):
        engine.mirror.take([stored(first, token_ids=[1, 2, 3, 4])])


def test_what_nobody_told_is_not_compared() -> None:
    """An event without tokens, of a block that no request has, of none, and all where nothing exact is claimed."""
    wrong: dict[str, Any] = {"token_ids": [1, 2, 3, 4]}
    known = request()
    (first, *_) = known.prompt_hashes
    for is_exact, events in (
        (True, [stored(first, token_ids=[])]),
        (True, [stored(b"x", **wrong), stored(first, b"y", **wrong), stored(**wrong)]),
        (False, [stored(first, **wrong), stored(first, **wrong)]),
    ):
        notes = Notes()
        mirror = Mirror(notes, is_exact=is_exact)
        mirror.know(known)
        mirror.take(events)
        assert notes.told == []


def test_parts_of_blocks_are_told_of_and_may_be_stored_twice() -> None:
    """Two prompts that end within one block: what is stored of one is the beginning of the other."""
    notes, known = Notes(), request(hashes_per_block=2)
    mirror = Mirror(notes, is_exact=True)
    mirror.know(known)
    half, first, part, second = known.fine_hashes_up_to(8)
    tokens = list(known.prompt_token_ids)
    events = [
        stored(half, token_ids=tokens[:2], block_size=2),
        stored(part, parent_block_hash=first, token_ids=tokens[4:6], block_size=2),
        stored(second, parent_block_hash=first, token_ids=tokens[4:8]),
    ]
    mirror.take(events + events[:2])
    assert notes.take() == []
    mirror.take(events[2:])
    assert [told.split(" of group ")[0] for told in notes.take()] == [
        f"ACCOUNTING  an event stores block {second!r}"
    ]
    mirror.take([AllBlocksCleared(), stored(part, parent_block_hash=half, token_ids=tokens[4:6], block_size=2)])
    assert notes.take() == [
        f"ACCOUNTING  an event for blocks {[part]} has (parent, tokens, block size, adapter) "
        f"{(half, tokens[4:6], 2, None)}, expected {(first, tokens[4:6], 2, None)}"
    ]


def test_where_blocks_have_several_sizes_an_event_of_no_group_is_of_the_largest() -> None:
    notes, known = Notes(), request(hashes_per_block=2)
    mirror = Mirror(notes, is_exact=True, parts=(2, 1))
    mirror.know(known)
    tokens = list(known.prompt_token_ids)
    (first, _, _), (second, _, _) = [*known.all_blocks(1)][:2]
    (half, _, _), *_ = known.all_blocks(2)
    whole = {"parent_block_hash": first, "token_ids": tokens[4:8]}
    mirror.take([stored(second, **whole), stored(second, **whole, group=1)])
    mirror.take([stored(half, token_ids=tokens[:2], block_size=2, group=0)])
    assert notes.take() == []
    mirror.take([stored(second, **whole, group=0)])
    assert len(notes.take()) == 1
