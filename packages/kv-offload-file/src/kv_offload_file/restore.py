"""Finds the chunks in an earlier engine's files: those that all ranks have, in the order of their stores."""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import NamedTuple, TypeAlias

from kv_api import OffloadKey
from kv_offload_file.label import Label, Row

ReadRows: TypeAlias = Callable[[int], Iterable[tuple[int, Row]]]
"""Rank -> its slots, with their rows."""


class Found(NamedTuple):
    """Stores, each with its keys and their slots, and the number for the next store."""

    stores: list[tuple[list[OffloadKey], list[int]]]
    next_number: int


def find_stores(read_rows: ReadRows, num_ranks: int, epoch: int) -> Found:
    """The chunks of this epoch whose slots have the same label on all ranks; of duplicates the later one."""
    of_first = {slot: row.label for slot, row in read_rows(0)}
    next_number = 1 + max((label.number for label in of_first.values()), default=0)
    labels = {slot: label for slot, label in of_first.items() if label.epoch == epoch}
    for rank in range(1, num_ranks):
        same = {slot for slot, row in read_rows(rank) if labels.get(slot) == row.label}
        labels = {slot: label for slot, label in labels.items() if slot in same}
    latest: dict[OffloadKey, tuple[Label, int]] = {}
    for slot, label in labels.items():
        before = latest.get(label.key)
        if before is None or before[0].number < label.number:
            latest[label.key] = label, slot
    ordered = sorted(latest.values(), key=lambda item: (item[0].number, item[0].nth))
    return Found([*_stores(ordered)], next_number)


def _stores(ordered: list[tuple[Label, int]]) -> Iterator[tuple[list[OffloadKey], list[int]]]:
    for _, group in groupby(ordered, lambda item: item[0].number):
        labels, slots = zip(*group, strict=True)
        yield [label.key for label in labels], [*slots]
