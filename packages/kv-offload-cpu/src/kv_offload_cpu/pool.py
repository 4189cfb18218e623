"""The states of chunks, and every transition between them.

**Theory of operation.** What is known of a chunk lies in a few columns, not in an object of its own: two
dictionaries from keys to slots, and columns by slot. Which dictionary knows a key is the chunk's state::

              enter                    land                   pin
      FREE ───────────▶ IN FLIGHT ───────────────▶ RESIDENT ◀─────▶ PINNED
       ▲                    │                          │      unpin    │
       ├────── abort ───────┤                          │               │
       ├────── evict ───────┼──────────────────────────┤               │
       └─ its jobs ended ───┴── FENCED ◀── forget while in use ────────┘

* ``storing``: key → slot of what is in flight.
* ``resident``: key → slot of what landed, every byte of it.
* ``pins``: slot → jobs that use it: 1 while it is in flight, n while n loads read it, else 0.
* ``key_of``: slot → the key last stored there.
* ``_free``: free slots, the next one last; ``fences``: see there.
* ``_found``: the residents that were last asked for all together, until a resident leaves; ``_loads``: what a load
  pinned, by its last key, until a load ends as another one than it began or a chunk is forgotten. Both only spare
  looks into ``resident`` to who brings the same list again: to compare lists of the same keys is nearly free.

A batch is a few calls that do the same to all of it, and hardly a step of Python for each chunk. That counts in a
large pool most of all, where each look into ``resident`` is a cache miss: a key is looked for once in a lookup, a
load and its end, and entered and deleted once.

**Invariants.** Free + fenced + in flight + resident = capacity, and no slot is two of these. A chunk with pins is
not evicted, reused or freed. A key gets into ``resident`` only when its store completed.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import TypeAlias, cast

from kv_api import KVError, OffloadKey
from kv_offload_cpu.fences import Fences, JobKind
from kv_offload_cpu.pick import pick
from kv_offload_cpu.pins import Pins

_Batch: TypeAlias = tuple[list[OffloadKey], list[int]]
"""Keys, and the slots of their chunks."""

Offer: TypeAlias = dict[OffloadKey, int | None]
"""Keys that are to be stored, each once, and the slots that they get. A dictionary enters another one in a third
of the time that pairs take."""


class ChunkPool:
    """Chunks in ``capacity`` slots of host memory. Methods change everything that they should, or raise first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.storing: dict[OffloadKey, int] = {}
        self.resident: dict[OffloadKey, int] = {}
        self.pins = Pins(capacity)
        self.key_of = [OffloadKey(b"")] * capacity
        self.fences = Fences()
        self._free = list(range(capacity - 1, -1, -1))
        self._found: _Batch = [], []
        self._loads: dict[OffloadKey, _Batch] = {}
        self._unavailable = self.resident.keys(), self.storing.keys(), self.fences.keys()

    # Questions

    def is_held(self, key: OffloadKey) -> bool:
        """Whether a chunk is in flight or resident."""
        return key in self.resident or key in self.storing

    def first_miss(self, keys: Collection[OffloadKey]) -> OffloadKey | None:
        """The first key that isn't a resident's."""
        for key in keys:
            if key not in self.resident:
                return key
            break
        try:
            self.find(keys)
        except KeyError as error:
            return cast("OffloadKey", error.args[0])
        return None

    def absent(self, offer: Offer) -> Offer:
        """The part of an offer that may be entered: neither held nor fenced."""
        for known in self._unavailable:
            if known and not known.isdisjoint(offer):
                offer = dict.fromkeys(key for key in offer if key not in known)
        return offer

    def not_pinned(self, slots: list[int]) -> list[int]:
        """Those of some slots that no job uses."""
        pinned = self.pins.slots
        return slots if pinned.isdisjoint(slots) else [slot for slot in slots if slot not in pinned]

    def count_to_evict(self, wanted: int, used: list[int]) -> int | None:
        """How many chunks must leave for ``wanted`` new ones. None if there aren't as many.

        Residents can leave that are neither pinned nor among ``used``.
        """
        missing = wanted - len(self._free)
        if missing <= 0:
            return 0
        unpinned = len(self.resident) + len(self.storing) - len(self.pins.slots)
        evictable = unpinned - len(self.not_pinned(used))
        return missing if missing <= evictable else None

    def usage(self) -> tuple[float, float]:
        """The shares of the capacity that are being written and being read."""
        written = len(self.storing) + len(self.fences.slots(JobKind.STORE))
        read = len(self.pins.slots) - len(self.storing) + len(self.fences.slots(JobKind.LOAD))
        return written / self.capacity, read / self.capacity

    def describe(self, key: OffloadKey) -> str:
        """The key and its state, for an error."""
        if key in self.storing:
            state = "in flight"
        elif key in self.resident:
            state = "resident, pinned" if self.pins[self.resident[key]] else "resident, not pinned"
        elif key in self.fences:
            state = "forgotten while in use"
        else:
            state = "not here"
        return f"chunk {key.hex()} is {state}"

    # Stores

    def enter(self, offer: Offer) -> list[int]:
        """Free → in flight, into the slots returned. There must be as many free ones."""
        slots = self._fill(offer, self.storing)
        self.pins.pin(slots)
        return slots

    def enter_landed(self, offer: Offer) -> list[int]:
        """Free → resident: ``enter`` and ``land`` in one. There must be as many free ones."""
        return self._fill(offer, self.resident)

    def land(self, keys: Collection[OffloadKey]) -> tuple[Collection[OffloadKey], list[int]]:
        """In flight → resident, for those that are in flight. Returns them and their slots."""
        storing = self.storing
        if len(keys) == len(storing) and [*storing] == keys:  # all that is in flight
            slots = [*storing.values()]
            self.resident.update(storing)
            storing.clear()
            return keys, self.pins.unpin(slots)
        ended, slots = self._end_stores(keys)
        resident = self.resident
        for key, slot in zip(ended, slots, strict=True):
            resident[key] = slot
        return ended, slots

    def abort(self, keys: Collection[OffloadKey]) -> tuple[Collection[OffloadKey], list[int]]:
        """In flight → free, for those that are in flight. Returns them and the slots that they had."""
        ended, slots = self._end_stores(keys)
        self._free += slots
        return ended, slots

    def evict(self, slots: Sequence[int]) -> list[OffloadKey]:
        """Resident → free. None of them is pinned."""
        resident, pinned = self.resident, self.pins.slots
        assert pinned.isdisjoint(slots), f"pinned and evicted: {[slot for slot in slots if slot in pinned]}"
        keys = pick(slots, self.key_of)
        for key in keys:
            del resident[key]
        self._free.extend(slots)
        self._found = [], []
        return keys

    # Loads

    def find(self, keys: Collection[OffloadKey]) -> list[int]:
        """The slots of residents. A key that is none is a ``KeyError`` that holds the first such key."""
        if keys != self._found[0]:
            self._found = [*keys], pick(keys, self.resident)
        return self._found[1]

    def pin(self, keys: Collection[OffloadKey]) -> tuple[list[int], list[int]]:
        """Resident → pinned, or once more. Returns their slots, and these each once."""
        try:
            slots = self.find(keys)
        except KeyError as error:
            state = self.describe(error.args[0])
            raise KVError(f"prepare_load: {state}; only what a lookup calls a HIT can be loaded") from None
        if slots:
            self._loads[self._found[0][-1]] = self._found
        return slots, self.pins.pin(slots)

    def unpin(self, keys: Collection[OffloadKey]) -> list[int]:
        """Pinned → resident, or once less. Returns the slots that have no pin left."""
        begun = self._loads.get(keys[-1]) if keys and isinstance(keys, list) else None
        if begun is not None and begun[0] == keys:
            del self._loads[keys[-1]]
            return self.pins.unpin(begun[1])
        try:
            slots = pick(keys, self.resident)
        except KeyError as error:
            raise _ended_by_nobody(self.describe(error.args[0])) from None
        missing = self.pins.first_missing(slots)
        if missing is not None:
            raise _ended_by_nobody(f"chunk {self.key_of[missing].hex()} is resident, not pinned")
        self._loads.clear()  # whose pins these were isn't known
        return self.pins.unpin(slots)

    # Forgetting

    def forget(self, keys: Iterable[OffloadKey]) -> list[int]:
        """In flight, resident or pinned → free, or fenced while in use. Returns the slots that they had."""
        slots = []
        self._found = [], []
        self._loads.clear()
        for key in keys:
            kind = JobKind.STORE if key in self.storing else JobKind.LOAD
            slot = (self.storing if kind is JobKind.STORE else self.resident).pop(key)
            slots.append(slot)
            if jobs := self.pins.unpin_all(slot):
                self.fences.raise_for(key, slot, jobs, kind)
            else:
                self._free.append(slot)
        return slots

    def end_stale_jobs(self, keys: Iterable[OffloadKey], kind: JobKind) -> None:
        """Jobs on forgotten chunks ended: fenced → free."""
        self._free += self.fences.end_jobs(keys, kind)

    def end_reset(self) -> None:
        """All jobs from before the last reset ended: fenced → free."""
        self._free += self.fences.end_reset()

    def check(self) -> None:
        """Recount everything."""
        storing, resident, pins = self.storing, self.resident, self.pins
        fenced = self.fences.slots(JobKind.LOAD) + self.fences.slots(JobKind.STORE)
        in_use = [*storing.values(), *resident.values()]
        counts = f"free {len(self._free)} + fenced {len(fenced)} "
        counts += f"+ in flight {len(storing)} + resident {len(resident)}"
        slots = [*self._free, *fenced, *in_use]
        assert len(slots) == self.capacity, f"{counts} != capacity {self.capacity}"
        assert {*slots} == {*range(self.capacity)}, f"{counts}, but only {len({*slots})} different slots"
        assert storing.keys().isdisjoint(resident), "a chunk is in flight and resident"
        assert not any(key in self.fences for key in [*storing, *resident]), "a fenced key is held"
        wrong = [key for key, slot in [*storing.items(), *resident.items()] if self.key_of[slot] != key]
        assert not wrong, f"{wrong} are in slots of other keys"
        assert all(pins[slot] == 1 for slot in storing.values()), "a chunk in flight hasn't exactly one job"
        idle = pins.slots.difference(in_use)
        assert not idle, f"slots {sorted(idle)} are pinned and hold nothing"
        pins.check()
        assert self._found[1] == pick(self._found[0], resident), f"found and gone: {self._found}"
        for last, (keys, slots) in self._loads.items():
            assert (keys[-1], slots) == (last, pick(keys, resident)), f"a load of {keys} is kept as of {slots}"
            assert pins.first_missing(slots) is None, f"slots {slots} are loaded and not pinned"
        self.fences.check()

    def _fill(self, offer: Offer, state: dict[OffloadKey, int]) -> list[int]:
        slots = self._free[: -len(offer) - 1 : -1]
        assert len(slots) == len(offer), f"{len(offer)} slots wanted, {len(slots)} free"
        del self._free[-len(offer) :]
        key_of = self.key_of
        for slot, key in zip(slots, offer):  # noqa: B905 - as many, see above
            key_of[slot] = key
            offer[key] = slot
        state.update(cast("dict[OffloadKey, int]", offer))
        return slots

    def _end_stores(self, keys: Collection[OffloadKey]) -> tuple[Collection[OffloadKey], list[int]]:
        pop = self.storing.pop
        found = [pop(key, None) for key in keys]
        if None in found:
            known = [(key, slot) for key, slot in zip(keys, found, strict=True) if slot is not None]
            keys, slots = [key for key, _ in known], [slot for _, slot in known]
        else:
            slots = cast("list[int]", found)
        return keys, self.pins.unpin(slots)


def _ended_by_nobody(state: str) -> KVError:
    return KVError(f"complete_load: {state}; each prepare_load is ended by one complete_load")
