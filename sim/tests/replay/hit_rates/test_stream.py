"""A replay that keeps nothing of the trace counts the same, in memory that doesn't grow with it."""

import gc
import json
import tracemalloc
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_sim_slow_replay import prefix_trace

from kv_api import ConfigError
from kv_sim.cli.main import main
from kv_sim.replay import open_trace
from kv_sim.replay.caches.cache import CacheRun, replay_cache
from kv_sim.replay.caches.outcome import Setup
from kv_sim.replay.columns import Columns
from kv_sim.replay.hit_rates import stream
from kv_sim.replay.hit_rates.results import CacheCounts, results_of
from kv_sim.replay.hit_rates.setups import replay_all
from kv_sim.replay.readers import meaning, opening
from kv_sim.replay.readers.opening import open_stream
from kv_sim.replay.readers.requests.naming import Evidence
from kv_sim.replay.servers.fleet import RoutedTrace
from kv_sim.replay.units import Footprint

SETUPS = [
    Setup("lru", 9), Setup("arc", 5, 3), Setup("s3fifo", 7), Setup("sieve", 4, 20), Setup("lru", 6, 0, 2),
    Setup("lru", 0, 4), Setup("lru", 4, 2, disk=9), Setup("arc", 0, disk=5, disk_store_threshold=2),
]  # fmt: skip
COUNTS = list(CacheCounts.__dataclass_fields__)


def write(file, requests, block=4):
    """Requests as Mooncake's JSON lines, one a second; odd ones have a partial last block."""
    with file.open("w") as out:
        for index, ids in enumerate(requests):
            tokens = block * len(ids) - (1 if index % 2 and ids else 0)
            out.write(
                json.dumps({"timestamp": 5000 + 1000 * index, "input_length": tokens, "hash_ids": ids}) + "\n"
            )
    return file


@pytest.mark.once
@given(part=st.sampled_from([1, 3, 1024]), seed=st.integers(0, 10**9), count=st.integers(1, 40))
def test_a_stream_counts_what_the_whole_trace_counts(tmp_path_factory, part, seed, count):
    requests = prefix_trace(Random(seed), count)
    file = write(tmp_path_factory.mktemp("stream") / "trace.jsonl", [*requests, [1]])
    columns, footprint = open_trace(file), Footprint(4, 10)
    trace = RoutedTrace(columns)
    whole = results_of(trace, replay_all(trace, SETUPS), footprint)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "PART_REQUESTS", part)
        found = stream.replay_stream(open_stream(file), SETUPS, Footprint(4, 10))
    assert (found.trace, found.notes, found.totals) == (whole.trace, whole.notes, whole.totals)
    assert (found.requests, found.duration_seconds) == (whole.requests, whole.duration_seconds)
    for one, other in zip(found.runs, whole.runs, strict=True):
        assert [getattr(one, name) for name in COUNTS] == [getattr(other, name) for name in COUNTS]


@pytest.mark.parametrize(
    ("most_requests", "most_ids", "ends"),
    [(3, 99, [3, 6, 9, 10]), (99, 6, [2, 4, 6, 8, 10]), (99, 7, [3, 6, 9, 10]), (5, 15, [5, 10])],
)
def test_a_part_ends_with_the_request_that_reaches_either(tmp_path, monkeypatch, most_requests, most_ids, ends):
    monkeypatch.setattr(stream, "PART_REQUESTS", most_requests)
    monkeypatch.setattr(stream, "PART_IDS", most_ids)
    file, seen = write(tmp_path / "trace.jsonl", [[1, 2, 3]] * 10), []
    stream.replay_stream(open_stream(file), SETUPS[:1], Footprint(4, 10), seen.append)
    assert seen == ends


def test_the_time_of_a_stream_begins_with_its_first_request(tmp_path):
    """A first turn may have a delay of its own."""
    file, turn = tmp_path / "trace.jsonl", {"session_id": "a", "input_length": 4, "hash_ids": [1]}
    file.write_text("".join(json.dumps({**turn, "delay": delay}) + "\n" for delay in (500, 250, 1000)))
    assert open_trace(file).duration_seconds == 1.25
    assert stream.replay_stream(open_stream(file), SETUPS[:1], Footprint(4, 10)).duration_seconds == 1.25


def test_a_stream_keeps_books_of_so_many_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "MOST_BLOCKS", 6)
    file, said = write(tmp_path / "trace.jsonl", [[1]]), "that is 7 blocks, and --stream supports 6 at most"
    stream.replay_stream(open_stream(file), [Setup("lru", 6, disk=6)], Footprint(4, 10))
    for option, setup in (("--capacity", Setup("lru", 7)), ("--disk-capacity", Setup("lru", 6, disk=7))):
        with pytest.raises(ConfigError, match=f"^{option}: {said}; "):
            stream.replay_stream(open_stream(file), [setup], Footprint(4, 10))


def test_caches_can_be_recounted_after_every_part():
    requests = prefix_trace(Random(3), 60)
    for setup in SETUPS:
        run = CacheRun(setup)
        for ids in requests:
            run.feed(columns_of([ids]))
            run.check()
        whole = replay_cache(columns_of(requests), setup)
        assert (run.sums.host, run.sums.disk) == (whole.host, whole.disk)


def columns_of(requests) -> Columns:
    """A trace, one request a second."""
    builder = opening.ColumnsBuilder()
    for index, ids in enumerate(requests):
        builder.add(index, 4 * len(ids), 1, ids)
    return builder.finish("made", 4)


def peak_bytes(work):
    """The most that is allocated at once by it, in Python and numpy.

    Whatever other threads of the process allocate meanwhile counts, too: what runs the tests has some.
    """
    gc.collect()
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.once
@pytest.mark.parametrize("setup", [Setup("lru", 100, 50, 2), Setup("arc", 100), Setup("s3fifo", 100)])
def test_memory_is_bounded_by_the_capacity(tmp_path, monkeypatch, setup):
    """Half of each prompt was there before, half is new; four times the requests take no more memory."""
    monkeypatch.setattr(stream, "PART_REQUESTS", 32)
    monkeypatch.setattr(opening, "_LOOK_AT", 50)
    monkeypatch.setattr(meaning, "Evidence", lambda: Evidence(limit=500))
    monkeypatch.setattr("kv_offload_cpu.manager.OfferTracker", small_tracker)
    random = Random(1)
    ids = [[*made_ids(random.randrange(20)), *made_ids(1000 + n)] for n in range(800)]
    files = [write(tmp_path / f"{count}.jsonl", ids[:count]) for count in (200, 800)]

    def replay(file):
        return stream.replay_stream(open_stream(file), [setup], Footprint(4, None))

    replay(files[0])  # whatever is made once
    for _ in range(4):
        short, long = (peak_bytes(lambda file=file: replay(file)) for file in files)
        if long < 1.1 * short:
            break
    assert long < 1.1 * short, f"{short:,} bytes for 200 requests, {long:,} for 800"
    if setup.policy == "lru":
        grown = [peak_bytes(lambda file=file: open_trace(file)) for file in files]
        assert grown[1] > 1.5 * grown[0], f"the measure sees nothing: {grown}"


def made_ids(first):
    """Eight ids that begin a prompt, or go on with it."""
    return range(8 * first, 8 * first + 8)


def small_tracker(threshold, max_size):
    """The real tracker, of few keys: 64,000 would hold this whole trace."""
    from kv_offload_cpu.chunks.tracker import OfferTracker

    return OfferTracker(threshold, min(max_size, 500))


@pytest.fixture
def small(tmp_path):
    return write(tmp_path / "small.jsonl", [[1, 2, 3], [4, 5], [1, 2, 6], [1, 2, 3]], 512)


def test_the_table_of_a_stream(small, capsys):
    assert main(["replay", str(small), "--stream", "--capacity", "5blocks", "--model", "qwen3-8b"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "small.jsonl: 4 requests in 3 s, 5630 prompt tokens, 11 blocks of 512 tokens",
        "  format: mooncake",
        "  qwen3-8b: 36 layers × 2 (K and V) × 8 KV heads × 128 × 2 bytes (bf16) = 147,456 bytes a token",
        "",
        "policy  blocks  tokens   memory  block  token  full block   loaded   stored  evicted  refused",
        "lru          5    2560  360 MiB  0.364  0.364       0.444  288 MiB  504 MiB  144 MiB        0",
        "",
        "Ratios are hits of host memory: of all blocks, of all prompt tokens, of all full blocks.",
    ]
    assert main(["replay", str(small), "--stream", "--capacity", "5blocks", "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["runs"][0]["loaded_blocks"] == 4 and data["runs"][0]["stored_bytes"] is None
    assert "best" not in data["runs"][0] and "infinite" not in data


REFUSED = {
    (): "--stream needs --capacity: the default sizes are fractions of the whole trace, which --stream doesn't "
    "keep",
    ("--capacity", "5blocks", "--html", "page.html"): "--stream doesn't keep the trace, which --html needs",
    (
        "--capacity",
        "5blocks",
        "--write-oracle",
        "o",
    ): "--stream doesn't keep the trace, which --write-oracle needs",
    (
        "--capacity",
        "5blocks",
        "--fidelity",
        "engine",
    ): "--stream works with --fidelity cache only; --help lists what engine has",
    ("--capacity", "5blocks", "--unsorted", "sort"): (
        "small.jsonl: --stream reads requests in the order of the file, but these have to be sorted by time"
    ),
    ("--capacity", "5blocks", "--store-threshold", "-1"): "--store-threshold: expected at least 0, got -1",
}


def test_the_json_of_a_stream_is_a_part_of_the_whole_traces(small, capsys):
    command = ["replay", str(small), "--capacity", "5blocks", "--gpu-capacity", "2blocks", "--policy", "lru,arc"]
    command += ["--bytes-per-token", "1000", "--jobs", "1", "--json", "-"]
    found = []
    for options in ([], ["--stream"]):
        assert main([*command, *options]) == 0
        found.append(json.loads(capsys.readouterr().out))
    whole, streamed = found
    assert whole.keys() - streamed.keys() == {"age_edges_seconds", "infinite", "infinite_shared", "unique_blocks"}
    runs = [{name: run[name] for name in streamed["runs"][0]} for run in whole["runs"]]
    assert whole["runs"][0].keys() - runs[0].keys() == {"ages", "best", "series"}
    assert streamed == {name: whole[name] for name in streamed} | {"runs": runs}


@pytest.mark.parametrize(
    "session",
    [
        '{"id": "a", "block_size": 64, "requests": [{"t": 0, "in": 64, "hash_ids": [1]}]}',
        '{"conversation": [{"role": "user", "content": "a", "time": 5}, {"role": "assistant", "content": "b"}]}',
    ],
)
def test_records_that_are_sessions_are_no_stream(tmp_path, session):
    """Requests of a later session arrive before the last ones of the session above it."""
    file = tmp_path / "sessions.jsonl"
    file.write_text(f"{session}\n")
    with pytest.raises(ConfigError) as refused:
        stream.replay_stream(open_stream(file), [Setup("lru", 5)], Footprint(64, None))
    said = "--stream reads requests in the order of the file, but these have to be sorted by time"
    assert str(refused.value) == f"sessions.jsonl: {said}"


@pytest.mark.parametrize("options", list(REFUSED), ids=lambda options: " ".join(options) or "nothing")
def test_what_a_stream_can_not_do_is_refused(small, capsys, options):
    assert main(["replay", str(small), "--stream", *options]) == 2
    assert capsys.readouterr().err == f"kv-sim replay: {REFUSED[options]}\n"
