"""CONSERVATION and GEOMETRY, rule by rule: what may be left at rest, and what each rank was told to copy."""

from collections import deque
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from kv_sim_notes import Notes

from kv_api import Direction, ReqContext, TwoSidedConnector
from kv_offload_cpu import CPUOffloadingManager, CPUOffloadingWorker
from kv_sim.checkers import conservation, geometry
from kv_sim.checkers.medium import MediumGuard
from kv_sim.checkers.medium_worker import WorkerGuard
from kv_sim.config import WorldConfig
from kv_sim.engine.engine import Engine
from kv_sim.engine.request import SimRequest
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.memory.copy import Copy, State
from kv_sim.memory.shadow import Shadow
from kv_sim.violation import Violation
from kv_sim.world import World

LOAD, STORE = Direction.LOAD, Direction.STORE


def copy(number: int, direction: Direction, *pairs: tuple[int, int], **of: Any) -> Copy:
    return Copy(number, direction, pairs, "", 0, **of)


def device(rank: int, ended: tuple[Copy, ...] = (), running: tuple[Copy, ...] = ()) -> Any:
    copies = SimpleNamespace(ended=[*ended], running={one.copy_id: one for one in running})
    return SimpleNamespace(rank=rank, copies=copies, others=[], shadow=SimpleNamespace(ranks_that_failed=set()))


def engine(*connectors: Any, ended: tuple[str, ...] = (), devices: tuple[Any, ...] = ()) -> Any:
    gone = [SimRequest(RequestSpec(name, 0, 4, 0, 1, 1), 4, 0) for name in ended]
    return SimpleNamespace(
        connectors=[*connectors],
        own_modules=Engine.own_modules,
        referee=Notes(),
        outcome=SimpleNamespace(ended=gone),
        devices=[*devices],
    )


def test_the_engines_own_books_are_empty() -> None:
    one = engine()
    one.shadow = Shadow(1, one.referee)
    counts = [0] * 9
    one.scheduler = SimpleNamespace(blocks=SimpleNamespace(block_pool=SimpleNamespace(ref_counts=counts)))
    for block in range(9):
        one.shadow.own(f"r{8 - block // 2}", [block])
    del one.shadow.owners[4]
    conservation.check_engine(one)
    assert one.referee.take() == []
    counts[1:] = range(1, 9)
    one.shadow.load_rights.update({4: "r8", 5: "r7", 6: "r8"})
    conservation.check_engine(one)
    assert one.referee.take() == [
        "CONSERVATION  GPU blocks [1, 2, 3, 4, 5, 6, 7, 8] (of no request, request r4, request r5, request r6, "
        "request r7, request r8) are never freed",
        "CONSERVATION  the end of the loads of requests ['r7', 'r8'] was never reported",
    ]


class Old:
    __slots__ = "name"


class Slotted(Old):
    __slots__ = ("more", "unset")

    def __init__(self, name: str) -> None:
        self.name, self.more = name, [{"more": 3}]


class Plain:
    def __init__(self, **kept: Any) -> None:
        self.__dict__.update(kept)


DEEP = conservation.MOST_DEPTH
LISTS: dict[str, Callable[[Any], Any]] = {
    "[…]": lambda item: [item],
    "[0]": lambda item: {0: item},
    ".in": lambda i: Plain(**{"in": i}),
}


def deep(levels: int, where: str = "[…]") -> Any:
    """A name within so many lists, dictionaries or objects."""
    return "r1" if not levels else LISTS[where](deep(levels - 1, where))


KEY: Any = "r1"
for _ in range(DEEP - 1):
    KEY = (KEY,)


def names_of(**kept: Any) -> list[tuple[str, str]]:
    return [*conservation._strings(Plain(**kept), "it", Engine.own_modules, set(), 0)]


def test_what_changes_meanwhile_is_looked_at_as_it_was() -> None:
    """A connector may have threads."""
    waiting, known = deque(["r1", "r2"]), {"r3": 0, "r4": 0}
    found = conservation._strings(Plain(it=[waiting, known]), "it", Engine.own_modules, set(), 0)
    seen = []
    for _, name in found:
        seen.append(name)
        waiting.append(name)
        known[f"{name} again"] = 0
    assert [name for name in seen if "again" not in name] == ["r1", "r2", "r3", "r4"]


@pytest.mark.parametrize(
    ("kept", "found"),
    [
        ("r1", [("", "r1")]),
        ({"r1": ["r2"]}, [(" (a key)", "r1"), ("['r1'][…]", "r2")]),
        ({("r1", 2): 3}, [(" (a key)[…]", "r1")]),
        (("r1", 2, None, 0.5, b"r1", "r2"), [("[…]", "r1"), ("[…]", "r2")]),
        ({"r1"}, [("[…]", "r1")]),
        (frozenset({"r1"}), [("[…]", "r1")]),
        (deque(["r1", "r2"]), [("[…]", "r1"), ("[…]", "r2")]),
        (Slotted("r1"), [(".more[…] (a key)", "more"), (".name", "r1")]),
        (Plain(one=Plain(two="r1")), [(".one.two", "r1")]),
        ([[[[[["r1"]]]]]], [("[…]" * 6, "r1")]),
        *((deep(DEEP, where), [(where * DEEP, "r1")]) for where in LISTS),
        *((deep(DEEP + 1, where), []) for where in LISTS),
        ({KEY: 0}, [(" (a key)" + "[…]" * (DEEP - 1), "r1")]),
        ({(KEY,): 0}, []),
        (Slotted, []),
        (SimRequest(RequestSpec("r1", 0, 4, 0, 1, 1), 4, 0), []),  # the engine's
        (copy(0, STORE, owners=("r1",)), []),
        (SimpleNamespace(name="r1"), []),
        (ModuleType("r1"), []),
    ],
)
def test_where_a_connector_remembers_a_name(kept: Any, found: list[tuple[str, str]]) -> None:
    assert names_of(kept=kept) == [(f"it.kept{where}", name) for where, name in found]


def test_what_a_guard_remembers_is_the_testbeds() -> None:
    """What it guards is not."""
    manager: Any = Plain(known=["r1"])
    worker: Any = Plain(last="r2")
    medium = MediumGuard(manager, Notes())
    medium._begun["r3"] = ReqContext("r3")
    kept = [medium, WorkerGuard(worker, Notes(), device(0).copies)]
    assert names_of(kept=kept) == [("it.kept[…].manager.known[…]", "r1"), ("it.kept[…].worker.last", "r2")]


def test_each_object_is_looked_into_once() -> None:
    loop: list[Any] = ["r1"]
    loop.append(loop)
    assert names_of(a=loop, b=loop) == [("it.a[…]", "r1")]


def test_nobody_remembers_who_has_ended_but_for_a_copy_that_has_not() -> None:
    lost = copy(3, STORE, (1, 1), owners=("request r2", "request r9"), state=State.LOST)
    keeper = Plain(known={"r1": 1, "r2": 1, "r3": 1}, last="r4")
    one = engine(
        Plain(last="r5"),
        keeper,
        Plain(again=["r4", deep(DEEP - 1)]),
        ended=("r1", "r2", "r4"),
        devices=(device(0), device(1, (copy(0, STORE, (1, 1), owners=("request r1",)),), (lost,))),
    )
    conservation.check_connectors(one)
    assert one.referee.told == [
        f"CONSERVATION  request {name} has ended, everything is at rest, and Plain.{where} still remembers it"
        for name, where in (
            ("r1", "known (a key)"),
            ("r4", "last"),
            ("r4", "again[…]"),
            ("r1", "again" + "[…]" * DEEP),
        )
    ]


class Half:
    has_ended = False

    def __init__(self, says: str = "") -> None:
        self.says = says

    def check(self) -> None:
        assert not self.says, self.says


class Ended(Half):
    has_ended = True


class Two(TwoSidedConnector):
    def __init__(self, side: Any) -> None:
        self._side = side

    @property
    def side(self) -> Any:
        return self._side


class Wrong:
    def __init__(self, *children: Any) -> None:
        self.sub_connectors = children

    def check(self) -> None:
        raise AssertionError("itself")


def test_books_are_recounted_of_a_connector_of_its_half_and_of_its_children() -> None:
    one = engine(Two(Half("a")), Plain(), Wrong(Two(Half()), Wrong(Two(Half("b"))), Half("c")))
    conservation.check_books(one)
    whole = "CONSERVATION  at rest, {}.check() fails: {}"
    told = [message.split("\n")[0] for message in one.referee.told]
    books = (("Half", "a"), ("Wrong", "itself"), ("Wrong", "itself"), ("Half", "b"), ("Half", "c"))
    assert told == [whole.format(*book) for book in books]


class Uncountable:
    def check(self) -> None:
        raise KeyError("chunk 7")


def test_books_that_are_too_wrong_to_be_counted_are_a_crash_of_the_connector() -> None:
    """They aren't one of the testbed."""
    one = engine(Two(Uncountable()))
    with pytest.raises(Violation, match=r"^NO-CRASH  at rest, Uncountable\.check\(\): KeyError: 'chunk 7'"):
        conservation.check_books(one)


@pytest.mark.parametrize("part", [CPUOffloadingManager, CPUOffloadingWorker])
def test_a_medium_is_recounted_with_its_connector(monkeypatch: pytest.MonkeyPatch, part: type[Any]) -> None:
    def check(self: Any) -> None:
        raise AssertionError("one too many")

    monkeypatch.setattr(part, "check", check)
    with pytest.raises(Violation, match=r"at rest, .*\.check\(\) fails: one too many"):
        World(WorldConfig(), SUBJECTS["offload"]).rest()


@pytest.mark.parametrize(
    ("halves", "told"),
    [
        ((Half, Half, Half), None),
        ((Ended, Ended, Ended), None),
        ((Ended, Half, Half), "1 of 3 objects of Half"),
        ((Ended, Half, Ended), "2 of 3 objects of Ended"),
        ((Plain, Half), None),  # a side that can't be switched off
        ((Plain, Ended), "1 of 2 objects of Ended"),
    ],
)
def test_a_half_is_switched_off_on_all_sides(halves: tuple[type, ...], told: str | None) -> None:
    """The scheduler's is the last."""
    one = engine(*(Wrong(Two(Half()), Two(half())) for half in halves))
    conservation.check_sides(one)
    whole = f"CONSERVATION  at rest, {told} and its workers are switched off, expected all or none"
    assert one.referee.told == ([whole] if told else [])


PAGES = ((1, 5), (2, 6))


@pytest.mark.parametrize(
    ("ended", "running", "told"),
    [
        ((copy(7, LOAD, *PAGES), copy(8, STORE, *PAGES)), (), None),
        ((copy(0, STORE, *PAGES),), (copy(1, LOAD, *PAGES),), None),
        ((copy(0, STORE, *PAGES), copy(1, LOAD, *PAGES), copy(2, LOAD)), (), None),  # the last moved nothing
        ((copy(0, STORE, *PAGES),), (), "a load of block 1"),
        (
            (copy(0, STORE, *PAGES), copy(1, STORE, *PAGES), copy(2, LOAD, *PAGES)),
            (),
            "a store of block 1",
        ),
        ((copy(0, STORE, *PAGES), copy(1, LOAD, *PAGES)), (copy(2, LOAD, (3, 3)),), "a load of block 3"),
        ((copy(0, STORE, *PAGES, state=State.FAILED),), (), None),  # what else would have been tried is not known
        ((copy(0, STORE, *PAGES),), (copy(1, STORE, (3, 3), state=State.LOST),), None),
        ((copy(0, STORE, *PAGES, was_lost=True),), (), None),  # what was found again may have been given up before
        # A rank with room of its own, and one that moves page by page.
        ((copy(0, STORE, (1, 7), (2, 3)), copy(1, LOAD, (1, 7), (2, 3))), (), None),
        ((copy(0, STORE, *PAGES), copy(1, LOAD, (2, 6)), copy(2, LOAD, (1, 5))), (), None),
        ((copy(0, STORE, *PAGES), copy(1, LOAD, (2, 6))), (), "a load of block 1"),
    ],
)
def test_every_rank_copies_the_same(ended: tuple[Copy, ...], running: tuple[Copy, ...], told: str | None) -> None:
    """Compared with the first of which no copy failed, in whatever order the copies ended."""
    failed = device(0, (copy(0, STORE, (9, 9), state=State.FAILED),))
    first = device(1, (copy(0, STORE, *PAGES), copy(1, LOAD, *PAGES)))
    one = engine(devices=(failed, first, device(2, ended, running), first))
    geometry.check_ranks(one)
    whole = f"GEOMETRY  ranks 1 and 2 disagree: {told} ran on one of them only"
    assert one.referee.told == ([whole] if told else [])


def test_a_rank_that_told_of_a_load_that_failed_need_not_have_copied_the_same() -> None:
    """It may have found nothing to copy from."""
    one = engine(devices=(device(0, (copy(0, LOAD, *PAGES),)), device(1)))
    one.devices[1].shadow.ranks_that_failed = {1}
    geometry.check_ranks(one)
    assert one.referee.told == []
    one.devices[1].shadow.ranks_that_failed = {0}
    geometry.check_ranks(one)
    assert one.referee.told == ["GEOMETRY  ranks 0 and 1 disagree: a load of block 1 ran on one of them only"]


@pytest.mark.parametrize("how", ["told", "failed", "lost"])
def test_nor_need_one_that_the_same_rank_of_another_engine_pulls_from(how: str) -> None:
    state = State.LOST if how == "lost" else State.DONE if how == "told" else State.FAILED
    puller = device(1, (copy(0, LOAD, *PAGES, state=state),))
    if how == "told":
        puller.shadow.ranks_that_failed = {1}
    one = engine(devices=(device(0, (copy(0, STORE, *PAGES),)), device(1)))
    one.devices[1].others = [device(1), puller]
    geometry.check_ranks(one)
    assert one.referee.told == []
    one.devices[1].others = [device(1, (copy(0, LOAD, *PAGES),))]
    geometry.check_ranks(one)
    assert one.referee.told == ["GEOMETRY  ranks 0 and 1 disagree: a store of block 1 ran on one of them only"]
