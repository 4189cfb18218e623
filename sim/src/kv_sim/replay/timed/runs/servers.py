"""Replays one trace on servers of several kinds, in one process or in several at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any, Final

import numpy as np

from kv_api import ConfigError
from kv_sim.replay.columns import Columns
from kv_sim.replay.crew import Crew
from kv_sim.replay.servers.fleet import Fleet, Load, RoutedTrace
from kv_sim.replay.timed.connectors.timed_config import NOTHING, shares_files, timed_config
from kv_sim.replay.timed.runs.answers import Answers, answers_of
from kv_sim.replay.timed.runs.finished import Finished, finished_of
from kv_sim.replay.timed.runs.run import Share, replay_once, replay_together
from kv_sim.replay.timed.runs.split import SplitTransfers, replay_split
from kv_sim.replay.timed.server.settings import Contents, EngineSettings
from kv_sim.replay.trace import Tell, Trace

WORTH_A_PROCESS: Final = 1000
"""So many requests take longer to replay than a process takes to start."""


@dataclass(frozen=True)
class ServerKind:
    """A server's settings and its connector: the value of a ``--kv-transfer-config``; empty: none.

    If some servers prefill for others, it is the connector that prefilling servers have beside kv-p2p's.
    """

    settings: EngineSettings
    transfer: Mapping[str, Any]

    @property
    def goes_alone(self) -> bool:
        """Whether servers of this kind don't affect each other."""
        return not self.settings.prefill_servers and not shares_files(self.transfer)


@dataclass(frozen=True)
class Shares:
    """Each server's share of the trace; a single server gets the whole trace."""

    traces: tuple[Trace, ...]
    load: Load | None = None
    """The load of each server, if there are several."""
    whole: Columns | None = None
    """The whole trace, if there are several servers."""
    fleet: Fleet | None = None


def check_together(fleet: Fleet | None, settings: EngineSettings, transfer: Mapping[str, Any]) -> None:
    """Refuse ``disk_shared`` with a connector that doesn't share files, and impossible prefilling servers."""
    servers, prefilling = 1 if fleet is None else fleet.servers, settings.prefill_servers or 0
    if prefilling >= servers:
        raise ConfigError(
            f"prefill_servers: got {prefilling}, with --servers {servers}; at least one server has to decode"
        )
    if prefilling and settings.contents is Contents.CHECKED:
        raise ConfigError("prefill_servers: not possible with --check-contents")
    if prefilling and shares_files(transfer):
        raise ConfigError("prefill_servers: not possible where servers share files")
    if prefilling and settings.connector is not None:
        timed_config(settings.connector, settings.tp_size)  # so that errors name the user's own keys
    if fleet is not None and fleet.disk_shared and not shares_files(transfer):
        raise ConfigError("--disk-shared: no medium of this connector sets file_shared")


def shares_of(trace: Trace, fleet: Fleet | None, limit: int | None) -> Shares:
    """Deal a trace out to servers. The router decides beforehand, independently of what the servers do."""
    if fleet is None or fleet.servers == 1:
        return Shares((trace,))
    routed = RoutedTrace(_first(trace, limit), fleet)
    return Shares(tuple(share.columns for share in routed.shares), routed.load, routed.columns, fleet)


def replay_on(shares: Shares, kinds: Sequence[ServerKind], crew: Crew) -> list[Answers]:
    """The answers of each kind of server, in the order of ``kinds``; each covers all servers of its kind.

    Servers that share files, or prefill for others, are replayed together in one process, since each affects the
    others.
    """
    traces, each = [*shares.traces], len(shares.traces)
    pieces: list[tuple[_Piece, int]] = []
    for kind in kinds:
        if shares.whole is not None and not kind.goes_alone:
            traces[each:] = [shares.whole]
            pieces.append((_Piece(kind, shares.fleet), each))
        else:
            pieces += [(_Piece(kind), which) for which in range(each)]
    read = [trace for trace in traces if isinstance(trace, Columns)]
    if len(read) == len(traces):
        enough = sum(len(read[which]) for _, which in pieces) // WORTH_A_PROCESS
        done = replace(crew, jobs=min(crew.jobs, max(1, enough))).do_all(_replay, pieces, read)
    else:  # a trace that wasn't read from a file: it can't be saved for another process, and its length is unknown
        done = []
        for piece, which in pieces:
            done.append(_replay(traces[which], piece, lambda count: None))
            crew.progress(len(done) / len(pieces))
    found = [*chain.from_iterable(done)]
    return [answers_of(*found[first : first + each]) for first in range(0, len(found), each)]


@dataclass(frozen=True)
class _Piece:
    """One piece of work: a single server of a kind, or a whole fleet of it."""

    kind: ServerKind
    fleet: Fleet | None = None


def _replay(trace: Trace, piece: _Piece, tell: Tell) -> list[Finished]:
    settings, transfer, fleet = piece.kind.settings, piece.kind.transfer, piece.fleet
    if fleet is None:
        if not transfer and settings.connector is None:
            transfer = NOTHING
        return [finished_of(*replay_once(trace, settings, transfer, tell))]
    prefilling = settings.prefill_servers
    if not prefilling:
        found = replay_together(_dealt(trace, fleet, tell), settings, transfer, trace.block_tokens)
        return [finished_of(*one) for one in found]
    shares, transfers = _dealt(trace, replace(fleet, servers=prefilling), tell), SplitTransfers.beside(transfer)
    return replay_split(shares, fleet.servers - prefilling, settings, transfers, trace.block_tokens)


def _dealt(trace: Trace, fleet: Fleet, tell: Tell) -> list[Share]:
    """The share of each server, for servers that are replayed together."""
    assert isinstance(trace, Columns), f"{trace.name} can't be dealt out"
    routed, done = RoutedTrace(trace, fleet), count(1)

    def watched(share: Share) -> Share:
        for numbered in share:
            tell(next(done))
            yield numbered

    return [watched(zip(share.requests.tolist(), share.columns, strict=True)) for share in routed.shares]


def _first(trace: Trace, limit: int | None) -> Columns:
    """The first ``limit`` requests of a trace. Only a trace that was read can be dealt out to several servers."""
    if not isinstance(trace, Columns):
        raise ConfigError(f"{trace.name}: several servers need a trace that open_trace has read")
    return trace if limit is None else trace.of(np.arange(min(limit, len(trace))))
