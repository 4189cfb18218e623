"""ACCOUNTING, of a connector that has others below it: what children tell arrives, and a hit has its sources."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kv_sim_notes import Notes

from kv_api import CacheHitSource
from kv_sim.actions import Action, Kind
from kv_sim.checkers.children import Children
from kv_sim.config import WorldConfig
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import OFFLOAD, SUBJECTS, several
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Violation
from kv_sim.world import World

HOST, DISK = {CacheHitSource.HOST: 8}, {CacheHitSource.DISK: 8}


def family(*, is_on: bool = True) -> tuple[Notes, Children, list[Any]]:
    notes = Notes()
    children = [
        SimpleNamespace(
            take_events=lambda events=events: iter(events),
            get_external_cache_hit_sources=lambda request, tokens, sources=sources: sources,
        )
        for events, sources in ((["a", "b"], HOST), (["b"], DISK))
    ]
    made: Any = SimpleNamespace(sub_connectors=children)
    return notes, Children(made, notes, is_on=is_on), children


def test_all_events_of_all_children_arrive() -> None:
    for told, lost in (("abb", 0), ("bab", 0), ("abbc", 0), ("ab", 1), ("", 3)):
        notes, checker, children = family()
        assert [list(child.take_events()) for child in children] == [["a", "b"], ["b"]]
        checker.check_events(told)
        first = "'a'" if lost == 3 else "'b'"
        told = "ACCOUNTING  take_events of the children returned 3 events, but their parent's lacks"
        whole = f"{told} {lost} of them, such as {first}"
        assert notes.take() == ([whole] if lost else [])
        checker.check_events("")
        assert notes.take() == [], "they were told once"


def test_a_hit_has_the_sources_that_a_child_says() -> None:
    for answer, asked, is_right in ((HOST, 0, True), (DISK, 1, True), (HOST, 1, False), (HOST, None, False)):
        notes, checker, children = family()
        known = [] if asked is None else [children[asked].get_external_cache_hit_sources("r1", 8)]
        checker.check_sources("r1", answer)
        asked_of = "request r1: get_external_cache_hit_sources"
        whole = f"ACCOUNTING  {asked_of} answered {answer}, but the children answered {known}"
        assert notes.take() == ([] if is_right else [whole])
        checker.check_sources("r2", answer)
        assert notes.take()[0].endswith("the children answered []"), "what they said was of another hit"


def test_nothing_is_demanded_of_who_has_no_children_or_may_switch_them_off() -> None:
    notes, checker, children = family(is_on=False)
    assert list(children[0].take_events()) == ["a", "b"]
    checker.check_events("")
    checker.check_sources("r1", HOST)
    alone: Any = SimpleNamespace()
    Children(alone, notes, is_on=True).check_sources("r1", HOST)
    assert notes.told == []


SPECS = [RequestSpec(name, 0, 9, 0, 1, 1).to_json() for name in ("r1", "r2")]
STEPS = [Action(Kind.STEP), Action(Kind.SETTLE)] * 8
HISTORY = [action for spec in SPECS for action in (Action(Kind.ADD, {"spec": spec}), *STEPS)]
"""The second request finds what the first has left."""


def parent_in_a_world(subject: Subject, name: str, answer: Callable[[Any], object]) -> World:
    """One whose method answers something else, for which it may ask its children."""
    made = World(WorldConfig(prefix_caching=False), subject)
    parent: Any = made.engine.connectors[-1]
    setattr(parent, name, lambda *args: answer(parent.sub_connectors))
    return made


@pytest.mark.parametrize(
    ("name", "mistake", "told"),
    [
        ("get_external_cache_hit_sources", lambda children: DISK, "r2: get_external_cache_hit_sources answered"),
        (
            "take_events",
            lambda children: [list(child.take_events()) for child in children] and (),
            "take_events of the children returned",
        ),
    ],
)
def test_a_world_looks_at_what_a_parent_says(name: str, mistake: Callable[[Any], object], told: str) -> None:
    """It names another source than its children, or keeps their events to itself."""
    made = parent_in_a_world(SUBJECTS["offload+offload"], name, mistake)
    with pytest.raises(Violation, match=told):
        made.replay(HISTORY)


def test_nothing_is_demanded_by_a_world_where_a_child_may_be_switched_off() -> None:
    children = several(OFFLOAD, OFFLOAD, settings={"on_child_error": "quarantine"})
    children = replace(children, traits=children.traits - {Trait.KEEPS})  # so that nothing else is loaded at rest
    made = parent_in_a_world(children, "get_external_cache_hit_sources", lambda children: DISK)
    made.replay(HISTORY)
