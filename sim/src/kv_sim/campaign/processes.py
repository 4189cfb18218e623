"""All subjects over many seeds, in several processes.

Worker ``i`` of ``jobs`` takes the seeds ``start + i``, ``start + i + jobs``, … and runs every subject on each. It
sends results in batches, so an interrupted campaign has all but the last ones. If nothing fails, the counts of a
campaign with a number of histories depend only on ``start`` and that number. A worker doesn't run a subject again
after a failure: the question is what breaks, not how often.
"""

import multiprocessing
import queue
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from typing import Any

from kv_sim.actions import USUAL_ACTIONS
from kv_sim.campaign.found import Batch, Campaign
from kv_sim.config import BUILTIN_ENGINE
from kv_sim.console.interrupts import on_interrupt
from kv_sim.console.output import let_connectors_log_nothing
from kv_sim.console.workers import end_group, end_with_parent
from kv_sim.fuzz import run_seed
from kv_sim.subject import Subject

BATCH_SEEDS = 5
PATIENCE_SECONDS = 20.0
"""How long workers may take to end after they were told to. A history takes milliseconds."""


@dataclass(frozen=True)
class Plan:
    """What a campaign does."""

    subjects: Mapping[str, Subject]
    start: int = 0
    """The first seed."""
    histories: int | None = None
    """Seeds to run, each with every subject. None: until the time is over."""
    minutes: float | None = None
    jobs: int = 1
    actions: int = USUAL_ACTIONS
    engine: str = BUILTIN_ENGINE

    def seeds(self, worker: int) -> Iterator[int]:
        """The seeds of one worker."""
        for seed in count(self.start + worker, self.jobs):
            if self.histories is not None and seed >= self.start + self.histories:
                return
            yield seed


def work(plan: Plan, worker: int, send: Callable[[Batch], object], should_stop: Callable[[], bool]) -> None:
    """Run one worker's share; the last batch says so."""
    batch = Batch()
    failed: set[str] = set()
    try:
        for number, seed in enumerate(plan.seeds(worker), 1):
            for name, subject in plan.subjects.items():
                if should_stop():
                    return
                if name not in failed:
                    _run_one(plan, name, subject, seed, batch)
                    failed.update(batch.failures)
            if number % BATCH_SEEDS == 0:
                full, batch = batch, Batch()  # first: sending may be interrupted, and nothing counts twice
                send(full)
    finally:
        batch.is_last = True
        send(batch)


def _run_one(plan: Plan, name: str, subject: Subject, seed: int, batch: Batch) -> None:
    try:
        run = run_seed(subject, seed, engine=plan.engine, actions=plan.actions)
    except Exception as error:  # noqa: BLE001 - the testbed failed: reported, with its traceback
        where = f"{name}, seed {seed}: {type(error).__name__}: {error}"
        batch.crash = batch.crash or f"{where}\n{traceback.format_exc()}"
        return
    batch.coverage.add(run.coverage)
    batch.histories[name] += 1
    batch.steps += run.steps
    if run.failure is not None:
        batch.failures[name] = run.failure


def run_campaign(plan: Plan, progress: Callable[[Campaign], object] = lambda campaign: None) -> Campaign:
    """Run a campaign to its end, or until it is interrupted (Ctrl-C)."""
    begin = time.monotonic()
    campaign = Campaign()
    deadline = begin + 60 * plan.minutes if plan.minutes is not None else None
    runner = _run_here if plan.jobs == 1 else _run_processes

    def take(batch: Batch) -> None:
        campaign.take(batch)
        campaign.seconds = time.monotonic() - begin
        progress(campaign)

    try:
        runner(plan, take, deadline)
    except KeyboardInterrupt:
        campaign.was_interrupted = True
    campaign.seconds = time.monotonic() - begin
    return campaign


def _run_here(plan: Plan, take: Callable[[Batch], None], deadline: float | None) -> None:
    work(plan, 0, take, lambda: deadline is not None and time.monotonic() >= deadline)


def _run_processes(plan: Plan, take: Callable[[Batch], None], deadline: float | None) -> None:
    # `spawn` everywhere: the same on every system, and no thread or lock of this process is copied.
    context = multiprocessing.get_context("spawn")
    batches, stop = context.Queue(), context.Event()
    workers = [
        context.Process(target=_process, args=(plan, worker, batches, stop), daemon=True)
        for worker in range(plan.jobs)
    ]
    with on_interrupt(signal.SIG_IGN):  # workers inherit that it is ignored; this process tells them
        for worker in workers:
            worker.start()
    left = plan.jobs
    end: float | None = None
    interrupts: list[int] = []
    # Noted, not raised: an exception in the middle of a queue's work would leave its lock taken.
    with ExitStack() as ends, on_interrupt(lambda number, frame: interrupts.append(number)):
        for worker in workers:
            ends.callback(worker.join)
            ends.callback(end_group, worker)
        while left:
            now = time.monotonic()
            if end is None and (interrupts or (deadline is not None and now >= deadline)):
                stop.set()
                end = now + PATIENCE_SECONDS
            batch = _next_batch(batches, workers, left, end)
            left -= batch.is_last
            take(batch)
        for worker in workers:
            worker.join(PATIENCE_SECONDS)  # a process that a connector began may keep it
    if interrupts:
        raise KeyboardInterrupt


def _next_batch(batches: Any, workers: list[Any], left: int, end: float | None) -> Batch:
    """The next batch; an empty one after a while without any, so that the caller looks at the clock."""
    try:
        batch: Batch = batches.get(timeout=0.2)
    except queue.Empty:
        codes = [worker.exitcode for worker in workers]
        if all(code is not None for code in codes) and batches.empty():
            raise RuntimeError(
                f"{left} of {len(workers)} worker processes ended before they reported: exit codes {codes}"
            ) from None
        if end is not None and time.monotonic() > end:
            raise RuntimeError(
                f"{left} of {len(workers)} worker processes didn't end within {PATIENCE_SECONDS:.0f} s"
            ) from None
        return Batch()
    return batch


def _process(plan: Plan, worker: int, batches: Any, stop: Any) -> None:
    """A worker's process."""
    end_with_parent()
    let_connectors_log_nothing()
    work(plan, worker, batches.put, stop.is_set)
