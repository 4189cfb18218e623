"""What a connector has open when all of it was shut down is told, and nothing that others opened. Linux only."""

import gc
import os
import socket
import subprocess
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from kv_api import TwoSidedHMAConnector
from kv_sim.actions import Action, Kind
from kv_sim.checkers import ending, left_open
from kv_sim.checkers.left_open import Holdings
from kv_sim.config import WorldConfig
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.memory import MemoryScheduler, MemoryWorker
from kv_sim.fuzz import replay
from kv_sim.subject import Subject
from kv_sim.violation import Invariant, LeftBehind, Violation
from kv_sim.world import World

HISTORY = [Action(Kind.ADD, {"spec": RequestSpec("r1", 0, 9, 0, 1, 1).to_json()}), Action(Kind.STEP)]
SAID = "every side was shut down, but these are still open: "


class OpeningScheduler(MemoryScheduler):
    """Does something when it hears of a request, and when it ends."""

    opens: Callable[[Any], object]
    closes: Callable[[Any], object] | None

    def on_new_request(self, request: Any) -> None:
        super().on_new_request(request)
        OpeningScheduler.opens(self)

    def shutdown(self) -> None:
        super().shutdown()
        if OpeningScheduler.closes is not None:
            OpeningScheduler.closes(self)


class Opening(TwoSidedHMAConnector):
    scheduler_class = OpeningScheduler
    worker_class = MemoryWorker


SUBJECT = Subject("Opening", __name__, traits=frozenset())


def left(
    opens: Callable[[Any], object], closes: Callable[[Any], object] | None = None, *without: Invariant
) -> str | None:
    """What is told of a history in which a connector does that."""
    OpeningScheduler.opens, OpeningScheduler.closes = opens, closes  # type: ignore[method-assign, assignment]
    _, violation = replay(SUBJECT, WorldConfig(), HISTORY, frozenset(without))
    if violation is None:
        return None
    assert violation.invariant is Invariant.CONSERVATION
    return violation.message


def keep(owner: Any, *numbers: int) -> None:
    """They are open until their owner is no more."""
    for number in numbers:
        weakref.finalize(owner, os.close, number)


def opener(make: Callable[[], int]) -> Callable[[Any], None]:
    return lambda owner: keep(owner, make())


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "PATIENCE_SECONDS", 0.2)


@pytest.fixture
def patience(little_patience: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For what ends by itself, as late as a busy machine lets it."""
    monkeypatch.setattr(ending, "PATIENCE_SECONDS", 30.0)


def test_what_it_leaves_open_is_named(tmp_path: Path) -> None:
    assert left(opener(lambda: socket.socket().detach())) == f"{SAID}socket:[…]"
    assert left(lambda owner: keep(owner, *os.pipe())) == f"{SAID}pipe:[…] (2 times)"
    file = tmp_path / "log 12"
    file.touch()
    assert left(opener(lambda: os.open(file, os.O_RDONLY))) == f"{SAID}{file}"
    assert left(lambda owner: keep(owner, os.open(file, os.O_RDONLY), *os.pipe())) == (
        f"{SAID}{file}, pipe:[…] (2 times)"
    )


def test_what_it_closes_is_not() -> None:
    def opens(owner: Any) -> None:
        owner.wire = socket.socket()

    assert left(opens, lambda owner: owner.wire.close()) is None
    assert left(lambda owner: socket.socket().close()) is None


def test_what_nobody_can_reach_any_more_is_not() -> None:
    """Its owner holds itself, so Python lets it go when it looks for such circles."""

    def opens(owner: Any) -> None:
        circle: Any = Event()
        circle.itself = circle
        keep(circle, socket.socket().detach())

    gc.disable()
    try:
        assert left(opens) is None
    finally:
        gc.enable()


class Held:
    """Open until nobody knows of it any more."""

    def __init__(self, file: Path) -> None:
        self._number = os.open(file, os.O_CREAT | os.O_WRONLY)

    def __del__(self) -> None:
        os.close(self._number)


def test_what_a_history_left_is_closed_before_the_next_one(tmp_path: Path) -> None:
    """Else what many histories leave adds up, where nobody is told of it."""
    made: list[weakref.ref[Held]] = []

    def opens(side: Any) -> None:
        side.held, side.itself = Held(tmp_path / "a"), side
        made.append(weakref.ref(side.held))

    gc.collect()
    gc.disable()
    try:
        assert left(opens, None, Invariant.CONSERVATION) is None
        assert made[0]() is not None
        World(WorldConfig(), SUBJECT)
        assert made[0]() is None
    finally:
        gc.enable()


def test_nobody_waits_where_nothing_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending.time, "sleep", lambda seconds: pytest.fail("nobody is there who could close it"))
    assert left(opener(lambda: socket.socket().detach())) == f"{SAID}socket:[…]"


def test_nobody_waits_for_who_goes_on_when_nothing_is_left(stop: Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was left is closed when it is collected; the thread has nothing to do with it."""

    def opens(owner: Any) -> None:
        circle: Any = Event()
        circle.itself = circle
        keep(circle, socket.socket().detach())
        Thread(target=stop.wait, daemon=True).start()

    monkeypatch.setattr(ending.time, "sleep", lambda seconds: pytest.fail("there is nothing to wait for"))
    gc.disable()
    try:
        assert left(opens) is None
    finally:
        gc.enable()


def test_nobody_looks() -> None:
    """Nor is the history taken again."""
    opened: list[Any] = []

    def opens(owner: Any) -> None:
        opened.append(owner)
        keep(owner, socket.socket().detach())

    assert left(opens, None, Invariant.CONSERVATION) is None
    assert len(opened) == 1


def test_another_behind_the_same_number(tmp_path: Path) -> None:
    """It closes one that isn't its own, and the next to be opened gets its number."""
    number = os.open(tmp_path, os.O_RDONLY)
    try:
        assert left(lambda owner: os.dup2(os.open(os.devnull, os.O_RDONLY), number) and None) is not None
    finally:
        os.close(number)


@pytest.fixture
def once() -> Iterator[list[int]]:
    opened: list[int] = []
    yield opened
    for number in opened:
        os.close(number)


def test_what_a_library_opens_when_it_is_first_needed(once: list[int]) -> None:
    """It stays open, and the next history finds it so."""

    def opens(owner: Any) -> None:
        if not once:
            once.extend(os.pipe())

    assert left(opens) is None
    assert len(once) == 2


def test_beside_it_what_comes_again_is_told(once: list[int]) -> None:
    def opens(owner: Any) -> None:
        if not once:
            once.extend(os.pipe())
        keep(owner, socket.socket().detach())

    assert left(opens) == f"{SAID}socket:[…]"


class AtTheEnd(OpeningScheduler):
    """Leaves something open when a request has ended, and may answer wrongly before."""

    answer: tuple[int, bool] = 0, False

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        return self.answer

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        keep(self, socket.socket().detach())
        return False, None

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, [])


@pytest.mark.parametrize(("answer", "without"), [((0, False), []), ((0, True), [Invariant.PROTOCOL])])
def test_what_comes_again_comes_to_rest_again_and_the_same_is_looked_at(
    answer: tuple[int, bool], without: list[Invariant], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Opening, "scheduler_class", AtTheEnd)
    monkeypatch.setattr(AtTheEnd, "answer", answer)
    OpeningScheduler.opens, OpeningScheduler.closes = (lambda owner: None), None  # type: ignore[method-assign, assignment]
    [arrives, _] = HISTORY
    _, violation = replay(SUBJECT, WorldConfig(), [arrives], frozenset(without))
    assert violation is not None and violation.message == f"{SAID}socket:[…]"


@pytest.mark.parametrize("is_reached", [True, False])
def test_who_can_be_made_only_once_because_of_it(is_reached: bool) -> None:
    """What it listens on is still taken when the history is to come again; not if nobody can reach it any more."""

    class Listening(OpeningScheduler):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            circle: Any = Event()
            circle.itself = circle
            with socket.socket() as wire:
                wire.bind(("127.0.0.1", port))
                keep(self if is_reached else circle, wire.detach())

    free = socket.socket()
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
    free.close()
    Opening.scheduler_class = Listening
    gc.disable()
    try:
        assert left(lambda owner: None) == (f"{SAID}socket:[…]" if is_reached else None)
    finally:
        gc.enable()
        Opening.scheduler_class = OpeningScheduler


def test_who_goes_on_is_waited_for_between_two_looks(stop: Event, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Thread] = []

    def opens(owner: Any) -> None:
        wire = socket.socket()
        begun.append(Thread(target=lambda: stop.wait(30) and wire.close(), daemon=True))
        begun[-1].start()

    def sleep(seconds: float) -> None:
        assert seconds == 0.2 / ending.LOOKS
        stop.set()
        begun[-1].join()

    monkeypatch.setattr(ending.time, "sleep", sleep)
    assert left(opens) is None
    assert len(begun) == 1


@pytest.mark.parametrize("patience", [1, 0.1])
def test_who_never_ends_is_looked_at_so_often_and_less_often_in_a_hurry(
    stop: Event, patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this history, and in the same one again."""

    def opens(owner: Any) -> None:
        keep(owner, socket.socket().detach())
        Thread(target=stop.wait, args=(30,), daemon=True).start()

    OpeningScheduler.opens, OpeningScheduler.closes = opens, None  # type: ignore[method-assign, assignment]
    sleeps: list[float] = []
    monkeypatch.setattr(ending.time, "sleep", sleeps.append)
    _, violation = replay(SUBJECT, WorldConfig(), HISTORY, patience=patience)
    assert isinstance(violation, LeftBehind)
    assert sleeps == [0.2 / ending.LOOKS] * round(2 * ending.LOOKS * patience)


def test_a_thread_that_ends_soon_closes_what_it_has(patience: None, stop: Event) -> None:
    """A daemon that was told to end."""

    def opens(owner: Any) -> None:
        wire = socket.socket()

        def serve() -> None:
            stop.wait(0.03)
            wire.close()

        Thread(target=serve, daemon=True).start()

    assert left(opens) is None


@pytest.fixture
def stop() -> Iterator[Event]:
    event = Event()
    yield event
    event.set()


def test_a_process_that_goes_on() -> None:
    begun: list[subprocess.Popen[bytes]] = []
    try:
        assert left(lambda owner: begun.append(subprocess.Popen(["sleep", "30"]))) == f"{SAID}process sleep"
        assert len(begun) == 2
    finally:
        for process in begun:
            process.kill()
            process.wait()


def test_processes_that_end_soon_or_that_nobody_has_waited_for(patience: None) -> None:
    begun: list[subprocess.Popen[bytes]] = []
    assert left(lambda owner: begun.append(subprocess.Popen(["sleep", "0.05"]))) is None
    for process in begun:
        process.wait()


@pytest.fixture
def segments() -> Iterator[list[SharedMemory]]:
    made: list[SharedMemory] = []
    yield made
    for segment in made:
        segment.close()
        segment.unlink()


def test_shared_memory_that_it_leaves(segments: list[SharedMemory]) -> None:
    """Closed or not, it takes room until it is removed. What Python begins for its sake comes once."""

    def opens(owner: Any) -> None:
        segments.append(SharedMemory(create=True, size=64))

    def closes(owner: Any) -> None:
        segments[-1].close()

    assert left(opens, closes) == f"{SAID}/dev/shm/{segments[1].name}"
    assert left(opens) == f"{SAID}/dev/shm/{segments[3].name} (2 times)", "as a file and as memory"
    assert left(opens, closes) == f"{SAID}/dev/shm/{segments[5].name}", "also where nothing else is left at first"


def test_shared_memory_that_it_removes() -> None:
    def opens(owner: Any) -> None:
        owner.memory = SharedMemory(create=True, size=64)

    def closes(owner: Any) -> None:
        owner.memory.close()
        owner.memory.unlink()

    assert left(opens, closes) is None


def test_shared_memory_of_others() -> None:
    """It came up meanwhile; who made it has it in use, or has left it. Nobody can tell whose it is."""
    before = Holdings.now()
    file = left_open.SHARED_MEMORY / f"kv-sim-{os.getpid()}"
    with file.open("w") as opened:
        (made,) = Holdings.now().segments_since(before)
        assert made[0] == file.name
        with subprocess.Popen(["sleep", "30"], stdin=opened) as other:
            assert Holdings.now().segments_since(before) == set()
            other.kill()
    try:
        assert Holdings.now().segments_since(before) == set()
        assert dict(Holdings.now().since(before)) == {}
        assert dict(Holdings.now().since(before, {made})) == {str(file): 1}
    finally:
        file.unlink()
    assert dict(Holdings.now().since(before, {made})) == {}


def test_where_nothing_can_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """On anything but Linux."""
    for name in ("DESCRIPTORS", "TASKS", "PROCESSES", "SHARED_MEMORY"):
        monkeypatch.setattr(left_open, name, Path("/nowhere"))
    assert Holdings.now() == Holdings(frozenset(), frozenset(), frozenset())
    assert left(lambda owner: keep(owner, *os.pipe())) is None


@pytest.mark.once
def test_a_history_that_was_not_applied_can_not_come_again() -> None:
    """Who drives an engine by hand is told of nothing: the world knows of no history."""
    OpeningScheduler.opens, OpeningScheduler.closes = lambda owner: keep(owner, *os.pipe()), None  # type: ignore[method-assign, assignment]
    made = World(WorldConfig(), SUBJECT)
    made.engine.add(RequestSpec("r1", 0, 9, 0, 1, 1))
    made.rest()
    made.end()
    made = World(WorldConfig(), SUBJECT)
    with pytest.raises(Violation, match="still open: pipe"):
        made.replay(HISTORY)
