"""After every history the engine ends: the connector is shut down, and what that does and leaves is judged."""

import gc
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from kv_sim import violation
from kv_sim.actions import Action, Kind
from kv_sim.checkers import ending
from kv_sim.config import WorldConfig
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import MEMORY, SUBJECTS
from kv_sim.fuzz import replay, run_seed
from kv_sim.growth.models import MODELS
from kv_sim.growth.situations import SITUATIONS
from kv_sim.guard import HistoryEnds
from kv_sim.violation import Invariant, LeftBehind, Referee, Violation
from kv_sim.watching.log import Log
from kv_sim.watching.perfetto import Perfetto
from kv_sim.watching.watch import WatchedWorld
from kv_sim.world import World

ADD = Action(Kind.ADD, {"spec": RequestSpec("r1", 0, 9, 0, 1, 1).to_json()})
TWO_RANKS = WorldConfig(tp_size=2)
ENDS = [("worker 0", "shutdown"), ("worker 1", "shutdown"), ("scheduler", "shutdown")]


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "PATIENCE_SECONDS", 0.05)


@pytest.fixture
def patience(no_patience: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For what ends by itself, as late as a busy machine lets it."""
    monkeypatch.setattr(ending, "PATIENCE_SECONDS", 30.0)


def world(referee: Referee | None = None) -> tuple[World, list[tuple[str, str]]]:
    """One of two ranks, and who is called in it."""
    calls: list[tuple[str, str]] = []
    made = World(TWO_RANKS, MEMORY, referee=referee, observe=lambda call: calls.append((call.side, call.method)))
    return made, calls


def halves(made: World) -> list[Any]:
    """Those of the workers and that of the scheduler."""
    return [connector.side for connector in made.engine.connectors]  # type: ignore[attr-defined]


def raising(text: str, calls: list[str] | None = None) -> Callable[[], None]:
    def shutdown() -> None:
        if calls is not None:
            calls.append(text)
        raise RuntimeError(text)

    return shutdown


def test_workers_are_shut_down_and_then_the_scheduler_and_nothing_is_called_after() -> None:
    made, calls = world()
    made.replay([ADD, Action(Kind.STEP)])
    assert calls[-3:] == ENDS
    assert [call for call in calls if call[1] == "shutdown"] == ENDS


def test_a_run_from_a_seed_ends_too() -> None:
    heard: list[str] = []

    class Heard(World):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs, observe=lambda call: heard.append(call.method))

    assert run_seed(MEMORY, 3, make_world=Heard).failure is None
    assert heard[-1] == "shutdown"


def test_what_shutdown_raises_is_told_with_its_place_and_all_others_are_shut_down() -> None:
    made, _ = world()
    called: list[str] = []
    for index, half in enumerate(halves(made)):
        half.shutdown = raising(f"no {index}", called)
    with pytest.raises(Violation) as raised:
        made.replay([ADD, Action(Kind.STEP)])
    assert raised.value.invariant is Invariant.NO_CRASH
    message = raised.value.message
    assert message.startswith("worker 0 side, shutdown: RuntimeError: no 0 (test_ending.py:")
    assert called == ["no 0", "no 1", "no 2"]


def test_nobody_looks_at_what_shutdown_raises() -> None:
    referee = Referee()
    referee.switched_off.add(Invariant.NO_CRASH)
    made, calls = world(referee)
    halves(made)[1].shutdown = raising("no")
    with pytest.raises(HistoryEnds, match="worker 1 side, shutdown"):
        made.replay([])
    assert calls[-2:] == [ENDS[0], ENDS[2]]


@pytest.mark.parametrize("without", [frozenset(), frozenset({Invariant.NO_CRASH})])
def test_after_a_failure_all_are_shut_down_and_the_failure_is_what_is_told(without: frozenset[Invariant]) -> None:
    referee = Referee()
    referee.switched_off |= without
    made, calls = world(referee)
    called: list[str] = []
    worker, _, scheduler = halves(made)
    scheduler.on_new_request = lambda request: {}["nowhere"]
    worker.shutdown = raising("no", called)
    with pytest.raises(HistoryEnds if without else Violation, match="scheduler side, on_new_request: KeyError"):
        made.replay([ADD])
    assert called == ["no"]
    assert calls[-2:] == ENDS[1:]


def test_after_a_failure_a_mistake_of_the_testbed_is_not_told() -> None:
    made, _ = world()
    worker, _, scheduler = halves(made)
    scheduler.on_new_request = lambda request: {}["nowhere"]
    worker.shutdown = Mock(side_effect=violation.TestbedError("t"))
    with pytest.raises(Violation, match="scheduler side, on_new_request: KeyError"):
        made.replay([ADD])
    worker.shutdown.assert_called_once_with()


def test_watchers_hear_nothing_of_what_comes_after_a_failure() -> None:
    lines: list[str] = []

    class Clumsy(WatchedWorld):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs, watchers=[Log(lines.append)])
            halves(self)[-1].on_new_request = lambda request: {}["nowhere"]

    made, violation = replay(MEMORY, TWO_RANKS, [ADD], make_world=Clumsy)
    assert made is not None
    assert lines[-1] == f"FAIL      {violation}"
    assert not [line for line in lines if "shutdown" in line]


def test_of_a_replay_that_goes_no_further_nothing_is_told_if_nobody_looks() -> None:
    class Clumsy(World):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            halves(self)[-1].on_new_request = lambda request: {}["nowhere"]

    made, violation = replay(MEMORY, TWO_RANKS, [ADD], frozenset({Invariant.NO_CRASH}), make_world=Clumsy)
    assert made is not None
    assert (violation, made.history) == (None, [ADD])


@pytest.mark.parametrize("breaks", [False, True])
def test_the_log_shows_the_end(breaks: bool) -> None:
    lines: list[str] = []

    class Watched(WatchedWorld):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs, watchers=[Log(lines.append)])
            if breaks:
                halves(self)[1].shutdown = raising("no")

    _, violation = replay(MEMORY, TWO_RANKS, [ADD, Action(Kind.STEP)], make_world=Watched)
    sides = ["worker 0", "scheduler"] if breaks else [side for side, _ in ENDS]
    last = f"FAIL      {violation}" if breaks else "at rest: nothing is wrong"
    assert lines[-2 - len(sides) :] == [" end", *(f"     {side:<11} shutdown" for side in sides), last]
    assert (violation is not None) is breaks


def test_the_trace_shows_the_end(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    replay(MEMORY, TWO_RANKS, [ADD], make_world=partial(WatchedWorld, watchers=[Perfetto(file)]))
    names = [event["name"] for event in json.loads(file.read_text())["traceEvents"]]
    assert [name for name in names if "shutdown" in name] == [f"{side} shutdown" for side, _ in ENDS]


def test_a_world_that_growth_is_measured_in_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    observed = partial(World, observe=lambda call: calls.append(call.method))
    monkeypatch.setattr("kv_sim.growth.metered.Unguarded", observed)
    SITUATIONS["a request beside others"].measure(MEMORY, MODELS["full attention"], 2)
    assert calls[-2:] == ["shutdown", "shutdown"]


@pytest.mark.once
def test_a_child_is_shut_down_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A MultiConnector shuts a child down when it switches it off, and leaves it out at the end."""
    subject = SUBJECTS["later+flaky"]
    assert all(run_seed(subject, seed).failure is None for seed in range(12))
    monkeypatch.setattr("kv_multi.quarantine.Quarantine.live", lambda quarantine: iter(quarantine._children))
    found = (run_seed(subject, seed).failure for seed in range(12))
    messages = (failure.violation.message for failure in found if failure is not None)
    assert any("CalledAgain: shutdown is called, although this side was shut down" in m for m in messages)


# -- threads ------------------------------------------------------------------------------------


@pytest.fixture
def stop() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def thread(stop: threading.Event, **how: Any) -> threading.Thread:
    made = threading.Thread(target=stop.wait, args=(5,), **how)
    made.start()
    return made


def end_with(begin: Callable[[], object], referee: Referee | None = None) -> None:
    """A history in which the scheduler's side does this once."""
    made, _ = world(referee)
    scheduler = halves(made)[-1]
    hear = scheduler.on_new_request

    def on_new_request(request: Any) -> None:
        hear(request)
        scheduler.on_new_request = hear
        begin()

    scheduler.on_new_request = on_new_request
    made.replay([ADD])


def test_a_thread_that_still_runs_is_told(stop: threading.Event) -> None:
    with pytest.raises(Violation) as raised:
        end_with(lambda: (thread(stop, name="sender 7"), thread(stop, name="a")))
    assert str(raised.value) == (
        "CONSERVATION  every side was shut down, but these threads still run, and are not daemons: a, sender …"
    )


def test_all_threads_together_get_that_time(stop: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    now, waits = [7.0], list[float]()

    class Slow(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            assert timeout is not None
            waits.append(round(timeout, 6))
            now[0] += 0.03

    def begin() -> None:
        for name in "abc":
            Slow(target=stop.wait, args=(5,), name=name).start()

    monkeypatch.setattr(ending.time, "monotonic", lambda: now[0])
    with pytest.raises(LeftBehind, match=r"are not daemons: a, b, c$"):
        end_with(begin)
    assert waits == [0.05, 0.02, 0]
    waits.clear()
    with pytest.raises(LeftBehind):
        end_with(begin, Referee(patience=0.2))
    assert waits == [0.01, 0, 0]


def test_threads_that_keep_no_process(patience: None, stop: threading.Event) -> None:
    """Daemons; those that end soon; those of a pool, which the interpreter ends; and those that ran before."""
    earlier = thread(stop)
    pool = ThreadPoolExecutor(1)
    end_with(lambda: thread(stop, daemon=True))
    end_with(lambda: pool.submit(stop.wait, 5))
    end_with(lambda: threading.Thread(target=stop.wait, args=(0.01,)).start())
    end_with(lambda: None)
    assert earlier.is_alive()
    stop.set()
    pool.shutdown()


def test_nobody_looks_at_threads(stop: threading.Event) -> None:
    referee = Referee()
    referee.switched_off.add(Invariant.CONSERVATION)
    end_with(lambda: thread(stop), referee)


def test_a_thread_of_a_history_that_failed_is_not_told(stop: threading.Event) -> None:
    def begin() -> None:
        thread(stop)
        raise KeyError("nowhere")

    with pytest.raises(Violation, match="KeyError"):
        end_with(begin)


class Stubborn:
    """Nobody can reach it, and it waits when it is collected."""

    def __init__(self, stop: threading.Event, began: threading.Event, ended: threading.Event) -> None:
        self.itself, self.stop, self.began, self.ended = self, stop, began, ended

    def __del__(self) -> None:
        self.began.set()
        self.stop.wait(20)
        self.ended.set()


def test_after_a_failure_nothing_is_collected_where_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Histories take milliseconds, and collecting takes more."""
    monkeypatch.setattr(ending, "_close_what_nobody_can_reach", lambda: pytest.fail("it has nothing to close"))

    def begin() -> None:
        raise KeyError("nowhere")

    with pytest.raises(Violation, match="KeyError"):
        end_with(begin)


def test_what_a_failure_left_open_is_closed_again_before_the_next_history(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What held it at that time, such as the error itself, is gone by then."""
    collected, kept = list[object](), []
    monkeypatch.setattr(ending, "_close_what_nobody_can_reach", lambda: collected.append(None))

    def begin() -> None:
        kept.append((tmp_path / "left").open("w"))
        raise KeyError("nowhere")

    with pytest.raises(Violation, match="KeyError"):
        end_with(begin)
    kept.pop().close()
    for _ in range(2):
        ending.Ending()
        assert len(collected) == 2, "once when it failed, and once before the next"


def test_who_collects_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    collected = list[object]()

    def collect() -> None:
        threading.Event().wait(0.05)
        collected.append(None)

    monkeypatch.setattr(gc, "collect", collect)
    ending._close_what_nobody_can_reach()
    assert collected == [None]


@pytest.mark.parametrize("fails", [False, True])
def test_what_waits_for_ever_when_it_is_collected_keeps_nobody(
    stop: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(ending, "COLLECTING_SECONDS", 0.1)
    began, ended, kept, before = threading.Event(), threading.Event(), [], threading.enumerate()

    def begin() -> None:
        kept.append((tmp_path / f"{len(kept)}").open("w"))
        Stubborn(stop, began, ended)
        if fails:
            raise KeyError("nowhere")

    gc.disable()  # or Python collects it in this thread, whenever it likes
    try:
        with pytest.raises(Violation, match="KeyError") if fails else nullcontext():
            end_with(begin)
    finally:
        gc.enable()
    assert not ended.is_set()
    assert began.wait(30)
    for file in kept:
        file.close()
    stop.set()
    for collecting in [thread for thread in threading.enumerate() if thread not in before]:
        assert collecting.daemon, "or it would keep the process as well"
        collecting.join(30)  # while one collects, another one that is asked to does nothing
        assert not collecting.is_alive()
