"""From calls to a schedule: what prompts share, in which order things happen, and what can't be said."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_api import ConfigError
from kv_sim.engine.request import RequestSpec
from kv_sim.schedule_file import read_schedule
from kv_vllm.record_schedule import (
    Conversations,
    Summary,
    actions_of,
    read_calls,
    subject_of,
    write_schedule_of,
)

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
    actions, summary = actions_of(CALLS, 4)
    told = [action["action"] for action in actions]
    assert told == ["add", "step", "add", "settle", "step", "abort", "reset", "add"]
    specs = [RequestSpec(**action["spec"]) for action in actions if action["action"] == "add"]
    assert [(s.conversation, s.shared_tokens, s.own_tokens) for s in specs] == [(0, 8, 1), (0, 12, 0), (0, 4, 6)]
    assert [(s.output_tokens, s.max_tokens) for s in specs] == [(2, 3), (3, 3), (3, 3)]
    assert summary == Summary(requests=3, steps=2, shared_tokens=8 + 4, lost_tokens=0)


def test_what_lies_beyond_a_fork_is_lost_and_counted():
    _, summary = actions_of([arrive("r0", "abc", 12), arrive("r1", "axy", 12), arrive("r2", "axy", 12)], 4)
    assert (summary.shared_tokens, summary.lost_tokens) == (4 + 12, 8)
    assert str(summary).endswith("16 tokens of prompts are shared, 8 of them not in the schedule")


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
    write_schedule_of(calls, out)
    schedule = read_schedule(out)
    assert (schedule.config.num_blocks, schedule.subject.kv_connector) == (16, "TimedOffloadingConnector")
    assert "cpu_bytes_to_use" not in schedule.subject.extra_config
    assert len(schedule.history) == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: expected the header of 'kv-vllm calls', version 1"),
        ('{"format": "kv-sim schedule"}\n', "line 1: expected the header of 'kv-vllm calls', version 1"),
        (json.dumps(HEAD) + "\nno\n{}\n", "line 2: this is no JSON object"),
    ],
)
def test_what_is_no_file_of_calls(text, message, tmp_path):
    file = tmp_path / "calls"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_calls(file)
    assert str(refused.value) == f"{file}: {message}"


def test_children_of_a_multi_connector_are_of_the_world_too():
    child = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"name": "a"},
    }
    subject = subject_of({"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": [child]}})
    [inner] = subject["extra_config"]["connectors"]
    assert (subject["module_path"], inner["kv_connector_module_path"]) == ("kv_multi", "kv_sim.offload")
    assert inner["kv_connector_extra_config"]["name"] == "a"
