"""Slots whose chunk was forgotten while jobs were still copying from or to them.

Such a slot has no chunk any more, and must not be given to another one before those jobs have ended. It is kept by
the key that it had, since the ends of jobs are reported by key. While a key is fenced, no chunk is stored under
it, so a report for it can only belong to those jobs. The last of them lifts the fence. ``end_reset`` lifts all
fences from before the last reset, for a caller that doesn't report earlier jobs.
"""

from collections.abc import Iterable, KeysView
from dataclasses import dataclass

from kv_api import Direction, OffloadKey


@dataclass(slots=True)
class _Fence:
    slot: int
    jobs: int
    direction: Direction
    """Of all the jobs: a chunk in flight isn't loaded, and a resident one isn't stored."""
    resets: int
    """How many resets there were before the fence was raised."""


class Fences:
    """Fenced slots by the key that they had. Methods that lift fences return the slots that are free now."""

    def __init__(self) -> None:
        self._fences: dict[OffloadKey, _Fence] = {}
        self._resets = 0

    def raise_for(self, key: OffloadKey, slot: int, jobs: int, direction: Direction) -> None:
        """Keep a slot back until ``jobs`` jobs on it have ended."""
        self._fences[key] = _Fence(slot, jobs, direction, self._resets)

    def end_jobs(self, keys: Iterable[OffloadKey], direction: Direction) -> list[int]:
        """Count the end of a job on those keys that are fenced for jobs of its direction."""
        freed = []
        for key in keys:
            fence = self._fences.get(key)
            if fence is not None and fence.direction is direction:
                fence.jobs -= 1
                if not fence.jobs:
                    freed.append(self._fences.pop(key).slot)
        return freed

    def begin_reset(self) -> None:
        """All current fences belong to this reset."""
        self._resets += 1

    def end_reset(self) -> list[int]:
        """Every job from before the last reset has ended."""
        lifted = [key for key, fence in self._fences.items() if fence.resets < self._resets]
        return [self._fences.pop(key).slot for key in lifted]

    def slots(self, direction: Direction) -> list[int]:
        """Slots fenced for jobs of this direction."""
        return [fence.slot for fence in self._fences.values() if fence.direction is direction]

    def check(self) -> None:
        """Check that every fence waits for a job."""
        assert all(fence.jobs > 0 for fence in self._fences.values()), f"fenced without a job: {self._fences}"

    def keys(self) -> KeysView[OffloadKey]:
        """The keys that the fenced slots had."""
        return self._fences.keys()

    def __contains__(self, key: OffloadKey) -> bool:
        return key in self._fences
