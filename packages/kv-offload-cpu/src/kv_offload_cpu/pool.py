"""The states of chunks, and every transition between them.

**Theory of operation.** What is known of a chunk lies in a few columns, not in an object of its own: two
dictionaries from keys to slots, and lists indexed by slot. Which dictionary knows a key is the chunk's state::

              enter                    land                   pin
      FREE ───────────▶ IN FLIGHT ───────────────▶ RESIDENT ◀─────▶ PINNED
       ▲                    │                          │      unpin    │
       ├────── abort ───────┤                          │               │
       ├────── evict ───────┼──────────────────────────┤               │
       └─ its jobs ended ───┴── FENCED ◀── forget while in use ────────┘

* ``storing``: key → slot of what is in flight.
* ``resident``: key → slot of what landed, every byte of it.
* ``pins``: slot → jobs that use it: 1 while it is in flight, n while n loads read it, else 0. ``_pinned_count``
  is how many slots have any, so that whether a store fits is known without a scan.
* ``key_of``: slot → the key last stored there.
* ``_free``: free slots, the next one last; ``fences``: see there.

So a batch is a few loops without a call in them, over small integers.

**Invariants.** Free + fenced + in flight + resident = capacity, and no slot is two of these. A chunk with pins is
not evicted, reused or freed. A key gets into ``resident`` only when its store completed.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import cast

from kv_api import KVError, OffloadKey
from kv_offload_cpu.fences import Fences, JobKind


class ChunkPool:
    """Chunks in ``capacity`` slots of host memory. Methods change everything that they should, or raise first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.storing: dict[OffloadKey, int] = {}
        self.resident: dict[OffloadKey, int] = {}
        self.pins = [0] * capacity
        self.key_of = [OffloadKey(b"")] * capacity
        self.fences = Fences()
        self._free = list(range(capacity - 1, -1, -1))
        self._pinned_count = 0

    # Questions

    def is_held(self, key: OffloadKey) -> bool:
        """Whether a chunk is in flight or resident."""
        return key in self.resident or key in self.storing

    def absent(self, keys: Iterable[OffloadKey]) -> list[OffloadKey]:
        """The keys that may be entered: neither held nor fenced."""
        resident = self.resident
        wanted = [key for key in keys if key not in resident]
        if self.storing:
            wanted = [key for key in wanted if key not in self.storing]
        if self.fences:
            wanted = [key for key in wanted if key not in self.fences]
        return wanted

    def not_pinned(self, slots: list[int]) -> list[int]:
        """Those of some slots that no job uses."""
        return [slot for slot in slots if not self.pins[slot]] if self._pinned_count else slots

    def count_to_evict(self, wanted: int, used: list[int]) -> int | None:
        """How many chunks must leave for ``wanted`` new ones. None if there aren't as many.

        Residents can leave that are neither pinned nor among ``used``.
        """
        missing = wanted - len(self._free)
        if missing <= 0:
            return 0
        unpinned = len(self.resident) + len(self.storing) - self._pinned_count
        evictable = unpinned - len(self.not_pinned(used))
        return missing if missing <= evictable else None

    def usage(self) -> tuple[float, float]:
        """The shares of the capacity that are being written and being read."""
        written = len(self.storing) + len(self.fences.slots(JobKind.STORE))
        read = self._pinned_count - len(self.storing) + len(self.fences.slots(JobKind.LOAD))
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

    def enter(self, keys: Sequence[OffloadKey]) -> list[int]:
        """Free → in flight, into the slots returned. There must be as many free ones."""
        slots, pins = self._fill(keys, self.storing), self.pins
        for slot in slots:
            pins[slot] = 1
        self._pinned_count += len(slots)
        return slots

    def enter_landed(self, keys: Sequence[OffloadKey]) -> list[int]:
        """Free → resident: ``enter`` and ``land`` in one. There must be as many free ones."""
        return self._fill(keys, self.resident)

    def land(self, keys: Collection[OffloadKey]) -> tuple[Collection[OffloadKey], list[int]]:
        """In flight → resident, for those that are in flight. Returns them and their slots."""
        ended, slots = self._end_stores(keys)
        self.resident.update(zip(ended, slots, strict=True))
        return ended, slots

    def abort(self, keys: Collection[OffloadKey]) -> tuple[Collection[OffloadKey], list[int]]:
        """In flight → free, for those that are in flight. Returns them and the slots that they had."""
        ended, slots = self._end_stores(keys)
        self._free += slots
        return ended, slots

    def evict(self, slots: Sequence[int]) -> list[OffloadKey]:
        """Resident → free. None of them is pinned."""
        pins, key_of, resident = self.pins, self.key_of, self.resident
        if self._pinned_count:
            assert not any(map(pins.__getitem__, slots)), f"pinned and evicted: {[s for s in slots if pins[s]]}"
        keys = [key_of[slot] for slot in slots]
        for key in keys:
            del resident[key]
        self._free.extend(slots)
        return keys

    # Loads

    def pin(self, keys: Iterable[OffloadKey]) -> list[int]:
        """Resident → pinned, or once more."""
        pins = self.pins
        try:
            slots = [self.resident[key] for key in keys]
        except KeyError as error:
            state = self.describe(error.args[0])
            raise KVError(f"prepare_load: {state}; only what a lookup calls a HIT can be loaded") from None
        pinned = 0
        for slot in slots:
            count = pins[slot]
            pins[slot] = count + 1
            if not count:
                pinned += 1
        self._pinned_count += pinned
        return slots

    def unpin(self, keys: Collection[OffloadKey]) -> list[int]:
        """Pinned → resident, or once less. Returns the slots that have no pin left."""
        resident, pins = self.resident, self.pins
        unpinned: list[int] = []
        done = 0
        try:
            for slot in [resident[key] for key in keys]:
                count = pins[slot] - 1
                if count < 0:
                    raise KeyError(self.key_of[slot])
                pins[slot] = count
                done += 1
                if not count:
                    unpinned.append(slot)
        except KeyError as error:
            state = self.describe(error.args[0])
            for key in islice(keys, done):
                pins[resident[key]] += 1
            raise KVError(f"complete_load: {state}; each prepare_load is ended by one complete_load") from None
        self._pinned_count -= len(unpinned)
        return unpinned

    # Forgetting

    def forget(self, keys: Iterable[OffloadKey]) -> list[int]:
        """In flight, resident or pinned → free, or fenced while in use. Returns the slots that they had."""
        slots = []
        for key in keys:
            kind = JobKind.STORE if key in self.storing else JobKind.LOAD
            slot = (self.storing if kind is JobKind.STORE else self.resident).pop(key)
            slots.append(slot)
            if jobs := self.pins[slot]:
                self.pins[slot] = 0
                self._pinned_count -= 1
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
        pinned = {slot for slot, count in enumerate(pins) if count}
        assert pinned <= {*in_use}, f"slots {pinned - {*in_use}} are pinned and hold nothing"
        assert len(pinned) == self._pinned_count, f"{len(pinned)} slots pinned, {self._pinned_count} counted"
        assert min(pins) >= 0, f"pins below zero: {pins}"
        self.fences.check()

    def _fill(self, keys: Sequence[OffloadKey], state: dict[OffloadKey, int]) -> list[int]:
        slots = self._free[: -len(keys) - 1 : -1]
        assert len(slots) == len(keys), f"{len(keys)} slots wanted, {len(slots)} free"
        del self._free[-len(keys) :]
        key_of = self.key_of
        for key, slot in zip(keys, slots):  # noqa: B905 - as many, see above
            key_of[slot] = key
            state[key] = slot
        return slots

    def _end_stores(self, keys: Collection[OffloadKey]) -> tuple[Collection[OffloadKey], list[int]]:
        pop, pins = self.storing.pop, self.pins
        found = [pop(key, None) for key in keys]
        if None in found:
            known = [(key, slot) for key, slot in zip(keys, found, strict=True) if slot is not None]
            keys, slots = [key for key, _ in known], [slot for _, slot in known]
        else:
            slots = cast("list[int]", found)
        for slot in slots:
            pins[slot] = 0
        self._pinned_count -= len(slots)
        return keys, slots
