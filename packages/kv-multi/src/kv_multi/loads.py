"""Loads in flight: only the child that was told to load may report the load's end, and only once.

An engine counts on one report for each asynchronous load; a second one, or one for a request that isn't waiting,
kills it. So the scheduler's side (``LoadsInFlight``) tells the workers which child does each asynchronous load. A
worker's side (``LoadReports``) drops reports by any other child, every second report, and reports of loads that it
wasn't told of. The load of an aborted request is reported like any other: its blocks are held until then.

When a child is switched off, its loads end as failures. Asynchronous loads are reported as finished and failed.
For loads within the step the blocks are reported, which an engine handles in the same step if the model has one
group, and the load fills all of its blocks (``blocks``). Otherwise the interface has no way to take back such a
load, so it is a ``LoadLostError``.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kv_api import KVError
from kv_multi.metadata import PlannedLoad


class LoadLostError(KVError, RuntimeError):
    """A child failed during a load within the step, which the engine can't recompute."""


class EndedLoads(NamedTuple):
    """Requests whose asynchronous loads have ended, or have failed."""

    finished: set[str]
    failed: set[str]


class LoadsInFlight:
    """Scheduler's side.

    ``_running``: asynchronous loads that aren't reported yet, with the child that loads. ``_untold``: loads that
    go into the next metadata.
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
        """The loads since the last call, for the step's metadata."""
        told, self._untold = self._untold, {}
        return told

    def finish(self, request_ids: Iterable[str]) -> None:
        """All workers have reported the end of these loads."""
        for request_id in request_ids:
            self._running.pop(request_id, None)

    def forget(self, request_id: str) -> None:
        """A new request has this id."""
        self._running.pop(request_id, None)
        self._untold.pop(request_id, None)

    def check_can_lose(self, child: int) -> None:
        """Raise if ``child``, now switched off, has a load in the coming step that can't be taken back."""
        check_can_lose(self._untold, child)

    def check(self, num_children: int) -> None:
        """Recount: every loader is a child, and every asynchronous load that is untold is in flight."""
        for request_id, child in self._running.items():
            assert 0 <= child < num_children, f"{request_id}: loaded by child {child} of {num_children}"
        for request_id, load in self._untold.items():
            if load.asynchronous:
                assert request_id in self._running, f"{request_id}: {load} is untold, but not in flight"


class LoadReports:
    """Worker's side.

    ``_waiting``: asynchronous loads that this process hasn't reported yet. ``_in_step``: loads within the current
    step, until the blocks that failed are collected.
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
        """Take a child's report: its asynchronous loads that ended, and those that failed."""
        self._failed.update(request_id for request_id in failed if self._loads(child, request_id))
        for request_id in finished:
            if self._loads(child, request_id):
                del self._waiting[request_id]
                self._finished.add(request_id)

    def abandon(self, child: int) -> None:
        """A child was switched off: its loads have failed."""
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
    """Raise if ``child`` does a load within the step whose failure can't be reported."""
    lost = [
        request_id
        for request_id, load in loads.items()
        if load.child == child and not load.asynchronous and load.block_ids is None
    ]
    if lost:
        raise LoadLostError(
            f"requests {', '.join(sorted(lost))} load within the step; with several KV cache groups, or a "
            "window, the engine can't recompute such a load when it fails"
        )
