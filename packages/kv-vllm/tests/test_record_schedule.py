"""From calls to a schedule: what prompts share, in which order things happen, and what can't be said."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_api import AttentionKind, ConfigError
from kv_api.groups import GroupDescription
from kv_sim.config import WorldConfig
from kv_sim.engine.request import RequestSpec
from kv_sim.failures.schedule_file import read_schedule
from kv_vllm.recording.schedule import (
    Conversations,
    Summary,
    actions_of,
    read_calls,
    room_tokens,
    subject_of,
    world_of,
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
    actions, summary = actions_of(CALLS, 4, 60)
    told = [action["action"] for action in actions]
    assert told == ["add", "step", "add", "settle", "step", "abort", "reset", "add"]
    assert actions[5] == {"action": "abort", "request": "r1"}
    assert actions[6] == {"action": "reset", "running": False, "connector": True}
    specs = [RequestSpec(**action["spec"]) for action in actions if action["action"] == "add"]
    assert [(s.conversation, s.shared_tokens, s.own_tokens) for s in specs] == [(0, 8, 1), (0, 12, 0), (0, 4, 6)]
    assert [(s.output_tokens, s.max_tokens) for s in specs] == [(2, 3), (3, 3), (3, 3)]
    assert summary == Summary(requests=3, steps=2, shared_tokens=8 + 4, lost_tokens=0)


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


def engine(**more):
    """What vLLM says of itself."""
    transfer = {
        "kv_connector": "OffloadingConnector",
        "kv_connector_module_path": "kv_vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "cpu_bytes_to_use": 4000,
            "blocks_per_chunk": 2,
            "copy_engine": "host",
            "copy_threads": 3,
            "host_memory": "shared",
            "shared_memory_dir": "/nowhere",
        },
    }
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(**transfer),
        cache_config=SimpleNamespace(block_size=16),
        parallel_config=SimpleNamespace(tensor_parallel_size=2, pipeline_parallel_size=3, world_size=6),
        scheduler_config=SimpleNamespace(max_num_seqs=4, max_num_batched_tokens=64, async_scheduling=1),
        **more,
    )


def blocks(count, sizes, **more):
    """KV caches, each of two layers; `sizes` are of the tensors."""
    layers = SimpleNamespace(layer_names=["a", "b"])
    return SimpleNamespace(
        num_blocks=count,
        kv_cache_groups=[layers, layers],
        kv_cache_tensors=[SimpleNamespace(size=size, block_stride=size) for size in sizes],
        **more,
    )


def group(kind, tokens_per_block=16, window_tokens=0, page_size_bytes=10):
    """What a KV cache group is."""
    return GroupDescription(kind, tokens_per_block, window_tokens, page_size_bytes)


@pytest.mark.parametrize(
    ("more", "run_ahead", "runner"),
    [
        ({}, 0, 1),
        ({"max_concurrent_batches": 2, "use_v2_model_runner": True}, 1, 2),
        ({"max_concurrent_batches": 0, "use_v2_model_runner": False}, 0, 1),
    ],
)
def test_the_world_of_an_engine(more, run_ahead, runner):
    groups = [group(AttentionKind.FULL), group(AttentionKind.SLIDING_WINDOW, window_tokens=40)]
    assert world_of(engine(**more), blocks(8, [160, 320]), groups) == {
        "format": "kv-vllm calls",
        "version": 1,
        "world": {
            "num_blocks": 8,
            "block_size": 16,
            "groups": [{"kind": "full", "window": 0}, {"kind": "sliding", "window": 40}],
            "layers": 1,
            "tp_size": 2,
            "pp_size": 3,
            "max_running": 4,
            "max_step_tokens": 64,
            "run_ahead": run_ahead,
            "async_scheduling": True,
            "runner": runner,
            "role": "kv_both",
            "failure_policy": "recompute",
            "host_slots": 4000 // (20 * 6),
        },
        "subject": {
            "kv_connector": "TimedOffloadingConnector",
            "module_path": "kv_sim.offload",
            "extra_config": {
                "blocks_per_chunk": 2,
                "spec_name": "WorldCPUOffloadingSpec",
                "spec_module_path": "kv_sim.offload",
            },
            "traits": ["failures", "groups", "ranks", "repeats", "reset", "zeroing"],
            "blocks_per_chunk": 2,
        },
    }


@pytest.mark.parametrize(
    ("cache", "host_bytes", "slots"),
    [
        (blocks(8, []), 4000, 4000 // (30 * 2 * 6)),
        (blocks(0, [160]), 4000, 4000 // (30 * 2 * 6)),
        (blocks(8, [160]), None, 64 // 6),
        (blocks(8, [160]), 5, 1),
        (blocks(8, [160], hash_block_size=None), 5, 1),
        (blocks(8, [160], hash_block_size=16), 5, 1),
    ],
)
def test_slots_of_the_host(cache, host_bytes, slots):
    config = engine()
    config.kv_transfer_config.kv_connector_extra_config["cpu_bytes_to_use"] = host_bytes
    groups = [group(AttentionKind.FULL), group(AttentionKind.FULL, page_size_bytes=30)]
    assert world_of(config, cache, groups)["world"]["host_slots"] == slots


def test_slots_where_nobody_said_how_many_bytes():
    config = engine()
    config.parallel_config.world_size = 1
    del config.kv_transfer_config.kv_connector_extra_config["cpu_bytes_to_use"]
    assert world_of(config, blocks(8, [160]), [group(AttentionKind.FULL)] * 2)["world"]["host_slots"] == 64


@pytest.mark.parametrize(
    ("odd", "hash_tokens", "message"),
    [
        (
            group(AttentionKind.STATE_SPACE),
            16,
            "KV cache group 1: its kind is state_space, and a schedule has only full_attention, sliding_window",
        ),
        (
            group(AttentionKind.FULL, 32),
            16,
            "KV cache group 1: its blocks have 32 tokens, and a schedule has one size of blocks, "
            "cache_config.block_size (16)",
        ),
        (
            group(AttentionKind.FULL),
            8,
            "kv_cache_config.hash_block_size: got 8, and a schedule has one hash for each block of 16 tokens",
        ),
    ],
)
def test_an_engine_that_no_world_can_be_is_refused(odd, hash_tokens, message):
    cache = blocks(8, [160], hash_block_size=hash_tokens)
    for groups in ([group(AttentionKind.FULL), odd], [odd, group(AttentionKind.FULL)]):
        with pytest.raises(ConfigError) as refused:
            world_of(engine(), cache, groups)
        assert str(refused.value) == message.replace("group 1", f"group {groups.index(odd)}")


def test_any_other_connector_is_what_it_is():
    assert subject_of({"kv_connector": "Some", "kv_connector_module_path": "some.where"}) == {
        "kv_connector": "Some",
        "module_path": "some.where",
        "extra_config": {},
        "traits": ["failures", "groups", "ranks", "repeats", "reset", "zeroing"],
        "blocks_per_chunk": 1,
    }


def test_what_lies_beyond_a_fork_is_lost_and_counted():
    _, summary = actions_of([arrive("r0", "abc", 12), arrive("r1", "axy", 12), arrive("r2", "axy", 12)], 4, 60)
    assert (summary.shared_tokens, summary.lost_tokens) == (4 + 12, 8)
    assert str(summary).endswith("16 tokens of prompts are shared, 8 of them not in the schedule")


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("num_blocks", [2, 16, 17])
def test_the_room_is_that_of_the_world(num_blocks, groups):
    kinds = [{"kind": "full", "window": 0}, *[{"kind": "sliding", "window": 5}] * (groups - 1)]
    world = {"num_blocks": num_blocks, "block_size": 4, "groups": kinds}
    assert room_tokens(world) == WorldConfig.from_json({**world, "silent": []}).longest_request


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


def test_a_last_line_that_is_whole_counts(tmp_path):
    """The engine was killed before it ended the line."""
    file = tmp_path / "calls"
    file.write_text(json.dumps(HEAD) + "\n" + json.dumps(STEP) + "\n" + json.dumps(end("r0")))
    assert read_calls(file) == (HEAD, [STEP, end("r0")])


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
        (json.dumps(HEAD) + "\nno\n{}\n", "line 2: this is no JSON object"),
        (json.dumps(HEAD) + "\n{}\n[]\n", "line 3: this is no JSON object"),
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
    other = {"kv_connector": "P2PConnector"}
    extra = {"connectors": [child, "none", other], "load_policy": "longest"}
    subject = subject_of({"kv_connector": "MultiConnector", "kv_connector_extra_config": extra})
    assert (subject["kv_connector"], subject["module_path"]) == ("MultiConnector", "kv_multi")
    assert subject["extra_config"] == {
        "connectors": [
            {
                "kv_connector": "TimedOffloadingConnector",
                "kv_connector_module_path": "kv_sim.offload",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {
                    "name": "a",
                    "spec_name": "WorldCPUOffloadingSpec",
                    "spec_module_path": "kv_sim.offload",
                },
            },
            {**other, "kv_connector_module_path": None, "kv_connector_extra_config": {}},
        ],
        "load_policy": "longest",
    }
    assert extra["connectors"] == [child, "none", other]
