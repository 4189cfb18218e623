"""``kv-sim growth``: whether a connector's work grows with the length of a prompt or with what happened before.

And whether it keeps something of each request that has come and gone.
"""

import argparse
from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from kv_sim.console import selection, values
from kv_sim.console.output import FAILED, FINE, say
from kv_sim.console.table import aligned
from kv_sim.engines import find_engine
from kv_sim.growth.kept import MOST_LEFT, Kept, Prompts, measure_kept
from kv_sim.growth.metered import MeteredWorld
from kv_sim.growth.models import models_for
from kv_sim.growth.situations import Situation, UnitWork, situations_for
from kv_sim.guard import HistoryEnds
from kv_sim.violation import Violation

MOST: Final = 2.0
"""How many times as much work a unit may take in the largest size as in the smallest, a sixteenth of it."""


class Row(NamedTuple):
    """The result for one situation and one model."""

    model: str
    name: str
    situation: Situation
    works: list[UnitWork]

    @property
    def growth(self) -> float:
        """How many times as much work a unit takes in the largest size as in the smallest."""
        return growth_of(self.works)


def growth(options: argparse.Namespace) -> int:
    """Run the command."""
    name, extra = selection.choose_name(options)
    find_engine(options.engine)
    subject = selection.choose_subject(name, extra, options.traits, options.engine, **selection.kind_of(options))
    without = values.parse_checkers(options.without)
    rows: list[Row] = []
    kept: dict[Prompts, list[tuple[str, Kept]]] = {prompts: [] for prompts in Prompts}
    for model_name, model in models_for(subject).items():
        what = ""
        make = partial(MeteredWorld, subject, model, options.engine, without=without)
        try:
            for what, situation in situations_for(subject).items():
                works = [situation.take(make, size) for size in situation.sizes]
                rows.append(Row(model_name, what, situation, works))
            for prompts, sides in kept.items():
                what = f"requests that come and go, with {prompts}"
                sides += [(model_name, side) for side in measure_kept(make, prompts)]
        except (Violation, HistoryEnds) as error:
            say(f"FAIL {what}, {model_name}: {error}")
            say(f"growth isn't measured for a connector that breaks an invariant: kv-sim conform {name}")
            return FAILED
    say(f"{subject.kv_connector}: bytecodes executed in the calls of its scheduler's side")
    for text in aligned(_cells(rows), left=2):
        say(text)
    for prompts, sides in kept.items():
        say(f"objects that each side still holds after rounds of requests with {prompts}")
        for text in aligned(_kept_cells(sides)):
            say(text)
    grown = [_complaint(row) for row in rows if row.growth > MOST]
    grown += _kept_complaints(kept)
    for text in grown or ["nothing grows"]:
        say(text)
    return FAILED if grown else FINE


def growth_of(works: list[UnitWork]) -> float:
    """How many times as much work a unit takes in the largest size as in the smallest."""
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


def _kept_cells(sides: list[tuple[str, Kept]]) -> list[list[str]]:
    """The cells of the table of kept objects."""
    cells: list[list[str]] = []
    known = ""
    for model, kept in sides:
        if model != known:
            known = model
            cells.append([model, *[f"{rounds} rounds" for rounds in kept.things], "a round"])
        counts = [str(things.total()) for things in kept.things.values()]
        cells.append([f"  {kept.side}'s side", *counts, f"{kept.growth:.2f}"])
    return cells


def _kept_complaints(kept: Mapping[Prompts, list[tuple[str, Kept]]]) -> list[str]:
    """What leaves something of each request leaves it of each different prompt, too: that is said once."""
    found: dict[tuple[str, str, str], str] = {}
    for prompts, sides in kept.items():
        for model, side in sides:
            if side.growth > MOST_LEFT:
                found.setdefault((model, side.side, side.grows_at), _kept_complaint(model, side, prompts))
    return [*found.values()]


def _kept_complaint(model: str, kept: Kept, prompts: Prompts) -> str:
    few, *_, many = kept.things
    first, last = kept.things[few][kept.grows_at], kept.things[many][kept.grows_at]
    return (
        f"GROWS: what the {kept.side}'s side keeps of {prompts}, {model}: after {many} rounds instead of {few} it "
        f"is {last} things instead of {first}, in {kept.grows_at}"
    )
