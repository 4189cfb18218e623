"""``Lanes``: what is to be said to other workers, to each in a lane of its own, so that none holds up the others.

A worker that is gone, or that hangs, answers nobody, and each who asks it waits until the time is over. So of all
threads no more than ``LANE_THREADS`` are with one place at once. What else is to be done there waits in its lane,
and after each turn a lane queues up again behind the others.

**Invariants** (``check``): a lane that is there has a turn that is queued or runs, and no more than it may have.
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
"""So many places that don't answer, over ``LANE_THREADS``, don't yet hold up the others."""

Task: TypeAlias = Callable[[], None]


@dataclass
class _Lane:
    """What is to be done at one place."""

    waiting: deque[Task] = field(default_factory=deque)
    turns: int = 0
    """That are queued or running."""


class Lanes:
    """The threads of one worker, and what they are to do."""

    def __init__(self, name: str) -> None:
        self._threads = ThreadPoolExecutor(MOST_THREADS, name)
        self._lock = threading.Lock()
        self._lanes: dict[Address, _Lane] = {}
        self._is_closed = False

    def add(self, place: Address, task: Task) -> None:
        """Do it soon, after what is to be done at this place already."""
        with self._lock:
            if self._is_closed:
                return
            lane = self._lanes.setdefault(place, _Lane())
            lane.waiting.append(task)
            if lane.turns < LANE_THREADS:
                lane.turns += 1
                self._threads.submit(self._take_turn, place, lane)

    def length(self, place: Address) -> int:
        """How much waits at a place."""
        with self._lock:
            lane = self._lanes.get(place)
            return len(lane.waiting) if lane is not None else 0

    def _take_turn(self, place: Address, lane: _Lane) -> None:
        """In a thread: the next thing of a lane."""
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
        """Begin nothing any more. May be repeated."""
        with self._lock:
            self._is_closed = True
            self._lanes.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def join(self) -> None:
        """Return when what has begun has ended."""
        self._threads.shutdown()

    def check(self) -> None:
        """Recount."""
        with self._lock:
            for place, lane in self._lanes.items():
                assert 0 < lane.turns <= LANE_THREADS, f"{place} has {lane.turns} turns"
