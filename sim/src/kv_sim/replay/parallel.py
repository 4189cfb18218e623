"""Setups replayed side by side: each on each server is a piece of work."""

from collections.abc import Sequence

from kv_offload_cpu.policy import find_policy
from kv_sim.replay.caches.cache import Outcome, Setup, replay_cache
from kv_sim.replay.columns import Columns
from kv_sim.replay.fleet import RoutedTrace
from kv_sim.replay.side_by_side import Progress, do_all
from kv_sim.replay.trace import Tell


def replay_all(
    trace: RoutedTrace, setups: Sequence[Setup], jobs: int = 1, progress: Progress = lambda share: None
) -> list[Outcome]:
    """An outcome for each setup, in their order: of all servers together."""
    for setup in setups:
        find_policy(setup.policy, setup.policy_module)  # a wrong name is known before anything runs
    shares = [share.columns for share in trace.shares]
    pieces = [(setup, server) for setup in setups for server in range(len(shares))]
    found = do_all(_replay, pieces, shares, jobs, progress)
    return [trace.gather(found[first : first + len(shares)]) for first in range(0, len(found), len(shares))]


def _replay(columns: Columns, setup: Setup, tell: Tell) -> Outcome:
    outcome = replay_cache(columns, setup, tell)
    outcome.check(columns)
    return outcome
