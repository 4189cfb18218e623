"""``Lanes``: runs tasks that talk to other workers, with a lane for each worker, so that none blocks the others.

A worker that is gone, or that hangs, doesn't answer, and a task there waits until its time is over. So at most
``LANE_THREADS`` of all threads are busy with one worker at once. Its other tasks wait in its lane, and after each
turn a lane queues up again behind the other lanes.

**Invariants** (``check``): each lane has at least one turn that is queued or running, and at most
``LANE_THREADS``.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from kv_p2p.pulling.ticket import Address

LANE_THREADS: Final = 4
MOST_THREADS: Final = 64
"""Threads of all lanes; divided by ``LANE_THREADS``, the workers that may hang before they block the others."""

Task: TypeAlias = Callable[[], None]


@dataclass
class _Lane:
    """The tasks for one other worker."""

    waiting: deque[Task] = field(default_factory=deque)
    turns: int = 0
    """Turns of the lane that are queued or running."""


class Lanes:
    """The threads of one worker, and their tasks."""

    def __init__(self, name: str) -> None:
        self._threads = ThreadPoolExecutor(MOST_THREADS, name)
        self._lock = threading.Lock()
        self._lanes: dict[Address, _Lane] = {}
        self._is_closed = False

    def add(self, place: Address, task: Task) -> None:
        """Run a task soon, after the earlier ones of this place."""
        with self._lock:
            if self._is_closed:
                return
            lane = self._lanes.setdefault(place, _Lane())
            lane.waiting.append(task)
            if lane.turns < LANE_THREADS:
                lane.turns += 1
                self._threads.submit(self._take_turn, place, lane)

    def length(self, place: Address) -> int:
        """How many tasks of a place wait."""
        with self._lock:
            lane = self._lanes.get(place)
            return len(lane.waiting) if lane is not None else 0

    def _take_turn(self, place: Address, lane: _Lane) -> None:
        """In a thread: run the next task of a lane."""
        with self._lock:
            task = lane.waiting.popleft() if lane.waiting else None
        try:
            if task is not None:
                task()
        finally:
            with self._lock:
                if lane.waiting and not self._is_closed:
                    self._threads.submit(self._take_turn, place, lane)
                else:
                    lane.turns -= 1
                    if not lane.turns and not self._is_closed:
                        del self._lanes[place]

    def stop(self) -> None:
        """Begin no more tasks. May be repeated."""
        with self._lock:
            self._is_closed = True
            self._lanes.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def join(self) -> None:
        """Return when the tasks that have begun have ended."""
        self._threads.shutdown()

    def check(self) -> None:
        """Recount."""
        with self._lock:
            for place, lane in self._lanes.items():
                assert 0 < lane.turns <= LANE_THREADS, f"{place} has {lane.turns} turns"
