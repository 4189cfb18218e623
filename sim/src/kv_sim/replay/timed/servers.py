"""Replays of one trace on servers of several kinds, one kind after the other, maybe side by side in processes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any, Final

import numpy as np

from kv_api import ConfigError
from kv_sim.replay.columns import Columns
from kv_sim.replay.fleet import Fleet, Load, RoutedTrace
from kv_sim.replay.side_by_side import Progress, do_all
from kv_sim.replay.timed.answers import Answers, answers_of
from kv_sim.replay.timed.connectors.timed_config import NOTHING, shares_files, timed_config
from kv_sim.replay.timed.finished import Finished, finished_of
from kv_sim.replay.timed.run import Share, replay_once, replay_together
from kv_sim.replay.timed.settings import Contents, EngineSettings
from kv_sim.replay.timed.split import SplitTransfers, replay_split
from kv_sim.replay.trace import Tell, Trace

WORTH_A_PROCESS: Final = 1000
"""Requests that take longer than a process takes to begin."""


@dataclass(frozen=True)
class ServerKind:
    """What a server is like, and the connector that it has: the value of a ``--kv-transfer-config``, or none.

    Where some prefill for others, it is what those have beside the one that serves the others.
    """

    settings: EngineSettings
    transfer: Mapping[str, Any]

    @property
    def goes_alone(self) -> bool:
        """Whether what one server does is nothing to another."""
        return not self.settings.prefill_servers and not shares_files(self.transfer)


@dataclass(frozen=True)
class Shares:
    """What comes to each server of a kind: of one, the whole trace."""

    traces: tuple[Trace, ...]
    load: Load | None = None
    """What came to each, where there are several."""
    whole: Columns | None = None
    """What is dealt out then."""
    fleet: Fleet | None = None


def check_together(fleet: Fleet | None, settings: EngineSettings, transfer: Mapping[str, Any]) -> None:
    """Refuse servers that are to share with a connector that doesn't, and what can't be where some prefill."""
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
        timed_config(settings.connector, settings.tp_size)  # before it is one of several
    if fleet is not None and fleet.disk_shared and not shares_files(transfer):
        raise ConfigError("--disk-shared: no medium of this connector sets file_shared")


def shares_of(trace: Trace, fleet: Fleet | None, limit: int | None) -> Shares:
    """Deal a trace out; who gets what is decided beforehand, whatever the servers do."""
    if fleet is None or fleet.servers == 1:
        return Shares((trace,))
    routed = RoutedTrace(_first(trace, limit), fleet)
    return Shares(tuple(share.columns for share in routed.shares), routed.load, routed.columns, fleet)


def replay_on(shares: Shares, kinds: Sequence[ServerKind], jobs: int, progress: Progress) -> list[Answers]:
    """What servers of each kind answer, in their order: all of a kind together.

    Those that share files, or prefill for others, are one piece of work, since each has to know what others do.
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
        done = do_all(_replay, pieces, read, min(jobs, max(1, enough)), progress)
    else:  # one that was made: it can't be saved for another process, and nobody knows how long it is
        done = []
        for piece, which in pieces:
            done.append(_replay(traces[which], piece, lambda count: None))
            progress(len(done) / len(pieces))
    found = [*chain.from_iterable(done)]
    return [answers_of(*found[first : first + each]) for first in range(0, len(found), each)]


@dataclass(frozen=True)
class _Piece:
    """A server of a kind, or all of a fleet together."""

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
    """What comes to each server, when they have one time."""
    assert isinstance(trace, Columns), f"{trace.name} can't be dealt out"
    routed, done = RoutedTrace(trace, fleet), count(1)

    def watched(share: Share) -> Share:
        for numbered in share:
            tell(next(done))
            yield numbered

    return [watched(zip(share.requests.tolist(), share.columns, strict=True)) for share in routed.shares]


def _first(trace: Trace, limit: int | None) -> Columns:
    """So many requests of a trace; only of one that was read is known who shares what with whom."""
    if not isinstance(trace, Columns):
        raise ConfigError(f"{trace.name}: several servers need a trace that open_trace has read")
    return trace if limit is None else trace.of(np.arange(min(limit, len(trace))))
