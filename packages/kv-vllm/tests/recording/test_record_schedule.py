"""From calls to a schedule: what prompts share, in which order things happen, and what can't be said."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_api import ConfigError
from kv_sim.config import WorldConfig
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.failures.schedule_file import read_schedule
from kv_vllm.recording.schedule import (
    Conversations,
    Summary,
    actions_of,
    read_calls,
    room_tokens,
    write_schedule_of,
)
from kv_vllm.recording.world import subject_of

WORLD = {"num_blocks": 16, "block_size": 4, "groups": [{"kind": "full", "window": 0}]}
HEAD = {
    "format": "kv-vllm calls",
    "version": 1,
    "world": WORLD,
    "subject": subject_of(
        {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": 9}}
    ),
}


def arrive(name, hashes, tokens, max_tokens=3):
    return {
        "call": "arrive",
        "request": name,
        "prompt_tokens": tokens,
        "max_tokens": max_tokens,
        "hashes": list(hashes),
        "skips": False,
    }


def end(name, tokens=2, aborted=False):
    return {"call": "end", "request": name, "aborted": aborted, "output_tokens": tokens, "held": False}


def report(*jobs):
    return {"call": "report", "loads": [], "stores": [], "failed": [], "bad_blocks": [], "jobs": list(jobs)}


STEP = {"call": "step", "scheduled": {}, "preempted": []}
CALLS = [
    arrive("r0", "ab", 9),
    STEP,
    report(),
    arrive("r1", "abc", 12),
    STEP,
    report(0),
    end("r0"),
    end("r1", aborted=True),
    {"call": "reset", "answer": True},
    arrive("r2", "ax", 10),
]


def test_a_history():
    actions, summary = actions_of(CALLS, 4, 60)
    told = [action["action"] for action in actions]
    assert told == ["add", "step", "add", "settle", "step", "abort", "reset", "add"]
    assert actions[5] == {"action": "abort", "request": "r1"}
    assert actions[6] == {"action": "reset", "running": False, "connector": True}
    specs = [RequestSpec(**action["spec"]) for action in actions if action["action"] == "add"]
    assert [(s.conversation, s.shared_tokens, s.own_tokens) for s in specs] == [(0, 8, 1), (0, 12, 0), (0, 4, 6)]
    assert [(s.output_tokens, s.max_tokens) for s in specs] == [(2, 3), (3, 3), (3, 3)]
    assert summary == Summary(requests=3, steps=2, shared_tokens=8 + 4, lost_tokens=0)
    assert actions_of(iter(CALLS), 4, 60) == (actions, summary), "calls that can be read once only"


def test_all_of_a_history():
    """Two copies end in one step, one in the next; r0 has sampled more than it was to, r1 goes on for ever."""
    calls = [
        {**arrive("r0", "ab", 9), "skips": True},
        STEP,
        {"call": "match", "request": "r0"},
        {**report(), "loads": ["r0"], "failed": ["r0"]},
        {**report(), "stores": ["r0"]},
        STEP,
        report(1),
        {**report(), "failed": ["r0"], "bad_blocks": [3]},
        end("r0", tokens=5),
        arrive("r1", "", 2, max_tokens=0),
        end("r2", tokens=0),
        arrive("r2", "ab", 10, max_tokens=7),
        arrive("r3", "c", 4),
    ]
    actions, summary = actions_of(calls, 4, 60)
    add, step, settle = {"action": "add"}, {"action": "step"}, {"action": "settle"}

    def spec(name, conversation, shared, own, output, most, skips=False):
        return {
            "request_id": name,
            "conversation": conversation,
            "shared_tokens": shared,
            "own_tokens": own,
            "output_tokens": output,
            "max_tokens": most,
            "skip_reading_prefix_cache": skips,
        }

    assert actions == [
        {**add, "spec": spec("r0", 0, 8, 1, 5, 5, skips=True)},
        settle,
        settle,
        step,
        settle,
        step,
        {**add, "spec": spec("r1", 1, 0, 2, 1, 1)},
        {**add, "spec": spec("r2", 0, 8, 2, 1, 7)},
        {**add, "spec": spec("r3", 2, 4, 0, 3, 3)},
    ]
    assert str(summary) == "4 requests, 2 steps; 8 tokens of prompts are shared, 0 of them not in the schedule"


def test_what_lies_beyond_a_fork_is_lost_and_counted():
    _, summary = actions_of([arrive("r0", "abc", 12), arrive("r1", "axy", 12), arrive("r2", "axy", 12)], 4, 60)
    assert (summary.shared_tokens, summary.lost_tokens) == (4 + 12, 8)
    assert str(summary).endswith("16 tokens of prompts are shared, 8 of them not in the schedule")


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("num_blocks", [2, 16, 17])
def test_the_room_is_that_of_the_world(num_blocks, parts, groups):
    smaller = {"kind": "sliding", "window": 5, **({"parts": 2} if parts > 1 else {})}
    kinds = [{"kind": "full", "window": 0}, *[smaller] * (groups - 1)]
    world = {"num_blocks": num_blocks, "block_size": 4, "groups": kinds}
    hashes = parts if groups > 1 else 1
    config = WorldConfig.from_json({**world, "hashes_per_block": hashes, "silent": []})
    assert room_tokens(world) == config.longest_request


def test_what_is_longer_than_the_world_is_left_out(tmp_path):
    """Of who was aborted it isn't known how far it would have come: only as far as there is room."""
    aborted = {"call": "end", "request": "r1", "aborted": True, "output_tokens": 2, "held": False}
    calls = [
        arrive("r0", "a", 58),
        end("r0", tokens=2),
        arrive("r1", "a", 58, max_tokens=1000),
        aborted,
        arrive("r2", "a", 58, max_tokens=9),
        arrive("r3", "ab", 58),
        end("r3", tokens=3),
        arrive("r4", "abc", 60),
        {**aborted, "request": "r4"},
        arrive("r5", "abd", 59),
    ]
    file = tmp_path / "a.calls.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in [HEAD, *calls]))
    summary = write_schedule_of(file, tmp_path / "a.jsonl")
    history = read_schedule(tmp_path / "a.jsonl").history
    specs = [action.args["spec"] for action in history if action.kind == "add"]
    told = [(spec["request_id"], spec["output_tokens"], spec["max_tokens"]) for spec in specs]
    assert told == [("r0", 2, 3), ("r1", 2, 1000), ("r2", 2, 9), ("r5", 1, 3)]
    assert [action.args["request"] for action in history if action.kind == "abort"] == ["r1"]
    assert str(summary) == (
        "4 requests, 0 steps; 12 tokens of prompts are shared, 0 of them not in the schedule; 2 requests longer "
        "than its world are left out"
    )


@pytest.mark.parametrize("number", [0, 1])
def test_a_recount_sees_a_trunk_of_another_length_and_a_hash_of_no_prompt(number):
    conversations = Conversations(4)
    conversations.place(["a", "b"], 9, Summary())
    conversations.place(["c"], 5, Summary())
    conversations.check()
    hashes = conversations._trunk[number]
    conversations._trunk[number] = 3
    ends = [*range(1, hashes + 1)]
    with pytest.raises(AssertionError, match=re.escape(f"conversation {number} of 3 has {ends}")):
        conversations.check()
    conversations._trunk[number] = hashes
    conversations._seen -= {"ac"[number]}
    with pytest.raises(AssertionError, match="a trunk has hashes of no prompt"):
        conversations.check()


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=8))
def test_nothing_is_shared_that_was_not(prompts):
    """Prompts of blocks; hashes stand for all before them. Compared with the real common prefixes."""
    conversations, summary = Conversations(4), Summary()
    specs = []
    for number, blocks in enumerate(prompts):
        hashes = [str(blocks[: end + 1]) for end in range(len(blocks))]
        placed = conversations.place(hashes, 4 * len(blocks) + 1, summary)
        specs.append(RequestSpec(f"r{number}", **placed, output_tokens=1, max_tokens=1))
        conversations.check()
    for one, blocks in zip(specs, prompts, strict=True):
        assert len(one.prompt) == 4 * len(blocks) + 1
        for other, others in zip(specs, prompts, strict=True):
            if one is not other:
                assert common(one.prompt, other.prompt) // 4 <= common(blocks, others)


def common(one, other):
    """How many items two lists begin with alike."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def test_the_testbed_reads_it(tmp_path):
    calls, out = tmp_path / "a.calls.jsonl", tmp_path / "a.jsonl"
    calls.write_text("".join(json.dumps(line) + "\n" for line in [HEAD, *CALLS]) + '{"call": "st')
    assert write_schedule_of(calls, out) == actions_of(CALLS, 4, 60)[1]
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    head = {"format": "kv-sim schedule", "version": 1, "violation": None}
    assert lines == [{**head, "subject": HEAD["subject"], "world": WORLD}, *actions_of(CALLS, 4, 60)[0]]
    schedule = read_schedule(out)
    assert (schedule.config.num_blocks, schedule.subject.kv_connector) == (16, "TimedOffloadingConnector")
    assert "cpu_bytes_to_use" not in schedule.subject.extra_config
    assert len(schedule.history) == 8


def test_hashes_of_smaller_blocks_are_shared_to_the_last(tmp_path):
    """Each of the largest blocks has two; a prompt may differ from another one after the first of them."""
    groups = [{"kind": "full", "window": 0}, {"kind": "sliding", "window": 5, "parts": 2}]
    world = {**WORLD, "block_size": 4, "hashes_per_block": 2, "groups": groups}
    calls, out = tmp_path / "a.calls.jsonl", tmp_path / "a.jsonl"
    listed = [arrive("r0", "abcd", 9), arrive("r1", "abcx", 9)]
    calls.write_text("".join(json.dumps(line) + "\n" for line in [{**HEAD, "world": world}, *listed]))
    write_schedule_of(calls, out)
    one, other = (RequestSpec(**action.args["spec"]) for action in read_schedule(out).history)
    assert (one.shared_tokens, one.own_tokens) == (8, 1)
    assert common(one.prompt, other.prompt) == 6


def test_a_last_line_that_is_whole_counts(tmp_path):
    """The engine was killed before it ended the line. An empty one says nothing."""
    file = tmp_path / "calls"
    file.write_text(json.dumps(HEAD) + "\n\n" + json.dumps(STEP) + "\n" + json.dumps(end("r0")))
    assert read_calls(file) == (HEAD, [STEP, end("r0")])


def test_ids_of_requests_stay_as_they_are(tmp_path):
    calls, out = tmp_path / "calls", tmp_path / "schedule"
    lines = [HEAD, arrive("é", "a", 5), end("é")]
    calls.write_bytes("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode())
    write_schedule_of(calls, out)
    assert '"request_id": "é"'.encode() in out.read_bytes()


def test_conversations_are_recounted_when_all_is_placed(monkeypatch):
    placed = []
    monkeypatch.setattr(Conversations, "check", lambda self: placed.append(len(self._seen)))
    actions_of(CALLS, 4, 60)
    assert placed == [len({*"abcx"})]


def test_what_ended_before_the_first_step_is_settled_before_everything():
    actions, _ = actions_of([arrive("r", "a", 5), report(0)], 4, 60)
    assert [action["action"] for action in actions] == ["settle", "add"]


@pytest.mark.parametrize("again", ["calls", "also"])
def test_a_schedule_is_not_written_over_the_calls(again, tmp_path):
    calls, out = tmp_path / "calls", tmp_path / again
    lines = "".join(json.dumps(line) + "\n" for line in [HEAD, *CALLS])
    calls.write_text(lines)
    (tmp_path / "also").symlink_to(calls)
    with pytest.raises(ConfigError) as refused:
        write_schedule_of(calls, out)
    assert str(refused.value) == f"{out}: this is the file of calls; the schedule needs another one"
    assert calls.read_text() == lines


@pytest.mark.parametrize(("line", "missing"), [(0, "world"), (0, "subject"), (2, "call"), (2, "request")])
def test_a_value_that_is_missing_is_named(line, missing, tmp_path):
    calls = tmp_path / "calls"
    lines = [HEAD, STEP, end("r0")]
    lines[line] = {key: value for key, value in lines[line].items() if key != missing}
    calls.write_text("".join(json.dumps(values) + "\n" for values in lines))
    with pytest.raises(ConfigError) as refused:
        write_schedule_of(calls, tmp_path / "out")
    assert str(refused.value) == f"{calls}: '{missing}' is missing, which every recorder writes"
    assert not (tmp_path / "out").exists()


NO_HEADER = "line 1: expected the header of 'kv-vllm calls', version 1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", NO_HEADER),
        ('{"format": "kv-sim schedule"}\n', NO_HEADER),
        (
            json.dumps({**HEAD, "format": "kv-sim schedule"}),
            NO_HEADER,
        ),
        (json.dumps({**HEAD, "version": 2}), NO_HEADER),
        ("\udc88\udcff", NO_HEADER),
        (json.dumps(HEAD) + "\n\udc88\n{}\n", "line 2: this is no JSON object"),
        (json.dumps(HEAD) + "\nno\n{}\n", "line 2: this is no JSON object"),
        (json.dumps(HEAD) + "\n{}\n[]\n", "line 3: this is no JSON object"),
    ],
)
def test_what_is_no_file_of_calls(text, message, tmp_path):
    file = tmp_path / "calls"
    file.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ConfigError) as refused:
        read_calls(file)
    assert str(refused.value) == f"{file}: {message}"
