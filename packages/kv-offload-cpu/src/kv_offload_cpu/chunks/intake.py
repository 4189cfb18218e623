"""How chunks get into host memory: which of an offer need a slot, and which chunks are evicted for them.

The manager's stores use it. It has no state of its own: it calls the pool, the policy and the tracker, and records
events and counts.

**All or nothing.** Whether there is room is known before anything is changed. A refused offer changes nothing but
the count of refusals: not the policy, and not the count of offers, or retrying alone would make a chunk worth
storing.
"""

from collections.abc import Callable, Collection, Sequence
from itertools import chain
from typing import TypeAlias

from kv_api import OffloadKey, ReqContext, StoreOffer
from kv_offload_cpu.chunks.events import EventLog
from kv_offload_cpu.chunks.pool import ChunkPool
from kv_offload_cpu.chunks.runs import in_token_order
from kv_offload_cpu.chunks.tracker import OfferTracker
from kv_offload_cpu.load_store_spec import Stored
from kv_offload_cpu.policy import CachePolicy, Run
from kv_offload_cpu.slots.pick import pick
from kv_offload_cpu.stats import Counters

Begin: TypeAlias = Callable[[list[OffloadKey], list[int]], None]
"""Called with chunks that got slots, before the policy gets them."""


class Intake:
    """Gives slots to stored chunks; ``run_of`` returns the object by which the policy knows a request."""

    def __init__(
        self,
        pool: ChunkPool,
        policy: CachePolicy,
        tracker: OfferTracker | None,
        events: EventLog | None,
        counters: Counters,
        run_of: Callable[[ReqContext], Run],
    ) -> None:
        self._pool = pool
        self._policy = policy
        self._tracker = tracker
        self._events = events
        self._counters = counters
        self._run = run_of

    def place(self, keys: Collection[OffloadKey], req_context: ReqContext, begin: Begin) -> Stored | None:
        """Give slots to those chunks of an offer that need one; None: there is not enough room."""
        pool, tracker = self._pool, self._tracker
        wanted = [*keys]
        used: list[int] = []
        if tracker is None and wanted and pool.count_to_evict(len(wanted), used) == 0:
            slots = pool.enter_if_new(wanted)
            if slots is not None:
                return self._fill(wanted, slots, self._run(req_context), begin)
        offer = absent = wanted
        if not pool.are_new(wanted):
            offer = [*dict.fromkeys(keys)]
            wanted = absent = pool.absent(offer)
            used = pool.residents_of(offer)
        if tracker is not None:
            wanted = tracker.worthy(absent)
        evict_count = pool.count_to_evict(len(wanted), used)
        if evict_count is None:
            self._counters.allocation_failures += 1
            return None
        # Up to here nothing was changed, from here on nothing fails.
        if tracker is not None:
            tracker.count(offer)
            self._counters.stores_skipped += len(absent) - len(wanted)
        run = self._run(req_context)
        if used:
            self.access(used, run)
        return self._enter(wanted, evict_count, used, run, begin) if wanted else Stored([], [], [])

    def place_all(self, stores: Sequence[StoreOffer]) -> list[Stored] | None:
        """Place offers together, each as ``place`` would. None: each must be placed by itself.

        That is so if one of the chunks is known already, or if not all of them can have slots. If enough slots are
        free, the chunks are entered together, too.
        """
        pool, sizes = self._pool, [len(keys) for keys, _ in stores]
        if self._tracker is not None or not stores or 0 in sizes:
            return None
        together = [*chain.from_iterable(keys for keys, _ in stores)]
        to_evict = pool.count_to_evict(len(together), [])
        slots: list[int] = []
        if to_evict == 0:
            entered = pool.enter_if_new(together)
            if entered is None:
                return None
            slots = entered
        elif to_evict is None or not pool.are_new(together):
            return None
        placed: list[Stored] = []
        first = 0
        for (_, req_context), size in zip(stores, sizes, strict=True):
            run, end = self._run(req_context), first + size
            new, its = together[first:end], slots[first:end]
            first = end
            if its:
                placed.append(self._fill(new, its, run, pool.begin_store))
            else:
                count = pool.count_to_evict(size, [])
                assert count is not None, f"there was room for {len(together)} chunks, there is none for {size}"
                placed.append(self._enter(new, count, [], run, pool.begin_store))
        return placed

    def access(self, slots: list[int], run: Run) -> None:
        """A request used resident chunks, given as it listed them."""
        if slots:
            self._policy.access(in_token_order(slots, run, self._pool.key_of), run)

    # Steps of these methods

    def _fill(self, new: list[OffloadKey], slots: list[int], run: Run, begin: Begin) -> Stored:
        """Tell policy and counters of new chunks that were entered into free slots."""
        self._counters.allocation_sizes.append(len(new))
        self._policy.make_room(new, 0, self._pool.pins)
        begin(new, slots)
        self._insert(new, slots, run)
        return Stored(new, slots, [])

    def _enter(self, new: list[OffloadKey], evict_count: int, used: list[int], run: Run, begin: Begin) -> Stored:
        """Give slots to new chunks, for which ``evict_count`` others are evicted."""
        self._counters.allocation_sizes.append(len(new))
        evicted = self._make_room(new, evict_count, used, run)
        slots = self._pool.enter(new)
        begin(new, slots)
        self._insert(new, slots, run)
        return Stored(new, slots, evicted)

    def _insert(self, new: list[OffloadKey], slots: list[int], run: Run) -> None:
        key_of = self._pool.key_of
        in_order = in_token_order(slots, run, key_of)
        self._policy.insert(new if in_order is slots else pick(in_order, key_of), in_order, run)

    def _make_room(self, wanted: list[OffloadKey], count: int, used: list[int], run: Run) -> list[OffloadKey]:
        """Evict ``count`` chunks, but none that is ``used`` by the same offer: those are pinned meanwhile."""
        pins, idle = self._pool.pins, self._pool.not_pinned(used) if used else used
        if idle:
            pins.pin(idle)
        slots = self._policy.make_room(wanted, count, pins)
        if idle:
            pins.unpin(idle)
            self._policy.unpin(idle, run)
        assert len(slots) == count, f"{self._policy} evicted {len(slots)} chunks instead of {count}"
        if not slots:
            return []
        evicted = self._pool.evict(slots)
        if self._events is not None:
            self._events.removed(evicted)
        return evicted
