"""The slots that are free, in the order in which they are taken.

They are a stack: the slot that was freed last is taken first. So stores that are placed together get the same
slots as if they were placed one by one. Slots whose chunks are evicted together are freed in an order in which a
store takes them rising, so that it gets spans (``columns``) again.
"""

from collections.abc import Iterator, Sequence

from kv_offload_cpu.slots.columns import numbers


class FreeSlots:
    """The free slots of ``capacity`` slots; at first all of them."""

    __slots__ = ("_stack",)

    def __init__(self, capacity: int) -> None:
        self._stack = numbers(capacity)[::-1]

    def __len__(self) -> int:
        return len(self._stack)

    def __iter__(self) -> Iterator[int]:
        return iter(self._stack)

    def peek(self, count: int) -> list[int]:
        """The slots that `take` takes next, which are still free after this."""
        slots = self._stack[: -count - 1 : -1]
        assert len(slots) == count, f"{count} slots wanted, {len(slots)} free"
        return slots

    def take(self, count: int) -> None:
        """Take the slots that `peek` gave for the same ``count``, of at least 1."""
        del self._stack[-count:]

    def take_these(self, slots: Sequence[int]) -> None:
        """Take slots that the caller chose; all of them are free, and each is listed once."""
        taken = {*slots}
        left = [slot for slot in self._stack if slot not in taken]
        assert len(left) == len(self._stack) - len(slots), "a chunk to be restored is in a slot that isn't free"
        self._stack = left

    def give_back(self, slots: Sequence[int]) -> None:
        """Free these slots. The last of them is taken first."""
        self._stack += slots

    def give_back_evicted(self, slots: Sequence[int]) -> None:
        """Free slots, at least one, whose chunks were evicted together, given in the order of eviction.

        They are taken in rising order, so that parts of a span that are evicted together are one again. The slot
        that was evicted first is taken last: for the end of a request, which is evicted beside the rest of that
        span.
        """
        falling = sorted(slots, reverse=True)
        first = falling.index(slots[0])
        self._stack += falling[first:] + falling[:first]
