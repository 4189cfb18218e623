"""``Rows``: the host memory of all ranks as a tier sees it, a row of bytes for each chunk.

A tier gets the address of all rows, and nobody sees when it reads and writes. So they are not the ranks' host
memory itself. A row is filled from there before a tier is told to read it, and brought back there after a tier has
written it. In between it holds what nobody should use.
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
    """Where a rank has its chunks: in the host memory of its device, from a slot on."""

    device: Device
    first_slot: int


class Rows:
    """The rows of one engine; each of its workers has an area in each row."""

    def __init__(self, blocks_per_chunk: int) -> None:
        self._factor = blocks_per_chunk
        self._areas: dict[int, Area] = {}
        self._words: npt.NDArray[np.uint64] = np.empty((0, 0), np.uint64)
        self._known = self._words
        """What is in the rows, as far as nobody changed it who was not told to."""
        self._readers: Counter[int] = Counter()
        self._open: set[int] = set()

    @property
    def device(self) -> Device:
        """The first rank's: a tier's jobs are of the engine, and its copies of one rank are as good as any."""
        return self._areas[min(self._areas)].device

    def add(self, rank: int, area: Area) -> None:
        """A worker says where its chunks are."""
        self._areas[rank] = area

    def make(self, chunks: int, row_bytes: int) -> memoryview:
        """The memory that tiers get: whole pages of the operating system, as memory that processes share."""
        used = self._factor * sum(area.device.block_bytes for area in self._areas.values())
        assert used <= row_bytes, f"a chunk of all ranks has {used} bytes, and a row {row_bytes}"
        memory = np.frombuffer(mmap.mmap(-1, max(chunks * row_bytes, 1)), np.uint8)
        rows = memory[: chunks * row_bytes].reshape(chunks, row_bytes)
        self._words = rows.view(np.uint64)
        self._words[:] = POISON
        self._known = self._words.copy()
        return rows.data

    def lend(self, chunks: Iterable[int]) -> None:
        """Somebody is told to read these: let them have what the ranks have there."""
        for chunk in chunks:
            parts = [self._read(area, chunk) for area in self._in_order()]
            content = np.concatenate(parts)
            self._words[chunk, : len(content)] = content
            self._remember(chunk)
            self._readers[chunk] += 1

    def take_back(self, chunks: Iterable[int]) -> None:
        """Somebody has read these."""
        for chunk in chunks:
            self._readers[chunk] -= 1
            if not self._readers[chunk]:
                self._spoil(chunk)

    def open(self, chunks: Iterable[int]) -> None:
        """Somebody is told to write these."""
        self._open.update(chunks)

    def close(self, chunks: Iterable[int], written: Iterable[int]) -> None:
        """Somebody has written some of these: let the ranks have them."""
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
        """The chunks whose rows somebody changed who was not told to."""
        differs = (self._words != self._known).any(axis=1)
        differs[[*self._open]] = False
        return [int(chunk) for chunk in np.flatnonzero(differs)]

    def _spoil(self, chunk: int) -> None:
        """Nobody should use what is in there."""
        self._words[chunk] = POISON
        self._remember(chunk)

    def _remember(self, chunk: int) -> None:
        self._known[chunk] = self._words[chunk]

    def _in_order(self) -> list[Area]:
        return [area for _, area in sorted(self._areas.items())]

    def _read(self, area: Area, chunk: int) -> npt.NDArray[np.uint64]:
        """What a rank has of a chunk, block by block; poison where a restart lost it."""
        first = area.first_slot + chunk * self._factor
        pages = [area.device.read_host(slot) for slot in range(first, first + self._factor)]
        lost = np.full(area.device.memory.shape[1:], POISON, np.uint64)
        return np.concatenate([(lost if page is None else page).ravel() for page in pages])


_OF_ENGINE: Final[WeakValueDictionary[str, Rows]] = WeakValueDictionary()
"""By the id of an engine the newest rows: worlds that come one after another call their engines alike."""


def rows_of(engine_id: str) -> Rows:
    """What the workers of an engine have set up, for its scheduler's side."""
    return _OF_ENGINE[engine_id]


def add_area(engine_id: str, rank: int, area: Area, blocks_per_chunk: int) -> Rows:
    """The rows in which a worker has an area. The first rank's worker comes first, and begins with new ones."""
    if rank == 0:
        rows = _OF_ENGINE[engine_id] = Rows(blocks_per_chunk)
    else:
        rows = _OF_ENGINE[engine_id]
    rows.add(rank, area)
    return rows
