"""``Crew``: parallel processes that do pieces of work on traces. The results don't depend on their number.

A trace, or the share of each of several servers, is saved once and mapped by every process, so that processes
share its memory. A piece says what is to be done, and on which of the traces.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Final, TypeVar

from kv_api import ConfigError
from kv_sim.console.interrupts import heard_here_alone
from kv_sim.console.workers import end_with_parent
from kv_sim.replay.columns import Columns
from kv_sim.replay.trace import Tell

Progress = Callable[[float], None]
"""Told which share of all the work is done."""

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

Do = Callable[[Columns, _Task, Tell], _Result]
"""Does a piece; a function of a module, or another process couldn't find it."""

_mapped: list[Columns] = []
"""The traces, if this process is one of the pool."""


def _tell_nobody(share: float) -> None:
    pass


@dataclass(frozen=True)
class Crew:
    """The processes that do pieces of work, ``jobs`` at most, and who is told how far they are."""

    jobs: int = 1
    progress: Progress = _tell_nobody

    def do_all(
        self, do: Do[_Task, _Result], pieces: Sequence[tuple[_Task, int]], traces: Sequence[Columns]
    ) -> list[_Result]:
        """The result of ``do`` for each piece, in their order."""
        if self.jobs < 1:
            raise ConfigError(f"--jobs: expected at least 1, got {self.jobs}")
        one_by_one = min(self.jobs, len(pieces)) <= 1
        return (self._one_by_one if one_by_one else self._side_by_side)(do, pieces, traces)

    def _one_by_one(
        self, do: Do[_Task, _Result], pieces: Sequence[tuple[_Task, int]], traces: Sequence[Columns]
    ) -> list[_Result]:
        results: list[_Result] = []
        whole = sum(len(traces[which]) for _, which in pieces)
        before = 0
        for task, which in pieces:

            def tell(count: int, before: int = before) -> None:
                self.progress((before + count) / whole)

            results.append(do(traces[which], task, tell))
            before += len(traces[which])
        self.progress(1.0)
        return results

    def _side_by_side(
        self, do: Do[_Task, _Result], pieces: Sequence[tuple[_Task, int]], traces: Sequence[Columns]
    ) -> list[_Result]:
        places = [(trace.save(), trace.name, trace.block_tokens) for trace in traces]
        results = []
        before = active_children()
        with ProcessPoolExecutor(min(self.jobs, len(pieces)), get_context("spawn"), _map, (places,)) as pool:
            try:
                with heard_here_alone():  # submitting starts them
                    futures = [pool.submit(_do, do, task, which) for task, which in pieces]
                for future in futures:
                    results.append(future.result())
                    self.progress(len(results) / len(pieces))
            except BaseException:
                for process in active_children():
                    if process not in before:
                        process.terminate()  # else what they have begun would be waited for
                raise
        return results


HERE: Final = Crew()
"""This process, which tells nobody."""


def _map(places: Sequence[tuple[Path, str, int]]) -> None:
    end_with_parent()
    _mapped[:] = [Columns.load(*place) for place in places]


def _do(do: Do[_Task, _Result], task: _Task, which: int) -> _Result:
    return do(_mapped[which], task, lambda count: None)
