"""Strict reading, and what is said about conformance: whole messages, rows and notes."""

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import pytest

from kv_sim.config import WorldConfig
from kv_sim.conformance.report import notes, row_of, scenario_table, situation_table, summary_lines, tell_failure
from kv_sim.conformance.scenarios import MOST_SEEDS, Claim, Outcome, Scenario, seeds_of, with_needs
from kv_sim.examples.catalogue import MEMORY, OFFLOAD
from kv_sim.failures.schedule_file import read_schedule
from kv_sim.fuzz import Failure
from kv_sim.history.coverage import CONTINUED, NOT_PULLED, PULLED
from kv_sim.history.expected import FORGETS, SITUATION_NEEDS, SITUATIONS
from kv_sim.strict import Bad, check_keys, check_type, read_names, read_object, word
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant, Violation


class Fruit(StrEnum):
    APPLE = "apple"
    PEAR = "pear"


KEYS = {"size": int, "name": str, "more": dict}


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda: read_object("{"), "no JSON: Expecting property name enclosed in double quotes at column 2"),
        (lambda: read_object('"x"'), 'expected an object, got "x" (a string)'),
        (lambda: read_object('{"a": {"b": 1, "b": 1}}'), "the key 'b' stands there twice"),
        (
            lambda: check_keys("it", {"name": "x", "sise": 1}, KEYS),
            "it: unknown key 'sise'; known: size, name, more; did you mean 'size'?",
        ),
        (lambda: check_keys("it", {"xyz": 1}, KEYS), "it: unknown key 'xyz'; known: size, name, more"),
        (lambda: check_keys("it", {"name": "x"}, KEYS), "it: 'size', 'more' missing"),
        (lambda: check_keys("it", {"name": "x"}, KEYS, optional={"more"}), "it: 'size' missing"),
        (lambda: check_keys("it", {"size": "x"}, KEYS), 'it.size: expected a whole number, got "x" (a string)'),
        (lambda: check_type("it", True, int), "it: expected a whole number, got true (true or false)"),
        (lambda: check_type("it", 1, bool), "it: expected true or false, got 1 (a whole number)"),
        (lambda: check_type("it", 1, float), "it: expected a number, got 1 (a whole number)"),
        (lambda: check_type("it", 1.5, int), "it: expected a whole number, got 1.5 (a number)"),
        (lambda: check_type("it", None, dict), "it: expected an object, got null (null)"),
        (lambda: check_type("it", {}, list), "it: expected a list, got {} (an object)"),
        (lambda: check_type("it", [1], str), "it: expected a string, got [1] (a list)"),
        (lambda: check_type("it", 1, str | None), "it: expected a string or null, got 1 (a whole number)"),
        (lambda: check_type("it", True, Literal[1, 2]), "it: got true; choices: 1, 2"),
        (lambda: check_type("it", "c", Literal["a", "b"]), 'it: got "c"; choices: "a", "b"'),
        (
            lambda: read_names("it", ["pear", "aple"], Fruit),
            "it: unknown name 'aple'; known: apple, pear; did you mean 'apple'?",
        ),
        (lambda: read_names("it", [3], Fruit), "it: unknown name 3; known: apple, pear"),
    ],
)
def test_what_cannot_be_read(read: Callable[[], Any], message: str) -> None:
    with pytest.raises(Bad) as raised:
        read()
    assert str(raised.value) == message


def test_what_can() -> None:
    assert read_object('{"a": [1, {"b": null}]}') == {"a": [1, {"b": None}]}
    check_keys("it", {"size": 1, "name": "x"}, KEYS, optional=frozenset({"more"}))
    for value, kind in ((1, int), (1.5, float), (True, bool), (None, str | None), (2, Literal[1, 2]), ([], list)):
        check_type("it", value, kind)
    assert read_names("it", ["pear", "pear"], Fruit) == {Fruit.PEAR}
    assert word({"a": 1}) == '{"a": 1} (an object)'


# -- conformance --------------------------------------------------------------------------------


def outcome(claim: Claim = Claim.MADE, **of: Any) -> Outcome:
    return Outcome(
        Scenario("ranks", frozenset({Trait.RANKS}), Trait.RANKS, claim), **{"histories": 3, "steps": 7, **of}
    )


FAILURE = Failure(MEMORY, WorldConfig(), [], Violation(Invariant.WORK, "m"), 1)


@pytest.mark.parametrize(
    ("found", "row"),
    [
        (outcome(), ("ranks", "made", 3, 7, "holds")),
        (outcome(failure=FAILURE), ("ranks", "made", 3, 7, "breaks WORK")),
        (outcome(Claim.PROBED, histories=0), ("ranks", "probed", 0, 7, "no history tries it")),
        (outcome(Claim.PROBED, histories=0, refusal="why"), ("ranks", "probed", 0, 7, "can't be tried")),
    ],
)
def test_a_row_of_a_scenario(found: Outcome, row: tuple[Any, ...]) -> None:
    assert row_of(found) == row


def test_the_summary() -> None:
    reached = outcome(Claim.PROBED, refusal="b is no use")
    reached.coverage.situations.update({"match: load in the step": 2, FORGETS: 1, "an empty step": 1})
    again = outcome(refusal="a is no use")
    again.coverage.situations["an empty step"] = 4
    subject = Subject("X", traits=frozenset(Trait) - {*SITUATION_NEEDS.values()} | {Trait.RESET})
    lines = summary_lines(subject, [reached, again, outcome(refusal="a is no use")])
    times = dict.fromkeys(SITUATIONS, 0) | {"match: load in the step": 2, FORGETS: 1, "an empty step": 5}
    assert lines == [
        *scenario_table([("ranks", claim, 3, 7, "can't be tried") for claim in ("probed", "made", "made")]),
        "",
        *situation_table(subject, times, subject.traits),
        "note: a is no use",
        "note: b is no use",
        "note: not claimed, so not tried: states, unequal, fine, failures, losses, sleep, clients, images",
    ]
    reached = [str(number) for number in times.values() if number]
    assert [line.split()[-1] for line in situation_table(subject, times, ())[:4]] == ["times", *reached]
    assert scenario_table([])[0].split() == ["scenario", "claim", "histories", "steps", "result"]


def test_of_what_was_not_come_to_nothing_is_said() -> None:
    """A claim that broke ended the run. Of what was not seen before that it isn't known that it is never seen."""
    subject, whole = Subject("X", traits=frozenset(Trait)), outcome()
    said = [
        [line for line in summary_lines(subject, outcomes) if line.startswith("note: ")]
        for outcomes in ([whole, whole], [whole, outcome(failure=FAILURE)])
    ]
    assert (said[1], bool(said[0])) == ([], True)


def test_how_a_probe_broke_can_be_seen() -> None:
    """And what was tried is not said to be untried."""
    subject = Subject("X", traits=frozenset(Trait) - {Trait.FINE, Trait.RANKS})
    probed, made = outcome(Claim.PROBED, failure=FAILURE), outcome(failure=FAILURE)
    lines = summary_lines(subject, [made, probed, outcome(Claim.PROBED)], lambda one: f"do {one.scenario.name}")
    assert [line.split()[:3] for line in lines[: lines.index("")]] == [
        ["scenario", "claim", "histories"],
        ["ranks", "made", "3"],
        ["ranks", "probed", "3"],
        ["see", "how:", "do"],
        ["ranks", "probed", "3"],
    ]
    assert lines[3] == "  see how: do ranks"
    assert lines[-1] == "note: not claimed, so not tried: fine"


def test_notes() -> None:
    nothing = "no match found any tokens, so no load was tried: does the connector store what it should?"
    vacuous = "no reset_cache returned True, so this run doesn't show that a reset forgets what was stored"
    everything, enough = Subject("X"), {name: 20 for name in SITUATION_NEEDS if name != FORGETS}
    assert notes(everything, enough) == [nothing, vacuous]
    assert notes(everything, {**enough, "match: load in the step": 0, "an empty step": 3}) == [nothing, vacuous]
    for name in ("match: asynchronous load", "match: load in the step"):
        assert notes(everything, {**enough, name: 1}) == [vacuous]
        assert notes(everything, {**enough, name: 1, FORGETS: 1}) == []
    peers, loads = replace(everything, serves_peers=True), {**enough, name: 1, FORGETS: 1}
    assert notes(peers, loads) == []
    assert notes(peers, {**loads, PULLED: 0, NOT_PULLED: 21}) == [
        "no load by a ticket succeeded (21 failed, and their prompts were computed), so this run doesn't show "
        "what other engines get",
        f"holds: its situations ({PULLED}) never came up: --histories N tries more",
    ]
    assert notes(peers, {**loads, CONTINUED: 0}) == [
        "no load by a ticket that succeeded went on after tokens on the GPU, so this run doesn't show that such a "
        "load gets the right blocks: --histories N tries more"
    ]
    unclaimed = replace(everything, traits=everything.traits - {Trait.RESET})
    assert notes(unclaimed, {**enough, name: 1}) == ["not claimed, so not tried: reset"]
    assert notes(unclaimed, {**enough, name: 1}, frozenset({Trait.RESET})) == [vacuous]
    assert notes(unclaimed, {**enough, name: 1}, frozenset({Trait.RESET}), is_whole=False) == []


@pytest.mark.parametrize(
    ("traits", "named"), [(frozenset(), "none"), (frozenset({Trait.RANKS, Trait.FINE}), "fine,ranks")]
)
def test_a_failure_of_a_scenario(
    traits: frozenset[Trait], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shrunk, saved, and with lines to paste."""
    lines: list[str] = []
    said_before: list[str] = []

    def shrink(failure: Failure, **more: object) -> Failure:
        said_before.extend(lines)
        return replace(failure, seed=None)

    monkeypatch.setattr("kv_sim.failures.telling.shrink", shrink)
    monkeypatch.setattr("kv_sim.failures.telling._fails_again", lambda *_: True)
    found = replace(FAILURE, subject=replace(MEMORY, traits=traits), seed=7)
    file = tmp_path / "fail-a_B-7.jsonl"
    tell_failure("a:B", "{}", found, tmp_path, say=lines.append, note=lines.append)
    assert lines == [
        "FAIL seed=7 actions=0  WORK  m",
        "shrunk to 0 actions",
        f"replay: kv-sim fuzz --connector a:B --extra '{{}}' --traits {named} --seed 7 --log",
        f"shrunk: kv-sim replay-schedule {file}",
    ]
    assert said_before == lines[:1]
    assert read_schedule(file).subject == found.subject


def test_what_a_trait_means_nothing_without() -> None:
    assert with_needs(Trait.STATES) == {Trait.STATES, Trait.GROUPS}
    assert with_needs(Trait.EVENTS) == {Trait.EVENTS, Trait.KEEPS}
    assert with_needs(Trait.RANKS) == {Trait.RANKS}


def test_the_seeds_of_a_scenario() -> None:
    """From a first one on, as many as are wanted; and it isn't looked for a world that shows it for ever."""
    plain = Scenario("plain", frozenset())
    assert [*seeds_of(OFFLOAD, plain, 5, 3, "builtin")] == [5, 6, 7]
    assert [*seeds_of(OFFLOAD, plain, 5, 0, "builtin")] == []
    nowhere = Scenario("groups", frozenset(), Trait.GROUPS)
    assert [*seeds_of(OFFLOAD, nowhere, 0, 1, "builtin")] == []
    ranks = Scenario("ranks", frozenset({Trait.RANKS}), Trait.RANKS)
    assert len([*seeds_of(OFFLOAD, ranks, 0, 8, "builtin")]) == 8
    assert MOST_SEEDS >= 10
