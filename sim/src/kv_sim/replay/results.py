"""What ``replay`` answers: one `CacheReplay` for each policy and capacity, beside what no policy can beat.

The plain numbers of a notebook; the folder `report` shows these.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kv_sim.replay.bounds import infinite_hits, min_hits
from kv_sim.replay.cache import Outcome, Setup
from kv_sim.replay.columns import Columns
from kv_sim.replay.curve import Ratios, Totals
from kv_sim.replay.shape import Shape
from kv_sim.replay.tally import Ages, Window, ages_of, hits_by_tier, series_of
from kv_sim.replay.units import Footprint


@dataclass(frozen=True)
class CacheCounts:
    """One policy at one capacity, as far as it is known of a trace that nobody keeps."""

    setup: Setup
    gpu: Ratios
    cpu: Ratios
    both: Ratios
    loaded_blocks: int
    stored_blocks: int
    evicted_blocks: int
    skipped_blocks: int
    refused_blocks: int
    footprint: Footprint

    @property
    def block_ratio(self) -> float:
        """Blocks hit / blocks, both tiers together."""
        return self.both.block

    @property
    def token_ratio(self) -> float:
        """Tokens in blocks hit / tokens, both tiers together."""
        return self.both.token

    @property
    def capacity_bytes(self) -> int | None:
        """Host memory, where the bytes of a token are known."""
        return self.footprint.bytes_of(self.setup.capacity)

    @property
    def loaded_bytes(self) -> int | None:
        """Copied from host memory to the GPU."""
        return self.footprint.bytes_of(self.loaded_blocks)

    @property
    def stored_bytes(self) -> int | None:
        """Copied from the GPU to host memory."""
        return self.footprint.bytes_of(self.stored_blocks)


@dataclass(frozen=True)
class CacheReplay(CacheCounts):
    """One policy at one capacity."""

    best: Ratios
    """MIN at the same capacity, host memory and GPU together."""
    ages: Ages
    series: tuple[Window, ...]


@dataclass(frozen=True)
class Replays:
    """All of one command, and what belongs to the trace."""

    trace: str
    notes: tuple[str, ...]
    requests: int
    duration_seconds: float
    totals: Totals
    unique_blocks: int
    infinite: Ratios
    runs: tuple[CacheReplay, ...]


def results_of(columns: Columns, shape: Shape, outcomes: Sequence[Outcome], footprint: Footprint) -> Replays:
    """Count everything."""
    totals = Totals.of(columns)
    best: dict[int, Ratios] = {}
    runs = []
    for outcome in outcomes:
        outcome.check(columns)
        setup = outcome.setup
        size = setup.capacity + setup.gpu_blocks
        if size not in best:
            best[size] = min_hits(columns, shape, size).ratios(totals)
        gpu, cpu = hits_by_tier(columns, outcome)
        both = gpu.plus(cpu)
        runs.append(
            CacheReplay(
                setup,
                gpu.ratios(totals),
                cpu.ratios(totals),
                both.ratios(totals),
                int(outcome.cpu_hits.sum()),
                outcome.stored,
                outcome.evicted,
                outcome.stores_skipped,
                outcome.stores_refused,
                footprint,
                best[size],
                ages_of(columns, shape, outcome),
                tuple(series_of(columns, shape, outcome)),
            )
        )
    infinite = infinite_hits(columns, shape).ratios(totals)
    return Replays(
        columns.name,
        columns.notes,
        len(columns),
        columns.duration_seconds,
        totals,
        shape.unique_blocks,
        infinite,
        tuple(runs),
    )
