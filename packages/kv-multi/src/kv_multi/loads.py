"""Who is loading: only the child that was told to load may say that a load ended, once.

An engine counts on one report for each asynchronous load; a second one, or one for a request that isn't waiting,
kills it. So the scheduler's side (``LoadsInFlight``) tells the workers which child does each asynchronous load. A
worker's side (``LoadReports``) drops reports by any other child, every second report, and reports of loads that it
wasn't told of. The load of an aborted request is reported like any other: its blocks are held until then.

When a child is switched off, its loads end as failures: the asynchronous ones are reported as finished and failed.
Of those within the step the blocks are reported, which a model of one group understands in that same step; with
several groups nothing in the interface can take back such a load, so it isn't survived.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kv_api import KVError
from kv_multi.metadata import PlannedLoad


class LoadLostError(KVError, RuntimeError):
    """A child failed in the middle of a load that can't be taken back."""


class EndedLoads(NamedTuple):
    """Requests whose asynchronous loads have ended, or have failed."""

    finished: set[str]
    failed: set[str]


class LoadsInFlight:
    """Scheduler's side. ``_running``: asynchronous loads that no worker output has reported yet, with the loader.

    ``_untold``: loads that the next metadata will tell.
    """

    def __init__(self) -> None:
        self._running: dict[str, int] = {}
        self._untold: dict[str, PlannedLoad] = {}

    def start(self, request_id: str, load: PlannedLoad) -> None:
        """The engine asked for a load."""
        self._untold[request_id] = load
        if load.asynchronous:
            self._running[request_id] = load.child

    def loader(self, request_id: str) -> int | None:
        """The child whose asynchronous load of ``request_id`` is in flight."""
        return self._running.get(request_id)

    def tell(self) -> dict[str, PlannedLoad]:
        """What is new since the last call, for the step's metadata."""
        told, self._untold = self._untold, {}
        return told

    def finish(self, request_ids: Iterable[str]) -> None:
        """All workers reported these."""
        for request_id in request_ids:
            self._running.pop(request_id, None)

    def forget(self, request_id: str) -> None:
        """The id begins another life."""
        self._running.pop(request_id, None)
        self._untold.pop(request_id, None)

    def check_can_lose(self, child: int) -> None:
        """Refuse to go on without ``child`` when a load of the coming step can't do without it."""
        check_can_lose(self._untold, child)

    def check(self, num_children: int) -> None:
        """Recount: every loader is a child, and every asynchronous load that is untold is in flight."""
        for request_id, child in self._running.items():
            assert 0 <= child < num_children, f"{request_id}: loaded by child {child} of {num_children}"
        for request_id, load in self._untold.items():
            if load.asynchronous:
                assert request_id in self._running, f"{request_id}: {load} is untold, but not in flight"


class LoadReports:
    """Worker's side. ``_waiting``: asynchronous loads that weren't reported in this process.

    ``_in_step``: loads within the current step, until the blocks that failed are collected.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, PlannedLoad] = {}
        self._in_step: dict[str, PlannedLoad] = {}
        self._finished: set[str] = set()
        self._failed: set[str] = set()
        self._failed_blocks: set[int] = set()

    def expect(self, loads: Mapping[str, PlannedLoad]) -> None:
        """Take what a step's metadata tells."""
        self._in_step = {request_id: load for request_id, load in loads.items() if not load.asynchronous}
        self._waiting.update((request_id, load) for request_id, load in loads.items() if load.asynchronous)

    def report(self, child: int, finished: Iterable[str], failed: Iterable[str]) -> None:
        """Asynchronous loads of a child that ended, and those that won't succeed."""
        self._failed.update(request_id for request_id in failed if self._loads(child, request_id))
        for request_id in finished:
            if self._loads(child, request_id):
                del self._waiting[request_id]
                self._finished.add(request_id)

    def abandon(self, child: int) -> None:
        """A child was switched off: what it was loading has failed."""
        check_can_lose(self._in_step, child)
        for load in (*self._in_step.values(), *self._waiting.values()):
            if load.child == child:
                self._failed_blocks.update(load.block_ids or ())
        self.report(child, [*self._waiting], [*self._waiting])

    def take(self) -> EndedLoads:
        """The loads that ended or failed since the last call."""
        ended = EndedLoads(self._finished, self._failed)
        self._finished, self._failed = set(), set()
        return ended

    def take_failed_blocks(self) -> set[int]:
        """The blocks of abandoned loads. From here on the loads within this step count as done."""
        blocks, self._failed_blocks = self._failed_blocks, set()
        self._in_step = {}
        return blocks

    def check(self, num_children: int) -> None:
        """Recount: whoever is waited for is a child, and nothing that was reported is waited for."""
        for request_id, load in self._waiting.items():
            assert load.asynchronous, f"{request_id}: {load} is waited for"
            assert 0 <= load.child < num_children, f"{request_id}: {load} of {num_children} children"
            assert request_id not in self._finished, f"{request_id}: {load} was reported, and is waited for"

    def _loads(self, child: int, request_id: str) -> bool:
        load = self._waiting.get(request_id)
        return load is not None and load.child == child


def check_can_lose(loads: Mapping[str, PlannedLoad], child: int) -> None:
    """Refuse when ``child`` does a load within the step whose failure nobody can be told of."""
    lost = [
        request_id
        for request_id, load in loads.items()
        if load.child == child and not load.asynchronous and load.block_ids is None
    ]
    if lost:
        raise LoadLostError(
            f"requests {', '.join(sorted(lost))} load within the step, which can't be taken back with several KV "
            "cache groups"
        )
