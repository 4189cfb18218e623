"""The guard: what it forwards and writes down, what it makes of what a connector raises, who judges."""

import bdb
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from kv_sim_notes import Notes

from kv_api import (
    AllBlocksCleared,
    CacheHitSource,
    ConfigError,
    Direction,
    KVConnectorBase_V1,
    KVConnectorRole,
    KVConnectorStats,
)
from kv_sim import violation as testbed
from kv_sim.checkers.accounting import BYTES
from kv_sim.checkers.served import Served
from kv_sim.checkers.work import MOST_RETRIES
from kv_sim.config import WorldConfig
from kv_sim.engine.request import SimRequest
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.engine.settings import kv_cache_config, vllm_config
from kv_sim.examples.memory import MemoryConnector, MemoryWorker
from kv_sim.guard import Guard, HistoryEnds, NotCreated, crash, crashes, create
from kv_sim.memory.kv_cache import KVCache
from kv_sim.offload.host_memory import WorldCPUOffloadingSpec
from kv_sim.subject import Subject
from kv_sim.violation import CalledAgain, DidNotReturn, Invariant, Referee, TookTooLong, Violation

REQUEST = SimRequest(RequestSpec("r1", 0, 9, 0, 1, 1), 4, 0)


class Stats(KVConnectorStats):
    def reduce(self) -> dict[str, Any]:
        return dict(self.data)

    def is_empty(self) -> bool:
        return False

    def aggregate(self, other: KVConnectorStats) -> "Stats":
        return Stats({**self.data, **other.data})


class Scripted:
    """Answers, or raises, what it is told to."""

    requires_kv_delivery = True
    answer: Any = None
    raises: BaseException | None = None

    heard: tuple[Any, ...] = ()

    def reply(self, *args: Any, **kwargs: Any) -> Any:
        self.heard = *args, *kwargs.items()
        if self.raises is not None:
            raise self.raises
        return self.answer

    get_num_new_matched_tokens = get_external_cache_hit_sources = get_kv_connector_stats = reply
    take_events = wait_for_save = request_finished_all_groups = start_load_kv = has_connector_metadata = hidden = (
        _hidden
    ) = reply

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any]) -> Stats:
        return Stats({"seen": data["seen"]})


def guarded(referee: Referee | None = None) -> tuple[Scripted, Guard, list[Any]]:
    connector, calls = Scripted(), []
    served = Served(Notes(), 4, is_on=True)
    guard: Any = Guard(
        connector,  # type: ignore[arg-type]
        "scheduler",
        referee or Notes(),
        lambda *call: calls.append(call),
        served,
    )
    return connector, guard, calls


def test_calls_are_forwarded_and_written_down() -> None:
    connector, guard, calls = guarded()
    connector.answer = ended = (True, None)
    for name in ("wait_for_save", "request_finished_all_groups", "wait_for_save"):
        assert getattr(guard, name)(1, 2) is ended
        assert connector.heard == (1, 2)
    assert guard.start_load_kv(3, more=4) is ended
    assert connector.heard == (3, ("more", 4))
    assert calls == [
        ("scheduler", "wait_for_save", (1, 2), ended),
        ("scheduler", "request_finished_all_groups", (1, 2), ended),
        ("scheduler", "wait_for_save", (1, 2), ended),
        ("scheduler", "start_load_kv", (3,), ended),
    ]
    assert guard.requires_kv_delivery is True


@pytest.mark.parametrize("name", ["hidden", "_hidden", "_get_connector_metadata", "take_eventss"])
def test_what_is_no_method_of_a_connector_is_none_of_the_guards(name: str) -> None:
    assert name != "_get_connector_metadata" or hasattr(KVConnectorBase_V1, name)
    _, guard, _ = guarded()
    with pytest.raises(AttributeError, match=f"^{name}$"):
        getattr(guard, name)


@pytest.mark.parametrize("error", [RuntimeError("no"), CalledAgain("no"), SystemExit("no"), DidNotReturn("no")])
@pytest.mark.parametrize("is_silent", [False, True])
def test_what_a_connector_raises_is_a_violation_or_the_end(error: BaseException, is_silent: bool) -> None:
    referee = Referee()
    if is_silent:
        referee.switched_off.add(Invariant.NO_CRASH)
    connector, guard, calls = guarded(referee)
    connector.raises = error
    kind = HistoryEnds if is_silent else Violation
    where = rf"scheduler side, take_events: {type(error).__name__}: no \(test_guard.py:\d+ in Scripted.reply\)$"
    with pytest.raises(kind, match=where) as caught:
        guard.take_events()
    assert caught.value.__cause__ is error
    assert calls == []
    with (
        pytest.raises(kind, match=rf"joined: {type(error).__name__}: no \(test_guard.py:\d+ in ") as caught,
        crashes(referee, "joined"),
    ):
        raise error
    assert caught.value.__cause__ is error
    if not is_silent:
        assert caught.value.invariant is Invariant.NO_CRASH  # type: ignore[union-attr]
        # A history of a call that never ended isn't shrunk: each try would take as long.
        assert isinstance(caught.value, TookTooLong) == isinstance(error, DidNotReturn)


@pytest.mark.parametrize("is_silent", [False, True])
@pytest.mark.parametrize("yields", [False, True])
@pytest.mark.parametrize("name", ["start_load_kv", "get_num_new_matched_tokens"])
def test_what_is_async_is_told_so_and_never_run(name: str, yields: bool, is_silent: bool) -> None:
    async def reply() -> None:
        raise AssertionError

    async def reply_in_parts() -> AsyncIterator[None]:
        raise AssertionError
        yield

    referee = Referee()
    if is_silent:
        referee.switched_off.add(Invariant.PROTOCOL)
    connector, guard, _ = guarded(referee)
    connector.answer = reply_in_parts() if yields else reply()
    said = f"scheduler side, {name} answered a coroutine, which isn't awaited: write it without async"
    with pytest.raises(HistoryEnds if is_silent else Violation, match=f"{said}$"):
        getattr(guard, name)(REQUEST, 0)


@pytest.mark.parametrize("name", ["start_load_kv", "get_num_new_matched_tokens", "wait_for_save"])
def test_what_has_a_yield_is_told_that_nothing_of_it_has_run(name: str) -> None:
    connector, guard, _ = guarded(Referee())
    connector.answer = (number for number in (1, 2))
    said = f"scheduler side, {name} answered a generator, and nothing of it has run: write it without yield"
    with pytest.raises(Violation, match=f"{said}$"):
        getattr(guard, name)(REQUEST, 0)


def test_events_may_come_from_a_generator() -> None:
    connector, guard, calls = guarded(Referee())
    connector.answer = (event for event in (AllBlocksCleared(),))
    assert guard.take_events() == [AllBlocksCleared()]
    assert calls == [("scheduler", "take_events", (), [AllBlocksCleared()])]


def test_a_generator_of_events_may_raise_and_it_is_the_connectors_fault() -> None:
    connector, guard, calls = guarded(Referee())
    connector.answer = (1 // number for number in (1, 0))
    with pytest.raises(
        Violation, match="scheduler side, the events of take_events: ZeroDivisionError: "
    ) as caught:
        guard.take_events()
    assert (caught.value.invariant, calls) == (Invariant.NO_CRASH, [])


def test_a_method_that_does_not_take_what_it_is_given_is_told_with_its_own_line() -> None:
    class Short(MemoryWorker):
        def save_kv_layer(self, layer_name: str) -> None:  # type: ignore[override]
            """Takes one of three."""

    class Within(MemoryWorker):
        def save_kv_layer(self, *args: Any, **kwargs: Any) -> None:
            len(*args)

    def told(side: type[MemoryWorker], *args: Any) -> str:
        class Connector(MemoryConnector):
            worker_class = side

        world = WorldConfig()
        config = vllm_config(world, Subject("MemoryConnector", MemoryConnector.__module__), 0)
        made = Connector(config, KVConnectorRole.WORKER, kv_cache_config(world))
        with pytest.raises(Violation, match="NO-CRASH  worker side, save_kv_layer: TypeError: ") as caught:
            Guard(made, "worker", Referee(), lambda *call: None).save_kv_layer(*args)
        return str(caught.value)

    line = Short.save_kv_layer.__code__.co_firstlineno
    assert told(Short, "a", 0, 0).endswith(f" were given (test_guard.py:{line}, where it is defined)")
    line = Within.save_kv_layer.__code__.co_firstlineno + 1
    assert f"(test_guard.py:{line} in " in told(Within, 1, 2, 3)


def test_a_property_that_raises_is_the_connectors_fault() -> None:
    class Careless(MemoryConnector):
        def __init__(self, *args: Any) -> None:
            """Calls nobody."""

        @property
        def requires_kv_delivery(self) -> bool:
            return self._kv_transfer_config.is_kv_producer

    guard = Guard(Careless(), "scheduler", Referee(), lambda *call: None)
    says = "scheduler side, requires_kv_delivery: AttributeError: .*; its constructor has to call super"
    with pytest.raises(Violation, match=says):
        _ = guard.requires_kv_delivery


def test_who_has_not_called_the_constructor_of_its_base_is_told_so() -> None:
    class Careless(MemoryConnector):
        def __init__(self, *args: Any) -> None:
            """Calls nobody."""

    class CarelessWorker(MemoryWorker):
        def __init__(self, *args: Any) -> None:
            """Calls nobody."""

    world, subject = WorldConfig(), Subject("MemoryConnector", MemoryConnector.__module__)
    config, role = vllm_config(world, subject, 0), KVConnectorRole.WORKER
    made = create(config, role, kv_cache_config(world), Referee())
    careless, side = Careless(), CarelessWorker()
    told = [raised(careless, name) for name in vars(made)] + [raised(side, "_vllm_config")]
    for error in told:
        assert error.endswith("; its constructor has to call super().__init__"), error
    assert len(told) == 7
    spec = object.__new__(WorldCPUOffloadingSpec)
    assert raised(spec, "blocks_per_chunk").endswith("; its constructor has to call super().__init__")
    assert raised(careless, "of_its_own").endswith("raised)")


def raised(owner: object, name: str) -> str:
    """What is told of an attribute that is missing."""
    try:
        getattr(owner, name)
    except AttributeError as error:
        return str(crash(Referee(), "told", error))
    raise AssertionError(name)


def test_who_misses_an_attribute_is_told_what_there_is() -> None:
    layer = np.zeros((2, 4), np.uint64).view(KVCache)
    config = vllm_config(WorldConfig(), Subject("c"))
    for owner, said in (
        (REQUEST, "; kv_api.engine says what there is"),
        (config, "; here it has: cache_config, "),
        (layer, "; a layer here is a numpy array with read(block), write(block, page) and device"),
        (Scripted(), ""),
    ):
        with pytest.raises(Violation) as caught, crashes(Referee(), "c"):
            _ = owner.nothing
        assert said in caught.value.message
        assert caught.value.message.endswith(")") == (owner.__class__ is Scripted)


@pytest.mark.parametrize(
    "error", [Violation(Invariant.WORK, "w"), HistoryEnds("h"), testbed.TestbedError("t"), KeyboardInterrupt("k")]
)
def test_what_the_testbed_raises_is_passed_on(error: BaseException) -> None:
    connector, guard, _ = guarded()
    connector.raises = error
    for name in ("take_events", "get_kv_connector_stats"):
        with pytest.raises(type(error)) as caught:
            getattr(guard, name)()
        assert caught.value is error
    with pytest.raises(type(error)) as caught, crashes(Referee(), "joined"):
        raise error
    assert caught.value is error


def test_a_match_is_judged_and_a_legal_answer_passed_on() -> None:
    notes = Notes()
    connector, guard, calls = guarded(notes)
    served: Any = guard._served
    for answer, legal in (((4, True), (4, True)), ((9, False), (0, False)), ((None, False), (None, False))):
        connector.answer = answer
        assert guard.get_num_new_matched_tokens(REQUEST, 4) == legal
        assert calls.pop() == ("scheduler", "get_num_new_matched_tokens", (REQUEST, 4), answer)
        assert served.found == {"r1": 4 + (legal[0] or 0)}
    assert [told.split("  ")[0] for told in notes.take()] == ["PROTOCOL"]
    assert [told.split("  ")[0] for told in served._referee.take()] == ["HITS"]
    for _ in range(MOST_RETRIES):
        guard.get_num_new_matched_tokens(REQUEST, 4)
    assert [told.split("  ")[0] for told in notes.take()] == ["WORK"]
    worker = Guard(connector, "worker 0", notes, lambda *call: None)  # type: ignore[arg-type]
    assert worker.get_num_new_matched_tokens(REQUEST, 0) == (None, False)


def test_sources_and_stats_are_judged() -> None:
    notes = Notes()
    connector, guard, calls = guarded(notes)
    connector.answer = {CacheHitSource.HOST: 4}
    assert guard.get_external_cache_hit_sources(REQUEST, 8) is connector.answer
    assert notes.take() == [
        "ACCOUNTING  request r1: 8 tokens are loaded, but get_external_cache_hit_sources answered {'host': 4}"
    ]
    for stats, told in (
        (None, []),
        (Stats({"seen": 1}), []),
        (
            Stats({"seen": 1, "lost": 2}),
            [
                "ACCOUNTING  stats {'seen': 1, 'lost': 2} become {'seen': 1} by to_dict and "
                "build_kv_connector_stats"
            ],
        ),
    ):
        connector.answer = stats
        assert guard.get_kv_connector_stats() is stats
        assert notes.take() == told
    connector.answer = Stats({})
    with pytest.raises(Violation, match=r"scheduler side, what its stats say: KeyError: 'seen' \(test_guard.py"):
        guard.get_kv_connector_stats()
    assert [call[1] for call in calls] == ["get_external_cache_hit_sources"] + ["get_kv_connector_stats"] * 4


class Whole(Scripted):
    """Its stats arrive as they were sent, but added up only the last ones are there."""

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any]) -> Stats:
        return Stats(data)


def test_the_stats_of_several_steps_are_added_up() -> None:
    notes, connector = Notes(), Whole()
    guard = Guard(connector, "scheduler", notes, lambda *call: None)  # type: ignore[arg-type]
    [loaded, _] = BYTES[Direction.LOAD]
    for count, told in ((3, 0), (4, 1)):
        connector.answer = Stats({loaded: count})
        guard.get_kv_connector_stats()
        assert len(notes.told) == told
    assert f"{loaded} adds up to 7 in the stats of 2 steps" in notes.told[0]


class Nothing(Stats):
    def is_empty(self) -> bool:
        return True


def test_an_engine_adds_no_stats_that_say_nothing() -> None:
    class Proud(Stats):
        def aggregate(self, other: KVConnectorStats) -> Stats:
            raise ValueError(other)

    notes = Notes()
    _, guard, _ = guarded(notes)
    counted = Proud({"seen": 1})
    for more in (None, Nothing({})):
        guard.add_stats(counted, more)
    guard.add_stats(None, Stats({"seen": 1}))
    with pytest.raises(Violation, match="what the workers and the scheduler's side counted, added up: ValueError"):
        guard.add_stats(counted, Stats({"seen": 1}))


# -- who can't be created -----------------------------------------------------------------------


class Unborn(MemoryConnector):
    raises: BaseException

    def __init__(self, *args: Any) -> None:
        raise self.raises


@pytest.mark.parametrize("role", [KVConnectorRole.WORKER, KVConnectorRole.SCHEDULER])
@pytest.mark.parametrize("is_silent", [False, True])
def test_a_constructor_that_raises(
    role: KVConnectorRole, is_silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is a violation, or the end; but a configuration that it refuses is none."""
    world, referee = WorldConfig(), Referee()
    if is_silent:
        referee.switched_off.add(Invariant.NO_CRASH)
    config = vllm_config(world, Subject("Unborn", __name__), 0)

    def born() -> Any:
        return create(config, role, kv_cache_config(world), referee)

    for error in (ConfigError("c"), Violation(Invariant.WORK, "w"), testbed.TestbedError("t")):
        monkeypatch.setattr(Unborn, "raises", error, raising=False)
        with pytest.raises(type(error)) as caught:
            born()
        assert caught.value is error
    for kind in (RuntimeError, SystemExit, DidNotReturn):
        monkeypatch.setattr(Unborn, "raises", kind("no"))
        where = rf"{role.name.lower()} side: {kind.__name__}: no \(test_guard.py:\d+ in Unborn.__init__\)$"
        with pytest.raises(HistoryEnds if is_silent else NotCreated, match=where) as unborn:
            born()
        assert isinstance(unborn.value.__cause__, kind)
        assert is_silent or unborn.value.invariant is Invariant.NO_CRASH  # type: ignore[union-attr]


def test_who_quits_a_debugger_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever in a connector that is: nothing is told of it."""
    with pytest.raises(KeyboardInterrupt), crashes(Referee(), "a call"):
        raise bdb.BdbQuit
    connector, guard, _ = guarded()
    connector.raises = bdb.BdbQuit()
    for name in ("take_events", "has_connector_metadata"):
        with pytest.raises(KeyboardInterrupt):
            getattr(guard, name)()
    monkeypatch.setattr(Unborn, "raises", bdb.BdbQuit(), raising=False)
    world = WorldConfig()
    config = vllm_config(world, Subject("Unborn", __name__), 0)
    with pytest.raises(KeyboardInterrupt):
        create(config, KVConnectorRole.WORKER, kv_cache_config(world), Referee())


@pytest.mark.parametrize("raises", [None, RuntimeError("another")])
def test_what_it_broke_and_kept_to_itself_is_told(raises: Exception | None) -> None:
    """Who takes every exception for one of its store's gets that of a copy that isn't allowed, too."""
    referee = Referee()
    connector, guard, calls = guarded(referee)

    def copies(*args: Any) -> None:
        try:
            referee.fail(Invariant.OWNERSHIP, "a block is somebody else's")
        except Exception:  # noqa: BLE001 - as such a connector does
            if raises is not None:
                raise raises from None

    connector.start_load_kv = copies  # type: ignore[method-assign]
    with pytest.raises(Violation, match="a block is somebody else's") as found:
        guard.start_load_kv(None)
    assert found.value.invariant is Invariant.OWNERSHIP
    assert calls == []
    guard.wait_for_save()
    assert calls == [("scheduler", "wait_for_save", (), None)]


def test_an_object_in_the_text_of_an_error_is_told_without_its_address() -> None:
    with pytest.raises(Violation) as caught, crashes(Referee(), "a call"):
        raise KeyError(object())
    assert caught.value.message.startswith("a call: KeyError: <object object> (test_guard.py:")


def test_a_crash_in_a_library_names_who_called_it() -> None:
    with pytest.raises(Violation) as raised, crashes(Referee(), "a call"):
        json.loads("{")
    assert "decoder.py:" in str(raised.value)
    assert ", called at test_guard.py:" in str(raised.value)


def reads(text: str) -> Any:
    return json.loads(text)


def test_of_several_callers_the_last_one_is_named() -> None:
    with pytest.raises(Violation) as raised, crashes(Referee(), "a call"):
        reads("{")
    assert re.search(r", called at test_guard.py:\d+ in reads\)$", str(raised.value))
