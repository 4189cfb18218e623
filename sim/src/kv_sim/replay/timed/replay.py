"""``replay_engine``: a trace on a server with a connector, and on the same server without.

Where some servers prefill for others, it is replayed on these, and on as many that do both, with the connector.
Where files stand behind another medium it is replayed a third time, with all but these. Of several servers each
gets its share of the trace, and goes its own way.
"""

from dataclasses import dataclass, replace

from kv_sim.replay.caches.beside import ObservedSums
from kv_sim.replay.columns import Columns
from kv_sim.replay.fleet import Fleet, Load
from kv_sim.replay.side_by_side import Progress
from kv_sim.replay.timed.answers import Answers
from kv_sim.replay.timed.connectors.timed_config import NOTHING, without_files
from kv_sim.replay.timed.servers import ServerKind, check_together, replay_on, shares_of
from kv_sim.replay.timed.settings import EngineSettings, Sizes, plan
from kv_sim.replay.trace import Trace


@dataclass(frozen=True)
class EngineReplay:
    """The answers, and everything that they rest on."""

    trace: str
    settings: EngineSettings
    sizes: Sizes
    with_connector: Answers
    without: Answers
    """Or, where some servers prefill for others, of servers that do both."""
    without_disk: Answers | None = None
    """With the connector's other media alone; None where it has no disk, or nothing else."""
    notes: tuple[str, ...] = ()
    """What a reader decided about the trace, and what it left out."""
    load: Load | None = None
    """What came to each server, where there are several."""


def replay_engine(
    trace: Trace,
    settings: EngineSettings,
    progress: Progress = lambda share: None,
    fleet: Fleet | None = None,
    *,
    jobs: int = 1,
) -> EngineReplay:
    """Replay a trace with the settings' connector, then without, in so many processes.

    A ``fleet`` has several such servers. ``progress`` hears which share of all of it is done.
    """
    sizes, transfer = plan(settings, trace.block_tokens), settings.transfer_config()
    check_together(fleet, settings, transfer)
    shares, left = shares_of(trace, fleet, settings.limit), without_files(transfer)
    if settings.prefill_servers:
        kinds = [ServerKind(settings, transfer), ServerKind(replace(settings, prefill_servers=0), transfer)]
    else:
        configs = [transfer, NOTHING] if left is None else [transfer, NOTHING, left]
        kinds = [ServerKind(settings, config) for config in configs]
    with_connector, without, *without_disk = replay_on(shares, kinds, jobs, progress)
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
    """What was noted of a trace that was read, and what it doesn't tell; one that was made has no notes."""
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
