"""The histories of a range of seeds in several processes, with results in the order of the seeds, as in one.

Worker ``i`` of ``jobs`` runs the seeds ``start + i``, ``start + i + jobs``, …, each of them in turn, and sends
each result into a pipe of its own. So it is known whose turn is next; a worker that is far ahead waits until its
pipe has room; and if one ends without a result, since a library crashed for example, it is known on which seed.
"""

import faulthandler
import multiprocessing
import pickle
import traceback
from collections.abc import Callable, Generator
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

from kv_sim.console.interrupts import heard_here_alone
from kv_sim.console.output import let_connectors_log_nothing
from kv_sim.console.watchdog import ends_calls
from kv_sim.console.workers import end_group, end_with_parent

T = TypeVar("T")


class ProcessEndedError(Exception):
    """A process ended in the middle of a history."""

    def __init__(self, code: int | None) -> None:
        super().__init__(f"the process ended in the middle of the history, with exit code {code}")


def run_in_order(seeds: range, jobs: int, run: Callable[[int], T], call_seconds: float = 0) -> Generator[T]:
    """The results of ``run`` for all seeds; what it raises for a seed is raised here.

    It must be one that can be pickled. Calls of a connector end after ``call_seconds`` (0: never).
    """
    context = multiprocessing.get_context("spawn")
    with ExitStack() as ends:
        workers = []
        with heard_here_alone():
            for number in range(min(jobs, len(seeds))):
                here, there = context.Pipe(duplex=False)
                ends.callback(here.close)
                work = (seeds[number::jobs], run, call_seconds, there)
                process = context.Process(target=_work, args=work, daemon=True)
                with there:  # so that the worker's end is the only one, and the pipe ends with the worker
                    process.start()
                ends.callback(process.join)
                ends.callback(end_group, process)
                workers.append((process, here))
        for index in range(len(seeds)):
            process, here = workers[index % len(workers)]
            try:
                result, error = here.recv()
            except EOFError:
                process.join()
                raise ProcessEndedError(process.exitcode) from None
            if error is not None:
                raise error
            yield result


def _work(seeds: range, run: Callable[[int], object], call_seconds: float, to: Any) -> None:
    """A worker's process."""
    end_with_parent()
    let_connectors_log_nothing()
    with suppress(AttributeError, OSError, ValueError):
        faulthandler.enable()
    with ends_calls(call_seconds):
        for seed in seeds:
            try:
                result, error = run(seed), None
            except Exception as raised:  # noqa: BLE001 - it is raised again where the results are read
                result, error = None, raised
            _send(to, result, error)


def _send(to: Any, result: object, error: Exception | None) -> None:
    """Send a result, or the error in its place, with the traceback, which would get lost."""
    if error is not None:
        told = "".join(traceback.format_exception(error))
        error.add_note(told)
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # noqa: BLE001 - anything may go wrong when somebody's exception is pickled, or made again
            error = RuntimeError(told)
    to.send((result, error))
