"""The scheduler's side of host memory: which chunks are there, which are pinned, which are evicted.

The manager joins four things that know nothing of each other:

- the pool has the state of every chunk (see there for the states and how they are kept);
- the policy has the order in which chunks leave;
- the tracker says what is worth storing;
- events and counters tell others what happened.

How an offer gets its places is in ``chunks.intake``.

**Invariants** (``check`` recounts them, and everything below): the policy holds exactly the chunks that are in
flight or resident. A lookup is a HIT only when every byte landed. A ``prepare_store`` that is refused changes
nothing but the count of refusals.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import ClassVar, Final

from kv_api import (
    CacheHitSource,
    ConfigError,
    ConfigInfo,
    ConfigInfoMapping,
    Direction,
    KVError,
    LoadStoreSpec,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadingManager,
    OffloadKey,
    PrefixLookup,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    StoreOffer,
)
from kv_offload_cpu.chunks.events import EventLog
from kv_offload_cpu.chunks.intake import Intake
from kv_offload_cpu.chunks.pool import ChunkPool
from kv_offload_cpu.chunks.runs import Runs
from kv_offload_cpu.chunks.tracker import OfferTracker
from kv_offload_cpu.load_store_spec import CPULoadStoreSpec, Stored
from kv_offload_cpu.policy import Run, find_policy
from kv_offload_cpu.slots.columns import pack
from kv_offload_cpu.stats import Counters, CPUOffloadingStats

MOST_CHUNKS: Final = 2**31 - 1
"""Their numbers travel in 32 bits."""


class CPUOffloadingManager(OffloadingManager):
    """Manages ``num_chunks`` slots of host memory, or of the ``medium`` that a subclass names.

    ``cache_policy`` is one of `policy.POLICIES`, or an attribute of the module ``cache_policy_module_path``. With
    a ``store_threshold`` of 2 or more a chunk is stored only when it is offered for that many-th time;
    ``max_tracker_size`` keys are remembered for this. A store that would bring more than ``most_in_flight`` chunks
    in flight is refused. ``info`` has the labels of the info metric, and ``info_of`` those for fewer slots.
    """

    medium: ClassVar[Medium] = Medium.CPU
    source: ClassVar[CacheHitSource] = CacheHitSource.HOST

    def __init__(
        self,
        num_chunks: int,
        cache_policy: str = "lru",
        cache_policy_module_path: str | None = None,
        enable_events: bool = False,
        store_threshold: int = 1,
        max_tracker_size: int = 64_000,
        most_in_flight: int | None = None,
        info: ConfigInfo | None = None,
        info_of: Callable[[int], ConfigInfo] | None = None,
    ) -> None:
        _check_at_least("num_chunks", num_chunks, 1)
        if num_chunks > MOST_CHUNKS:
            raise ConfigError(f"num_chunks: expected at most {MOST_CHUNKS}, got {num_chunks}")
        _check_at_least("store_threshold", store_threshold, 0)
        _check_at_least("max_tracker_size", max_tracker_size, 1)
        if most_in_flight is not None:
            _check_at_least("most_in_flight", most_in_flight, 1)
        self._tracker = OfferTracker(store_threshold, max_tracker_size) if store_threshold >= 2 else None
        self._events = EventLog(self.medium) if enable_events else None
        self._counters = Counters(skips=self._tracker is not None)
        self._make_policy = find_policy(cache_policy, cache_policy_module_path)
        self._most_in_flight = most_in_flight
        self._info, self._info_of = info, info_of
        self._lay_out(num_chunks)

    def _lay_out(self, num_chunks: int) -> None:
        """Begin with so many slots, all free."""
        self._policy = self._make_policy(num_chunks)
        self._pool = ChunkPool(num_chunks, self._most_in_flight)
        self._policy.key_of = self._pool.key_of
        self._run = Runs(self._pool.key_of).of
        self._intake = Intake(self._pool, self._policy, self._tracker, self._events, self._counters, self._run)
        self._access = self._intake.access

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        run = self._run(req_context)
        self._policy.finish(run)
        run.close()

    # Lookups

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        slot = self._pool.slot_of.get(key)
        if slot is None:
            return LookupResult.MISS
        return LookupResult.HIT_PENDING if slot in self._pool.in_flight else LookupResult.HIT

    def lookup_prefix(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrefixLookup:
        """The same as ``lookup`` for each key, up to the first that is not a hit, in one call."""
        first = self._pool.first_miss(keys)
        if first is None:
            return PrefixLookup(len(keys), LookupResult.HIT)
        return PrefixLookup([*keys].index(first), self.lookup(first, req_context))

    def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> CacheHitSource:
        return self.source

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self._access(self._pool.residents_of(dict.fromkeys(keys)), self._run(req_context))

    # Loads

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        slots, used = self._pool.pin(keys)
        self._access(used, self._run(req_context))
        return self.places(keys, slots)

    def places(self, keys: Collection[OffloadKey], slots: list[int]) -> LoadStoreSpec:
        """Tell a worker where the chunks of ``keys`` are: in ``slots``."""
        return CPULoadStoreSpec(pack(slots))

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        pool = self._pool
        stale = [key for key in keys if key in pool.fenced] if pool.fenced else []
        unpinned = pool.unpin([key for key in keys if key not in pool.fenced] if stale else keys)
        self._unpin(unpinned, req_context)
        if stale:
            pool.end_stale_jobs(stale, Direction.LOAD)

    # Stores

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        stored = self._intake.place(keys, req_context, self._pool.begin_store)
        return None if stored is None else self._prepared(stored)

    def prepare_stores(self, stores: Sequence[StoreOffer]) -> list[PrepareStoreOutput]:
        """The same as ``prepare_store`` for each store; all at once if all chunks are new and there is room."""
        if len(stores) == 1:
            only = self.prepare_store(*stores[0])
            return [] if only is None else [only]
        stored = self._intake.place_all(stores)
        return super().prepare_stores(stores) if stored is None else [*map(self._prepared, stored)]

    def complete_store(self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True) -> None:
        pool = self._pool
        if success:
            landed, slots = pool.land(keys)
            self._unpin(slots, req_context)
            if self._events is not None:
                self._events.stored([*landed])
        else:
            failed, slots = pool.abort(keys)
            self._policy.remove(slots)
            if self._events is not None:
                self._events.given_back([*failed])
        if pool.fenced:
            pool.end_stale_jobs(keys, Direction.STORE)

    def drop(self, keys: Collection[OffloadKey]) -> None:
        """Forget chunks whose bytes proved wrong. No lookup finds them from now on; unknown keys are ignored.

        The slots of those in use stay fenced until each of their jobs was completed as usual.
        """
        gone = [key for key in dict.fromkeys(keys) if key in self._pool.slot_of]
        if self._events is not None:
            self._events.forgotten(gone, self._pool.is_resident)
        self._policy.remove(self._pool.forget(gone))

    @contextmanager
    def sparing(self, slots: Sequence[int]) -> Generator[None]:
        """A context in which no chunk in these slots is evicted, for a medium that other engines read, too."""
        pool = self._pool
        known = [slot for slot in slots if slot < pool.capacity]
        idle = pool.not_pinned([slot for slot in known if pool.slot_of.get(pool.key_of[slot]) == slot])
        if idle:
            pool.pins.pin(idle)
        try:
            yield
        finally:
            if idle:
                self._policy.unpin(pool.pins.unpin(idle), Run())

    # All chunks

    def restore(self, stores: Iterable[tuple[list[OffloadKey], list[int]]]) -> None:
        """Make chunks resident whose bytes are in their slots already, as if stored one store after the other.

        For a new manager of a medium that outlives an engine.
        """
        listed = [*stores]
        filled = [slot for _, slots in listed for slot in slots]
        self._pool.restore([key for keys, _ in listed for key in keys], filled)
        for keys, slots in listed:
            run = Run()
            self._policy.make_room(keys, 0, self._pool.pins)
            self._policy.insert(keys, slots, run)
            self._policy.finish(run)
            if self._events is not None:
                self._events.stored(keys)

    def limit_chunks(self, num_chunks: int) -> bool:
        """Use only the first ``num_chunks`` slots. The manager must be empty."""
        _check_at_least("limit_chunks", num_chunks, 1)
        pool = self._pool
        if num_chunks < pool.capacity:
            if pool.slot_of or pool.fenced:
                raise KVError(
                    f"limit_chunks: the manager has to be empty, but it has {len(pool.slot_of)} chunks and "
                    f"{len(pool.fenced)} fenced slots"
                )
            self._lay_out(num_chunks)
            if self._info_of is not None:
                self._info = self._info_of(num_chunks)
        return True

    def reset_cache(self) -> None:
        """Forget every chunk. Slots in use stay fenced until ``on_reset_flushed`` or until their jobs complete."""
        everything = [*self._pool.slot_of]
        if self._events is not None:
            self._events.forgotten(everything, self._pool.is_resident)
        self._pool.forget(everything)
        self._pool.fences.begin_reset()
        self._policy.clear()

    def on_reset_flushed(self) -> None:
        self._pool.end_reset()

    def take_events(self) -> Sequence[OffloadingEvent]:
        return () if self._events is None else self._events.take(self._pool.slot_of.__contains__)

    def get_stats(self) -> CPUOffloadingStats:
        return self._counters.take(*self._pool.usage())

    def config_info(self) -> Sequence[ConfigInfoMapping]:
        return [{} if self._info is None else self._info.as_config_info()]

    def check(self) -> None:
        """Recount everything."""
        pool = self._pool
        pool.check()
        ordered = sorted(self._policy.slots())
        held = sorted(pool.slot_of.values())
        assert ordered == held, f"the policy holds {ordered}, in flight or resident are {held}"
        self._policy.check(pool.pins)
        if self._tracker is not None:
            self._tracker.check()

    # Steps of the above

    def _prepared(self, stored: Stored) -> PrepareStoreOutput:
        return PrepareStoreOutput(stored.keys, self.places(stored.keys, stored.slots), stored.evicted)

    def _unpin(self, slots: list[int], req_context: ReqContext) -> None:
        if self._policy.awaits_unpin():
            self._policy.unpin(slots, self._run(req_context))


def _check_at_least(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name}: expected a whole number of at least {least}, got {value!r}")
