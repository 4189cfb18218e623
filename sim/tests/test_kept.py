"""What stays in a connector's objects when requests have come and gone: what is counted, and what is said."""

import threading
from array import array
from collections import Counter, OrderedDict, UserDict, deque
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from kv_sim.actions import Kind
from kv_sim.cli.main import main
from kv_sim.engine.request import SimRequest
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import LATER, SUBJECTS
from kv_sim.growth import kept
from kv_sim.growth.kept import Kept, Prompts, measure_kept, things_of
from kv_sim.growth.metered import MeteredWorld
from kv_sim.growth.models import MODELS, models_for
from kv_sim.offload import TimedWorkerSide
from kv_sim.world import World


class Half:
    """Something to look into."""

    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)


class Slotted:
    __slots__ = ("empty", "part")

    def __init__(self, part: Any) -> None:
        self.part = part


class WithMethod:
    def __init__(self, part: Any) -> None:
        self.part = part

    def method(self) -> None:
        """Nothing."""


def closure(part: Any) -> Any:
    def function() -> Any:
        return part, never

    if part is None:
        never = 1
    return function


class Unsaid(UserDict[int, int]):
    """A mapping that doesn't say what is in it, as threads may change it meanwhile."""

    def items(self) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("part", "things"),
    [
        (7, {}),
        ("a name", {}),
        (b"x" * 63, {}),
        (b"x" * 200, {"part": 3}),
        (bytearray(64), {"part": 1}),
        (np.zeros(32), {"part": 4}),
        ([1, 2, 3], {"part": 3}),
        ([[1, 2], [3]], {"part": 2, "part[…]": 3}),
        ({1: [2]}, {"part": 1, "part[…]": 1}),
        ({("a", (1,)): 2}, {"part": 1}),
        ({("a" * 64, 1): 2}, {"part": 1, "part[…][…]": 1}),
        (OrderedDict(a=1, b=2), {"part": 2}),
        (MappingProxyType({1: {2, 3}}), {"part": 1, "part[…]": 2}),
        (Unsaid({1: 2}), {"part": 1, "part.data": 1}),
        (deque([{1}, {2}]), {"part": 2, "part[…]": 2}),
        (({1: 2}, frozenset({3})), {"part[…]": 1}),
        (Half(a=[1], b=Half()), {"part": 1, "part.a": 1, "part.b": 1}),
        (Slotted([1, 2]), {"part": 1, "part.part": 2}),
        (WithMethod([1]).method, {"part": 1, "part.part": 1}),
        (partial(print, [1], end=[2, 3]), {"part[…]": 3, "part": 1}),
        (closure([1, 2]), {"part": 2}),
        (threading.Lock(), {}),
        (TimedWorkerSide, {}),
        (print, {}),
        (np, {}),
    ],
)
def test_what_counts(part: Any, things: dict[str, int]) -> None:
    assert things_of(Half(part=part)) == {"Half": 1, **{f"Half.{way}": count for way, count in things.items()}}


def test_each_thing_counts_once() -> None:
    shared = [1, 2]
    around = Half(first=shared, second=[shared])
    around.self = around  # type: ignore[attr-defined]
    assert things_of(around).total() == 1 + 2 + 1


def test_a_chain_of_nodes_counts_although_its_way_has_an_end() -> None:
    node = None
    for _ in range(5000):
        node = Half(before=node)
    things = things_of(Half(newest=node))
    assert things.total() == 5001
    assert max(things.values()) > 4900
    assert max(way.count(".") for way in things) < 20


def test_lists_in_lists_of_who_is_too_deep_to_be_named_are_theirs() -> None:
    deep = Half(part=[[[1, 2], 3]])
    for _ in range(12):
        deep = Half(part=deep)
    things = things_of(deep)
    assert things["Half" + 12 * ".part"] == 1 + 1 + 2 + 2
    assert all(way.startswith("Half") for way in things)


def test_what_the_engine_handed_over_is_not_looked_into() -> None:
    request = SimRequest(RequestSpec("r1", 0, 8, 0, 1, 1), 4, 8)
    half = Half(known=[request])
    assert things_of(half) == things_of(half, ("kv_sim.engine",)) == {"Half": 1, "Half.known": 1}
    handed = Half(known=Half(array=array("q", [1])))
    assert things_of(handed, (__name__,)) == {}
    for module, held in (
        ("kv_sim.examples.memory", 2),
        ("kv_sim.zoo.offload_books", 2),
        ("kv_sim.memory.copies", 0),
    ):
        books = type("Books", (), {"__module__": module})()
        books.entries = [1, 2]
        assert things_of(Half(books=books))["Half.books.entries"] == held, module
    side = TimedWorkerSide.__new__(TimedWorkerSide)
    side.__dict__.update(jobs=[1, 2])
    assert things_of(side)["TimedWorkerSide.jobs"] == 2, "the testbed's, but it extends a connector's"


@pytest.mark.parametrize(
    ("counts", "growth"),
    [
        ((5, 9, 25), 1.0),  # one each round
        ((5, 13, 25), 0.75),  # slower later: it may be getting full
        ((5, 6, 40), 0.25),
        ((5, 9, 9), 0.0),
        ((5, 9, 4), -0.3125),
    ],
)
def test_it_grows_if_it_always_does(counts: tuple[int, ...], growth: float) -> None:
    things = {rounds: Counter(a=count, b=3) for rounds, count in zip((4, 8, 24), counts, strict=True)}
    one = Kept("scheduler", things)
    assert one.growth == max(growth, 0.0)
    assert one.grows_at == ("a" if growth > 0 else "b" if growth < 0 else "a")
    assert Kept("scheduler", {rounds: Counter() for rounds in (4, 8, 24)}).growth == 0


@pytest.mark.parametrize(("prompts", "prompt"), [(Prompts.ONE, (1, 32, 1)), (Prompts.DIFFERENT, (0, 0, 33))])
def test_a_round_is_one_that_ends_and_three_that_are_aborted(
    prompts: Prompts, prompt: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    worlds = []

    class Watched(World):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            worlds.append(self)

    monkeypatch.setattr("kv_sim.growth.metered.Unguarded", Watched)
    monkeypatch.setattr(kept, "ROUNDS", (1, 2))
    sides = measure_kept(partial(MeteredWorld, LATER, MODELS["full attention"], "builtin"), prompts)
    assert [(one.side, list(one.things)) for one in sides] == [("scheduler", [1, 2]), ("worker", [1, 2])]
    for world, rounds in zip(worlds, (1, 2), strict=True):
        happened = [action.kind for action in world.history]
        adds = [index for index, kind in enumerate(happened) if kind is Kind.ADD]
        ends = [happened[index + 1 : after] for index, after in zip(adds, [*adds[1:], None], strict=True)]
        steps = [kinds.index(Kind.ABORT) if Kind.ABORT in kinds else None for kinds in ends]
        assert steps == [None, 0, 1, 2] * rounds
        assert all(set(kinds[:count]) <= {Kind.STEP} for kinds, count in zip(ends, steps, strict=True) if count)
        assert all(happened[index - 1] is Kind.RESET for index in adds)
    specs = [action.args["spec"] for world in worlds for action in world.history if action.kind is Kind.ADD]
    assert {(spec["conversation"], spec["shared_tokens"], spec["own_tokens"]) for spec in specs} == {prompt}
    assert not any(world.engine.has_work for world in worlds)


def test_what_is_kept_of_each_request_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kv_sim.growth.command.situations_for", lambda subject: {})
    monkeypatch.setattr(kept, "ROUNDS", (2, 6, 10))
    assert main(["growth", "broken_connectors:Hoarding", "--traits", "none"]) == 1
    *_, hoards, remembers = capsys.readouterr().out.splitlines()
    assert hoards == (
        "GROWS: what the scheduler's side keeps of one prompt, full attention: after 10 rounds instead of 2 it is "
        "40 things instead of 8, in Hoarding._scheduler.lengths"
    )
    assert remembers.startswith(
        "GROWS: what the worker's side keeps of one prompt, full attention: after 10 rounds instead of 2 it is "
    )
    assert ", in Hoarding._worker.newest.before.before." in remembers


def test_what_is_kept_of_each_chunk_shows_with_different_prompts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Eight of each of four prompts a round, except those that were aborted before they were computed."""
    monkeypatch.setattr("kv_sim.growth.command.situations_for", lambda subject: {})
    monkeypatch.setattr(kept, "ROUNDS", (2, 6, 10))
    assert main(["growth", "broken_connectors:Archiving", "--traits", "none"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert [line for line in out if line.startswith("GROWS: ")] == [
        "GROWS: what the scheduler's side keeps of different prompts, full attention: after 10 rounds instead of "
        "2 it is 208 things instead of 16, in Archiving._scheduler.evicted"
    ]
    one, different = (line for line in out if line.startswith("  scheduler's side"))
    assert (one.split()[-1], different.split()[-1]) == ("0.00", "24.00")


def test_each_place_is_named_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def measure(make: Any, prompts: Prompts) -> list[Kept]:
        place = "seen" if prompts is Prompts.ONE else "evicted"
        grown = {place: {1: Counter(), 2: Counter({place: 1})} for place in ("seen", "evicted")}
        return [Kept("scheduler", grown[place]), Kept("worker", grown["seen"])]

    monkeypatch.setattr("kv_sim.growth.command.situations_for", lambda subject: {})
    monkeypatch.setattr("kv_sim.growth.command.measure_kept", measure)
    assert main(["growth", "broken_connectors:Hoarding", "--traits", "none"]) == 1
    said = [
        line.removeprefix("GROWS: what the ") for line in capsys.readouterr().out.splitlines() if "GROWS" in line
    ]
    grew = "full attention: after 2 rounds instead of 1 it is 1 things instead of 0, in"
    assert said == [
        f"scheduler's side keeps of one prompt, {grew} seen",
        f"worker's side keeps of one prompt, {grew} seen",
        f"scheduler's side keeps of different prompts, {grew} evicted",
    ]


@pytest.mark.once
@pytest.mark.parametrize("prompts", Prompts)
@pytest.mark.parametrize(
    "name", ["memory", "patient", "offload-chunks", "offload-file", "later+flaky", "p2p+offload"]
)
def test_ours_keep_nothing(name: str, prompts: Prompts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "ROUNDS", (2, 3, 5))
    for model in models_for(SUBJECTS[name]):
        for side in measure_kept(partial(MeteredWorld, SUBJECTS[name], MODELS[model], "builtin"), prompts):
            assert side.growth == 0, f"{model}, {side.side}: {side.grows_at}"


def test_what_is_held_is_counted_before_the_connector_is_shut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    said = []

    class Noted(MeteredWorld):
        def end(self) -> None:
            said.append("end")
            super().end()

    def counted(side: Any, foreign: tuple[str, ...]) -> Counter[str]:
        said.append("count")
        return Counter()

    monkeypatch.setattr(kept, "things_of", counted)
    monkeypatch.setattr(kept, "ROUNDS", (1, 2))
    measure_kept(partial(Noted, LATER, MODELS["full attention"], "builtin"))
    assert said == ["count", "count", "end"] * 2
