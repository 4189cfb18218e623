"""The results of ``replay``: one `CacheReplay` for each policy and capacity, with upper bounds.

The plain numbers of a notebook; the folder `report` shows these.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kv_sim.replay.caches.beside import BesideObserved, BesideSums
from kv_sim.replay.caches.outcome import Outcome, Setup
from kv_sim.replay.caches.ratios import Ratios, Totals
from kv_sim.replay.caches.tally import Ages, Tiers, Window, ages_of, hits_by_tier, series_of
from kv_sim.replay.hit_rates.facts import WholeFacts, facts_of
from kv_sim.replay.servers.fleet import RoutedTrace
from kv_sim.replay.units import Footprint


@dataclass(frozen=True)
class DiskCounts:
    """Of the files behind host memory, what ``CacheCounts`` has of that; all 0 where there are none."""

    ratios: Ratios
    """Of each server's own."""
    neighbours: Ratios
    """Of the other servers', where they share them."""
    loaded_blocks: int
    borrowed_blocks: int
    """Loaded from the files of other servers."""
    stored_blocks: int
    evicted_blocks: int
    skipped_blocks: int
    refused_blocks: int


@dataclass(frozen=True)
class CacheCounts:
    """One policy at one capacity, as far as a streamed trace can tell."""

    setup: Setup
    gpu: Ratios
    cpu: Ratios
    both: Ratios
    """Hits of all tiers together."""
    loaded_blocks: int
    stored_blocks: int
    evicted_blocks: int
    skipped_blocks: int
    refused_blocks: int
    disk: DiskCounts
    footprint: Footprint
    beside: BesideObserved | None
    """Compared with the server's own count, over the requests that have one; None: there are none."""

    @property
    def block_ratio(self) -> float:
        """Blocks hit / blocks, all tiers together."""
        return self.both.block

    @property
    def token_ratio(self) -> float:
        """Tokens in blocks hit / tokens, all tiers together."""
        return self.both.token

    @property
    def capacity_bytes(self) -> int | None:
        """Host memory, where the bytes of a token are known."""
        return self.footprint.bytes_of(self.setup.capacity)

    @property
    def disk_bytes(self) -> int | None:
        """The disk, where the bytes of a token are known."""
        return self.footprint.bytes_of(self.setup.disk)

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
    """MIN at the same capacity, all tiers together."""
    ages: Ages
    series: tuple[Window, ...]


@dataclass(frozen=True)
class Replays(WholeFacts):
    """All replays of one command."""

    runs: tuple[CacheReplay, ...]


def counts_of(
    tiers: Tiers, outcome: Outcome, totals: Totals, footprint: Footprint, beside: BesideSums
) -> CacheCounts:
    """What can be said without the trace, of hits that were summed up."""
    host, disk = outcome.host, outcome.disk
    return CacheCounts(
        setup=outcome.setup,
        gpu=tiers.gpu.ratios(totals),
        cpu=tiers.cpu.ratios(totals),
        both=tiers.together().ratios(totals),
        loaded_blocks=tiers.cpu.blocks,
        stored_blocks=host.stored,
        evicted_blocks=host.evicted,
        skipped_blocks=host.skipped,
        refused_blocks=host.refused,
        disk=DiskCounts(
            ratios=tiers.disk.ratios(totals),
            neighbours=tiers.neighbours.ratios(totals),
            loaded_blocks=tiers.disk.blocks,
            borrowed_blocks=tiers.neighbours.blocks,
            stored_blocks=disk.stored,
            evicted_blocks=disk.evicted,
            skipped_blocks=disk.skipped,
            refused_blocks=disk.refused,
        ),
        footprint=footprint,
        beside=beside.ratios(),
    )


def results_of(trace: RoutedTrace, outcomes: Sequence[Outcome], footprint: Footprint) -> Replays:
    """From what replays left behind to what is shown of each, and what no policy can beat."""
    columns, shape = trace.columns, trace.reached_shape
    totals = Totals.of(columns)
    best: dict[int, Ratios] = {}
    runs = []
    for outcome in outcomes:
        size = outcome.setup.blocks
        if size not in best:
            best[size] = trace.best_hits(size).ratios(totals)
        beside = BesideSums.of(columns, outcome)
        counts = counts_of(hits_by_tier(columns, outcome), outcome, totals, footprint, beside)
        runs.append(
            CacheReplay(
                **{name: getattr(counts, name) for name in CacheCounts.__dataclass_fields__},
                best=best[size],
                ages=ages_of(columns, shape, outcome),
                series=tuple(series_of(columns, shape, outcome)),
            )
        )
    return Replays(**vars(facts_of(trace)), runs=tuple(runs))
