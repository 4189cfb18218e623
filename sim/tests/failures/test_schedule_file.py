"""Schedule files: what was written is read, replays to the same world, and a mistake in one is named."""

import dataclasses
import json
import re
from pathlib import Path
from random import Random
from typing import Any, get_args, get_type_hints
from unittest.mock import Mock

import pytest
from kv_sim_seeds import seeds

from kv_sim.actions import Action, Kind
from kv_sim.config import Drafter, WorldConfig
from kv_sim.engine.request_spec import RequestSpec, Turn
from kv_sim.examples.catalogue import LATER, SUBJECTS
from kv_sim.failures.schedule_file import (
    ARGUMENTS,
    Schedule,
    ScheduleError,
    parse_schedule,
    read_schedule,
    to_text,
    write_schedule,
)
from kv_sim.fuzz import Failure, replay
from kv_sim.history.draws import config_for
from kv_sim.subject import Subject
from kv_sim.violation import Invariant, Violation
from kv_sim.world import World

SPEC = dataclasses.asdict(RequestSpec("r1", 0, 4, 0, 1, 1))
ADD = {"action": "add", "spec": SPEC}


def schedule_of(subject: Subject, seed: int) -> tuple[Schedule, World]:
    random = Random(seed)
    world = World(config_for(subject, random), subject)
    violation = None
    try:
        world.run(random, 80)
    except Violation as found:
        violation = str(found)
    schedule = Schedule(
        subject, world.config, world.history, violation, seed, frozenset({Invariant.WORK, Invariant.HITS})
    )
    return schedule, world


def lines_of(**changes: Any) -> list[str]:
    """A plain file: a header, with some keys changed or (``None``-valued ``...``) left out, and one request."""
    header = json.loads(to_text(Schedule(LATER, WorldConfig(), [])).splitlines()[0])
    header = {key: value for key, value in {**header, **changes}.items() if value is not ...}
    return [json.dumps(header), json.dumps(ADD)]


def error_of(lines: list[str]) -> str:
    with pytest.raises(ScheduleError) as caught:
        parse_schedule("\n".join(lines) + "\n", "some.jsonl")
    return str(caught.value)


@pytest.mark.parametrize("name", ["memory", "later+patient", "offload-chunks"])
def test_what_was_written_is_read(name: str, tmp_path: Path) -> None:
    for seed in seeds(10):
        schedule, _ = schedule_of(SUBJECTS[name], seed)
        file = write_schedule(schedule, tmp_path, f"schedule-{seed}")
        assert read_schedule(file) == schedule
        assert to_text(read_schedule(file)) == to_text(schedule)


def test_a_schedule_replays_to_the_same_world(tmp_path: Path) -> None:
    for seed in seeds(10):
        schedule, world = schedule_of(LATER, seed)
        read = read_schedule(write_schedule(schedule, tmp_path, f"schedule-{seed}"))
        again, violation = replay(read.subject, read.config, read.history)
        assert again is not None
        assert again.digest == world.digest
        assert (str(violation) if violation else None) == schedule.violation


@pytest.mark.once
def test_every_action_has_its_arguments() -> None:
    assert set(ARGUMENTS) == set(Kind)
    seen: dict[str, set[str]] = {}
    for seed in range(20):
        for action in schedule_of(LATER, seed)[0].history:
            assert set(action.args) <= set(ARGUMENTS[action.kind])
            seen.setdefault(action.kind.value, set()).update(action.args)
    assert seen["step"] == {"rejects"}
    assert seen["reset"] == {"running", "connector"}


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    one, _ = schedule_of(LATER, 1)
    other, _ = schedule_of(LATER, 2)
    first = write_schedule(one, tmp_path, "fail")
    second = write_schedule(other, tmp_path, "fail")
    assert (first.name, second.name) == ("fail.jsonl", "fail-2.jsonl")
    assert write_schedule(one, tmp_path, "fail") == first  # the same schedule is there already
    assert write_schedule(other, tmp_path, "fail") == second
    assert read_schedule(first) == one
    assert read_schedule(second) == other
    (tmp_path / "other.jsonl").mkdir()
    assert write_schedule(other, tmp_path, "other").name == "other-2.jsonl"
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff")
    assert write_schedule(other, tmp_path, "bytes").name == "bytes-2.jsonl"


def test_of_a_file_that_can_not_be_written_no_part_is_left(tmp_path: Path) -> None:
    written = Schedule(LATER, WorldConfig(), [], violation="no text: \ud800")
    with pytest.raises(UnicodeEncodeError):
        write_schedule(written, tmp_path, "f")
    assert not [*tmp_path.iterdir()]


def test_the_folder_is_made(tmp_path: Path) -> None:
    assert write_schedule(schedule_of(LATER, 1)[0], tmp_path / "a" / "b", "fail").exists()


def test_blank_lines_and_foreign_line_ends_do_no_harm() -> None:
    schedule = parse_schedule("\r\n".join([*lines_of(), "", ""]), "some.jsonl")
    assert len(schedule.history) == 1


def test_values_that_came_later_have_their_default() -> None:
    world = {"groups": [{"kind": "full"}]}
    schedule = parse_schedule("\n".join(lines_of(world=world, seed=..., without=...)), "some.jsonl")
    assert schedule.config == WorldConfig()


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bytes").write_bytes(b"{}\n\xff\xfe")
    for file, reason in (
        (tmp_path / "no.jsonl", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (tmp_path / "bytes", "this is not UTF-8 text: invalid start byte at byte 3"),
    ):
        with pytest.raises(ScheduleError) as raised:
            read_schedule(file)
        assert str(raised.value) == f"{file}: {reason}"
    monkeypatch.setattr(Path, "read_text", Mock(side_effect=OSError("it has no number")))
    with pytest.raises(ScheduleError, match=r"/bytes: it has no number$"):
        read_schedule(tmp_path / "bytes")


def check_error(error: str, line: int, message: str) -> None:
    """What is wrong stands first, and what might have been meant last."""
    head = f"some.jsonl: line {line}: "
    assert error.startswith(head)
    if message.startswith("did you mean"):
        assert error.endswith(f"; {message}")
    else:
        assert error.removeprefix(head).startswith(message.removeprefix(f"line {line}: "))


HEADERS = [
    ({"format": "csv"}, "line 1: this is no schedule file: 'format' is 'csv', expected 'kv-sim schedule'"),
    ({"format": ...}, "line 1: this is no schedule file: 'format' is None"),
    (
        {"version": 2},
        "format version 2; this kv-sim reads version 1: use the kv-sim that wrote it, or write it anew",
    ),
    ({"sed": 3}, "line 1: header: unknown key 'sed'; known: format"),
    ({"sed": 3}, "did you mean 'seed'?"),
    ({"violation": ...}, "line 1: header: 'violation' missing"),
    ({"seed": "7"}, 'line 1: header.seed: expected a whole number or null, got "7" (a string)'),
    ({"seed": True}, "line 1: header.seed: expected a whole number or null, got true"),
    ({"without": ["HIT"]}, "line 1: without: unknown name 'HIT'; known: CONTENT"),
    ({"without": [3]}, "line 1: without: unknown name 3"),
    ({"subject": 3}, "line 1: header.subject: expected an object, got 3"),
    ({"subject": {"traits": []}}, "line 1: subject: 'kv_connector' missing"),
    ({"subject": {"kv_connector": "X"}}, "line 1: subject: 'traits' missing"),
    (
        {"subject": {"kv_connector": "X", "traits": ["group"]}},
        "subject.traits: unknown name 'group'; known: groups",
    ),
    ({"subject": {"kv_connector": "X", "traits": [], "path": 1}}, "subject: unknown key 'path'"),
    ({"subject": {"kv_connector": "X", "traits": [], "keeps_from": 0}}, "subject.keeps_from: at least 1, got 0"),
    (
        {"subject": {"kv_connector": "X", "traits": [], "blocks_per_chunk": 0}},
        "subject.blocks_per_chunk: at least 1, got 0",
    ),
    (
        {"subject": {"kv_connector": "X", "traits": [], "evicts_oldest": 1}},
        "subject.evicts_oldest: expected true or false, got 1",
    ),
    ({"world": {"groups": []}}, "line 1: world.groups: expected at least one group"),
    ({"world": {}}, "line 1: world: 'groups' missing"),
    ({"world": {"groups": [3]}}, "world.groups[0]: expected an object, got 3"),
    ({"world": {"groups": [{"window": 4}]}}, "world.groups[0]: 'kind' missing"),
    ({"world": {"groups": [{"kind": "half"}]}}, 'world.groups[0].kind: got "half"; choices: "full", "sliding"'),
    ({"world": {"groups": [{"kind": "full", "size": 1}]}}, "world.groups[0]: unknown key 'size'"),
    ({"world": {"groups": [{"kind": "sliding", "window": -1}]}}, "world.groups[0].window: at least 0, got -1"),
    ({"world": {"groups": [{"kind": "full"}], "runner": 3}}, "world.runner: got 3; choices: 1, 2"),
    ({"world": {"groups": [{"kind": "full"}], "blocks": 3}}, "world: unknown key 'blocks'"),
    ({"world": {"groups": [{"kind": "full"}], "block_size": 0}}, "world.block_size: at least 1, got 0"),
    ({"world": {"groups": [{"kind": "full"}], "silent": [1]}}, "world.silent[0]: expected a string, got 1"),
]


@pytest.mark.parametrize(("changes", "message"), HEADERS)
def test_a_mistake_in_the_header_is_named(changes: dict[str, Any], message: str) -> None:
    check_error(error_of(lines_of(**changes)), 1, message)


SIZES = {name for name, kind in get_type_hints(WorldConfig).items() if kind is int}
NOTHING = {"evicts", "run_ahead", "spec_tokens", "host_slots", "trouble"}


@pytest.mark.parametrize("name", sorted(SIZES))
def test_a_size_is_not_too_small(name: str) -> None:
    least = 0 if name in NOTHING else 1
    world: dict[str, Any] = {"groups": [{"kind": "full"}]}
    error = error_of(lines_of(world={**world, name: least - 1}))
    assert error == f"some.jsonl: line 1: world.{name}: at least {least}, got {least - 1}"
    read = parse_schedule(lines_of(world={**world, name: least})[0], "some.jsonl")
    assert getattr(read.config, name) == least


def test_what_a_world_refuses_is_named_with_the_line() -> None:
    world = {"groups": [{"kind": "full"}], "hashes_per_block": 3}
    assert error_of(lines_of(world=world)) == (
        "some.jsonl: line 1: world.hashes_per_block: got 3, which doesn't divide a block of 4 tokens"
    )


def test_a_failure_becomes_a_schedule_in_any_script(tmp_path: Path) -> None:
    message = "r1 → é…\u2028\x85"
    violation = Violation(Invariant.WORK, message)
    failure = Failure(LATER, WorldConfig(), [Action(Kind.STEP)], violation, 7)
    without = frozenset({Invariant.HITS})
    schedule = Schedule.of(failure, without)
    assert schedule == Schedule(LATER, WorldConfig(), [Action(Kind.STEP)], f"WORK  {message}", 7, without)
    assert (schedule.invariant, Schedule(LATER, WorldConfig(), []).invariant) == ("WORK", None)
    file = write_schedule(schedule, tmp_path, "f")
    assert message in file.read_bytes().decode("utf-8")
    assert read_schedule(file) == schedule


def turns_of(**wrong: int) -> str:
    right = {"tokens": 3, "output_tokens": 2, "max_tokens": 2}
    return json.dumps({**ADD, "spec": {**SPEC, "turns": [right, {**right, **wrong}]}})


ACTIONS = [
    ("{", "no JSON: Expecting property name enclosed in double quotes at column 2"),
    (100_000 * "[", "no JSON that can be read: "),
    ("1" + 5000 * "0", "no JSON that can be read: Exceeds the limit (4300 digits)"),
    ("[1]", "expected an object, got [1] (a list)"),
    ("{}", "unknown action None; known: add, abort"),
    ('{"action": "stepp"}', "unknown action 'stepp'"),
    ('{"action": "stepp"}', "did you mean 'step'?"),
    ('{"action": ["step"]}', "unknown action ['step']"),
    ('{"action": "step", "rank": 0}', "step: unknown key 'rank'; known: action, engine, rejects"),
    ('{"action": "step", "action": "step"}', "the key 'action' stands there twice"),
    ('{"action": "finish", "rank": 0}', "finish: 'copy' missing"),
    ('{"action": "finish", "rank": 0, "copy": "1"}', 'finish.copy: expected a whole number, got "1"'),
    ('{"action": "finish", "rank": -1, "copy": 1}', "finish.rank: not less than 0, got -1"),
    ('{"action": "step", "rejects": {"r1": "x"}}', 'step.rejects.r1: expected a whole number, got "x"'),
    ('{"action": "step", "rejects": {"r1": -1}}', "step.rejects.r1: not less than 0, got -1"),
    ('{"action": "abort", "request": 1}', "abort.request: expected a string, got 1"),
    ('{"action": "reset", "running": 1, "connector": false}', "reset.running: expected true or false, got 1"),
    ('{"action": "add", "spec": {"request_id": "r"}}', "add.spec: 'conversation', 'shared_tokens'"),
    (json.dumps({**ADD, "spec": {**SPEC, "tokens": 1}}), "add.spec: unknown key 'tokens'"),
    (json.dumps({**ADD, "spec": {**SPEC, "salt": 1}}), "add.spec.salt: expected a string or null, got 1"),
    (
        json.dumps({**ADD, "spec": {**SPEC, "shared_tokens": -1}}),
        "add.spec.shared_tokens: not less than 0, got -1",
    ),
    (json.dumps({**ADD, "spec": {**SPEC, "own_tokens": -1}}), "add.spec.own_tokens: not less than 0, got -1"),
    (
        json.dumps({**ADD, "spec": {**SPEC, "image": "i", "image_at": -1}}),
        "add.spec.image_at: not less than 0, got -1",
    ),
    (json.dumps({**ADD, "spec": {**SPEC, "image": 7}}), "add.spec.image: expected"),
    (json.dumps({**ADD, "spec": {**SPEC, "shared_tokens": 0}}), "add.spec: the prompt has no token"),
    (json.dumps({**ADD, "spec": {**SPEC, "output_tokens": 0}}), "add.spec.output_tokens: at least 1, got 0"),
    (json.dumps({**ADD, "spec": {**SPEC, "output_tokens": 5}}), "add.spec.max_tokens: at least output_tokens, 5"),
    (json.dumps({**ADD, "spec": {**SPEC, "turns": 3}}), "add.spec.turns: expected a list or null, got 3"),
    (json.dumps({**ADD, "spec": {**SPEC, "turns": [3]}}), "add.spec.turns[0]: expected an object, got 3"),
    (
        json.dumps({**ADD, "spec": {**SPEC, "turns": [{"tokens": 1}]}}),
        "add.spec.turns[0]: 'output_tokens', 'max_tokens' missing",
    ),
    (turns_of(tokens=0), "add.spec.turns[1].tokens: at least 1, got 0"),
    (turns_of(output_tokens=0), "add.spec.turns[1].output_tokens: at least 1, got 0"),
    (turns_of(max_tokens=1), "add.spec.turns[1].max_tokens: at least output_tokens, 2, got 1"),
]


@pytest.mark.parametrize(("line", "message"), ACTIONS)
def test_a_mistake_in_an_action_is_named(line: str, message: str) -> None:
    check_error(error_of([*lines_of(), "", line]), 4, message)


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind, wanted in ARGUMENTS.items() for name in wanted if name not in ("rejects", "load")],
)
def test_an_argument_that_is_missing_is_named(kind: Kind, name: str) -> None:
    plain = {str: "r1", int: 0, bool: False, RequestSpec: SPEC}
    action = {key: plain.get(of, "keep") for key, of in ARGUMENTS[kind].items() if key not in (name, "rejects")}
    message = f"some.jsonl: line 3: {kind.value}: '{name}' missing"
    assert error_of([*lines_of(), json.dumps({"action": kind.value, **action})]) == message


@pytest.mark.parametrize(
    "action",
    [
        {"action": "step", "rejects": {"r1": 0}},
        {**ADD, "spec": {**SPEC, "turns": None}},
        {**ADD, "spec": {**SPEC, "turns": []}},
        {**ADD, "spec": {**SPEC, "turns": [{"tokens": 1, "output_tokens": 1, "max_tokens": 1}]}},
    ],
)
def test_as_little_as_there_may_be_is_read(action: dict[str, Any]) -> None:
    schedule = parse_schedule("\n".join([*lines_of(), json.dumps(action)]), "some.jsonl")
    assert schedule.history[-1] == Action.from_json(action)


def test_an_empty_file_is_no_schedule() -> None:
    assert error_of([""]) == "some.jsonl: line 1: the file is empty; it begins with a header line"


@pytest.mark.once
def test_every_size_of_a_world_is_read() -> None:
    """A field of a type that the reader doesn't know would be an error for everybody."""
    names = ("offload", "p2p", "p2p-two-engines", "shared")
    drawn = [config_for(SUBJECTS[name], Random(seed)) for seed in range(60) for name in names]
    drawn += [WorldConfig(drafter=drafter) for drafter in get_args(Drafter)]  # of another engine
    for name in set(get_type_hints(WorldConfig)) - {"engine"}:  # that is chosen
        assert len({json.dumps(config.to_json()[name]) for config in drawn}) > 1, f"{name} is never drawn"
    for config in drawn:
        text = to_text(Schedule(SUBJECTS["offload"], config, []))
        assert parse_schedule(text, "some.jsonl").config == config


def test_the_documentation_names_every_key() -> None:
    """Of the header, of its subject, of each action, and of what is added."""
    text = (Path(__file__).parents[3] / "docs" / "schedules.md").read_text(encoding="utf-8")
    lines = text.splitlines()
    rows = [[set(re.findall(r"`([a-z_]+)`", cell)) for cell in line.split("|")[1:3]] for line in lines]
    header, subject, actions = set[str](), set[str](), dict[str, set[str]]()
    for keys, said in (row for row in rows if len(row) == 2):
        if keys <= set(Kind):
            actions |= dict.fromkeys(keys, said)
        else:
            header |= keys
        if "subject" in keys:
            subject = said
    spec, actions["add"] = actions["add"] - {"spec"}, actions["add"] & {"spec"}
    assert header == json.loads(lines_of()[0]).keys()
    assert subject - {"null"} == LATER.to_json().keys()
    assert spec == {*get_type_hints(RequestSpec), *get_type_hints(Turn)}
    assert actions == {kind.value: set(arguments) for kind, arguments in ARGUMENTS.items()}
