"""What share of the mistakes that a machine makes is found by the testbed alone.

A mutant is one changed place: a comparison flipped, `and` for `or`, a `not` lost, a sum for a difference, a number
one larger, True for False, a statement dropped. Not changed is what the testbed doesn't drive: reading of options,
recounts (`check`), errors, assertions, annotations. Each mutant runs in a process of its own, over subjects that
use the package, until a checker objects. A mutant that never ends counts as found, too.

    python benchmarks/mutants.py [--package A,B] [--sample 20] [--histories 60] [--jobs 1] [--json FILE]

`--only FILE:LINE` runs those of one place. What survives is printed, to be judged: some mutants behave
as the original does. With `--own-tests`, what the testbed doesn't find is left to the package's own tests: `tests`
if they do, or never end.

A history in which the original never executes the place is the same for the mutant, so it isn't run: each history
is run once with the original first, to see which lines it executes. A mutant without any history is *not reached*.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

from command.lists import some_of
from mutation.changes import PACKAGES, Mutant, Mutated, mutants_of, origin_of
from mutation.own_tests import tests_fail

ACTIONS = 80
PATIENCE_SECONDS = 30
"""A mutant that computes for longer in one history hangs; most take a fraction of a second."""

SURVIVED = ("survives", "testbed", "not reached")
"""Verdicts of what no checker found."""
BY_TESTS = "tests"
"""The verdict of what only the package's own tests found."""


def subjects_of(package: str) -> list[Any]:
    """What drives a package: all its ways of working that the testbed knows."""
    from kv_sim.examples.catalogue import FLAKY, LATER, MEMORY, SUBJECTS, offloading, several
    from kv_sim.subject import Trait

    if package == "kv_multi":
        three = several(LATER, MEMORY, LATER)
        flaky = several(FLAKY, MEMORY, settings={"on_child_error": "quarantine"})
        nested = several(several(LATER, MEMORY), LATER)
        names = ("later+memory", "longest", "later+flaky", "later+later", "patient+memory", "in-step+later")
        odd = ("flaky-busy+later", "flaky-patient+memory", "later+holding", "layerwise+later")
        return [*(SUBJECTS[name] for name in (*names, *odd)), three, flaky, nested]
    if package == "kv_p2p":
        return [SUBJECTS["p2p"], SUBJECTS["p2p+offload"]]
    if package == "kv_offload_file":
        return [SUBJECTS["offload-file"], SUBJECTS["offload+file"]]
    if package == "kv_offload_cpu":
        policies = [offloading(eviction_policy=policy) for policy in ("lru", "arc", "s3fifo", "sieve")]
        others = ("offload-chunks", "offload-again", "offload-in-step-fenced")
        return [*policies, *(SUBJECTS[name] for name in others)]
    fenced = offloading(hold_blocks="never", without=frozenset({Trait.ZEROING}))
    prompts = offloading(hold_blocks="never", offload_prompt_only=True, without=frozenset({Trait.ZEROING}))
    single = [subject for name, subject in SUBJECTS.items() if name.startswith("offload") and "+" not in name]
    return [fenced, *single, prompts]


History = tuple[int, int]
"""(seed, place of the subject)"""

Lines = frozenset[tuple[str, int]]
"""(file, line)"""


def lines_by_history(package: str, histories: int) -> list[tuple[History, Lines]]:
    """What of a package each history executes, in the order in which mutants are tried."""
    from kv_sim.console.output import let_connectors_log_nothing
    from kv_sim.fuzz import run_seed

    let_connectors_log_nothing()
    folder = str(Path(origin_of(package)).parent) + os.sep
    executed: set[tuple[str, int]] = set()

    def line(frame: Any, event: str, argument: Any) -> Any:
        if event == "line":
            executed.add((frame.f_code.co_filename, frame.f_lineno))
        return line

    def call(frame: Any, event: str, argument: Any) -> Any:
        return line if frame.f_code.co_filename.startswith(folder) else None

    found = []
    for seed in range(histories):
        for place, subject in enumerate(subjects_of(package)):
            executed.clear()
            sys.settrace(call)
            try:
                run = run_seed(subject, seed, actions=ACTIONS)
            finally:
                sys.settrace(None)
            assert run.failure is None, f"without any change: {subject}, seed {seed}: {run.failure}"
            found.append(((seed, place), frozenset(executed)))
    return found


def histories_of(mutant: Mutant, known: Sequence[tuple[History, Lines]]) -> list[History]:
    """Those that a mutant can change."""
    if mutant.reach is None:
        return [history for history, _ in known]
    file, first, last = mutant.reach
    statement = {(file, line) for line in range(first, last + 1)}
    return [history for history, lines in known if not lines.isdisjoint(statement)]


def verdict_of(mutant: Mutant, histories: Sequence[History]) -> str:
    """Who found it: an invariant, `hangs`, `testbed` (the testbed itself failed), or `survives`."""
    sys.meta_path.insert(0, Mutated(mutant))
    signal.setitimer(signal.ITIMER_VIRTUAL, PATIENCE_SECONDS)
    try:
        from kv_sim.console.output import let_connectors_log_nothing
        from kv_sim.fuzz import run_seed

        let_connectors_log_nothing()
        subjects = subjects_of(mutant.module.split(".", maxsplit=1)[0])
    except Exception:  # noqa: BLE001 - a mutant may fail when it is imported, like any code
        return "import"
    try:
        for seed, place in histories:
            signal.setitimer(signal.ITIMER_VIRTUAL, PATIENCE_SECONDS)
            run = run_seed(subjects[place], seed, actions=ACTIONS)
            if run.failure is not None:
                return str(run.failure.violation.invariant)
    except Exception:  # noqa: BLE001 - what reached the testbed made no sense to it
        return "testbed"
    return "survives"


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns in a process of its own, since modules are imported once; None if that was ended."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with os.fdopen(write_end, "wb") as pipe:
                pickle.dump(function(*arguments), pipe)
        except BaseException:  # noqa: BLE001 - the parent goes on, and sees that there is no answer
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(answer) if answer else None


def _judge(work: tuple[Mutant, list[History]]) -> tuple[Mutant, str]:
    mutant, histories = work
    if not histories:
        return mutant, "not reached"
    return mutant, apart(verdict_of, mutant, histories) or "hangs"


def _judge_with_tests(work: tuple[Mutant, list[History]]) -> tuple[Mutant, str]:
    mutant, verdict = _judge(work)
    is_left = verdict in SURVIVED
    return mutant, BY_TESTS if is_left and apart(tests_fail, _package_of(mutant), mutant) is not False else verdict


def _package_of(mutant: Mutant) -> str:
    return str(mutant.module).split(".", maxsplit=1)[0]


def judged(
    mutants: Sequence[Mutant], histories: int, jobs: int, *, own_tests: bool = False
) -> Iterator[tuple[Mutant, str]]:
    """Each mutant and its verdict, in order."""
    package = _package_of(mutants[0])
    if own_tests and apart(tests_fail, package, None) is not False:
        raise SystemExit(f"{package}: its tests fail without any change, or never end")
    judge = _judge_with_tests if own_tests else _judge
    known = apart(lines_by_history, package, histories)
    assert known is not None, "the testbed finds something without any change"
    work = [(mutant, histories_of(mutant, known)) for mutant in mutants]
    if jobs == 1:
        yield from map(judge, work)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap(judge, work)


def main() -> None:
    """Judge and print."""
    parser = argparse.ArgumentParser(description="Mutants of our packages under the testbed.")
    parser.add_argument("--package", type=some_of(PACKAGES), default=list(PACKAGES), metavar="A,B")
    parser.add_argument("--sample", type=int, default=20, help="how many of each package; 0: all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--histories", type=int, default=60, help="of each subject, before a mutant has survived")
    parser.add_argument("--own-tests", action="store_true", help="leave to them what the testbed doesn't find")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", metavar="FILE:LINE")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    results = []
    for package in arguments.package:
        mutants = known = mutants_of(package)
        if arguments.only:
            mutants = [m for m in known if f"{m.file}:{m.line}" == arguments.only]
        elif arguments.sample:
            chosen = sorted(Random(arguments.seed).sample(range(len(known)), min(arguments.sample, len(known))))
            mutants = [known[index] for index in chosen]
        if not mutants:
            raise SystemExit(f"{package}: no mutant is at {arguments.only}")
        rows = []
        judging = judged(mutants, arguments.histories, arguments.jobs, own_tests=arguments.own_tests)
        for mutant, verdict in judging:
            rows.append((mutant, verdict))
            if verdict in SURVIVED:
                print(f"  {verdict}  {mutant.file}:{mutant.line}  {mutant.change}", flush=True)
        counts = Counter(verdict for _, verdict in rows)
        left = sum(counts[verdict] for verdict in SURVIVED)
        by_testbed = f"{(len(rows) - left - counts[BY_TESTS]) / len(rows):.0%}"
        by_any = f"{(len(rows) - left) / len(rows):.0%}" if arguments.own_tests else ""
        text = ", ".join(f"{name} {count}" for name, count in counts.most_common())
        print(f"{'package':16} {'mutants':>7} {'judged':>6} {'testbed':>7} {'all':>5}  by whom")
        print(f"{package:16} {len(known):>7} {len(rows):>6} {by_testbed:>7} {by_any:>5}  {text}", flush=True)
        results += [{**asdict(mutant), "verdict": verdict} for mutant, verdict in rows]
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
