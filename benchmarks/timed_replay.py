"""How long an engine replay takes: a whole trace with its steps fused, and a part of it fused and step by step.

The trace is one that ships with kv-sim, or a file. Seconds are processor time of one core, reading not counted.

    python benchmarks/timed_replay.py [TRACE] [--requests N] [--part 300] [--cpu-gib 1024] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

from kv_sim.console.table import aligned
from kv_sim.replay import open_trace
from kv_sim.replay.report.timed.as_json import answers_as_json
from kv_sim.replay.timed import Answers, EngineSettings, Stepping
from kv_sim.replay.timed.connectors.timed_config import NOTHING
from kv_sim.replay.timed.runs.answers import answers_of
from kv_sim.replay.timed.runs.finished import finished_of
from kv_sim.replay.timed.runs.run import replay_once
from kv_sim.replay.trace import Trace

GOAL_SECONDS = 60.0
"""For the whole conversation trace, with a connector, on one core."""


def timed(trace: Trace, settings: EngineSettings, *, connector: bool) -> tuple[float, Answers]:
    """Processor seconds of a replay, and its answers."""
    transfer = settings.transfer_config() if connector else NOTHING
    begin = time.process_time()
    engine, books = replay_once(trace, settings, transfer)
    return time.process_time() - begin, answers_of(finished_of(engine, books))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Seconds of engine replays.")
    parser.add_argument("trace", nargs="?", default="mooncake-conversation")
    parser.add_argument("--requests", type=int)
    parser.add_argument("--part", type=int, default=300)
    parser.add_argument("--cpu-gib", type=int, default=1024)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    trace = open_trace(options.trace)
    whole = EngineSettings(cpu_bytes_to_use=options.cpu_gib << 30, limit=options.requests)
    part = replace(whole, limit=options.part)
    runs = [
        ("whole, with the connector", whole, True),
        ("whole, without", whole, False),
        ("part, fused", part, True),
        ("part, step by step", replace(part, stepping=Stepping.SINGLE), True),
    ]
    table, results = [["run", "requests", "seconds", "requests/s", "steps", "fused", "digest"]], []
    for name, settings, connector in runs:
        seconds, answers = timed(trace, settings, connector=connector)
        results.append({"run": name, "processor_seconds": seconds, **answers_as_json(answers)})
        table.append(
            [
                name,
                f"{answers.requests:,}",
                f"{seconds:.2f}",
                f"{answers.requests / seconds:,.0f}",
                f"{answers.steps:,}",
                f"{answers.fused_steps / answers.steps:.0%}",
                answers.digest[:8],
            ]
        )
    print("\n".join(aligned(table)))
    first = results[0]["processor_seconds"]
    assert isinstance(first, float), f"processor_seconds: {first!r}"
    print(
        f"\ngoal: {GOAL_SECONDS:.0f} s: {'reached' if first <= GOAL_SECONDS else 'missed'}, it took {first:.1f} s"
    )
    assert results[-1]["digest"] == results[-2]["digest"], "fused and single steps differ"
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
