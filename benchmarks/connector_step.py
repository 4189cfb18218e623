"""What a connector costs vLLM's scheduler: our OffloadingConnector beside vLLM's own, in one process.

vLLM's `Scheduler` runs with made-up model output and no worker: every copy of a step is reported as ended with
the next one. It keeps statistics, as a server does. What the server does meanwhile is in `steps/situations.py`.

The subjects take turns, so that a noisy machine is noisy to all of them: `--turn` steps of one, then as many of
the next. In each round another one begins, and the turns end elsewhere: who comes after another finds the core's
caches taken, which with `--turn 1` is so in every step. A step's time is processor time of `schedule` and
`update_from_output` together, and of what comes and ends in it where prompts are short, the best of `--repeat`
rounds: a step does the same work in each. Reported are the mean of decoding steps and of those of short prompts,
and the sum of a long prompt's. A connector's share is what its subject takes beyond the one without a connector.

    python benchmarks/connector_step.py [--repeat 6] [--steps 48] [--turn 16] [--json FILE]

Needs kv-vllm and a vLLM (the CPU build does).
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import platform
from itertools import chain, islice, repeat
from pathlib import Path

from steps.server import VLLM_VERSION
from steps.situations import LONG_PROMPTS, SUBJECTS, Situation, situations
from steps.table import show


def one_round(run: Situation, number: int, turn: int) -> dict[str, list[float]]:
    """By subject, the seconds of its steps; ``turn`` of them at a time, at first fewer."""
    first = number % len(SUBJECTS)
    runs = {subject: run(subject) for subject in (*SUBJECTS[first:], *SUBJECTS[:first])}
    found: dict[str, list[float]] = {subject: [] for subject in runs}
    for steps in runs.values():
        next(steps)
    for count in chain([turn - number % turn], repeat(turn)):
        more = [[*islice(steps, count)] for steps in runs.values()]
        if not any(more):
            break
        for seconds, new in zip(found.values(), more, strict=True):
            seconds += new
    gc.collect()
    return found


def best_steps(run: Situation, rounds: int, turn: int) -> dict[str, list[float]]:
    """By subject, the seconds of each step in the round that was best for it."""
    times = [one_round(run, number, turn) for number in range(rounds)]
    return {name: [*map(min, zip(*(found[name] for found in times), strict=True))] for name in SUBJECTS}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What a connector costs vLLM's scheduler.")
    parser.add_argument("--repeat", type=int, default=6)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--turn", type=int, default=16)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    if min(arguments.repeat, arguments.steps, arguments.turn) < 1:
        parser.error("--repeat, --steps and --turn: expected at least 1 of each")
    gc.disable()
    logging.disable(logging.WARNING)
    rows: dict[str, dict[str, float]] = {}
    for name, run in situations(arguments.steps).items():
        steps = best_steps(run, arguments.repeat, arguments.turn)
        per = 1 if name in LONG_PROMPTS else arguments.steps
        rows[name] = {subject: sum(seconds) / per for subject, seconds in steps.items()}
    milliseconds = {
        name: {subject: 1e3 * seconds for subject, seconds in row.items()} for name, row in rows.items()
    }
    show("milliseconds", milliseconds, decimals=2)
    if arguments.json:
        text = json.dumps({"python": platform.python_version(), "vllm": VLLM_VERSION, "seconds": rows}, indent=1)
        Path(arguments.json).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
