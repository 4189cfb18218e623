"""``LoadStoreSpec``: where the bytes of a job are, as a manager tells a worker.

The classes here give block numbers.
"""

import struct
from array import array
from collections.abc import Iterable, Sequence
from typing import Any


class LoadStoreSpec:
    """Where a worker finds, or puts, the bytes of a job. Each medium has a class of its own; must pickle."""


class BlockIDsLoadStoreSpec(LoadStoreSpec):
    """Places given by number, as 32-bit integers with the buffer protocol (``numpy.asarray`` copies nothing)."""

    def __init__(self, block_ids: Iterable[int]) -> None:
        self.block_ids: array[int] = _int_array(block_ids)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={_plain(value)!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({shown})"


class GPULoadStoreSpec(BlockIDsLoadStoreSpec):
    """GPU blocks of one job, group after group.

    The first ``group_sizes[0]`` ids belong to group 0, and so on; the blocks of a group are consecutive in their
    request, from block ``block_indices[g]`` on. A worker needs that index when a job begins inside a chunk.
    """

    def __init__(self, block_ids: Iterable[int], group_sizes: Sequence[int], block_indices: Sequence[int]) -> None:
        self.block_ids = _int_array(block_ids)
        if sum(group_sizes) != len(self.block_ids) or len(group_sizes) != len(block_indices):
            raise ValueError(
                f"{len(self.block_ids)} blocks don't fit group_sizes {list(group_sizes)} "
                f"with block_indices {list(block_indices)}"
            )
        self.group_sizes = tuple(group_sizes)
        self.block_indices = tuple(block_indices)


def _int_array(numbers: Iterable[int]) -> "array[int]":
    """The numbers as 32-bit integers. Many of them get into an array faster as bytes."""
    if isinstance(numbers, list) and len(numbers) > 16:
        try:
            return array("i", struct.pack(f"{len(numbers)}i", *numbers))
        except struct.error:
            pass  # an array says what is wrong with them
    return array("i", numbers)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, array) else value
