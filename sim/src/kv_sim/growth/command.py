"""``kv-sim growth``: whether a connector's work grows with the length of a prompt or with what happened before."""

import argparse
from typing import Final

from kv_sim import selection
from kv_sim.console import FAILED, FINE, say
from kv_sim.growth.situations import SITUATIONS, Load, Situation
from kv_sim.table import aligned
from kv_sim.violation import Violation

MOST: Final = 2.0
"""How much more work a unit may be in the largest size than in the smallest, which is a sixteenth of it."""


def growth(options: argparse.Namespace) -> int:
    """Run the command."""
    name, extra = selection.choose_name(options)
    subject = selection.choose_subject(name, extra, options.traits)
    loads: dict[str, list[Load]] = {}
    for row, situation in SITUATIONS.items():
        try:
            loads[row] = [situation.load(subject, size) for size in situation.sizes]
        except Violation as violation:
            say(f"FAIL {row}: {violation}")
            say(f"it is no use to measure what is wrong: kv-sim conform {name}")
            return FAILED
    say(f"{subject.kv_connector}: bytecodes in the calls of its scheduler's side")
    header = ["situation", "of", "", "", "", "for a", "growth"]
    for text in aligned([header, *(_row(row, SITUATIONS[row], loads[row]) for row in loads)], left=2):
        say(text)
    grown = [_complaint(row, SITUATIONS[row], loads[row]) for row in loads if growth_of(loads[row]) > MOST]
    for text in grown or ["nothing grows"]:
        say(text)
    return FAILED if grown else FINE


def growth_of(loads: list[Load]) -> float:
    """How many times the work of the smallest size the work of the largest is, for a unit."""
    first, last = loads[0].work, loads[-1].work
    return last / max(first, 1.0) if last else 1.0


def _row(row: str, situation: Situation, loads: list[Load]) -> list[str]:
    cells = [f"{size}: {load.work:.0f}" for size, load in zip(situation.sizes, loads, strict=True)]
    return [row, situation.of, *cells, situation.unit, f"{growth_of(loads):.2f}"]


def _complaint(row: str, situation: Situation, loads: list[Load]) -> str:
    first, last = situation.sizes[0], situation.sizes[-1]
    return (
        f"GROWS: {row}: with {last} {situation.of} instead of {first}, a {situation.unit} is "
        f"{growth_of(loads):.1f} times the work, most of it in {loads[-1].most}"
    )
