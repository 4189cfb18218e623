"""Campaigns: all subjects over many seeds and several processes, and what of the legal they reached.

Worker ``i`` of ``jobs`` takes the seeds ``start + i``, ``start + i + jobs``, … and runs every subject on each.
What it finds is sent in batches, so a campaign that is cut short still knows what it reached. As long as nothing
fails, what a campaign over a number of histories counts depends on ``start`` and that number alone. A subject that
failed is not run any further by the worker that found it: the question is what breaks, not how often.
"""

import multiprocessing
import queue
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from kv_sim.command.console import let_connectors_log_nothing
from kv_sim.command.interrupts import on_interrupt
from kv_sim.command.table import aligned
from kv_sim.command.workers import end_with_parent
from kv_sim.config import BUILTIN_ENGINE
from kv_sim.failures.report import USUAL_ACTIONS
from kv_sim.fuzz import Failure, run_seed
from kv_sim.history.coverage import Coverage
from kv_sim.history.legal import NEVER_BETWEEN_ACTIONS, RARE_SITUATIONS, STATES, Expected
from kv_sim.subject import Subject

BATCH_SEEDS = 5
PATIENCE_SECONDS = 20.0
"""How long workers may take to end after they were told to. A history takes milliseconds."""


@dataclass
class Batch:
    """What a worker found since it last reported."""

    coverage: Coverage = field(default_factory=Coverage)
    histories: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    failures: dict[str, Failure] = field(default_factory=dict)
    """The first failure of each subject, by its name."""
    crash: str | None = None
    """The testbed itself failed: where, and the traceback."""
    is_last: bool = False


@dataclass
class Campaign(Batch):
    """Everything that was found."""

    was_interrupted: bool = False
    seconds: float = 0.0

    def take(self, batch: Batch) -> None:
        """Add what a worker sent."""
        self.coverage.add(batch.coverage)
        self.histories.update(batch.histories)
        self.steps += batch.steps
        self.crash = self.crash or batch.crash
        for name, failure in batch.failures.items():
            known = self.failures.get(name)
            if known is None or (failure.seed or 0) < (known.seed or 0):
                self.failures[name] = failure


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
    with on_interrupt(lambda number, frame: interrupts.append(number)):
        while left:
            now = time.monotonic()
            if end is None and (interrupts or (deadline is not None and now >= deadline)):
                stop.set()
                end = now + PATIENCE_SECONDS
            batch = _next_batch(batches, workers, left, end)
            left -= batch.is_last
            take(batch)
        for worker in workers:
            worker.join()
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
                f"{left} of {len(workers)} workers ended without a last word: exit codes {codes}"
            ) from None
        if end is not None and time.monotonic() > end:
            raise RuntimeError(
                f"{left} of {len(workers)} workers didn't end in {PATIENCE_SECONDS:.0f} s"
            ) from None
        return Batch()
    return batch


def _process(plan: Plan, worker: int, batches: Any, stop: Any) -> None:
    """A worker's process."""
    end_with_parent()
    let_connectors_log_nothing()
    work(plan, worker, batches.put, stop.is_set)


# -- what it reached ---------------------------------------------------------------------------


def missing(campaign: Campaign, expected: Expected) -> list[str]:
    """What was legal and never reached, and what was reached and should not be, a line each."""
    pairs, situations = campaign.coverage.pairs, campaign.coverage.situations
    unseen: dict[str, list[str]] = {}
    for action, state in expected.pairs:
        if not pairs[action, state]:
            unseen.setdefault(action, []).append(repr(state))
    lines = [
        f"never reached: {action} while a request is {' or '.join(states)}" for action, states in unseen.items()
    ]
    demanded = [name for name in expected.situations if name not in RARE_SITUATIONS]
    lines += [f"never reached: {name}" for name in demanded if not situations[name]]
    known = {*expected.pairs, *expected.rare}
    lines += [
        f"reached {number} times, but it can't be: {pair[0]} while a request is {pair[1]!r} "
        f"({expected.excluded.get(pair) or NEVER_BETWEEN_ACTIONS.get(pair[1], 'no such state')})"
        for pair, number in sorted(pairs.items())
        if pair not in known
    ]
    lines += [
        f"reached {number} times, but not in the table: {name}"
        for name, number in sorted(situations.items())
        if name not in expected.situations
    ]
    return lines


def tables(campaign: Campaign, expected: Expected) -> list[str]:
    """Two tables: how often each pair and each situation was reached. ``-`` is not expected."""
    pairs, situations = campaign.coverage.pairs, campaign.coverage.situations
    actions = list(dict.fromkeys(action for action, _ in (*expected.pairs, *expected.excluded)))
    rows = [["action \\ a request is", *STATES]]
    for action in actions:
        cells = [
            "-" if (action, state) in expected.excluded and not pairs[action, state] else str(pairs[action, state])
            for state in STATES
        ]
        rows.append([action, *cells])
    lines = [*aligned(rows), ""]
    names = [*expected.situations, *expected.excluded_situations]
    shown = [[name, str(situations[name]) if name in expected.situations else "-"] for name in names]
    lines += aligned([["situation", "times"], *shown])
    reasons: dict[str, list[str]] = {}
    for (action, state), reason in expected.excluded.items():
        reasons.setdefault(reason, []).append(f"{action} × {state}")
    for name, reason in expected.excluded_situations.items():
        reasons.setdefault(reason, []).append(name)
    lines += ["", "not expected (-):"]
    lines += [f"  {reason}: {_some(what)}" for reason, what in reasons.items()]
    return lines


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
