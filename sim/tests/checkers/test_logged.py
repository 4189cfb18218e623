"""ACCOUNTING of stats that are added up until they are logged."""

from typing import Any

import pytest
from kv_sim_notes import Notes

from kv_api import KVConnectorStats
from kv_api.stats import CountedStats
from kv_sim.checkers.accounting import BYTES
from kv_sim.checkers.logged import MOST_STEPS, Logged

NAMES = [name for names in BYTES.values() for name in names]
LOADED, STORED = NAMES[0], NAMES[2]


class Last(CountedStats):
    """Of a sum it keeps the last part."""

    levels = (STORED,)


class Maker:
    """The part of a connector's class that rebuilds stats."""

    kind: type[CountedStats] | None = CountedStats

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any]) -> KVConnectorStats | None:
        return None if cls.kind is None else cls.kind(data)


class LosesSome(Maker):
    kind = Last


class RebuildsNothing(Maker):
    kind = None


def told_of(maker: type[Maker], *steps: dict[str, Any]) -> list[str]:
    notes = Notes()
    logged = Logged(maker, notes)  # type: ignore[arg-type]
    for data in steps:
        stats = CountedStats(dict(data))
        logged.add(stats)
        assert stats.data == data, "what the engine goes on with has changed"
    told: list[str] = notes.told
    return told


@pytest.mark.parametrize("maker", [Maker, LosesSome, RebuildsNothing])
def test_sums_add_up(maker: type[Maker]) -> None:
    assert told_of(maker, {LOADED: 3, "level": 1}, {}, {LOADED: 4, "level": 7}, {LOADED: 1, STORED: 2}) == []


class Open(CountedStats):
    """Has, and gives away, what it got itself."""

    def __init__(self, data: dict[str, Any]) -> None:
        super().__init__()
        self.data = data

    def to_dict(self) -> dict[str, Any]:
        return self.data


def test_what_an_engine_goes_on_with_is_not_added_to() -> None:
    class OfOpen(Maker):
        kind = Open

    notes = Notes()
    logged = Logged(OfOpen, notes)  # type: ignore[arg-type]
    steps = [Open({LOADED: count}) for count in (3, 4, 5)]
    for stats in steps:
        logged.add(stats)
    assert [stats.data for stats in steps] == [{LOADED: 3}, {LOADED: 4}, {LOADED: 5}]
    assert notes.told == []


def test_a_sum_that_loses_a_part_is_told() -> None:
    assert told_of(LosesSome, {STORED: 3}, {}, {LOADED: 1}, {STORED: 4}) == [
        f"ACCOUNTING  {STORED} adds up to 7 in the stats of 3 steps, but aggregate makes it 4"
    ]


def test_a_child_is_named_and_a_child_that_vanishes_is_seen() -> None:
    class Nested(CountedStats):
        levels = ("b",)

        def reduce(self) -> dict[str, Any]:
            return dict(self.data)

    class OfChildren(Maker):
        kind = Nested

    assert told_of(OfChildren, {"b": {LOADED: 2, STORED: 5}}, {"b": {LOADED: 3}}) == [
        f"ACCOUNTING  b: {LOADED} adds up to 5 in the stats of 2 steps, but aggregate makes it 3",
        f"ACCOUNTING  b: {STORED} adds up to 5 in the stats of 2 steps, but aggregate makes it None",
    ]


def test_a_sum_is_shown_now_and_then_and_begins_anew() -> None:
    steps = [{STORED: 1}, *[{LOADED: 1}] * (MOST_STEPS - 1), {STORED: 1}]
    assert told_of(LosesSome, *steps) == []
    one_less = [*steps[:-2], {STORED: 1}]
    assert len(told_of(LosesSome, *one_less)) == 1
