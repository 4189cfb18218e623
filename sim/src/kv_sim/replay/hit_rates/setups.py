"""Replays of several setups, in parallel. One piece is one setup on one server, or on all that share disks."""

from collections.abc import Sequence
from dataclasses import dataclass

from kv_offload_cpu.policy import find_policy
from kv_sim.replay.caches.cache import replay_cache
from kv_sim.replay.caches.homes import replay_sharing
from kv_sim.replay.caches.outcome import Outcome, Setup
from kv_sim.replay.columns import Columns, Ints
from kv_sim.replay.crew import HERE, Crew
from kv_sim.replay.servers.fleet import RoutedTrace
from kv_sim.replay.trace import Tell


def replay_all(trace: RoutedTrace, setups: Sequence[Setup], crew: Crew = HERE) -> list[Outcome]:
    """The outcome of each setup, in their order, over all servers."""
    for setup in setups:
        find_policy(setup.policy, setup.policy_module)  # a wrong name is known before anything runs
    if trace.fleet.disk_shared and any(setup.disk for setup in setups):
        return _replay_sharing(trace, setups, crew)
    shares = [share.columns for share in trace.shares]
    pieces = [(setup, server) for setup in setups for server in range(len(shares))]
    found = crew.do_all(_replay, pieces, shares)
    return [trace.gather(found[first : first + len(shares)]) for first in range(0, len(found), len(shares))]


@dataclass(frozen=True)
class _Sharing:
    """A setup on servers that share their disks."""

    setup: Setup
    server_of: Ints
    servers: int


def _replay_sharing(trace: RoutedTrace, setups: Sequence[Setup], crew: Crew) -> list[Outcome]:
    pieces = [(_Sharing(setup, trace.server_of, trace.fleet.servers), 0) for setup in setups]
    return crew.do_all(_replay_together, pieces, [trace.columns])


def _replay_together(columns: Columns, piece: _Sharing, tell: Tell) -> Outcome:
    outcome = replay_sharing(columns, piece.setup, piece.server_of, piece.servers, tell)
    outcome.check(columns, piece.servers)
    return outcome


def _replay(columns: Columns, setup: Setup, tell: Tell) -> Outcome:
    outcome = replay_cache(columns, setup, tell)
    outcome.check(columns)
    return outcome
