"""``replay_engine``: a trace on a server with a connector, and on the same server without one.

If some servers prefill for others, the trace is replayed on these servers, and on as many servers that each do
both, with the connector. If the connector has files behind another medium, the trace is replayed a third time
without the files. Several servers each get their share of the trace, and run independently of each other unless
they share files or prefill for each other.
"""

from dataclasses import dataclass, replace

from kv_sim.replay.caches.beside import ObservedSums
from kv_sim.replay.columns import Columns
from kv_sim.replay.crew import Crew, Progress
from kv_sim.replay.servers.fleet import Fleet, Load
from kv_sim.replay.timed.connectors.timed_config import NOTHING, without_files
from kv_sim.replay.timed.runs.answers import Answers
from kv_sim.replay.timed.runs.servers import ServerKind, check_together, replay_on, shares_of
from kv_sim.replay.timed.server.settings import EngineSettings
from kv_sim.replay.timed.server.sizes import Sizes, plan
from kv_sim.replay.trace import Trace


@dataclass(frozen=True)
class EngineReplay:
    """The answers, with the settings, sizes and notes that they depend on."""

    trace: str
    settings: EngineSettings
    sizes: Sizes
    with_connector: Answers
    without: Answers
    """The answers without a connector; if some servers prefill for others, those of servers that do both."""
    without_disk: Answers | None = None
    """With the connector's other media alone; None if it has no disk, or only a disk."""
    notes: tuple[str, ...] = ()
    """What the reader of the trace assumed, and what it left out."""
    load: Load | None = None
    """The load of each server, if there are several."""


def replay_engine(
    trace: Trace,
    settings: EngineSettings,
    progress: Progress = lambda share: None,
    fleet: Fleet | None = None,
    *,
    jobs: int = 1,
) -> EngineReplay:
    """Replay a trace with the settings' connector, then without, in up to ``jobs`` processes.

    A ``fleet`` has several such servers. ``progress`` is called with the share of the work that is done.
    """
    sizes, transfer = plan(settings, trace.block_tokens), settings.transfer_config()
    check_together(fleet, settings, transfer)
    shares, left = shares_of(trace, fleet, settings.limit), without_files(transfer)
    if settings.prefill_servers:
        kinds = [ServerKind(settings, transfer), ServerKind(replace(settings, prefill_servers=0), transfer)]
    else:
        configs = [transfer, NOTHING] if left is None else [transfer, NOTHING, left]
        kinds = [ServerKind(settings, config) for config in configs]
    with_connector, without, *without_disk = replay_on(shares, kinds, Crew(jobs, progress))
    return EngineReplay(
        trace=trace.name,
        settings=settings,
        sizes=sizes,
        with_connector=with_connector,
        without=without,
        without_disk=without_disk[0] if without_disk else None,
        notes=notes_of(trace),
        load=shares.load,
    )


def notes_of(trace: Trace) -> tuple[str, ...]:
    """The reader's notes on a trace, and what the trace doesn't say. A trace that wasn't read has no notes."""
    if not isinstance(trace, Columns):
        return ()
    notes, observed = list(trace.notes), ObservedSums.of(trace).ratios()
    if observed is not None:
        notes.append(str(observed))
    silent = int((trace.outputs == 0).sum())
    if silent:
        notes.append(
            f"{silent:,} of {len(trace):,} requests don't say how long their answers were: each gets one token"
        )
    return tuple(notes)
