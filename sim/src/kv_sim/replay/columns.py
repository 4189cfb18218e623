"""A trace as columns: a number a request, and all block ids in one array, in memory or mapped from disk.

A reader writes each request once; from then on a trace can be gone through any number of times, by any number of
processes, at the price of an array. The ids are the only column that grows with the length of prompts: beyond
`SPOOL_IDS` they are written to a temporary file and mapped, so that what is in memory is what was touched last.

**Invariants** (``check``): requests are in order of arrival, the first at 0, or later in a part of a trace; the
ids of request ``i`` are ``blocks[offsets[i] : offsets[i + 1]]``; no request has more of them than its input fills
blocks.
"""

import shutil
import tempfile
import weakref
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from kv_sim.replay.observed import NOTHING_SAID, Observation, Observations, ObservationsBuilder
from kv_sim.replay.trace import EngineMemory, TraceRequest

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]

SPOOL_IDS: Final = 1 << 23
"""From this many ids on they are kept in a file: 64 MiB."""

NO_SESSION: Final = -1

_PART = 1 << 16
_COLUMNS = ("arrivals", "inputs", "outputs", "offsets", "blocks")


class _Folder:
    """A temporary folder that is deleted with the last reference to it."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="kv-sim-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class Columns:
    """A compiled trace; ``notes`` has the reader's remarks, ``engine`` the engine that it was recorded on."""

    def __init__(
        self,
        name: str,
        block_tokens: int,
        arrivals: Floats,
        inputs: Ints,
        outputs: Ints,
        offsets: Ints,
        blocks: Ints,
        notes: Sequence[str] = (),
        *,
        engine: EngineMemory | None = None,
        sessions: Ints | None = None,
        observed: Observations | None = None,
        folder: _Folder | None = None,
    ) -> None:
        """``folder`` is where blocks are that are mapped; it lasts as long as this does."""
        self.name = name
        self.block_tokens = block_tokens
        self.arrivals = arrivals
        self.inputs = inputs
        self.outputs = outputs
        self.offsets = offsets
        self.blocks = blocks
        self.notes = tuple(notes)
        self.engine = engine
        self.sessions = sessions
        """Of which session each request is, by number, or `NO_SESSION`; None: the reader wasn't asked for them."""
        self.observed = observed
        """What its server had of each prompt, as it counted itself; None: no request says it."""
        self._saved: _Folder | None = None
        self._folder = folder

    def __len__(self) -> int:
        return len(self.inputs)

    def __iter__(self) -> Iterator[TraceRequest]:
        for first in range(0, len(self), _PART):
            stop = min(first + _PART, len(self))
            offsets = self.offsets[first : stop + 1].tolist()
            columns = (self.arrivals, self.inputs, self.outputs)
            arrivals, inputs, outputs = (column[first:stop].tolist() for column in columns)
            for index in range(stop - first):
                ids = self.blocks[offsets[index] : offsets[index + 1]].tolist()
                yield TraceRequest(arrivals[index], inputs[index], outputs[index], tuple(ids))

    @property
    def references(self) -> int:
        """Blocks of all requests together, each time they occur."""
        return len(self.blocks)

    @property
    def input_tokens(self) -> int:
        """Tokens of all prompts together."""
        return int(self.inputs.sum())

    @property
    def counts(self) -> Ints:
        """How many blocks each request has."""
        return np.diff(self.offsets)

    @property
    def full_counts(self) -> Ints:
        """How many of them are full."""
        full: Ints = np.minimum(self.counts, self.inputs // self.block_tokens)
        return full

    @property
    def block_input_tokens(self) -> Ints:
        """How many tokens of each prompt are in its blocks."""
        tokens: Ints = np.minimum(self.inputs, self.counts * self.block_tokens)
        return tokens

    @property
    def duration_seconds(self) -> float:
        """From the first arrival to the last."""
        return float(self.arrivals[-1]) if len(self) else 0.0

    def of(self, requests: Ints) -> "Columns":
        """Some of the requests, in order, without sessions. Their arrivals still count from the first of all."""
        folder = _Folder() if isinstance(self.blocks, np.memmap) else None
        blocks, offsets = _moved(self.blocks, self.offsets, requests, folder)
        return Columns(
            name=self.name,
            block_tokens=self.block_tokens,
            arrivals=self.arrivals[requests],
            inputs=self.inputs[requests],
            outputs=self.outputs[requests],
            offsets=offsets,
            blocks=blocks,
            notes=self.notes,
            engine=self.engine,
            observed=None if self.observed is None else self.observed.of(requests),
            folder=folder,
        )

    def save(self) -> Path:
        """A folder from which another process can ``load`` this; it goes when this object goes."""
        if self._saved is None:
            self._saved = _Folder()
            for name in _COLUMNS:
                np.save(self._saved.path / f"{name}.npy", getattr(self, name))
        return self._saved.path

    @classmethod
    def load(cls, folder: Path, name: str, block_tokens: int) -> "Columns":
        """What ``save`` wrote, mapped: the requests, and nothing of what is known about them besides."""
        mapped: dict[str, Any] = {part: np.load(folder / f"{part}.npy", mmap_mode="r") for part in _COLUMNS}
        return cls(name, block_tokens, **mapped)

    def check(self) -> None:
        """Recount."""
        assert len(self.offsets) == len(self) + 1, f"{len(self.offsets)} offsets for {len(self)} requests"
        assert self.offsets[0] == 0, f"the first request begins at id {self.offsets[0]}"
        assert self.offsets[-1] == len(self.blocks), f"offsets end at {self.offsets[-1]} of {len(self.blocks)}"
        assert (self.counts >= 0).all(), "offsets go back"
        if len(self):
            assert self.arrivals[0] >= 0, f"the first request arrives at {self.arrivals[0]}"
            assert (np.diff(self.arrivals) >= 0).all(), "arrivals go back"
            most = -(-self.inputs // self.block_tokens)
            assert (self.counts <= most).all(), "more ids than blocks fit the input"
        if self.observed is not None:
            cached, loaded = self.observed.cached, self.observed.loaded
            assert len(cached) == len(loaded) == len(self), "some requests have nothing observed, not even nothing"
            assert (cached <= self.inputs).all(), "a server had more of a prompt than there is"
            assert (loaded <= cached).all(), "more was loaded than a server had"


class ColumnsBuilder:
    """Takes requests in any order of arrival, and makes the trace."""

    def __init__(self, spool_ids: int = SPOOL_IDS, *, keeps_sessions: bool = False) -> None:
        self._spool_ids = spool_ids
        self._sessions = array("q") if keeps_sessions else None
        self._arrivals = array("d")
        self._inputs = array("q")
        self._outputs = array("q")
        self._observed = ObservationsBuilder()
        self._offsets = array("q", [0])
        self._ids = array("q")
        self._spooled = 0
        self._folder: _Folder | None = None
        self._latest = float("-inf")
        self.went_back = False
        """Whether a request arrived before the one that was added before it."""

    def __len__(self) -> int:
        return len(self._inputs)

    def add(
        self,
        arrival: float,
        input_tokens: int,
        output_tokens: int,
        ids: Sequence[int],
        session: int = NO_SESSION,
        observed: Observation = NOTHING_SAID,
    ) -> None:
        """One request."""
        self.went_back |= arrival < self._latest
        self._latest = arrival
        self._arrivals.append(arrival)
        self._inputs.append(input_tokens)
        self._outputs.append(output_tokens)
        if self._sessions is not None:
            self._sessions.append(session)
        self._observed.add(observed)
        self._ids.extend(ids)
        self._offsets.append(self._spooled + len(self._ids))
        if len(self._ids) >= self._spool_ids:
            self._spool()

    def finish(
        self, name: str, block_tokens: int, notes: Sequence[str] = (), engine: EngineMemory | None = None
    ) -> Columns:
        """The trace, in order of arrival; requests that arrive together stay in the order of the file."""
        blocks = self._blocks()
        arrivals: Floats = np.array(self._arrivals, dtype=np.float64)
        inputs, outputs, offsets = (
            np.array(column, dtype=np.int64) for column in (self._inputs, self._outputs, self._offsets)
        )
        sessions = None if self._sessions is None else np.array(self._sessions, dtype=np.int64)
        observed = self._observed.finish()
        if self.went_back:
            order = np.argsort(arrivals, kind="stable")
            arrivals, inputs, outputs = arrivals[order], inputs[order], outputs[order]
            sessions = None if sessions is None else sessions[order]
            observed = None if observed is None else observed.of(order)
            blocks, offsets = _moved(blocks, offsets, order, self._folder)
        if len(arrivals):
            arrivals = arrivals - arrivals[0]
        return Columns(
            name=name,
            block_tokens=block_tokens,
            arrivals=arrivals,
            inputs=inputs,
            outputs=outputs,
            offsets=offsets,
            blocks=blocks,
            notes=notes,
            engine=engine,
            sessions=sessions,
            observed=observed,
            folder=self._folder,
        )

    def _spool(self) -> None:
        with self._ids_file().open("ab") as file:
            self._ids.tofile(file)
        self._spooled += len(self._ids)
        self._ids = array("q")

    def _ids_file(self) -> Path:
        if self._folder is None:
            self._folder = _Folder()
        return self._folder.path / "ids"

    def _blocks(self) -> Ints:
        if not self._spooled:
            return np.array(self._ids, dtype=np.int64)
        self._spool()
        return np.memmap(self._ids_file(), dtype=np.int64, mode="r")


def _moved(
    blocks: Ints, offsets: Ints, order: npt.NDArray[np.intp] | Ints, folder: _Folder | None
) -> tuple[Ints, Ints]:
    """The ids of some requests in another order, in a file of ``folder`` if there is one; and their offsets."""
    counts = np.diff(offsets)[order]
    moved = np.zeros(len(order) + 1, dtype=np.int64)
    np.cumsum(counts, out=moved[1:])
    total = int(moved[-1])
    if folder is None or not total:  # nothing can't be mapped
        target: Ints = np.empty(total, dtype=np.int64)
    else:
        target = np.memmap(folder.path / "ids in order", dtype=np.int64, mode="w+", shape=total)
    starts = offsets[:-1][order].tolist()
    for start, count, to in zip(starts, counts.tolist(), moved[:-1].tolist(), strict=True):
        target[to : to + count] = blocks[start : start + count]
    return target, moved
