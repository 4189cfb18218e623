"""Parked chunks: pinned chunks that an eviction passed over; they are in no order until they are unpinned."""

from collections.abc import Sequence

from kv_offload_cpu.slots.pins import Pins


class Parked(dict[int, None]):
    """The slots of parked chunks, in the order in which evictions met them. It is a dictionary."""

    __slots__ = ()

    def unpark(self, slots: Sequence[int]) -> list[int]:
        """Take out those of some slots that are parked, and return them."""
        back = [slot for slot in slots if slot in self] if self else []
        for slot in back:
            del self[slot]
        return back

    def forget(self, slots: Sequence[int]) -> list[int]:
        """Take out those of some slots that are parked, and return the others."""
        if not self:
            return [*slots]
        others = [slot for slot in slots if slot not in self]
        self.unpark(slots)
        return others

    def check(self, pins: Pins) -> None:
        """What is parked is pinned."""
        assert all(pins[slot] for slot in self), f"parked but not pinned: {[*self]}"
