"""How fast the testbed is: engine steps a second of each subject, with every checker on, and where the time goes.

Two kinds of world: `default`, which is `WorldConfig()` for every seed, and `drawn`, where each seed draws its own
as `kv-sim fuzz` does. A cell is the best of `--repeat` rounds over the same seeds, in processor time of one core.
Shares come from one more round under cProfile; what libraries do counts for whoever calls them.

    python benchmarks/fuzz.py [--histories 40] [--repeat 2] [--subject A,B] [--json FILE]
"""

from __future__ import annotations

import argparse
import cProfile
import json
import platform
import pstats
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import PurePath
from random import Random
from typing import Any

from command.lists import some_of

from kv_sim.config import WorldConfig
from kv_sim.console.table import aligned
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.history.draws import config_for
from kv_sim.subject import Subject
from kv_sim.violation import Violation
from kv_sim.world import World

GOAL = 2000
"""Steps a second in the default configuration."""
ACTIONS = 80

PARTS = ("engine", "memory", "checkers", "connector", "world")
"""Where time goes; `world` picks, records and draws."""

Function = tuple[str, int, str]


def run_histories(subject: Subject, histories: int, broken: set[int], *, drawn: bool) -> int:
    """Run seeds 0 to `histories`; returns the engine steps. Seeds that break something are noted."""
    steps = 0
    for seed in range(histories):
        random = Random(seed)
        config = config_for(subject, random) if drawn else WorldConfig()
        world = World(config, subject)
        try:
            world.run(random, ACTIONS)
        except Violation:
            broken.add(seed)
        steps += world.engine.num_steps
    return steps


def best_rate(run: Callable[[], int], repeat: int) -> float:
    """Steps a second in the best round."""
    best = 0.0
    for _ in range(repeat):
        begin = time.process_time()
        steps = run()
        best = max(best, steps / (time.process_time() - begin))
    return best


def part_of(file: str) -> str | None:
    """Which part a source file belongs to; None: whoever calls it."""
    parts = PurePath(file).parts
    for package in ("kv_api", "kv_multi", "kv_factory"):
        if package in parts:
            return "connector"
    if "kv_sim" not in parts:
        return None
    inside = parts[len(parts) - 1 - parts[::-1].index("kv_sim") + 1 :]
    named = {"engine": "engine", "memory": "memory", "checkers": "checkers", "examples": "connector"}
    return "checkers" if inside[0] == "guard.py" else named.get(inside[0], "world")


def shares(run: Callable[[], int]) -> tuple[dict[str, float], list[tuple[str, float]]]:
    """The share of each part, and of the five functions that take most."""
    profile = cProfile.Profile()
    profile.runcall(run)
    stats: dict[Function, Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    known: dict[Function, Counter[str]] = {}
    by_part: Counter[str] = Counter()
    for function, (_, _, own, _, _) in stats.items():
        for part, fraction in _callers(function, stats, known).items():
            by_part[part] += own * fraction
    total = sum(by_part.values())
    slowest = sorted(stats.items(), key=lambda item: -item[1][2])[:5]
    return (
        {part: by_part[part] / total for part in PARTS},
        [(f"{PurePath(file).name}:{name}", entry[2] / total) for (file, _, name), entry in slowest],
    )


def _callers(
    function: Function, stats: dict[Function, Any], known: dict[Function, Counter[str]], depth: int = 0
) -> Counter[str]:
    """For which parts a function works, as fractions."""
    part = part_of(function[0])
    if part is not None:
        return Counter({part: 1.0})
    if function in known or depth > 20:
        return known.get(function, Counter())
    known[function] = Counter()  # breaks cycles
    callers = stats[function][4]
    total = sum(entry[3] for entry in callers.values())
    found: Counter[str] = Counter()
    for caller, entry in callers.items():
        for name, fraction in _callers(caller, stats, known, depth + 1).items():
            found[name] += fraction * (entry[3] / total if total else 0)
    known[function] = found
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Engine steps a second of the testbed.")
    parser.add_argument("--histories", type=int, default=40)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--subject", type=some_of(SUBJECTS), default=list(SUBJECTS), metavar="A,B")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    rows, results, notes = [], [], []
    for name in arguments.subject:
        for world in ("default", "drawn"):
            broken: set[int] = set()
            run = partial(run_histories, SUBJECTS[name], arguments.histories, broken, drawn=world == "drawn")
            rate = best_rate(run, arguments.repeat)
            parts, slowest = shares(run)
            results.append({"subject": name, "world": world, "rate": rate, "shares": parts, "slowest": slowest})
            notes += [f"{name}, {world} world, seed {seed} breaks an invariant" for seed in sorted(broken)]
            rows.append([name, world, f"{rate:.0f}", *(f"{parts[part]:.0%}" for part in PARTS), slowest[0][0]])
    header = ["subject", "world", "steps/s", *PARTS, "slowest function"]
    print("\n".join(aligned([header, *rows])))
    rates = [result["rate"] for result in results if result["world"] == "default"]
    verdict = "reached" if min(rates) >= GOAL else "missed"
    if notes:
        print("\n" + "\n".join(notes))
    print(f"\ngoal: {GOAL} steps/s in the default configuration: {verdict}, the slowest has {min(rates):.0f}")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"python": platform.python_version(), "goal": GOAL, "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
