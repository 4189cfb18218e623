"""The scheduler's side of an engine that reads its neighbours' chunks, too.

**Theory of operation.** A chunk that only a neighbour has is a hit, too. It is *borrowed*: it is loaded from the
neighbour's slot, which keeps it there meanwhile. It isn't stored here as long as a neighbour has it, nor while it
is borrowed, so all loads of it that run at once read the same place. Its owner is told, and counts that as a use.

A chunk may be evicted between a lookup and the load that follows. The load then fails, and the prompt is computed.

**Invariants** (``check``): each chunk that is being borrowed is one that a load here has begun with and none has
ended with. None of them is stored here meanwhile.
"""

from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kv_api import (
    LoadStoreSpec,
    LookupResult,
    OffloadKey,
    PrefixLookup,
    PrepareStoreOutput,
    ReqContext,
    StoreOffer,
)
from kv_offload_file.home import Home
from kv_offload_file.load_store_spec import FileLoadStoreSpec
from kv_offload_file.manager import FileOffloadingManager
from kv_offload_file.restore import Found
from kv_offload_file.sharing.neighbourhood import Neighbours, OwnListing
from kv_offload_file.sharing.place import NeighbourSlot, nowhere, place_of, slot_of_neighbour
from kv_offload_file.stats import BORROWED, FileOffloadingStats


@dataclass
class Loan:
    """A chunk of a neighbour's that is being read."""

    found: NeighbourSlot
    is_kept: bool
    """Whether it is locked in its slot. If not, it was gone before it could be borrowed, and its loads fail."""
    times: int = 0
    """How many loads read it."""


class SharingManager(FileOffloadingManager):
    """`FileOffloadingManager` of an engine that reads chunks of ``neighbours``; its ``own`` listing is theirs."""

    def __init__(
        self, num_chunks: int, home: Home, found: Found, own: OwnListing, neighbours: Neighbours, **options: Any
    ) -> None:
        self._own = own
        self._neighbours = neighbours
        self._borrowed: dict[OffloadKey, Loan] = {}
        self._stale: dict[OffloadKey, Loan] = {}
        """Loans from before a reset, until the jobs from before it have ended."""
        self._newly_borrowed = 0
        own.begin(home.epoch)
        super().__init__(num_chunks, home, found, **options)
        own.open()

    # Lookups

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        own = super().lookup(key, req_context)
        if own is not LookupResult.MISS:
            return own
        self._look()
        return LookupResult.MISS if self._place_of(key) is None else LookupResult.HIT

    def lookup_prefix(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrefixLookup:
        found = super().lookup_prefix(keys, req_context)
        if found.hits == len(keys):
            return found
        self._look()
        listed, hits = [*keys], found.hits
        while found.rest is not LookupResult.HIT_PENDING:
            missed = hits
            while hits < len(listed) and self._is_elsewhere_only(listed[hits]):
                hits += 1
            if hits == len(listed):
                return PrefixLookup(hits, LookupResult.HIT)
            if hits == missed:
                return PrefixLookup(hits, LookupResult.MISS)
            found = super().lookup_prefix(listed[hits:], req_context)
            hits += found.hits
        return PrefixLookup(hits, found.rest)

    # Loads

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        listed = [*keys]
        here = [key for key in listed if key in self._pool.slot_of]
        if len(here) == len(listed):
            return super().prepare_load(listed, req_context)
        slots = dict(zip(here, _slots_of(super().prepare_load(here, req_context)), strict=True))
        places = [slots[key] if key in slots else self._borrow(key, index) for index, key in enumerate(listed)]
        loans = [self._borrowed[key] for key in listed if key not in slots]
        self._own.uses([loan.found for loan in loans if loan.is_kept])
        return self.places(listed, places)

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        here = [key for key in keys if not self._give_back(key)]
        if here:
            super().complete_load(here, req_context)

    # Stores

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        self._look()
        with self.sparing(self._own.lent()):
            stored = super().prepare_store(self._not_elsewhere(keys), req_context)
        if stored is not None:
            self._own.leaves(_slots_of(stored.store_spec))
        return stored

    def prepare_stores(self, stores: Sequence[StoreOffer]) -> list[PrepareStoreOutput]:
        if len(stores) == 1:
            return super().prepare_stores(stores)
        self._look()
        offers = [(self._not_elsewhere(keys), context) for keys, context in stores]
        with self.sparing(self._own.lent()):
            prepared = super().prepare_stores(offers)
        for stored in prepared:
            self._own.leaves(_slots_of(stored.store_spec))
        return prepared

    def complete_store(self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True) -> None:
        super().complete_store(keys, req_context, success)
        if success:
            slot_of = self._pool.slot_of
            held = [key for key in keys if key in slot_of]
            self._own.holds(held, [slot_of[key] for key in held])

    # All chunks

    def restore(self, stores: Iterable[tuple[list[OffloadKey], list[int]]]) -> None:
        listed = [*stores]
        super().restore(listed)
        for keys, slots in listed:
            self._own.holds(keys, slots)

    def drop(self, keys: Collection[OffloadKey]) -> None:
        slots = [self._pool.slot_of[key] for key in keys if key in self._pool.slot_of]
        for key in keys:
            loan = self._borrowed.get(key)
            if loan is not None and loan.is_kept:
                self._neighbours.distrust(loan.found, key)
        self._own.leaves(slots)
        super().drop(keys)

    def reset_cache(self) -> None:
        super().reset_cache()
        self._own.begin(self._home.epoch)
        self._own.open()
        self._stale |= self._borrowed
        self._borrowed.clear()

    def on_reset_flushed(self) -> None:
        stale, self._stale = self._stale, {}
        for loan in stale.values():
            self._end(loan)
        super().on_reset_flushed()

    def get_stats(self) -> FileOffloadingStats:  # type: ignore[override]
        counted = super().get_stats()
        new, self._newly_borrowed = self._newly_borrowed, 0
        return FileOffloadingStats({**counted.data, BORROWED: new}) if new else counted

    def shutdown(self) -> None:
        self._neighbours.close()
        self._own.close()
        super().shutdown()

    def check(self) -> None:
        """Recount everything."""
        super().check()
        loans = {**self._borrowed, **self._stale}
        assert len(loans) == len(self._borrowed) + len(self._stale), "a chunk is borrowed before and after a reset"
        assert all(loan.times > 0 for loan in loans.values()), f"nobody reads one of {loans}"
        stored = [key.hex() for key in loans if key in self._pool.slot_of]
        assert not stored, f"{stored} are borrowed, and were stored meanwhile"

    # Steps of these methods

    def _look(self) -> None:
        """Read the neighbours' listings: their chunks, and which chunks of this engine they have borrowed."""
        self._neighbours.look(self._home.epoch)
        used = self._neighbours.take_used()
        if used:
            pool, neighbour = self._pool, ReqContext("a neighbour")
            self.touch([pool.key_of[slot] for slot in used if slot < pool.capacity], neighbour)
            self.on_request_finished(neighbour)

    def _place_of(self, key: OffloadKey) -> int | None:
        """The place from which a chunk can be borrowed; None for a fenced chunk, on which a job is under way."""
        return None if key in self._pool.fenced else self._neighbours.places.get(key)

    def _is_elsewhere_only(self, key: OffloadKey) -> bool:
        """Whether a chunk must be borrowed: a neighbour has it, and this engine neither has nor stores it."""
        return key not in self._pool.slot_of and self._place_of(key) is not None

    def _not_elsewhere(self, keys: Collection[OffloadKey]) -> list[OffloadKey]:
        """The chunks that are worth a slot here: no neighbour has them, or this engine has them already."""
        slot_of = self._pool.slot_of
        return [key for key in keys if key in slot_of or not self._is_elsewhere(key)]

    def _is_elsewhere(self, key: OffloadKey) -> bool:
        return self._place_of(key) is not None or key in self._borrowed or key in self._stale

    def _borrow(self, key: OffloadKey, index: int) -> int:
        """The place from which a load reads the chunk that is its ``index``-th."""
        loan = self._borrowed.get(key)
        if loan is None:
            place = self._place_of(key)
            found = None if place is None else slot_of_neighbour(place)
            if found is None:  # it was evicted since the lookup
                loan = Loan(nowhere(index), is_kept=False)
            else:
                loan = Loan(found, self._neighbours.borrow(found, key))
            self._borrowed[key] = loan
        loan.times += 1
        self._newly_borrowed += 1
        return place_of(loan.found)

    def _give_back(self, key: OffloadKey) -> bool:
        """A load of a chunk has ended. False: it wasn't borrowed."""
        loans = self._borrowed if key in self._borrowed else self._stale
        loan = loans.get(key)
        if loan is None:
            return False
        loan.times -= 1
        if not loan.times:
            del loans[key]
            self._end(loan)
        return True

    def _end(self, loan: Loan) -> None:
        if loan.is_kept:
            self._neighbours.give_back(loan.found)


def _slots_of(spec: LoadStoreSpec) -> "array[int]":
    assert isinstance(spec, FileLoadStoreSpec), f"{type(spec).__name__} has no slots"
    return spec.block_ids
