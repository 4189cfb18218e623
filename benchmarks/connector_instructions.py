"""What a connector costs vLLM's scheduler, in instructions: what `connector_step.py` times, counted.

A share that is a thirtieth of a step is lost in the noise of its time; instructions hardly differ from run to run,
or between machines. They say how much there is to do, and not what it takes: what wasn't run for a while waits for
memory. Also counted is the making of the model output, the same for all subjects.

Each subject of a situation runs in a process of its own, under valgrind's callgrind, which counts from when all is
set up. Reported are thousands of instructions, by step where `connector_step.py` has the mean.

    python benchmarks/connector_instructions.py [--steps 48] [--jobs 2] [--json FILE] [SITUATION …]

Situations are those of `steps/situations.py`; `decode`, `prompts only` and `long prompt` if none are named. Needs
kv-vllm, a vLLM (the CPU build does) and valgrind. A subject takes one to five minutes.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from steps.server import VLLM_VERSION
from steps.situations import LONG_PROMPTS, SUBJECTS, situations
from steps.table import show

USUAL = ("decode", "prompts only", "long prompt")
STEADY = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def run_counted(name: str, subject: str, steps: int) -> None:
    """Run a situation; callgrind counts when all is set up. For a process that runs under it."""
    gc.disable()
    logging.disable(logging.WARNING)
    seconds = situations(steps)[name](subject)
    next(seconds)
    _count("on")
    for _ in seconds:
        pass
    _count("off")
    os._exit(0)  # a vLLM takes its time to end


def _count(switch: str) -> None:
    command = ["callgrind_control", "-i", switch, str(os.getpid())]
    subprocess.run(command, check=True, capture_output=True)


def instructions(name: str, subject: str, steps: int) -> int:
    """What a situation takes a subject."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *("valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/out"),
            *(sys.executable, __file__, "--counted", subject, "--steps", str(steps), name),
        ]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **STEADY})
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or found is None or not int(found[1]):
        raise SystemExit(f"{name}, {subject}: nothing was counted\n{done.stdout}{done.stderr}")
    return int(found[1])


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description="What a connector costs vLLM's scheduler, in instructions.")
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--counted", choices=SUBJECTS, help=argparse.SUPPRESS)
    parser.add_argument("situations", nargs="*", metavar="SITUATION", default=[*USUAL])
    arguments = parser.parse_args()
    if min(arguments.jobs, arguments.steps) < 1:
        parser.error("--jobs and --steps: expected at least 1 of each")
    known = situations(arguments.steps)
    for name in arguments.situations:
        if name not in known:
            parser.error(f"situation {name!r}: expected one of {', '.join(map(repr, known))}")
    if arguments.counted:
        run_counted(arguments.situations[0], arguments.counted, arguments.steps)
    if missing := [tool for tool in ("valgrind", "callgrind_control") if shutil.which(tool) is None]:
        print(f"nothing is counted: {missing[0]} is not installed")
        return
    runs = [(name, subject) for name in arguments.situations for subject in SUBJECTS]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        counts = [*pool.map(lambda run: instructions(run[0], run[1], arguments.steps), runs)]
    rows: dict[str, dict[str, float]] = {name: {} for name in arguments.situations}
    for (name, subject), count in zip(runs, counts, strict=True):
        rows[name][subject] = count / (1 if name in LONG_PROMPTS else arguments.steps) / 1e3
    show("thousands of instructions", rows, decimals=0)
    if arguments.json:
        text = json.dumps({"python": platform.python_version(), "vllm": VLLM_VERSION, "thousands": rows}, indent=1)
        Path(arguments.json).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
