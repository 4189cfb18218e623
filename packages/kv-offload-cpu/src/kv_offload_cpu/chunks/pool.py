"""The states of chunks, and every transition between them.

**Theory of operation.** A chunk has no object of its own: there is one large dictionary from keys to slots, and
columns by slot. A chunk enters the dictionary once and leaves it once; its state in between is which sets have its
slot::

         enter, begin_store            land                   pin
      FREE ───────────▶ IN FLIGHT ───────────────▶ RESIDENT ◀─────▶ PINNED
       ▲                    │                          │      unpin    │
       ├────── abort ───────┤                          │               │
       ├────── evict ───────┼──────────────────────────┤               │
       └─ its jobs ended ───┴── FENCED ◀── forget while in use ────────┘

Between ``enter`` and ``begin_store`` a chunk counts as resident, but is never looked up. Chunks that a medium has
kept from an earlier engine are *restored*: free → resident, in their old slots.

* ``slot_of``: key → slot of each held chunk, in flight or resident.
* ``pins``: slot → jobs that use it: 1 while it is in flight, n while n loads read it, else 0.
* ``in_flight``: slots whose bytes have not all landed; pins know them, too.
* ``key_of``: slot → the key last stored there.
* ``free``: slots without a chunk, in the order in which they are taken; ``fences``: see there.
* ``_found``: the residents of the last lookup that found all its keys, until a resident is removed; ``_loads`` and
  ``_stores``: jobs under way, until one ends with other keys than it began with, or a chunk is forgotten. They
  only save looking up every key in ``slot_of`` if a caller brings the same list again.

A batch of chunks is handled in a few calls that do the same to all of them, with hardly a step of Python for each.
That matters most in a large pool, where each look into ``slot_of`` is a cache miss. A lookup, a load and the end
of that load together look a key up once; it is entered once and deleted once; the end of a store looks none up.

**Invariants.** Free + fenced + in flight + resident = capacity, and no slot is two of these. A chunk with pins is
not evicted, reused or freed. A slot leaves ``in_flight`` only when its store ended: completed, or with its chunk.
At most ``most_in_flight`` are in flight.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import TypeAlias, cast

from kv_api import Direction, KVError, OffloadKey
from kv_offload_cpu.chunks.fences import Fences
from kv_offload_cpu.chunks.under_way import UnderWay
from kv_offload_cpu.slots.columns import put
from kv_offload_cpu.slots.free import FreeSlots
from kv_offload_cpu.slots.pick import pick
from kv_offload_cpu.slots.pins import Pins

_Batch: TypeAlias = tuple[Collection[OffloadKey], list[int]]
"""Keys, and the slots of their chunks."""


class ChunkPool:
    """Chunks in ``capacity`` slots of host memory. Methods change everything that they should, or raise first."""

    def __init__(self, capacity: int, most_in_flight: int | None = None) -> None:
        self.capacity = capacity
        self.most_in_flight = capacity if most_in_flight is None else most_in_flight
        self.slot_of: dict[OffloadKey, int] = {}
        self.pins = Pins(capacity)
        self.key_of = [OffloadKey(b"")] * capacity
        self.fences = Fences()
        self.free = FreeSlots(capacity)
        self._found: tuple[list[OffloadKey], list[int]] = [], []
        self._loads = UnderWay()
        self._stores = UnderWay()
        self.held = self.slot_of.keys()
        self.fenced = self.fences.keys()

    @property
    def in_flight(self) -> set[int]:
        """Slots whose bytes have not all landed."""
        return self.pins.in_flight

    # Questions

    def is_resident(self, key: OffloadKey) -> bool:
        """Whether every byte of a chunk is here."""
        slot = self.slot_of.get(key)
        return slot is not None and slot not in self.in_flight

    def residents_of(self, keys: Iterable[OffloadKey]) -> list[int]:
        """The slots of the resident ones of these keys."""
        in_flight = self.in_flight
        held = [slot for slot in map(self.slot_of.get, keys) if slot is not None]
        return [slot for slot in held if slot not in in_flight] if in_flight else held

    def first_miss(self, keys: Collection[OffloadKey]) -> OffloadKey | None:
        """The first key without a resident chunk."""
        first = next(iter(keys), None)
        if first is not None and first not in self.slot_of:
            return first
        try:
            self.find(keys)
        except KeyError as error:
            return cast("OffloadKey", error.args[0])
        return None

    def are_new(self, keys: list[OffloadKey]) -> bool:
        """Whether all of an offer may be entered as it is: each key once, and none held or fenced."""
        if self.fenced and not self.fenced.isdisjoint(keys):
            return False
        return self.held.isdisjoint(keys) and len({*keys}) == len(keys)

    def absent(self, keys: Iterable[OffloadKey]) -> list[OffloadKey]:
        """The keys among these that may be entered: neither held nor fenced."""
        held, fenced = self.held, self.fenced
        return [key for key in keys if key not in held and key not in fenced]

    def not_pinned(self, slots: list[int]) -> list[int]:
        """The slots among these that no job uses."""
        if not slots:
            return slots
        pinned = self.pins.slots
        return slots if pinned.isdisjoint(slots) else [slot for slot in slots if slot not in pinned]

    def count_to_evict(self, wanted: int, used: list[int]) -> int | None:
        """How many chunks must be evicted for ``wanted`` new ones. None: not enough can be evicted, or in flight.

        Residents can be evicted if they are neither pinned nor among ``used``.
        """
        if wanted > self.most_in_flight - self.pins.counts()[0]:
            return None
        missing = wanted - len(self.free)
        if missing <= 0:
            return 0
        unpinned = len(self.slot_of) - len(self.pins.slots)
        evictable = unpinned - len(self.not_pinned(used))
        return missing if missing <= evictable else None

    def usage(self) -> tuple[float, float]:
        """The shares of the capacity that are being written and being read."""
        written, read = self.pins.counts()
        if self.fenced:
            written += len(self.fences.slots(Direction.STORE))
            read += len(self.fences.slots(Direction.LOAD))
        return written / self.capacity, read / self.capacity

    def describe(self, key: OffloadKey) -> str:
        """A key without a resident chunk, and its state, for an error."""
        if self.slot_of.get(key) in self.in_flight:
            state = "in flight"
        elif key in self.fences:
            state = "forgotten while in use"
        else:
            state = "not here"
        return f"chunk {key.hex()} is {state}"

    # Stores

    def enter(self, keys: list[OffloadKey]) -> list[int]:
        """Free → resident, for keys that are new, into the slots returned. There must be as many free ones."""
        slots = self.free.peek(len(keys))
        self.free.take(len(keys))
        self.slot_of.update(zip(keys, slots, strict=True))
        put(keys, slots, self.key_of)
        return slots

    def enter_if_new(self, keys: list[OffloadKey]) -> list[int] | None:
        """`enter` if these `are_new`, with one lookup for each. None: some aren't, and nothing has changed."""
        slot_of, fenced = self.slot_of, self.fenced
        if keys[0] in slot_of or keys[-1] in slot_of or (fenced and not fenced.isdisjoint(keys)):
            return None
        slots = self.free.peek(len(keys))
        held = [*map(slot_of.setdefault, keys, slots)]
        if held != slots:  # some were here, or are listed twice
            for key, slot, before in zip(keys, slots, held, strict=True):
                if slot == before:
                    del slot_of[key]
            return None
        self.free.take(len(keys))
        put(keys, slots, self.key_of)
        return slots

    def restore(self, keys: Sequence[OffloadKey], slots: Sequence[int]) -> None:
        """Free → resident, for keys that are new, in given slots, which have their bytes already."""
        taken = {*slots}
        assert len(taken) == len(slots) == len({*keys}), f"{len(slots)} chunks, {len(taken)} different slots"
        assert self.held.isdisjoint(keys), "a chunk to be restored is held"
        self.free.take_these(slots)
        self.slot_of.update(zip(keys, slots, strict=True))
        put(keys, slots, self.key_of)

    def begin_store(self, keys: Sequence[OffloadKey], slots: list[int]) -> None:
        """Just entered → in flight: one job stores these."""
        self.pins.arrive(slots)
        self._stores.begin(keys, slots)

    def land(self, keys: Collection[OffloadKey]) -> _Batch:
        """In flight → resident, for those that are in flight. Returns them and their slots."""
        ended, slots = keys, self._stores.end(keys)
        if slots is None:
            slot_of, in_flight = self.slot_of, self.in_flight
            ended = [key for key in dict.fromkeys(keys) if slot_of.get(key) in in_flight]
            slots = pick(ended, slot_of)
            self._stores.clear()
        self.pins.land(slots)
        return ended, slots

    def abort(self, keys: Collection[OffloadKey]) -> _Batch:
        """In flight → free, for those that are in flight. Returns them and the slots that they had."""
        failed, slots = self.land(keys)
        for key in failed:
            del self.slot_of[key]
        self.free.give_back(slots)
        return failed, slots

    def evict(self, slots: Sequence[int]) -> list[OffloadKey]:
        """Resident → free, for chunks that are evicted together. None of them is pinned."""
        slot_of, pinned = self.slot_of, self.pins.slots
        assert not pinned or pinned.isdisjoint(slots), (
            f"pinned and evicted: {[slot for slot in slots if slot in pinned]}"
        )
        keys = pick(slots, self.key_of)
        for key in keys:
            del slot_of[key]
        self.free.give_back_evicted(slots)
        self._found = [], []
        return keys

    # Loads

    def find(self, keys: Collection[OffloadKey]) -> list[int]:
        """The slots of residents. If a key isn't resident, a ``KeyError`` with the first such key."""
        if keys != self._found[0]:
            listed = [*keys]
            self._found = listed, self._look_up(listed)
        return self._found[1]

    def pin(self, keys: Collection[OffloadKey]) -> tuple[list[int], list[int]]:
        """Resident → pinned, or pinned once more. Returns their slots, and the same slots without repetitions."""
        try:
            slots = self.find(keys)
        except KeyError as error:
            state = self.describe(error.args[0])
            raise KVError(
                f"prepare_load: {state}; only chunks for which lookup answers HIT can be loaded"
            ) from None
        if slots:
            self._loads.begin(self._found[0], slots)
        return slots, self.pins.pin(slots)

    def unpin(self, keys: Collection[OffloadKey]) -> list[int]:
        """Pinned → resident, or one pin less. Returns the slots that have no pin left."""
        begun = self._loads.end(keys)
        if begun is not None:
            return self.pins.unpin(begun)
        try:
            slots = self._look_up([*keys])
        except KeyError as error:
            raise _ended_by_nobody(self.describe(error.args[0])) from None
        missing = self.pins.first_missing(slots)
        if missing is not None:
            raise _ended_by_nobody(f"chunk {self.key_of[missing].hex()} is resident, not pinned")
        self._loads.clear()
        return self.pins.unpin(slots)

    # Forgetting

    def forget(self, keys: Iterable[OffloadKey]) -> list[int]:
        """In flight, resident or pinned → free, or fenced while in use. Returns the slots that they had."""
        slots = []
        self._found = [], []
        self._loads.clear()
        self._stores.clear()
        for key in keys:
            slot = self.slot_of.pop(key)
            direction = Direction.STORE if slot in self.in_flight else Direction.LOAD
            slots.append(slot)
            if jobs := self.pins.unpin_all(slot):
                self.fences.raise_for(key, slot, jobs, direction)
            else:
                self.free.give_back([slot])
        return slots

    def end_stale_jobs(self, keys: Iterable[OffloadKey], direction: Direction) -> None:
        """Jobs on forgotten chunks ended: fenced → free."""
        self.free.give_back(self.fences.end_jobs(keys, direction))

    def end_reset(self) -> None:
        """All jobs from before the last reset ended: fenced → free."""
        self.free.give_back(self.fences.end_reset())

    def check(self) -> None:
        """Recount everything."""
        slot_of, in_flight, pins = self.slot_of, self.in_flight, self.pins
        fenced = self.fences.slots(Direction.LOAD) + self.fences.slots(Direction.STORE)
        held = [*slot_of.values()]
        counts = f"free {len(self.free)} + fenced {len(fenced)} "
        counts += f"+ in flight {len(in_flight)} + resident {len(held) - len(in_flight)}"
        slots = [*self.free, *fenced, *held]
        assert len(slots) == self.capacity, f"{counts} != capacity {self.capacity}"
        assert {*slots} == {*range(self.capacity)}, f"{counts}, but only {len({*slots})} different slots"
        assert len(in_flight) <= self.most_in_flight, f"{len(in_flight)} in flight, at most {self.most_in_flight}"
        assert in_flight <= {*held}, f"slots {sorted(in_flight.difference(held))} are in flight and hold nothing"
        assert not any(key in self.fences for key in slot_of), "a fenced key is held"
        wrong = [key for key, slot in slot_of.items() if self.key_of[slot] != key]
        assert not wrong, f"{wrong} are in slots of other keys"
        assert all(pins[slot] == 1 for slot in in_flight), "a chunk in flight hasn't exactly one job"
        idle = pins.slots.difference(held)
        assert not idle, f"slots {sorted(idle)} are pinned and hold nothing"
        pins.check()
        assert self._found[1] == pick(self._found[0], slot_of), f"found and gone: {self._found}"
        for jobs in (self._loads, self._stores):
            jobs.check()
            for keys, slots in jobs:
                assert slots == pick(keys, slot_of), f"a job for {keys} is kept as of {slots}"
                assert pins.first_missing(slots) is None, f"slots {slots} are copied and not pinned"
                landed = [slot for slot in slots if slot not in in_flight]
                assert landed == ([] if jobs is self._stores else slots), f"{landed} of {slots} have landed"
        self.fences.check()

    def _look_up(self, keys: list[OffloadKey]) -> list[int]:
        try:
            slots = pick(keys, self.slot_of)
        except KeyError as error:
            self._see_landed(pick(keys[: keys.index(error.args[0])], self.slot_of))
            raise
        self._see_landed(slots)
        return slots

    def _see_landed(self, slots: list[int]) -> None:
        """A ``KeyError`` with the key of the first slot that is in flight, if any is."""
        in_flight = self.pins.in_flight
        if in_flight and not in_flight.isdisjoint(slots):
            raise KeyError(next(self.key_of[slot] for slot in slots if slot in in_flight))


def _ended_by_nobody(state: str) -> KVError:
    return KVError(f"complete_load: {state}; complete_load has to be called once for each prepare_load")
