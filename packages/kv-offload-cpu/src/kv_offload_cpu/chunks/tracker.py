"""Counts how often each chunk was offered, so that only chunks offered often enough are stored.

Most prompts never come back; with a threshold of two, a chunk costs host memory only from its second request on.
The tracker remembers ``max_size`` keys, and forgets the one offered longest ago. It never does so for a key of the
same offer, or a prompt longer than the tracker would wipe out its own counts.
"""

from collections import OrderedDict
from collections.abc import Collection

from kv_api import OffloadKey


class OfferTracker:
    """Offers of each key, most recently offered last."""

    def __init__(self, threshold: int, max_size: int) -> None:
        self.threshold = threshold
        self.max_size = max_size
        self._counts: OrderedDict[OffloadKey, int] = OrderedDict()

    def worthy(self, keys: Collection[OffloadKey]) -> list[OffloadKey]:
        """The keys that one more offer brings to the threshold. This doesn't count as one."""
        counts, needed = self._counts, self.threshold - 1
        return [key for key in keys if counts.get(key, 0) >= needed]

    def count(self, keys: Collection[OffloadKey]) -> None:
        """Count one offer of distinct keys."""
        counts = self._counts
        known = [key for key in keys if key in counts]
        for key in known:
            counts[key] += 1
            counts.move_to_end(key)
        forgettable = len(counts) - len(known)
        for key in keys:
            if key in counts:
                continue
            if len(counts) >= self.max_size:
                if not forgettable:
                    break
                counts.popitem(last=False)
                forgettable -= 1
            counts[key] = 1

    def check(self) -> None:
        """Recount."""
        assert len(self._counts) <= self.max_size, f"{len(self._counts)} keys tracked > {self.max_size}"
        assert all(count > 0 for count in self._counts.values()), "a key is tracked that was never offered"
