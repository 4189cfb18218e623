"""Slot numbers, and columns with an item for each slot.

Free slots side by side are taken together, and are freed together when their chunks are evicted together, so a
store most often gets a *span*: 7, 8, 9. The items of a span in a column are read or written in one go. A list is a
span if it equals a part of the list of all numbers. Comparing them costs next to nothing if they have the same
objects, so slots are taken from `numbers`.
"""

from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

Value = TypeVar("Value")

FEW: Final = 16
"""So many slots are handled one by one as fast as it can be checked whether they are a span."""


class _Numbers(NamedTuple):
    """The same numbers, as a list and packed."""

    listed: list[int]
    packed: "array[int]"


_known = _Numbers([], array("i"))
"""The largest count requested so far. It is replaced as one object, so a user of a shorter one is only slower."""


def numbers(count: int) -> list[int]:
    """0, 1, 2, … before ``count``, the same objects in all calls."""
    global _known
    listed = _known.listed
    if len(listed) < count:
        listed = [*listed, *range(len(listed), count)]
        _known = _Numbers(listed, array("i", listed))
    return listed[:count]


def put(values: Sequence[Value], slots: Sequence[int], column: list[Value]) -> None:
    """Write each slot's value. There are as many."""
    where = _span(slots, _known.listed) if len(slots) > FEW else None
    if where is not None:
        column[where] = values
        return
    for slot, value in zip(slots, values):  # noqa: B905 - as many
        column[slot] = value


def pack(slots: list[int]) -> "Sequence[int]":
    """The slots as 32-bit integers if they are a span; otherwise the same list."""
    if len(slots) <= FEW:
        return slots
    known = _known
    where = _span(slots, known.listed)
    return slots if where is None else known.packed[where]


def _span(slots: Sequence[int], listed: list[int]) -> slice | None:
    """The part of a column that some slots are; None if they are no span."""
    first, last = slots[0], slots[-1]
    if last - first != len(slots) - 1 or slots != listed[first : last + 1]:
        return None
    return slice(first, last + 1)
