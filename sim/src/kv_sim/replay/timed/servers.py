"""Replays of one trace on servers of several kinds, one kind after the other, maybe side by side in processes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from kv_api import ConfigError
from kv_sim.replay.columns import Columns
from kv_sim.replay.fleet import Fleet, Load, RoutedTrace
from kv_sim.replay.side_by_side import Progress, do_all
from kv_sim.replay.timed.answers import Answers, answers_of
from kv_sim.replay.timed.finished import Finished, finished_of
from kv_sim.replay.timed.run import replay_once
from kv_sim.replay.timed.settings import EngineSettings
from kv_sim.replay.trace import Tell, Trace

WORTH_A_PROCESS: Final = 1000
"""Requests that take longer than a process takes to begin."""


@dataclass(frozen=True)
class ServerKind:
    """What a server is like, and the connector that it has: the value of a ``--kv-transfer-config``."""

    settings: EngineSettings
    transfer: Mapping[str, Any]


@dataclass(frozen=True)
class Shares:
    """What comes to each server of a kind: of one, the whole trace."""

    traces: tuple[Trace, ...]
    load: Load | None = None
    """What came to each, where there are several."""


def shares_of(trace: Trace, fleet: Fleet | None, limit: int | None) -> Shares:
    """Deal a trace out; who gets what is decided beforehand, whatever the servers do."""
    if fleet is None or fleet.servers == 1:
        return Shares((trace,))
    routed = RoutedTrace(_first(trace, limit), fleet)
    return Shares(tuple(share.columns for share in routed.shares), routed.load)


def replay_on(shares: Shares, kinds: Sequence[ServerKind], jobs: int, progress: Progress) -> list[Answers]:
    """What servers of each kind answer, in their order: all of a kind together."""
    pieces = [(kind, which) for kind in kinds for which in range(len(shares.traces))]
    traces = [trace for trace in shares.traces if isinstance(trace, Columns)]
    if len(traces) == len(shares.traces):
        enough = sum(len(traces[which]) for _, which in pieces) // WORTH_A_PROCESS
        found = do_all(_replay, pieces, traces, min(jobs, max(1, enough)), progress)
    else:  # one that was made: it can't be saved for another process, and nobody knows how long it is
        found = []
        for kind, which in pieces:
            found.append(_replay(shares.traces[which], kind, lambda count: None))
            progress(len(found) / len(pieces))
    each = len(shares.traces)
    return [answers_of(*found[first : first + each]) for first in range(0, len(found), each)]


def _replay(trace: Trace, kind: ServerKind, tell: Tell) -> Finished:
    return finished_of(*replay_once(trace, kind.settings, kind.transfer, tell))


def _first(trace: Trace, limit: int | None) -> Columns:
    """So many requests of a trace; only of one that was read is known who shares what with whom."""
    if not isinstance(trace, Columns):
        raise ConfigError(f"{trace.name}: several servers need a trace that open_trace has read")
    return trace if limit is None else trace.of(np.arange(min(limit, len(trace))))
