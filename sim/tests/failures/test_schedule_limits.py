"""A schedule file whose numbers would run for ever, or take all memory, is refused as it is read."""

import json
from pathlib import Path
from typing import Any

import pytest

from kv_sim.actions import Action, Kind
from kv_sim.cli.main import main
from kv_sim.config import WorldConfig
from kv_sim.engine.request_spec import AHEAD, RequestSpec, Turn, most_tokens
from kv_sim.examples.catalogue import LATER, SUBJECTS
from kv_sim.failures.limits import MOST_OF_A_WORLD, MOST_TOKENS
from kv_sim.failures.schedule_file import Schedule, ScheduleError, parse_schedule
from kv_sim.fuzz import replay
from kv_sim.watching.describe import describe
from kv_sim.world import World

HUGE = 10**11
SPEC = {
    "request_id": "r1",
    "conversation": 0,
    "shared_tokens": 4,
    "own_tokens": 1,
    "output_tokens": 2,
    "max_tokens": HUGE,
}
TURN = {"tokens": 3, "output_tokens": 2, "max_tokens": HUGE}


def read(
    world: dict[str, Any] | None = None,
    subject: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
    *actions: dict[str, Any],
) -> Schedule:
    head = {
        "format": "kv-sim schedule",
        "version": 1,
        "violation": None,
        "subject": {**LATER.to_json(), **(subject or {})},
        "world": {"groups": [{"kind": "full"}], **(world or {})},
    }
    lines = [head, {"action": "add", "spec": {**SPEC, **(spec or {})}}, *actions]
    return parse_schedule("\n".join(map(json.dumps, lines)), "some.jsonl")


def error_of(**changes: dict[str, Any]) -> str:
    with pytest.raises(ScheduleError) as raised:
        read(**changes)
    return str(raised.value)


def test_these_are_the_limits() -> None:
    """Above any server's: a lower one would refuse what was recorded there."""
    assert MOST_OF_A_WORLD == {
        "num_blocks": 1_048_576,
        "block_size": 4096,
        "layers": 256,
        "tp_size": 64,
        "pp_size": 64,
        "run_ahead": 64,
        "spec_tokens": 64,
        "host_slots": 16_777_216,
    }
    assert MOST_TOKENS == 4_194_304


@pytest.mark.parametrize("name", MOST_OF_A_WORLD)
def test_a_size_of_a_world_is_not_too_large(name: str) -> None:
    most = MOST_OF_A_WORLD[name]
    for value in (HUGE, most + 1):
        assert error_of(world={name: value}) == f"some.jsonl: line 1: world.{name}: at most {most}, got {value}"
    small = {"num_blocks": 32, "block_size": 4, "host_slots": 8}
    assert getattr(read({**small, name: most}).config, name) == most


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"world": {"num_blocks": 1 << 20, "block_size": 17}},
            "line 1: world: tokens of num_blocks of block_size: at most 16777216, got 17825792",
        ),
        (
            {"world": {"num_blocks": 1, "host_slots": 1 << 24, "layers": 4, "tp_size": 2, "pp_size": 2}},
            "line 1: world: words of num_blocks and host_slots in all layers and ranks: at most 1073741824, "
            "got 1073741888",
        ),
        (
            {"world": {"num_blocks": 1, "host_slots": 1 << 24, "layers": 7, "pp_size": 2, "stages": "more_later"}},
            "line 1: world: words of num_blocks and host_slots in all layers and ranks: at most 1073741824, "
            "got 1073741888",
        ),
        ({"subject": {"keeps_from": 101}}, "line 1: subject.keeps_from: at most 100, got 101"),
        ({"spec": {"shared_tokens": HUGE}}, f"line 2: add.spec.shared_tokens: at most {MOST_TOKENS}, got {HUGE}"),
        (
            {"spec": {"own_tokens": HUGE}},
            f"line 2: add.spec.own_tokens: at most {MOST_TOKENS - 4} beside the 4 before it, got {HUGE}",
        ),
        (
            {"spec": {"output_tokens": HUGE}},
            f"line 2: add.spec.output_tokens: at most {MOST_TOKENS - 5} beside the 5 before it, got {HUGE}",
        ),
        (
            {"spec": {"turns": [TURN, {**TURN, "tokens": HUGE}]}},
            f"line 2: add.spec.turns[1].tokens: at most {MOST_TOKENS - 12} beside the 12 before it, got {HUGE}",
        ),
        (
            {"spec": {"turns": [{**TURN, "output_tokens": HUGE}]}},
            f"line 2: add.spec.turns[0].output_tokens: at most {MOST_TOKENS - 10} beside the 10 before it, "
            f"got {HUGE}",
        ),
    ],
)
def test_what_would_never_end_is_refused(changes: dict[str, Any], message: str) -> None:
    assert error_of(**changes) == f"some.jsonl: {message}"


def test_the_longest_request_is_read() -> None:
    world = {"num_blocks": 1 << 20, "block_size": 16, "host_slots": 0}
    assert read(world, spec={"shared_tokens": MOST_TOKENS - 3}).history
    assert read(world, spec={"shared_tokens": MOST_TOKENS - 8, "turns": [TURN]}).history


FULL, STATE = {"kind": "full"}, {"kind": "state", "window": 2}
SMALL = {"num_blocks": 9, "block_size": 4}
TAILS = {"groups": [FULL, STATE], "hands_over_states": True, "hashes_per_block": 2}


@pytest.mark.parametrize(
    ("world", "most", "sizes"),
    [
        ({}, 32, "hashes_per_block 1, groups 1"),
        ({"groups": [FULL, FULL]}, 16, "hashes_per_block 1, groups 2"),
        ({"hashes_per_block": 2}, 28, "hashes_per_block 2, groups 1"),
        (TAILS, 8, "hashes_per_block 2, groups 2"),
        ({"spec_tokens": 3}, 32, "hashes_per_block 1, groups 1"),
    ],
)
def test_a_request_has_room_in_its_world(world: dict[str, Any], most: int, sizes: str) -> None:
    """What it samples and what its turns bring counts, but for the last token of a turn before another."""
    turns = [{"tokens": 1, "output_tokens": count, "max_tokens": count} for count in (1, 2)]
    for more, own in (({}, 4 + 2), ({"turns": []}, 4 + 2), ({"turns": turns}, 4 + 2 + 1 + 2)):
        fits, not_quite = ({**more, "own_tokens": count - own} for count in (most, most + 1))
        if most >= own:
            assert read({**SMALL, **world}, spec=fits).history
        assert error_of(world={**SMALL, **world}, spec=not_quite) == (
            f"some.jsonl: line 2: add.spec: request 'r1' comes to {most + 1} tokens, and the world has room for "
            f"{most}: num_blocks 9, block_size 4, {sizes}"
        )


def test_a_world_may_have_room_for_nobody() -> None:
    assert error_of(world={"num_blocks": 1}) == (
        "some.jsonl: line 2: add.spec: request 'r1' comes to 7 tokens, and the world has room for 0: "
        "num_blocks 1, block_size 4, hashes_per_block 1, groups 1"
    )


def test_a_world_takes_no_request_that_it_has_no_room_for() -> None:
    """Nor does one that is made smaller, or whose requests others drew: so no history has one."""
    config = WorldConfig(num_blocks=9)
    world = World(config, LATER)
    assert not world.apply(add("r1", 32))
    assert not world.apply(add("r1", 30, Turn(2, 1, 1)))
    assert world.apply(add("r1", 30, Turn(1, 1, 1)))
    assert world.apply(add("r2", 31))
    taken = [(action.kind, action.args["spec"]["shared_tokens"]) for action in world.history]
    assert taken == [(Kind.ADD, 30), (Kind.ADD, 31)]
    world.rest()
    assert world.coverage.situations["a session goes on"] == 1


def add(name: str, prompt: int, *turns: Turn) -> Action:
    return Action(Kind.ADD, {"spec": RequestSpec(name, 0, prompt, 0, 1, 1, turns=turns or None).to_json()})


@pytest.mark.parametrize("name", ["later", "p2p"])
@pytest.mark.parametrize(("block_size", "spec_tokens"), [(8, 0), (8, 1), (4, 3), (2, 2), (4, 4)])
def test_the_longest_request_ends_however_it_gets_its_tokens(name: str, block_size: int, spec_tokens: int) -> None:
    """Computed, or loaded as far as can be, beside blocks for a step of drafts."""
    config = WorldConfig(
        num_blocks=9, block_size=block_size, spec_tokens=spec_tokens, prefix_caching=False, max_step_tokens=64
    )
    requests = [add(f"r{number}", config.longest_request - 1) for number in range(3)]
    rounds = [Action(Kind.STEP), Action(Kind.SETTLE)] * 5
    history = [action for one in requests for action in (one, *rounds)]
    world, violation = replay(SUBJECTS[name], config, history)
    assert violation is None and world is not None
    assert len([action for action in world.history if action.kind is Kind.ADD]) == 3
    assert world.coverage.situations["match: asynchronous load"] >= 1


def test_a_recorded_server_is_no_world_too_large() -> None:
    """Eight GPUs with 1.6 million tokens of KV, and 16 TiB of host memory in slots of two megabytes."""
    world = {"num_blocks": 100_000, "block_size": 16, "tp_size": 8, "layers": 1, "host_slots": 1 << 20}
    assert read(world, spec={"shared_tokens": 1_000_000}).config.num_blocks == 100_000


@pytest.mark.parametrize(
    ("turns", "most"), [(None, 5 + 2), ((Turn(3, 4, HUGE),), 5 + 2 + 3 + 4), ((Turn(3, 4, 4),) * 2, 5 + 2 + 14)]
)
def test_a_request_is_written_down_as_far_as_it_can_come(turns: tuple[Turn, ...] | None, most: int) -> None:
    """And not as far as a large engine could let it: the story of one would take seconds."""
    spec = RequestSpec("r1", 0, 4, 1, 2, HUGE, turns=turns)
    assert most_tokens(spec, HUGE) == most + AHEAD
    assert most_tokens(spec, most + AHEAD - 1) == most + AHEAD - 1
    large = WorldConfig(num_blocks=100_000, block_size=16)
    request = World(large, LATER).engine.add(spec)
    assert {len(story.tokens) for story in request.stories} == {most + AHEAD}


def test_the_last_step_of_a_large_world_is_written_down() -> None:
    """Steps that run ahead, and drafts, go beyond the last token that the request samples."""
    world = {"num_blocks": 100_000, "block_size": 16, "max_step_tokens": 64, "spec_tokens": 64, "run_ahead": 64}
    spec = {"shared_tokens": 200, "output_tokens": 9, "max_tokens": HUGE}
    schedule = read(world, None, spec, *[{"action": "step"}] * 9)
    _, violation = replay(schedule.subject, schedule.config, schedule.history)
    assert violation is None


def test_numbers_that_are_only_compared_may_be_any() -> None:
    """Each of them at once, and the history ends."""
    copies = [{"action": kind, "rank": HUGE, "copy": HUGE} for kind in ("finish", "fail", "lose", "repeat")]
    schedule = read(
        {
            "max_running": HUGE,
            "max_step_tokens": HUGE,
            "trouble": HUGE,
            "groups": [{"kind": "full", "window": HUGE}],
        },
        {"blocks_per_chunk": HUGE},
        {"conversation": HUGE},
        {"action": "step", "rejects": {"r1": HUGE}},
        *copies,
        {"action": "advance", "rank": 0, "copy": 0, "pages": HUGE},
        {"action": "execute", "rank": HUGE},
    )
    _, violation = replay(schedule.subject, schedule.config, schedule.history)
    assert violation is None


def test_what_may_be_missing_is_not_missed_when_a_failure_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A connector with a mistake: the history breaks, and its actions are printed."""
    line = describe(Action(Kind.ADD, {"spec": SPEC}))
    assert line == f"add      r1: 4 tokens of conversation 0 + 1 own, samples 2 of at most {HUGE}"
    head = {
        "format": "kv-sim schedule",
        "version": 1,
        "violation": None,
        "subject": {"kv_connector": "Hasty", "module_path": "broken_connectors", "traits": []},
        "world": {"groups": [{"kind": "full"}]},
    }
    file = tmp_path / "s.jsonl"
    file.write_text("\n".join(map(json.dumps, [head, {"action": "add", "spec": SPEC}])))
    assert main(["replay-schedule", str(file)]) == 1
    assert line in capsys.readouterr().out
