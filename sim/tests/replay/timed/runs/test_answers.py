"""What a replay says: the connector's counts beside the engine's, the table, and JSON."""

import json
from array import array
from dataclasses import asdict, fields, replace
from pathlib import Path

from hypothesis import given
from kv_sim_timed_traces import ListedTrace, answer, servers, toy, trace_of, traces

from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import OnError, TraceOptions
from kv_sim.replay.report.timed.as_json import answers_as_json, timed_as_json
from kv_sim.replay.report.timed.text import header_lines, rows, timed_lines
from kv_sim.replay.timed import Answers, Contents, EngineReplay, EngineSettings, replay_engine
from kv_sim.replay.timed.durations.timing import SECOND
from kv_sim.replay.timed.runs.answers import Copies, Pulled, Spread
from kv_sim.replay.timed.server.sizes import plan
from kv_sim.replay.timed.sweep import sweep_engine

LOADED, STORED = "vllm:kv_offload_load_bytes", "vllm:kv_offload_store_bytes"


@given(traces(), servers())
def test_the_connector_counts_what_the_engine_counts(trace: ListedTrace, settings: EngineSettings) -> None:
    answers = answer(trace, settings)
    assert answers.connector.get(LOADED, 0) == answers.loads.bytes
    assert answers.connector.get(STORED, 0) == answers.stores.bytes
    if not answers.preemptions:
        assert answers.loads.blocks * answers.block_tokens >= answers.cpu_hit_tokens
    assert list(answers.connector) == sorted(answers.connector)
    refused = sum(answers.refused.values())
    assert answers.requests + refused == len(trace.requests)
    assert answers.ttft.count == answers.latency.count == answers.requests
    assert answers.gpu_hit_tokens + answers.cpu_hit_tokens <= answers.prompt_tokens


def test_a_prompt_that_comes_again_whole() -> None:
    """The GPU's cache gives whole blocks and leaves a token to compute; the connector gives all but that token."""
    answers = answer(trace_of((0, 8, 1, [1, 2]), (1000, 8, 1, [1, 2])), toy())
    assert (answers.gpu_hit_tokens, answers.cpu_hit_tokens) == (4, 3)
    assert (answers.gpu_hit_blocks, answers.cpu_hit_blocks) == (1, 1)


TRACE = trace_of(
    *((turn * 1000 + n, 13, 6, [10 * n, 10 * n + 1, 10 * n + 2, 99 + turn]) for turn in range(3) for n in range(3))
)


def test_the_table_has_both_columns() -> None:
    seen: list[float] = []
    replay = replay_engine(TRACE, toy(gpu_blocks=5, limit=8, max_model_len=18 + 1), seen.append)
    lines = [*timed_lines(replay)]
    assert lines[0] == "listed, 4 tokens a block, on 1 × toy with toy"
    assert lines[1:5] == [
        "  model   0.00 G parameters, 1 layers, 1 heads, 1 of KV, of 1, 2 bytes a number; "
        "4 bytes of KV a token; at most 19 tokens",
        "  GPU     0 TFLOP/s × 1, 0.001 TB/s × 1, 1 GiB × 0.92; 5 blocks = 20 tokens",
        "  link    1 GB/s × 1 each way and GPU, 1 µs a copy, 1 copies a block",
        "  steps   at most 64 tokens and 8 requests; 10 µs each beside the forward pass",
    ]
    assert " ".join(lines[6].split()) == "with the connector without"
    table = [line.split("  ") for line in lines[6:]]
    rows = {cells[0]: [cell.strip() for cell in cells[1:] if cell.strip()] for cells in table}
    assert rows["requests"] == ["8", "8"]
    assert rows["hit ratio, tokens: CPU"] == [f"{60 / 104:.4f}", "0.0000"]
    assert rows["time to first token, mean"][0] != rows["time to first token, mean"][1]
    assert seen == [0.5, 1.0]
    last = [*timed_lines(replay_engine(TRACE, toy(gpu_blocks=5, limit=1, contents=Contents.CHECKED)))][-1]
    assert last == "contents were checked: every slot that was read held the right KV"
    unchecked = timed_lines(replay_engine(TRACE, toy(gpu_blocks=5, limit=1)))
    assert not any("contents" in line for line in unchecked)


def test_what_was_decided_about_a_trace_is_said(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    records = [{"timestamp": time, "input_length": 4, "output_length": 1, "hash_ids": [time]} for time in (0, 1)]
    file.write_text("oops\n".join(json.dumps(record) + "\n" for record in records))
    trace = open_trace(file, TraceOptions(block_tokens=4, on_error=OnError.SKIP))
    replay = replay_engine(trace, toy())
    assert trace.notes[0] == "format: mooncake" and "1 malformed record was skipped" in trace.notes[1]
    assert [*timed_lines(replay)][1:3] == [f"  {note}" for note in trace.notes]
    assert timed_as_json(replay)["notes"] == list(trace.notes)
    assert timed_as_json(replay_engine(TRACE, toy()))["notes"] == []


def test_answers_of_which_nobody_says_how_long_they_were_are_said(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    records = [{"timestamp": 0, "input_length": 4, "output_length": n % 3, "hash_ids": [0]} for n in range(4)]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    trace = open_trace(file, TraceOptions(block_tokens=4))
    said = "2 of 4 requests don't say how long their answers were: each gets one token"
    assert replay_engine(trace, toy()).notes == (*trace.notes, said)
    assert sweep_engine(trace, [toy()]).notes == (*trace.notes, said)


def test_what_a_replay_rests_on_is_shown() -> None:
    settings = EngineSettings(tp_size=2)
    shown = [*timed_lines(EngineReplay("made", settings, plan(settings, 512), BUSY, IDLE))]
    assert shown[:5] == [
        "made, 512 tokens a block, on 2 × H100 with Llama-3.1-8B",
        "  model   8.03 G parameters, 32 layers, 32 heads, 8 of KV, of 128, 2 bytes a number; "
        "131,072 bytes of KV a token; at most 131,072 tokens",
        "  GPU     989 TFLOP/s × 0.5, 3.35 TB/s × 0.8, 80 GiB × 0.92; 2,115 blocks = 1,082,880 tokens",
        "  link    64 GB/s × 0.85 each way and GPU, 0.5 µs a copy, 1,024 copies a block",
        "  steps   at most 8,192 tokens and 1,024 requests; 1000 µs each beside the forward pass",
    ]
    quick = replace(settings, disk_read_bandwidth=7e9)
    lines = header_lines("made", quick, plan(quick, 512), (), None, disk=True)
    assert lines[-2] == "  disk    7 GB/s read, 4 GB/s written, 25 µs a chunk, 32 chunks a block"


def test_a_percentile_is_the_smallest_value_that_so_many_are_not_above() -> None:
    shares = {"p50": 50, "p90": 90, "p95": 95, "p99": 99}
    for count in range(1, 121):
        found = Spread.of(array("q", (second * SECOND for second in range(count, 0, -1))))
        for name, share in shares.items():
            enough = (second for second in range(1, count + 1) if 100 * second >= share * count)
            assert getattr(found, name) == next(enough), (name, count)
        assert (found.count, found.mean, found.worst) == (count, (count + 1) / 2, count)


def spread(mean: float) -> Spread:
    return Spread(2, mean, 2 * mean, 3 * mean, 3.5 * mean, 4 * mean, 5 * mean)


BUSY = Answers(
    requests=1234,
    refused={},
    prompt_tokens=4000,
    prompt_blocks=500,
    full_prompt_blocks=450,
    output_tokens=3000,
    gpu_hit_tokens=1000,
    cpu_hit_tokens=100,
    disk_hit_tokens=60,
    gpu_hit_blocks=50,
    cpu_hit_blocks=25,
    disk_hit_blocks=20,
    block_tokens=8,
    seconds=2.0,
    ttft=spread(0.025),
    time_per_output_token=spread(0.001),
    latency=spread(1.5),
    queueing=spread(0.0),
    load_wait=spread(0.02),
    preemptions=5678,
    loads=Copies(3, 30, 3 << 29, 0.25),
    stores=Copies(4, 40, 1 << 41, 1000.5),
    disk_reads=Copies(5, 50, 1 << 30, 2.5),
    disk_writes=Copies(6, 60, 1 << 31, 3.5),
    host_wait_seconds=0.05,
    steps=98765,
    fused_steps=9,
    connector={},
    digest="0",
)
IDLE = replace(BUSY, prompt_tokens=0, prompt_blocks=0, seconds=0.0, load_wait=Spread.of(array("q")))
TABLE = {
    "requests": ["1,234", "1,234"],
    "hit ratio, blocks: GPU": ["0.1000", "0.0000"],
    "hit ratio, blocks: CPU": ["0.0500", "0.0000"],
    "hit ratio, tokens: GPU": ["0.2500", "0.0000"],
    "hit ratio, tokens: CPU": ["0.0250", "0.0000"],
    "bytes loaded": ["1.50 GiB"] * 2,
    "link busy, loaded": ["0.250 s"] * 2,
    "bytes stored": ["2,048.00 GiB"] * 2,
    "link busy, stored": ["1,000.500 s"] * 2,
    "wait for a load, mean": ["20.000 ms", "-"],
    "host waits for copies": ["50.000 ms"] * 2,
    "time to first token, mean": ["25.000 ms"] * 2,
    "time to first token, p50": ["50.000 ms"] * 2,
    "time to first token, p90": ["75.000 ms"] * 2,
    "time to first token, p99": ["0.100 s"] * 2,
    "time per output token, mean": ["1.000 ms"] * 2,
    "time per output token, p50": ["2.000 ms"] * 2,
    "time per output token, p90": ["3.000 ms"] * 2,
    "time per output token, p99": ["4.000 ms"] * 2,
    "latency, mean": ["1.500 s"] * 2,
    "latency, p50": ["3.000 s"] * 2,
    "latency, p90": ["4.500 s"] * 2,
    "latency, p99": ["6.000 s"] * 2,
    "queueing, mean": ["0.000 s"] * 2,
    "queueing, p50": ["0.000 s"] * 2,
    "queueing, p90": ["0.000 s"] * 2,
    "queueing, p99": ["0.000 s"] * 2,
    "output tokens/s": ["1,500.0", "0.0"],
    "all tokens/s": ["3,500.0", "0.0"],
    "preemptions": ["5,678"] * 2,
    "first arrival to last token": ["2.000 s", "0.000 s"],
    "engine steps": ["98,765"] * 2,
}


def test_every_row_of_the_table() -> None:
    assert rows([("busy", BUSY), ("idle", IDLE)]) == [
        ["", "busy", "idle"],
        *([label, *cells] for label, cells in TABLE.items()),
    ]
    assert rows([("busy", BUSY)]) == [["", "busy"], *([label, cells[0]] for label, cells in TABLE.items())]
    with_disk = dict(tuple(row) for row in rows([("busy", BUSY)], disk=True)[1:])
    of_disk = {label: with_disk.pop(label) for label in [*with_disk] if label not in TABLE}
    assert with_disk == {label: cells[0] for label, cells in TABLE.items()}
    assert of_disk == {
        "hit ratio, blocks: disk": "0.0400",
        "hit ratio, tokens: disk": "0.0150",
        "bytes read": "1.00 GiB",
        "disk busy, read": "2.500 s",
        "bytes written": "2.00 GiB",
        "disk busy, written": "3.500 s",
    }
    assert Spread.of(array("q")) == Spread(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert answers_as_json(BUSY) == asdict(BUSY) | {
        "gpu_block_ratio": 0.1,
        "cpu_block_ratio": 0.05,
        "disk_block_ratio": 0.04,
        "gpu_token_ratio": 0.25,
        "cpu_token_ratio": 0.025,
        "disk_token_ratio": 0.015,
        "pulled_token_ratio": 0.0,
        "kept_token_ratio": 0.0,
        "output_tokens_per_second": 1500.0,
        "tokens_per_second": 3500.0,
    }


def test_rows_of_what_is_pulled_stand_where_somebody_pulls() -> None:
    pulled = Pulled(3800, 200, Copies(7, 70, 5 << 30, 0.5), spread(0.03))
    split, none = replace(BUSY, pulled=pulled), replace(BUSY, pulled=replace(pulled, wait=Spread.of(array("q"))))
    found = {label: cells for label, *cells in rows([("a", split), ("b", BUSY), ("c", none)])}
    labels = ("prompt tokens pulled", "bytes pulled", "network busy", "wait for a pull, mean")
    assert [found[label] for label in labels] == [
        ["0.9500", "-", "0.9500"],
        ["5.00 GiB", "-", "5.00 GiB"],
        ["0.500 s", "-", "0.500 s"],
        ["30.000 ms", "-", "-"],
    ]
    assert (split.pulled_token_ratio, split.kept_token_ratio) == (0.95, 0.05)
    assert set(found) == {label for label, *_ in rows([("b", BUSY)])} | {*labels}


def test_json_has_everything() -> None:
    seen: list[float] = []
    replay = replay_engine(TRACE, toy(gpu_blocks=5, limit=4, max_model_len=18), seen.append)
    assert seen == [0.5, 1.0]
    values = json.loads(json.dumps(timed_as_json(replay)))
    assert values["trace"] == "listed"
    assert values["with_connector"]["refused"] == {"is longer than the model's maximum": 4}
    assert values["settings"]["stepping"] == "fused"
    assert values["settings"]["gpu"]["link_bandwidth"] == 1e9
    assert values["sizes"]["gpu_blocks"] == 5
    for what in (replay.settings, replay.sizes):
        shown = values["settings" if what is replay.settings else "sizes"]
        assert list(shown) == [field.name for field in fields(what)]
    assert list(values["settings"]["gpu"]) == [field.name for field in fields(replay.settings.gpu)]
    assert values["kv_transfer_config"]["kv_connector"] == "OffloadingConnector"
    assert values["without"]["ttft"]["count"] == 0
    assert "not replayed: 4 requests, each of which is longer than the model's maximum" in [*timed_lines(replay)]
