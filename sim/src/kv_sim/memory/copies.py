"""The copies of one rank: asynchronous, of whole blocks, and run when the world says.

A connector's worker submits a copy, which advances page by page, and ends: complete, failed (if after some pages:
torn) or never (lost). It reads or writes memory at the moment a page is copied, so everything that a real stream
could do to a careless connector happens here. An end may be reported twice, which must change nothing.

A copy with ``after_compute`` starts only when every step that was launched before it has retired, like a CUDA
stream that waits for an event on the compute stream. Copies of one ``stream`` run in the order of submission; one
that is lost moves nothing more and blocks no other. It may be found again and go on late, unless the connector
may rely on its end: since it waited for the copy, or gave it up for good.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kv_api import Direction
from kv_sim.memory.copy import Copy, Result, State
from kv_sim.memory.settled import Settled


class Pages(Protocol):
    """Moves single pages, and checks that this is allowed; a device."""

    @property
    def retired_steps(self) -> int:
        """How many launched steps of this rank have retired."""
        ...

    def retire_until(self, step: int) -> None:
        """Let the rank's device finish everything up to ``step``."""
        ...

    def must_have(self, block: int, who: str) -> None:
        """Report a GPU block that doesn't exist."""
        ...

    def move_page(self, copy: Copy, block: int, slot: int) -> None:
        """Move the bytes of one page now."""
        ...

    def owner(self, block: int) -> str:
        """The request that got a GPU block last."""
        ...

    @property
    def settled(self) -> Settled:
        """Which tokens of partly filled blocks don't change any more."""
        ...


class CopyQueue:
    """One worker's access to the copies of its rank: it submits copies, and gets only their reports."""

    def __init__(self, copies: "Copies") -> None:
        self._copies = copies
        self._reports: list[Result] = []

    def submit(
        self,
        direction: Direction,
        pairs: Sequence[tuple[int, int]],
        *,
        after_compute: bool = True,
        stream: str = "",
    ) -> int:
        """Submit a copy of ``pairs`` (GPU block, host slot); returns its id at once."""
        return self._copies.begin(
            self, Direction(direction), tuple(pairs), after_compute=after_compute, stream=stream
        )

    def give_up(self, copy_ids: Iterable[int]) -> None:
        """Make sure that no lost copy among these is ever found again."""
        for copy_id in copy_ids:
            self._copies.give_up(copy_id)

    def poll(self) -> list[Result]:
        """The copies that ended since the last call."""
        reports, self._reports = self._reports, []
        return reports

    def wait(self, copy_ids: Sequence[int]) -> set[int]:
        """Let these copies end now; returns the ids of those that never will. ``poll`` returns the results."""
        return {copy_id for copy_id in copy_ids if not self._copies.force(copy_id)}

    @property
    def has_reports(self) -> bool:
        """Whether copies ended since the last ``poll``."""
        return bool(self._reports)

    def report(self, result: Result) -> None:
        """One of its copies has ended."""
        self._reports.append(result)


@dataclass
class Copies:
    """The copies of one rank. Workers ``open`` a queue; all other methods are for the world."""

    pages: Pages
    launched_steps: int = 0
    """Kept up to date by the device."""
    spoiled: bool = False
    """The next copy that its worker waits for fails."""
    spoiled_load: bool = False
    """The next load that its worker waits for fails."""
    running: dict[int, Copy] = field(default_factory=dict)
    ended: list[Copy] = field(default_factory=list)
    """Every copy that has ended, for repeats and for checkers."""
    lost_slots: set[int] = field(default_factory=set)
    """Host slots that hold nothing since a restart: a load from one fails."""
    failed_slots: Counter[int] = field(default_factory=Counter)
    """How many loads have failed from each of these."""
    restarts: int = 0
    executors: int = 0
    """How many executors of errands there are."""
    waited: list[Copy] = field(default_factory=list)
    """Copies for which a worker waited while they ran, since this was last cleared. What an errand waits for isn't
    among them."""
    errand: Copy | None = None
    """The errand that runs now."""
    _queues: dict[int, CopyQueue] = field(default_factory=dict)

    @property
    def has_unheard(self) -> bool:
        """Whether the end of a copy was not polled yet, since no step came after it."""
        return any(queue.has_reports for queue in self._queues.values())

    @property
    def begun(self) -> int:
        """How many copies and errands have ever begun."""
        return len(self._queues)

    def open(self) -> CopyQueue:
        """A queue for one worker."""
        return CopyQueue(self)

    def begin(
        self,
        queue: CopyQueue,
        direction: Direction,
        pairs: tuple[tuple[int, int], ...],
        *,
        after_compute: bool,
        stream: str,
        errand: Callable[[], None] | None = None,
    ) -> int:
        """Begin a copy for ``queue``, or an errand; returns its id."""
        who = f"a {direction.value} copy"
        for block, _ in pairs:
            self.pages.must_have(block, who)
        copy_id = len(self._queues)
        self._queues[copy_id] = queue
        after_step = self.launched_steps if after_compute else 0
        owners = tuple(dict.fromkeys(self.pages.owner(block) for block, _ in pairs))
        settled = self.pages.settled.of(block for block, _ in pairs)
        copy = Copy(
            copy_id,
            direction,
            pairs,
            stream or f"own {copy_id}",
            after_step,
            owners=owners,
            settled=settled,
            errand=errand,
        )
        self.running[copy_id] = copy
        if not copy.size:
            self._end(copy, State.DONE)
        return copy_id

    def force(self, copy_id: int) -> bool:
        """Let a copy end now, after all that must come before it. False: it never will."""
        copy = self.running.get(copy_id)
        if copy is None:
            return True
        if self.errand is None:
            self.waited.append(copy)
        if copy.state is State.LOST:
            copy.is_over = True
            return False
        for other in (*self._before(copy), copy):
            self.pages.retire_until(other.after_step)
            if other is copy and self._take_spoiling(copy):
                self.fail(other)
            else:
                self.advance(other, other.size)
        return True

    def _take_spoiling(self, copy: Copy) -> bool:
        """Whether this awaited copy is the one that was to fail; clears the mark."""
        if self.spoiled:
            self.spoiled = False
            return True
        if self.spoiled_load and copy.direction is Direction.LOAD:
            self.spoiled_load = False
            return True
        return False

    # -- for the world -------------------------------------------------------------------------

    def startable(self) -> list[Copy]:
        """Copies whose next page may be moved now."""
        if not self.running:
            return []
        retired, first_of = self.pages.retired_steps, dict[str, Copy]()
        for copy in self.running.values():
            if copy.state is State.RUNNING:
                first_of.setdefault(copy.stream, copy)
        return [copy for copy in first_of.values() if copy.after_step <= retired]

    def advance(self, copy: Copy, pages: int) -> None:
        """Move the next ``pages`` pages. Without pages left the copy is complete; if a slot is empty, it fails."""
        if copy.errand is not None:
            outer, self.errand = self.errand, copy
            try:
                copy.errand()
            finally:
                self.errand = outer
            self._end(copy, State.DONE)
            return
        for block, slot in copy.pairs[copy.copied : copy.copied + pages]:
            if copy.direction is Direction.LOAD and slot in self.lost_slots:
                self.failed_slots[slot] += 1
                self.fail(copy)
                return
            self.pages.move_page(copy, block, slot)
            copy.copied += 1
            self.has_bytes(slot)
        if copy.copied == len(copy.pairs):
            self._end(copy, State.DONE)

    def has_bytes(self, slot: int) -> None:
        """A host slot has bytes: they were written now, or are read."""
        self.lost_slots.discard(slot)
        self.failed_slots.pop(slot, None)

    def fail(self, copy: Copy) -> None:
        """The copy fails; pages that it has moved stay moved."""
        self._end(copy, State.FAILED)

    def lose(self, copy: Copy) -> None:
        """The copy doesn't end, and moves nothing more for now."""
        copy.state = State.LOST
        copy.was_lost = True

    def lost(self) -> list[Copy]:
        """Lost copies that may be found again."""
        return [copy for copy in self.running.values() if copy.state is State.LOST and not copy.is_over]

    def find(self, copy: Copy) -> None:
        """A lost copy goes on, late."""
        copy.state = State.RUNNING

    def give_up(self, copy_id: int) -> None:
        """A worker gives up a lost copy for good: it is never found again."""
        if copy_id in self.running:
            self.running[copy_id].is_over = True

    def restart(self, host_slots: int) -> None:
        """Every copy fails, also a lost one, and the first ``host_slots`` slots are empty from now on."""
        self.restarts += 1
        self.lost_slots.update(range(host_slots))
        for copy in list(self.running.values()):
            self.fail(copy)

    def repeat(self, copy: Copy) -> None:
        """Report the end of a copy once more."""
        self._queues[copy.copy_id].report(Result(copy.copy_id, copy.state is State.DONE))

    def _before(self, copy: Copy) -> list[Copy]:
        return [
            other
            for other in self.running.values()
            if other.stream == copy.stream and other.copy_id < copy.copy_id and other.state is not State.LOST
        ]

    def _end(self, copy: Copy, state: State) -> None:
        copy.state = state
        del self.running[copy.copy_id]
        self.ended.append(copy)
        self._queues[copy.copy_id].report(Result(copy.copy_id, state is State.DONE))

    def check(self) -> None:
        """Recount: running copies are running, ended ones ended, ids never repeat."""
        ids = [*self.running, *(copy.copy_id for copy in self.ended)]
        assert len(set(ids)) == len(ids) == len(self._queues), f"{len(ids)} copies, {len(self._queues)} submitted"
        for copy in self.running.values():
            assert copy.state in (State.RUNNING, State.LOST), f"{copy} is {copy.state} and running"
