"""``kv-sim growth``: whether a connector's work grows with the length of a prompt or with what happened before."""

import argparse
from typing import Final, NamedTuple

from kv_sim.command import selection
from kv_sim.command.console import FAILED, FINE, say
from kv_sim.command.table import aligned
from kv_sim.engines import find_engine
from kv_sim.growth.models import models_for
from kv_sim.growth.situations import SITUATIONS, Situation, UnitWork
from kv_sim.violation import Violation

MOST: Final = 2.0
"""How much more work a unit may be in the largest size than in the smallest, which is a sixteenth of it."""


class Row(NamedTuple):
    """What came of one situation with one model."""

    model: str
    name: str
    situation: Situation
    works: list[UnitWork]

    @property
    def growth(self) -> float:
        """How many times the work of the smallest size a unit is in the largest."""
        return growth_of(self.works)


def growth(options: argparse.Namespace) -> int:
    """Run the command."""
    name, extra = selection.choose_name(options)
    find_engine(options.engine)
    subject = selection.choose_subject(name, extra, options.traits, options.engine)
    rows: list[Row] = []
    for model_name, model in models_for(subject).items():
        for row, situation in SITUATIONS.items():
            try:
                works = [situation.measure(subject, model, size, options.engine) for size in situation.sizes]
            except Violation as violation:
                say(f"FAIL {row}, {model_name}: {violation}")
                say(f"it is no use to measure what is wrong: kv-sim conform {name}")
                return FAILED
            rows.append(Row(model_name, row, situation, works))
    say(f"{subject.kv_connector}: bytecodes in the calls of its scheduler's side")
    for text in aligned(_cells(rows), left=2):
        say(text)
    grown = [_complaint(row) for row in rows if row.growth > MOST]
    for text in grown or ["nothing grows"]:
        say(text)
    return FAILED if grown else FINE


def growth_of(works: list[UnitWork]) -> float:
    """How many times the work of the smallest size the work of the largest is, for a unit."""
    first, last = works[0].work, works[-1].work
    return last / max(first, 1.0) if last else 1.0


def _cells(rows: list[Row]) -> list[list[str]]:
    """The table: a header for each model, and its rows below it."""
    cells: list[list[str]] = []
    model = ""
    for row in rows:
        if row.model != model:
            model = row.model
            cells.append([model, "of", "", "", "", "for a", "growth"])
        work = [f"{size}: {one.work:.0f}" for size, one in zip(row.situation.sizes, row.works, strict=True)]
        cells.append(["  " + row.name, row.situation.of, *work, row.situation.unit, f"{row.growth:.2f}"])
    return cells


def _complaint(row: Row) -> str:
    situation, works = row.situation, row.works
    first, last = situation.sizes[0], situation.sizes[-1]
    return (
        f"GROWS: {row.name}, {row.model}: with {last} {situation.of} instead of {first}, a {situation.unit} is "
        f"{row.growth:.1f} times the work, most of it in {works[-1].most}"
    )
