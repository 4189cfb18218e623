"""The log: every action with its number, what it caused, and nothing that changes from run to run."""

import re
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from kv_sim_seeds import seeds

from kv_api import KVConnectorMetadata
from kv_sim.actions import Action, Kind
from kv_sim.config import WorldConfig
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import LATER, MEMORY, SUBJECTS
from kv_sim.fuzz import replay, run_seed
from kv_sim.subject import Subject, Trait
from kv_sim.watching.brief import brief
from kv_sim.watching.describe import describe, describe_world
from kv_sim.watching.engine_lines import MOST_WIDTH, EngineLines
from kv_sim.watching.log import Log
from kv_sim.watching.watch import WatchedWorld
from kv_sim.world import World


def log_of(subject: Subject, seed: int) -> tuple[list[str], str]:
    lines: list[str] = []
    run = run_seed(subject, seed, make_world=partial(WatchedWorld, watchers=[Log(lines.append)]))
    return lines, run.digest


def request(name: str, **changes: Any) -> Action:
    spec = {
        "request_id": name,
        "conversation": 0,
        "shared_tokens": 9,
        "own_tokens": 0,
        "output_tokens": 1,
        "max_tokens": 1,
        "salt": None,
        "adapter": None,
        "skip_reading_prefix_cache": False,
    }
    return Action(Kind.ADD, {"spec": {**spec, **changes}})


@pytest.mark.once
@pytest.mark.parametrize("name", ["memory", "later+patient", "offload-chunks"])
def test_watching_changes_nothing(name: str) -> None:
    for seed in seeds(4):
        _, digest = log_of(SUBJECTS[name], seed)
        assert digest == run_seed(SUBJECTS[name], seed).digest


@pytest.mark.parametrize("name", ["memory", "later+patient", "offload-chunks"])
def test_lines_are_short_and_name_no_addresses(name: str) -> None:
    for seed in seeds(4):
        lines, _ = log_of(SUBJECTS[name], seed)
        for line in lines[2:-1]:
            assert len(line) <= MOST_WIDTH + 40
            assert "0x" not in line
            assert " object " not in line
        numbers = [int(line[:4]) for line in lines if re.match(r" *\d+ ", line[:5])]
        assert numbers == list(range(1, len(numbers) + 1))


def test_a_history_reads_like_this() -> None:
    lines: list[str] = []
    history = [
        request("r1"),
        Action(Kind.STEP),
        Action(Kind.STEP),
        Action(Kind.SETTLE),
        Action(Kind.ABORT, {"request": "r9"}),
        Action(Kind.STEP),
        Action(Kind.RESET, {"running": False, "connector": False}),
        request("r2", salt=None, own_tokens=1),
        Action(Kind.STEP),
    ]
    _, violation = replay(
        LATER, WorldConfig(), history, make_world=partial(WatchedWorld, watchers=[Log(lines.append)])
    )
    assert violation is None
    text = "\n".join(lines)
    for part in (
        "   1 add      r1: 9 tokens of conversation 0, samples 1 of at most 1\n"
        "     engine      r1 new → waiting, 0/9 tokens, blocks []\n",
        "   2 step\n"
        "     scheduler   get_num_new_matched_tokens r1 after 0 -> 0 tokens\n"
        "     scheduler   update_state_after_alloc r1 blocks [1 2 3] 0\n"
        "     scheduler   step 1: new r1+9 after 0 -> Jobs()\n"
        "     worker 0    executes step 1\n"
        "     rank 0      step 1 retires\n"
        "     scheduler   request_finished r1 [1, 2, 3] -> (True, None)\n"
        "     scheduler   step 1 came back\n"
        "     engine      r1 waiting → at its limit and held, 9/10 tokens, blocks [1 2 3]\n",
        "     rank 0      store copy 0 begins: block 1 → host 63, block 2 → host 62, after launch 1\n",
        "   4 settle\n"
        "     rank 0      store copy 0: 2 of 2 pages moved\n"
        "     rank 0      store copy 0 is done\n"
        "   5 abort    r9  (not legal here: skipped)\n"
        "   6 step\n",
        "     engine      r1 at its limit and held → gone\n   7 reset    the prefix cache\n",
        "   8 add      r2: 9 tokens of conversation 0 + 1 own, samples 1 of at most 1\n",
        "     scheduler   get_num_new_matched_tokens r2 after 0 -> 8 tokens, asynchronous\n",
        "     rank 0      load copy 1 begins: host 63 → block ",
        "     engine      r2 waiting → waiting for a load, 8/10 tokens, blocks [",
    ):
        assert part in text, f"{part}\nis not in\n{text}"
    assert lines[-1] == "at rest: nothing is wrong"


def whole_log(*traits: Trait) -> list[str]:
    """Of two blocks and one token more, a block a step."""
    lines: list[str] = []
    subject, config = replace(MEMORY, traits=frozenset(traits)), WorldConfig(max_step_tokens=4)
    make_world = partial(WatchedWorld, watchers=[Log(lines.append)])
    replay(subject, config, [request("r1"), *[Action(Kind.STEP)] * 2], make_world=make_world)
    return lines


def test_a_log_of_a_short_history_is_this() -> None:
    assert whole_log() == [
        "connector MemoryConnector",
        f"world     {describe_world(WorldConfig(max_step_tokens=4))}",
        "   1 add      r1: 9 tokens of conversation 0, samples 1 of at most 1",
        "     engine      r1 new → waiting, 0/9 tokens, blocks []",
        "   2 step",
        "     scheduler   get_num_new_matched_tokens r1 after 0 -> 0 tokens",
        "     scheduler   update_state_after_alloc r1 blocks [1] 0",
        "     scheduler   step 1: new r1+4 after 0 -> Plan(stores=[(63, (1))])",
        "     worker 0    executes step 1",
        "     rank 0      step 1 retires",
        "     scheduler   step 1 came back",
        "     engine      r1 waiting → running, 4/9 tokens, blocks [1]",
        "   3 step",
        "     scheduler   step 2: on r1+4 -> Plan(stores=[(62, (2))])",
        "     worker 0    executes step 2",
        "     rank 0      step 2 retires",
        "     scheduler   step 2 came back",
        "     engine      r1 running, 8/9 tokens, blocks [1 2]",
        "rest step",
        "     scheduler   step 3: on r1+1 -> Plan()",
        "     worker 0    executes step 3",
        "     rank 0      step 3 retires",
        "     scheduler   request_finished_all_groups r1 ([1, 2, 3]) -> (False, None)",
        "     scheduler   step 3 came back",
        "     engine      r1 running → gone",
        "rest step",
        "     scheduler   step 4: finished r1 -> Plan()",
        "     worker 0    executes step 4",
        " end",
        "     worker 0    shutdown",
        "     scheduler   shutdown",
        "at rest: nothing is wrong",
    ]


def test_who_comes_again_before_the_next_look_is_another_one() -> None:
    world = World(WorldConfig(), LATER)
    lines = EngineLines(world.sites[0])
    spec = RequestSpec("r1", 0, 9, 0, 1, 1)
    world.engine.add(spec)
    new = "engine r1 new → waiting, 0/9 tokens, blocks []"
    assert [" ".join(line.split()) for line in lines.look()] == [new]
    world.engine.abort("r1")
    world.engine.add(spec)
    assert [" ".join(line.split()) for line in lines.look()] == ["engine r1 waiting → gone", new]


def test_what_is_done_between_two_actions_at_rest_has_a_heading_of_its_own() -> None:
    lines = whole_log(Trait.KEEPS, Trait.RESET)
    reset = lines.index("     scheduler   reset_cache -> True")
    assert [lines[reset - 1], lines[reset + 1]] == ["rest steps come back", "rest step"]


def test_a_world_is_described() -> None:
    config = WorldConfig(run_ahead=2, async_scheduling=True, zero_new_blocks=True, spec_tokens=1)
    assert describe_world(replace(config, hashes_per_block=2)).endswith("; 2 hashes a block; 1 draft tokens")
    assert "; images; " in describe_world(replace(config, images=True))
    assert describe_world(replace(config, drafter="mtp")).endswith("; 1 draft tokens by a draft model (mtp)")
    assert describe_world(config) == (
        "24 blocks of 4; groups: full; tp 1 pp 1; run-ahead 2 asynchronous; runner V1 zeroing new blocks; "
        "at most 4 running, 16 tokens a step; 64 host slots; kv_both, failed loads: recompute; 1 draft tokens"
    )


def test_actions_are_described() -> None:
    assert describe(Action(Kind.FINISH, {"rank": 1, "copy": 7})) == "finish   rank 1, copy 7"
    assert describe(Action(Kind.ADVANCE, {"rank": 1, "copy": 7, "pages": 2})) == "advance  rank 1, copy 7, pages 2"
    assert describe(Action(Kind.STEP, {"rejects": {"r1": 2}})) == "step     rejects {r1: 2}"
    assert describe(Action(Kind.RESET, {"running": True, "connector": True})) == (
        "reset    the prefix cache and running and connector"
    )
    for memory, lost in ((False, ""), (True, ", its host memory is lost")):
        assert describe(Action(Kind.RESTART, {"rank": 1, "memory": memory})) == f"restart  rank 1{lost}"
    for whose, more in (("own", {}), ("r2's", {"own_of": "r2"})):
        assert f" + 1 {whose}, samples" in describe(request("r3", own_tokens=1, **more))
    assert describe(request("r3", salt="s", adapter="a", skip_reading_prefix_cache=True)).endswith(
        "samples 1 of at most 1, salt s, adapter a, skips reading caches"
    )
    assert describe(request("r3", image="i", image_at=3)).endswith("at most 1, image i at token 3")
    sent = describe(request("r3", kv_transfer_params={"a": None, "b": "x" * 99}))
    assert sent.endswith(', its client sends {"a": null, "b": "' + "x" * 6)
    assert describe(request("r3", kv_transfer_params={})).endswith(", its client sends {}")


class Plain:
    """Somebody's metadata, of which nothing is known."""

    def __init__(self) -> None:
        self.jobs = {"r2": [1, 2], "r1": (3,)}
        self.names = {"b", "a"}
        self.nothing: list[int] = []
        self.zero = 0
        self._hidden = object()


class Loop(KVConnectorMetadata):
    def __init__(self) -> None:
        self.me = [self]


def test_any_value_is_brief() -> None:
    assert brief(Plain()) == "Plain(jobs={r2: [1, 2], r1: (3)}, names={a, b}, zero=0)"
    assert brief(list(range(100))) == "[0, 1, 2, 3, 4, 5, 6, 7, … 100 in all]"
    assert brief(bytes(range(100))) == "00010203"
    assert brief({f"r{number}" for number in range(8)}) == "{r0, r1, r2, r3, r4, r5, r6, r7}"
    assert brief(object()) == "object()"
    assert len(brief(Loop())) < 100
