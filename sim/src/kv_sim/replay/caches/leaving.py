"""``LeavingTier``: the GPU's prefix cache, and what of it is to be stored before it is given away.

It is for servers that store a chunk when its blocks come up among those that the engine gives away next
(``store_when`` ``evicted`` of kv-offload), not when it is computed. As there, a request leaves its blocks when it
lets go of them; the engine's queue of free blocks is looked at as far as `kv_offload.look_ahead` says, and again
when half of that has been given away. What was left there is due, and left no longer. Blocks that never held
anything are given away first.

A server takes a prompt's blocks step by step, and this one by one but for what is loaded. So what it says is exact
where a step computes one block and waits for what it loads; in larger steps a look comes some blocks later.

**Invariant** (``check``): what is left is in the tier.
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
    """Of all its prompt."""


Due = dict[Owner, list[OffloadKey]]
"""By who used it last, in the order of that prompt; whose block comes up first is first."""


class LeavingTier(GpuTier):
    """A tier that knows who used each block last."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._look_ahead = look_ahead(capacity)
        self._left: dict[OffloadKey, Owner] = {}
        """What wasn't due since it was used last, and who used it."""
        self._ahead = 0
        """How many blocks that were looked at have not been given away."""

    def use_by(self, owner: Owner, loaded: int) -> list[Due]:
        """Its blocks are used; room for those that are ``loaded``, and one more, is made at once, then one by one.

        Returns what is due before that, and meanwhile: look by look.
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
        assert self._left.keys() <= self._order.keys(), "what is not in the tier is left in it"

    def _give_away(self, count: int) -> list[OffloadKey]:
        gone = super()._give_away(count)
        for key in gone:
            self._left.pop(key, None)
        return gone

    def _look(self, unused: int, others: int) -> Due:
        """What is left in the next blocks, if it is time to look, and is so no longer.

        Free are the ``unused`` ones, and so many ``others``.
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
