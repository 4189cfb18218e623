"""``LeavingTier``: the GPU's prefix cache, which also says which of its blocks must be stored before eviction.

It is for ``store_when`` ``evicted`` of kv-offload: a server stores a chunk not when it is computed, but when its
blocks are among the next that the engine will evict. As in kv-offload, a request *leaves* its blocks when it frees
them. The tier looks at the engine's queue of free blocks as far as `kv_offload.look_ahead` says, and looks again
when half of these blocks have been evicted. Left blocks that it sees there are *due*: they are to be stored, and
no longer count as left. The engine takes blocks that never held anything first.

A server allocates a prompt's blocks step by step; this tier allocates loaded blocks together, and the others one
by one. So its result is exact for a server whose steps compute one block each and wait for loads. With larger
steps, a server looks some blocks later.

**Invariant** (``check``): every left block is in the tier.
"""

from dataclasses import dataclass
from itertools import islice

from kv_api import OffloadKey
from kv_offload import look_ahead
from kv_sim.replay.caches.gpu_tier import GpuTier


@dataclass(eq=False)
class Owner:
    """A request that used blocks."""

    request_id: str
    keys: list[OffloadKey]
    """The keys of its whole prompt."""


Due = dict[Owner, list[OffloadKey]]
"""Due blocks by the request that used them last, in prompt order; first the request whose block goes first."""


class LeavingTier(GpuTier):
    """A tier that knows which request used each block last."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._look_ahead = look_ahead(capacity)
        self._left: dict[OffloadKey, Owner] = {}
        """Left blocks that have not been due since their last use, with the request that used them."""
        self._ahead = 0
        """How many blocks that the last look saw have not been evicted yet."""

    def use_by(self, owner: Owner, loaded: int) -> list[Due]:
        """A request uses its blocks. Room for the ``loaded`` ones and one more is made at once, then one by one.

        Returns what became due before and meanwhile, one entry for each look.
        """
        order, own = self._order, set(owner.keys)
        unused, wanted = self.capacity - len(order), sum(key not in order for key in own)
        looks = [self._look(unused, len(order))]
        self._put_last(owner.keys)
        others, at_once = len(order) - len(own), 1 + loaded
        while wanted:
            given = min(wanted, max(at_once, self._ahead - self._look_ahead // 2)) if self._left else wanted
            wanted, at_once = wanted - given, 1
            self._ahead -= given
            fresh = min(unused, given)
            held = min(others, given - fresh)
            self._give_away(held)
            unused, others = unused - fresh, others - held
            looks.append(self._look(unused, others))
        self._left.update(dict.fromkeys(owner.keys, owner))
        self._give_away(len(order) - self.capacity)
        return [look for look in looks if look]

    def check(self) -> None:
        super().check()
        assert self._left.keys() <= self._order.keys(), "a left block is not in the tier"

    def _give_away(self, count: int) -> list[OffloadKey]:
        gone = super()._give_away(count)
        for key in gone:
            self._left.pop(key, None)
        return gone

    def _look(self, unused: int, others: int) -> Due:
        """If it is time to look: the left blocks among the next to be evicted, which from now on are not left.

        ``unused`` blocks are free that never held anything, and ``others`` that did.
        """
        if not self._left or self._ahead > self._look_ahead // 2:
            return {}
        self._ahead = min(self._look_ahead, unused + others)
        due: Due = {}
        for key in islice(self._order, max(0, self._ahead - unused)):
            owner = self._left.pop(key, None)
            if owner is not None:
                due.setdefault(owner, []).append(key)
        return {owner: keys[::-1] for owner, keys in due.items()}
