"""Replays side by side in processes. What comes out is the same whatever the number of processes is.

A trace, or the share of each of several servers, is saved once and mapped by every process, so that processes
share its memory. Each setup on each server is a piece of work.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import active_children, get_context
from pathlib import Path

from kv_api import ConfigError
from kv_offload_cpu.policy import find_policy
from kv_sim.command.interrupts import heard_here_alone
from kv_sim.command.workers import end_with_parent
from kv_sim.replay.cache import Outcome, Setup, replay_cache
from kv_sim.replay.columns import Columns
from kv_sim.replay.fleet import RoutedTrace

Progress = Callable[[float], None]
"""Told which share of the work is done."""

_Work = tuple[Setup, int]
"""A setup, and the server that it is replayed on."""

_mapped: list[Columns] = []
"""What comes to each server, if this process is one of the pool."""


def replay_all(
    trace: RoutedTrace, setups: Sequence[Setup], jobs: int = 1, progress: Progress = lambda share: None
) -> list[Outcome]:
    """An outcome for each setup, in their order: of all servers together."""
    if jobs < 1:
        raise ConfigError(f"--jobs: expected at least 1, got {jobs}")
    for setup in setups:
        find_policy(setup.policy, setup.policy_module)  # a wrong name is known before anything runs
    servers = range(len(trace.shares))
    works = [(setup, server) for setup in setups for server in servers]
    if min(jobs, len(works)) <= 1:
        found = _one_by_one(trace, works, progress)
    else:
        found = _side_by_side(trace, works, jobs, progress)
    return [trace.gather(found[first : first + len(servers)]) for first in range(0, len(found), len(servers))]


def _one_by_one(trace: RoutedTrace, works: Sequence[_Work], progress: Progress) -> list[Outcome]:
    outcomes: list[Outcome] = []
    whole = sum(len(trace.shares[server].columns) for _, server in works)
    before = 0
    for setup, server in works:
        columns = trace.shares[server].columns

        def tell(count: int, before: int = before) -> None:
            progress((before + count) / whole)

        outcomes.append(_replayed(columns, setup, tell))
        before += len(columns)
    progress(1.0)
    return outcomes


def _side_by_side(trace: RoutedTrace, works: Sequence[_Work], jobs: int, progress: Progress) -> list[Outcome]:
    places = [(share.columns.save(), share.columns.name, share.columns.block_tokens) for share in trace.shares]
    outcomes = []
    before = active_children()
    with ProcessPoolExecutor(min(jobs, len(works)), get_context("spawn"), _map, (places,)) as pool:
        try:
            with heard_here_alone():  # submitting starts them
                futures = [pool.submit(_replay, work) for work in works]
            for future in futures:
                outcomes.append(future.result())
                progress(len(outcomes) / len(works))
        except BaseException:
            for process in active_children():
                if process not in before:
                    process.terminate()  # else what they have begun would be waited for
            raise
    return outcomes


def _map(places: Sequence[tuple[Path, str, int]]) -> None:
    end_with_parent()
    _mapped[:] = [Columns.load(*place) for place in places]


def _replay(work: _Work) -> Outcome:
    setup, server = work
    return _replayed(_mapped[server], setup)


def _replayed(columns: Columns, setup: Setup, tell: Callable[[int], None] = lambda count: None) -> Outcome:
    outcome = replay_cache(columns, setup, tell)
    outcome.check(columns)
    return outcome
