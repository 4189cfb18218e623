"""Chunks in the order of their last use, kept by request so that a request's tail leaves before its head.

A list of *runs*, one for each request, the request that was active longest ago first. A run lists the chunks
that its request was the last to use, in the order of their tokens. Chunks leave from the end of the first run:
the oldest request's tail. This is least-recently-used where a use is a request's and not a chunk's; with a run
for every single use it is the textbook's LRU.

A chunk that another request uses is appended to that one's run, and ``_run_of`` says that its entry counts
there; the entry in the old run is dead and skipped when it is met. So a use is one entry and one list item
written, whatever the length of the list. Dead entries are swept out before they outnumber the live ones.

Invariants: a run that ``_run_of`` names is listed and has an entry of the slot, the last of which counts;
``_size`` is the number of slots that ``_run_of`` has a run for; ``_entries`` is the length of all runs; no run
is empty.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from kv_offload_cpu.policy.base import Run

_SLACK = 64  # dead entries that are not worth a sweep


class RecencyList:
    """Least recently active request first, and of a request the tail first."""

    __slots__ = ("_entries", "_run_of", "_runs", "_size")

    def __init__(self, capacity: int) -> None:
        self._runs: OrderedDict[Run, list[int]] = OrderedDict()
        self._run_of: list[list[int] | None] = [None] * capacity
        self._size = 0
        self._entries = 0

    def use(self, slots: Sequence[int], run: Run, new_count: int = 0) -> None:
        """A request used chunks, of which ``new_count`` are not in the list yet; it becomes the newest.

        What it used before stays where it is.
        """
        if not slots:
            return
        self._size += new_count
        run_of = self._run_of
        ours = self._runs.get(run)
        last = None
        fresh: Sequence[int]
        if ours is None:
            self._runs[run] = ours = fresh = list(slots)
        else:
            self._runs.move_to_end(run)
            is_all_new = new_count == len(slots)
            fresh = slots if is_all_new else [slot for slot in slots if run_of[slot] is not ours]
            if not fresh:
                return
            last = ours[-1]
            ours += fresh
        for slot in fresh:
            run_of[slot] = ours
        self._entries += len(fresh)
        if last is not None and run.is_before(fresh[0], last):
            self._rewrite(ours, run.in_token_order(self._live(ours)))
        if self._entries > 2 * self._size + _SLACK:
            self._sweep()

    def pop(self, count: int, pins: Sequence[int], parked: dict[int, None]) -> list[int]:
        """Take the ``count`` oldest that aren't pinned, or all there are. Pinned ones on the way are parked."""
        taken: list[int] = []
        runs, run_of = self._runs, self._run_of
        parked_before = len(parked)
        while (missing := count - len(taken)) > 0 and runs:
            run, slots = runs.popitem(last=False)
            if missing < len(slots):
                tail = slots[: -missing - 1 : -1]
                del slots[-missing:]
                runs[run] = slots
                runs.move_to_end(run, last=False)
            else:
                tail = slots[::-1]
            self._entries -= len(tail)
            for slot in tail:
                if run_of[slot] is slots:  # else it is dead, or was just taken by its last entry
                    run_of[slot] = None
                    if pins[slot]:
                        parked[slot] = None
                    else:
                        taken.append(slot)
        self._size -= len(taken) + len(parked) - parked_before
        return taken

    def remove(self, slots: Iterable[int]) -> None:
        """Take out chunks of the list, wherever they are."""
        for slot in slots:
            self._run_of[slot] = None
            self._size -= 1

    def renew(self, run: Run) -> None:
        """Make a request the newest although it used nothing."""
        if run in self._runs:
            self._runs.move_to_end(run)

    def clear(self) -> None:
        """Take out everything."""
        self._runs.clear()
        self._run_of = [None] * len(self._run_of)
        self._size = self._entries = 0

    def check(self) -> None:
        """Recount entries against slots."""
        listed = list(self)
        assert len(set(listed)) == len(listed), f"a slot counts twice: {listed}"
        known = [slot for slot, run in enumerate(self._run_of) if run is not None]
        assert sorted(listed) == known, f"{sorted(listed)} in runs, {known} known"
        assert len(listed) == self._size, f"{len(listed)} slots in runs, {self._size} counted"
        entries = sum(map(len, self._runs.values()))
        assert entries == self._entries, f"{entries} entries in runs, {self._entries} counted"
        assert all(self._runs.values()), "an empty run is listed"

    def _live(self, slots: list[int]) -> list[int]:
        """The slots of a run that count there, each at its last entry."""
        live = dict.fromkeys(slot for slot in reversed(slots) if self._run_of[slot] is slots)
        return [*reversed(live)]

    def _rewrite(self, slots: list[int], live: list[int]) -> None:
        self._entries -= len(slots) - len(live)
        slots[:] = live

    def _sweep(self) -> None:
        """Drop dead entries, and runs that have nothing else."""
        for run, slots in list(self._runs.items()):
            self._rewrite(slots, self._live(slots))
            if not slots:
                del self._runs[run]

    def __len__(self) -> int:
        return self._size

    def __contains__(self, slot: int) -> bool:
        return self._run_of[slot] is not None

    def __iter__(self) -> Iterator[int]:
        """The slots in the order in which they would leave."""
        for slots in self._runs.values():
            yield from reversed(self._live(slots))
