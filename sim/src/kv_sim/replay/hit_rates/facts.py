"""``Facts``: what every result of a command says of the trace and of the servers that got it."""

from dataclasses import dataclass

from kv_sim.replay.caches.beside import ObservedRatios, ObservedSums
from kv_sim.replay.caches.bounds import infinite_hits
from kv_sim.replay.caches.ratios import Ratios, Totals
from kv_sim.replay.servers.fleet import Load, RoutedTrace


@dataclass(frozen=True, kw_only=True)
class Facts:
    """As much as is known of a trace that isn't kept."""

    trace: str
    notes: tuple[str, ...]
    requests: int
    duration_seconds: float
    totals: Totals
    load: Load | None
    """The load of each server, if there are several."""
    disk_shared: bool
    """Whether these read each other's disks."""
    observed: ObservedRatios | None
    """The hits that the trace's own server counted, if the trace has them."""


@dataclass(frozen=True, kw_only=True)
class WholeFacts(Facts):
    """What is known of a trace that is kept."""

    unique_blocks: int
    infinite: Ratios
    """Hits of a cache that holds everything, on each server."""
    infinite_shared: Ratios
    """Hits of one such cache for all servers."""

    @property
    def most_possible(self) -> Ratios:
        """The hits if nothing is ever evicted."""
        return self.infinite_shared if self.disk_shared else self.infinite


def facts_of(trace: RoutedTrace) -> WholeFacts:
    """The facts of a trace on its servers."""
    columns, totals = trace.columns, Totals.of(trace.columns)
    return WholeFacts(
        trace=columns.name,
        notes=columns.notes,
        requests=len(columns),
        duration_seconds=columns.duration_seconds,
        totals=totals,
        load=trace.load,
        disk_shared=trace.fleet.disk_shared,
        observed=ObservedSums.of(columns).ratios(),
        unique_blocks=trace.shape.unique_blocks,
        infinite=infinite_hits(columns, trace.routed_shape).ratios(totals),
        infinite_shared=infinite_hits(columns, trace.shape).ratios(totals),
    )
