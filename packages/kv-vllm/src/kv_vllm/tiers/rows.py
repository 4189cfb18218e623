"""``Rows``: the host memory of all ranks as a tier sees it, a row of bytes for each chunk.

A tier gets the address of all rows, and the testbed doesn't see its reads and writes. So rows are copies, apart
from the ranks' host memory. A row is filled from there before a tier is told to read it, and copied back there
after a tier has written it. At other times it has bytes that nobody may use.
"""

import mmap
from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

import numpy as np  # noqa: TID251 - the testbed's memory is of numpy, and this is for it
import numpy.typing as npt  # noqa: TID251

from kv_sim.memory.content import POISON
from kv_sim.memory.device import Device


class Area(NamedTuple):
    """A rank's chunks: the host memory of its device, from a slot on."""

    device: Device
    first_slot: int


class Rows:
    """The rows of one engine; each of its workers has an area in each row."""

    def __init__(self, blocks_per_chunk: int) -> None:
        self._factor = blocks_per_chunk
        self._areas: dict[int, Area] = {}
        self._words: npt.NDArray[np.uint64] = np.empty((0, 0), np.uint64)
        self._known = self._words
        """The expected content of the rows, to notice writes without a job."""
        self._readers: Counter[int] = Counter()
        self._open: set[int] = set()

    @property
    def device(self) -> Device:
        """The first rank's device: a tier's jobs belong to the engine, so any rank's errands would do."""
        return self._areas[min(self._areas)].device

    def add(self, rank: int, area: Area) -> None:
        """Add the area of a worker's chunks."""
        self._areas[rank] = area

    def make(self, chunks: int, row_bytes: int) -> memoryview:
        """Make the memory that tiers get: whole pages of the operating system, like memory shared by processes."""
        used = self._factor * sum(area.device.block_bytes for area in self._areas.values())
        assert used <= row_bytes, f"a chunk of all ranks has {used} bytes, and a row {row_bytes}"
        memory = np.frombuffer(mmap.mmap(-1, max(chunks * row_bytes, 1)), np.uint8)
        rows = memory[: chunks * row_bytes].reshape(chunks, row_bytes)
        self._words = rows.view(np.uint64)
        self._words[:] = POISON
        self._known = self._words.copy()
        return rows.data

    def lend(self, chunks: Iterable[int]) -> None:
        """Fill these rows from the ranks, for a job that reads them."""
        for chunk in chunks:
            parts = [self._read(area, chunk) for area in self._in_order()]
            content = np.concatenate(parts)
            self._words[chunk, : len(content)] = content
            self._remember(chunk)
            self._readers[chunk] += 1

    def take_back(self, chunks: Iterable[int]) -> None:
        """A job has read these rows: fill them with other bytes."""
        for chunk in chunks:
            self._readers[chunk] -= 1
            if not self._readers[chunk]:
                self._spoil(chunk)

    def open(self, chunks: Iterable[int]) -> None:
        """A job will write these rows."""
        self._open.update(chunks)

    def close(self, chunks: Iterable[int], written: Iterable[int]) -> None:
        """A job of these rows has ended: copy those that were ``written`` to the ranks."""
        for chunk in written:
            begin = 0
            for area in self._in_order():
                shape = (self._factor, *area.device.memory.shape[1:])
                end = begin + int(np.prod(shape))
                for number, page in enumerate(self._words[chunk, begin:end].reshape(shape)):
                    area.device.write_host(area.first_slot + chunk * self._factor + number, page)
                begin = end
        for chunk in chunks:
            self._spoil(chunk)
            self._open.discard(chunk)

    def changed(self) -> list[int]:
        """The chunks whose rows were changed without a job."""
        differs = (self._words != self._known).any(axis=1)
        differs[[*self._open]] = False
        return [int(chunk) for chunk in np.flatnonzero(differs)]

    def _spoil(self, chunk: int) -> None:
        """Fill a row with bytes that nobody may use."""
        self._words[chunk] = POISON
        self._remember(chunk)

    def _remember(self, chunk: int) -> None:
        self._known[chunk] = self._words[chunk]

    def _in_order(self) -> list[Area]:
        return [area for _, area in sorted(self._areas.items())]

    def _read(self, area: Area, chunk: int) -> npt.NDArray[np.uint64]:
        """A rank's part of a chunk, block by block; poison for parts that a restart lost."""
        first = area.first_slot + chunk * self._factor
        pages = [area.device.read_host(slot) for slot in range(first, first + self._factor)]
        lost = np.full(area.device.memory.shape[1:], POISON, np.uint64)
        return np.concatenate([(lost if page is None else page).ravel() for page in pages])


_OF_ENGINE: Final[WeakValueDictionary[str, Rows]] = WeakValueDictionary()
"""The newest rows of each engine id: successive worlds use the same ids."""


def rows_of(engine_id: str) -> Rows:
    """The rows that an engine's workers have made, for its scheduler's side."""
    return _OF_ENGINE[engine_id]


def add_area(engine_id: str, rank: int, area: Area, blocks_per_chunk: int) -> Rows:
    """Add a worker's area; returns the rows. The first rank's worker comes first and makes new rows."""
    if rank == 0:
        rows = _OF_ENGINE[engine_id] = Rows(blocks_per_chunk)
    else:
        rows = _OF_ENGINE[engine_id]
    rows.add(rank, area)
    return rows
