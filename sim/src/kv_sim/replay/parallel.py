"""Replays side by side in processes. What comes out is the same whatever the number of processes is.

A trace is saved once and mapped by every process, so that processes share its memory.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from kv_api import ConfigError
from kv_offload_cpu.policy import find_policy
from kv_sim.replay.cache import Outcome, Setup, replay_cache
from kv_sim.replay.columns import Columns

Progress = Callable[[float], None]
"""Told which share of the work is done."""

_mapped: list[Columns] = []
"""The trace of this process, if it is one of the pool."""


def replay_all(
    columns: Columns, setups: Sequence[Setup], jobs: int = 1, progress: Progress = lambda share: None
) -> list[Outcome]:
    """An outcome for each setup, in their order."""
    if jobs < 1:
        raise ConfigError(f"--jobs: expected at least 1, got {jobs}")
    for setup in setups:
        find_policy(setup.policy, setup.policy_module)  # a wrong name is known before anything runs
    if min(jobs, len(setups)) <= 1:
        return _one_by_one(columns, setups, progress)
    place = (columns.save(), columns.name, columns.block_tokens)
    outcomes = []
    with ProcessPoolExecutor(min(jobs, len(setups)), get_context("spawn"), _map, place) as pool:
        for outcome in pool.map(_replay, setups):
            outcomes.append(outcome)
            progress(len(outcomes) / len(setups))
    return outcomes


def _one_by_one(columns: Columns, setups: Sequence[Setup], progress: Progress) -> list[Outcome]:
    outcomes: list[Outcome] = []
    whole = len(columns) * len(setups)
    for setup in setups:

        def tell(count: int, before: int = len(outcomes) * len(columns)) -> None:
            progress((before + count) / whole)

        outcomes.append(replay_cache(columns, setup, tell))
    progress(1.0)
    return outcomes


def _map(folder: Path, name: str, block_tokens: int) -> None:
    _mapped[:] = [Columns.load(folder, name, block_tokens)]


def _replay(setup: Setup) -> Outcome:
    return replay_cache(_mapped[0], setup)
