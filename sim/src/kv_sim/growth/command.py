"""``kv-sim growth``: whether a connector's work grows with the length of a prompt or with what happened before."""

import argparse
from typing import Final

from kv_sim import selection
from kv_sim.console import FAILED, FINE, say
from kv_sim.growth.situations import SITUATIONS, Situation, UnitWork
from kv_sim.table import aligned
from kv_sim.violation import Violation

MOST: Final = 2.0
"""How much more work a unit may be in the largest size than in the smallest, which is a sixteenth of it."""


def growth(options: argparse.Namespace) -> int:
    """Run the command."""
    name, extra = selection.choose_name(options)
    subject = selection.choose_subject(name, extra, options.traits)
    works: dict[str, list[UnitWork]] = {}
    for row, situation in SITUATIONS.items():
        try:
            works[row] = [situation.measure(subject, size) for size in situation.sizes]
        except Violation as violation:
            say(f"FAIL {row}: {violation}")
            say(f"it is no use to measure what is wrong: kv-sim conform {name}")
            return FAILED
    say(f"{subject.kv_connector}: bytecodes in the calls of its scheduler's side")
    header = ["situation", "of", "", "", "", "for a", "growth"]
    for text in aligned([header, *(_row(row, SITUATIONS[row], works[row]) for row in works)], left=2):
        say(text)
    grown = [_complaint(row, SITUATIONS[row], works[row]) for row in works if growth_of(works[row]) > MOST]
    for text in grown or ["nothing grows"]:
        say(text)
    return FAILED if grown else FINE


def growth_of(works: list[UnitWork]) -> float:
    """How many times the work of the smallest size the work of the largest is, for a unit."""
    first, last = works[0].work, works[-1].work
    return last / max(first, 1.0) if last else 1.0


def _row(row: str, situation: Situation, works: list[UnitWork]) -> list[str]:
    cells = [f"{size}: {one.work:.0f}" for size, one in zip(situation.sizes, works, strict=True)]
    return [row, situation.of, *cells, situation.unit, f"{growth_of(works):.2f}"]


def _complaint(row: str, situation: Situation, works: list[UnitWork]) -> str:
    first, last = situation.sizes[0], situation.sizes[-1]
    return (
        f"GROWS: {row}: with {last} {situation.of} instead of {first}, a {situation.unit} is "
        f"{growth_of(works):.1f} times the work, most of it in {works[-1].most}"
    )
