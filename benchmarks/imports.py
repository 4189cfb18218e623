"""How long each installed package takes to import, in a fresh interpreter; prints one table, or JSON with --json.

Each import is timed inside the new process, after the interpreter has started; packages take turns, so that noise
hits all of them. `dataclasses + typing` is what any typed package pays.
"""

import argparse
import json
import statistics
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

STATEMENTS = {
    "dataclasses + typing": "import dataclasses, enum, typing",
    "kv_api": "import kv_api",
    "kv_factory": "import kv_factory",
    "kv_multi": "import kv_multi",
    "kv_offload_cpu": "import kv_offload_cpu",
}
SCRIPT = """
import sys, time
before, start = len(sys.modules), time.perf_counter()
{statement}
print((time.perf_counter() - start) * 1000, len(sys.modules) - before)
"""


def measure(statement: str) -> tuple[float, int]:
    """Milliseconds and new modules of one import in a fresh interpreter."""
    script = SCRIPT.format(statement=statement)
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True)
    milliseconds, modules = done.stdout.split()
    return float(milliseconds), int(modules)


def main() -> None:
    """Measure what is installed and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names = [name for name in STATEMENTS if " " in name or find_spec(name)]
    times: dict[str, list[float]] = {name: [] for name in names}
    modules: dict[str, int] = {}
    for _ in range(options.rounds):
        for name in names:
            milliseconds, modules[name] = measure(STATEMENTS[name])
            times[name].append(milliseconds)
    rows: list[dict[str, Any]] = [
        {
            "import": name,
            "min_ms": min(t),
            "median_ms": statistics.median(t),
            "max_ms": max(t),
            "modules": modules[name],
        }
        for name, t in times.items()
    ]
    if options.json:
        print(json.dumps({"python": sys.version.split()[0], "rows": rows}, indent=2))
        return
    print(f"Python {sys.version.split()[0]}, {options.rounds} fresh interpreters each, milliseconds")
    print("| import | min | median | max | new modules |\n|---|---|---|---|---|")
    for row in rows:
        print("| {import} | {min_ms:.1f} | {median_ms:.1f} | {max_ms:.1f} | {modules} |".format(**row))


if __name__ == "__main__":
    main()
