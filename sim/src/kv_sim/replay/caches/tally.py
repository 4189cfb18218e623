"""Makes the reported figures of a replay's outcome: hits by tier and definition, ages, a series over time.

The *age* of a hit is the time since a request last used the block, in the trace's own time.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from kv_sim.replay.caches.outcome import Outcome
from kv_sim.replay.caches.ratios import Hits
from kv_sim.replay.caches.shape import NOBODY, Shape
from kv_sim.replay.columns import Columns, Ints

WINDOWS: Final = 60
AGE_EDGES_SECONDS: Final = (1, 3, 10, 30, 60, 180, 600, 1800, 3600, 10_800, 36_000, 86_400)


@dataclass(frozen=True)
class Ages:
    """The ages of the blocks that were loaded from host memory or the disk."""

    counts: tuple[int, ...]
    """Blocks by age: younger than the first of `AGE_EDGES_SECONDS`, than the second, ..., and all older ones."""
    p50_seconds: float
    p90_seconds: float
    p99_seconds: float


@dataclass(frozen=True)
class Window:
    """The hits in one interval of the trace's time."""

    begin_seconds: float
    blocks: int
    gpu_hits: int
    cpu_hits: int
    disk_hits: int
    """Includes hits on other servers' disks."""
    reusable: int
    """The hits of an infinite cache."""
    borrowed_hits: int = 0
    """The part of ``disk_hits`` from other servers' disks."""


class Tiers(NamedTuple):
    """Hits by the tier that had them."""

    gpu: Hits
    cpu: Hits
    disk: Hits
    """On the disk of the server itself."""
    neighbours: Hits
    """On the disks of other servers, if servers share files."""

    def plus(self, more: "Tiers") -> "Tiers":
        """The sum of both, tier by tier."""
        return Tiers(*(one.plus(other) for one, other in zip(self, more, strict=True)))

    def together(self) -> Hits:
        """The sum over all tiers."""
        return self.gpu.plus(self.cpu).plus(self.disk).plus(self.neighbours)


def hits_by_tier(columns: Columns, outcome: Outcome) -> Tiers:
    """The hits of the GPU's tier, of host memory, of the disk, and of the disks of neighbours."""
    up_to_gpu = _sum(columns, outcome.gpu_hits)
    up_to_cpu = _sum(columns, outcome.gpu_hits + outcome.cpu_hits)
    up_to_disk = _sum(columns, outcome.gpu_hits + outcome.loaded)
    neighbours = _borrowed(columns, outcome)
    on_disks = up_to_disk.minus(up_to_cpu)
    return Tiers(up_to_gpu, up_to_cpu.minus(up_to_gpu), on_disks.minus(neighbours), neighbours)


def ages_of(columns: Columns, shape: Shape, outcome: Outcome) -> Ages:
    """The ages of the blocks that were loaded."""
    request = shape.request
    first = np.maximum(shape.start, outcome.gpu_hits[request])
    stop = np.minimum(shape.start + shape.length, (outcome.gpu_hits + outcome.loaded)[request])
    weights = np.maximum(stop - first, 0) * (shape.user != NOBODY)
    used = np.flatnonzero(weights)
    ages = columns.arrivals[request[used]] - columns.arrivals[shape.user[used]]
    weights = weights[used]
    bins = np.searchsorted(np.array(AGE_EDGES_SECONDS), ages, side="right")
    counts = np.bincount(bins, weights=weights, minlength=len(AGE_EDGES_SECONDS) + 1)
    order = np.argsort(ages, kind="stable")
    reached = np.cumsum(weights[order])
    parts = []
    for share in (0.5, 0.9, 0.99):
        at = int(np.searchsorted(reached, share * reached[-1])) if len(order) else 0
        parts.append(float(ages[order[at]]) if len(order) else 0.0)
    return Ages(tuple(int(count) for count in counts), *parts)


def series_of(columns: Columns, shape: Shape, outcome: Outcome, windows: int = WINDOWS) -> list[Window]:
    """The hits in each of ``windows`` equal intervals of the trace's time."""
    width = columns.duration_seconds / windows or 1.0
    place = np.minimum((columns.arrivals / width).astype(np.int64), windows - 1)
    reusable: Ints = np.zeros(len(columns), dtype=np.int64)
    np.add.at(reusable, shape.request, shape.length * (shape.user != NOBODY))
    borrowed = np.zeros_like(outcome.disk_hits) if outcome.borrowed is None else outcome.borrowed.blocks
    parts = (columns.counts, outcome.gpu_hits, outcome.cpu_hits, outcome.disk_hits, reusable, borrowed)
    sums = [np.bincount(place, weights=part, minlength=windows).astype(np.int64).tolist() for part in parts]
    return [Window(index * width, *values) for index, values in enumerate(zip(*sums, strict=True))]


def _borrowed(columns: Columns, outcome: Outcome) -> Hits:
    """Hits on the disks of other servers. Only the last block of a prompt can be partial."""
    if outcome.borrowed is None:
        return Hits(0, 0, 0)
    blocks, last = outcome.borrowed
    lacks = (last * (columns.block_tokens * columns.counts - columns.block_input_tokens))[last == 1]
    count = int(blocks.sum())
    return Hits(count, count - int(np.count_nonzero(lacks)), count * columns.block_tokens - int(lacks.sum()))


def _sum(columns: Columns, hits: Ints) -> Hits:
    full = np.minimum(hits, columns.full_counts)
    tokens = np.minimum(hits * columns.block_tokens, columns.block_input_tokens)
    return Hits(int(hits.sum()), int(full.sum()), int(tokens.sum()))
