"""A trace on several servers: who gets what, and that what they do together is what each does by itself."""

import json
from itertools import accumulate, pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kv_sim_fleets import fleets, routed, traces, with_sessions
from kv_sim_slow_replay import BLOCK, prefix_trace, same, trace_of
from kv_sim_slow_replay import min_hits as slow_min_hits

from kv_api import ConfigError
from kv_sim.cli.main import main
from kv_sim.replay import TraceOptions, columns, open_trace, replay, size
from kv_sim.replay.caches.bounds import infinite_hits
from kv_sim.replay.caches.cache import replay_cache
from kv_sim.replay.caches.medium import Traffic
from kv_sim.replay.caches.outcome import Setup
from kv_sim.replay.caches.ratios import Totals
from kv_sim.replay.caches.tally import AGE_EDGES_SECONDS, ages_of, hits_by_tier, series_of
from kv_sim.replay.crew import Crew
from kv_sim.replay.hit_rates import setups, stream
from kv_sim.replay.hit_rates.results import results_of
from kv_sim.replay.hit_rates.setups import replay_all
from kv_sim.replay.readers.opening import open_stream
from kv_sim.replay.report.timed.as_json import timed_as_json
from kv_sim.replay.report.timed.text import timed_lines
from kv_sim.replay.servers.fleet import Fleet, RoutedTrace
from kv_sim.replay.servers.routing import Routing
from kv_sim.replay.sizing import capacities
from kv_sim.replay.sizing.around import Around
from kv_sim.replay.sizing.capacities import sweep
from kv_sim.replay.timed import EngineSettings, replay_engine
from kv_sim.replay.timed.runs.answers import answers_of
from kv_sim.replay.timed.runs.finished import finished_of
from kv_sim.replay.timed.runs.run import replay_once
from kv_sim.replay.units import Footprint

SETUPS = [
    Setup("lru", 9), Setup("arc", 5, 3), Setup("s3fifo", 7), Setup("lru", 0, 4), Setup("lru", 4, 2, disk=9),
    Setup("sieve", 3, store_threshold=2),
]  # fmt: skip
TIERS = ("gpu_hits", "cpu_hits", "disk_hits")


def servers_of(trace):
    """Who gets each request."""
    found = [None] * len(trace.columns)
    for server, share in enumerate(trace.shares):
        for request in share.requests.tolist():
            found[request] = server
    return found


# What they answer


@pytest.mark.once
@example(requests=[[1, 2]], fleet=Fleet(3), seed=0)  # two get nothing
@given(requests=traces, fleet=fleets, seed=st.integers(0, 99))
def test_servers_answer_what_each_answers_by_itself(requests, fleet, seed):
    trace = routed(requests, fleet, seed)
    outcomes = replay_all(trace, SETUPS)
    found, totals = results_of(trace, outcomes, Footprint(BLOCK, None)), Totals.of(trace.columns)
    assert [run.best for run in found.runs] == [trace.best_hits(setup.blocks).ratios(totals) for setup in SETUPS]
    shape = trace.routed_shape
    for run, outcome in zip(found.runs, outcomes, strict=True):
        assert run.ages == ages_of(trace.columns, shape, outcome)
        assert [*run.series] == series_of(trace.columns, shape, outcome)
        assert (run.loaded_blocks, run.disk.loaded_blocks) == (outcome.cpu_hits.sum(), outcome.disk_hits.sum())
    for setup, outcome in zip(SETUPS, outcomes, strict=True):
        host, disk = Traffic(), Traffic()
        for share in trace.shares:
            alone = replay_cache(trace_of_share(trace, share), setup)
            for tier in TIERS:
                assert getattr(outcome, tier)[share.requests].tolist() == getattr(alone, tier).tolist(), tier
            host, disk = host.plus(alone.host), disk.plus(alone.disk)
        assert (outcome.setup, outcome.host, outcome.disk) == (setup, host, disk)


def trace_of_share(trace, share):
    """The same, built anew from requests."""
    builder, chosen = columns.ColumnsBuilder(), {*share.requests.tolist()}
    for place, request in enumerate(trace.columns):
        if place in chosen:
            builder.add(request.arrival_seconds, request.input_tokens, 1, request.blocks)
    return builder.finish("share", BLOCK)


def test_what_can_not_be_is_noticed_on_whichever_server(monkeypatch):
    def too_many(made, setup, tell):
        outcome = replay_cache(made, setup, tell)
        outcome.cpu_hits += made.counts + 1
        return outcome

    monkeypatch.setattr(setups, "replay_cache", too_many)
    with pytest.raises(AssertionError, match="more hits than blocks"):
        replay_all(RoutedTrace(trace_of([[1], [2]]), Fleet(2)), SETUPS)


def test_traffic_adds_up():
    assert Traffic(1, 2, 3, 4).plus(Traffic(10, 20, 30, 40)) == Traffic(11, 22, 33, 44)


@pytest.mark.once
def test_processes_change_nothing_not_even_with_servers_that_get_nothing():
    requests = prefix_trace(Random(3), 30)
    for trace in (RoutedTrace(trace_of(requests), Fleet(3)), RoutedTrace(trace_of(requests[:2]), Fleet(4))):
        told, at_once = [], []
        one, two = (replay_all(trace, SETUPS[:2], Crew(*of)) for of in ((1, at_once.append), (2, told.append)))
        for a, b in zip(one, two, strict=True):
            assert (a.setup, a.host, a.disk) == (b.setup, b.host, b.disk)
            assert all(getattr(a, tier).tolist() == getattr(b, tier).tolist() for tier in TIERS)
        counts = [len(share.columns) for share in trace.shares] * 2
        begins = [
            before / sum(counts)
            for before, count in zip(accumulate([0, *counts[:-1]]), counts, strict=True)
            if count
        ]
        assert at_once == [*begins, 1.0]
        works = len(counts)
        assert told == [(done + 1) / works for done in range(works)]


@pytest.mark.once
@given(requests=traces, fleet=fleets, seed=st.integers(0, 99), gpu_blocks=st.integers(0, 8))
def test_a_sweep_of_servers_is_what_replays_say(requests, fleet, seed, gpu_blocks):
    trace = routed(requests, fleet, seed)
    totals, sizes = Totals.of(trace.columns), [1, 3, 8, 20]
    for policy, found in sweep(trace, ["lru", "arc"], sizes, Around(gpu_blocks)).items():
        setups = [Setup(policy, capacity, gpu_blocks) for capacity in sizes]
        for outcome, ratios in zip(replay_all(trace, setups), found, strict=True):
            assert hits_by_tier(trace.columns, outcome).together().ratios(totals) == ratios, outcome.setup


@given(requests=traces, fleet=fleets, seed=st.integers(0, 99), capacity=st.integers(1, 20))
def test_what_no_policy_can_beat_is_a_sum_over_servers(requests, fleet, seed, capacity):
    trace = routed(requests, fleet, seed)
    prompts = [[requests[request] for request in share.requests.tolist()] for share in trace.shares]
    assert trace.best_hits(capacity).blocks == sum(sum(slow_min_hits(one, capacity)) for one in prompts)
    everything = infinite_hits(trace.columns, trace.routed_shape)
    assert everything.blocks == sum(len(ids) for one in prompts for ids in one) - sum(map(different, prompts))
    assert trace.best_hits(trace.most_blocks) == everything, "with so many blocks nothing leaves"
    assert trace.most_blocks == max(map(different, prompts))
    assert trace.shape.unique_blocks == different(requests)


def different(requests):
    """How many blocks."""
    return len({one for ids in requests for one in ids})


@given(
    requests=traces,
    steps=st.lists(st.sampled_from([0, 0.5, 1, 3, 700]), min_size=40, max_size=40),
    fleet=fleets,
    capacity=st.integers(1, 20),
)
def test_ages_and_what_could_be_reused_are_those_of_the_server(requests, steps, fleet, capacity):
    arrivals = [0.0, *accumulate(steps)][: len(requests)]
    if not requests:
        fleet = Fleet(fleet.servers)
    trace = RoutedTrace(with_sessions(trace_of(requests, arrivals=arrivals), 1), fleet)
    [outcome] = replay_all(trace, [Setup("lru", capacity)])
    used = [{} for _ in range(fleet.servers)]
    ages, reusable = [], 0
    for ids, now, server, hits in zip(
        requests, arrivals, servers_of(trace), outcome.cpu_hits.tolist(), strict=True
    ):
        ages += [now - used[server][block] for block in ids[:hits]]
        reusable += sum(block in used[server] for block in ids)
        used[server] |= dict.fromkeys(ids, now)
    found = ages_of(trace.columns, trace.routed_shape, outcome)
    younger = [sum(age < edge for age in ages) for edge in (0, *AGE_EDGES_SECONDS)]
    assert list(found.counts) == [after - before for before, after in pairwise([*younger, len(ages)])]
    for share, age in ((50, found.p50_seconds), (90, found.p90_seconds), (99, found.p99_seconds)):
        assert age == (sorted(ages)[-(-share * len(ages) // 100) - 1] if ages else 0), share
    assert sum(one.reusable for one in series_of(trace.columns, trace.routed_shape, outcome)) == reusable


def test_one_server_is_the_trace():
    made = trace_of([[1, 2], [1, 3]])
    trace = RoutedTrace(made)
    [share] = trace.shares
    assert share.columns is made and trace.routed_shape is trace.shape is share.shape and trace.load is None
    assert same(made, made.of(np.array([0, 1])))


# A part at a time


def written(file, requests, **more):
    """Requests as Mooncake's JSON lines, one a second; those of a session in turn, but for every fifth."""
    with file.open("w") as out:
        for index, ids in enumerate(requests):
            record = {"timestamp": 1000 * index, "input_length": 512 * len(ids), "hash_ids": ids, **more}
            if index % 5:
                record["session_id"] = f"s{index % 3}"
            out.write(json.dumps(record) + "\n")
    return file


@pytest.mark.parametrize("routing", [Routing.ROUND_ROBIN, Routing.SESSION])
def test_a_stream_counts_what_the_whole_trace_counts(tmp_path, monkeypatch, routing):
    monkeypatch.setattr(stream, "PART_REQUESTS", 7)
    file, fleet = written(tmp_path / "trace.jsonl", [*prefix_trace(Random(5), 60), [1]]), Fleet(3, routing)
    options = TraceOptions(sessions=fleet.needs_sessions)
    trace = RoutedTrace(open_trace(file, options), fleet)
    whole = results_of(trace, replay_all(trace, SETUPS), Footprint(512, 10))
    found = stream.replay_stream(open_stream(file, options), SETUPS, Footprint(512, 10), fleet=fleet)
    assert (found.load, found.totals) == (whole.load, whole.totals)
    assert sum(found.load.requests) == 61 and min(found.load.requests) > 0
    for one, other in zip(found.runs, whole.runs, strict=True):
        names = [*one.__dataclass_fields__]
        assert [getattr(one, name) for name in names] == [getattr(other, name) for name in names]


@pytest.mark.parametrize("sessions", [("a", None), (None, "a")])
def test_a_stream_is_routed_by_sessions_if_any_part_has_one(tmp_path, monkeypatch, sessions):
    monkeypatch.setattr(stream, "PART_REQUESTS", 1)
    file = tmp_path / "trace.jsonl"
    records = [{"timestamp": 0, "input_length": 512, "hash_ids": [1], "session_id": name} for name in sessions]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    opened, fleet = open_stream(file, TraceOptions(sessions=True)), Fleet(2, Routing.SESSION)
    found = stream.replay_stream(opened, SETUPS, Footprint(512, 10), fleet=fleet)
    assert found.load is not None and sum(found.load.requests) == 2


# With time


def test_an_engine_s_answers_are_those_of_all_servers(tmp_path):
    builder = columns.ColumnsBuilder()
    for index in range(40):
        builder.add(3 * index, 10 * 512, 5, range(100 * (index % 20), 100 * (index % 20) + 10))
    made = builder.finish("twice", 512)
    settings, fleet = EngineSettings(gpu_blocks=20, cpu_bytes_to_use=20 << 30), Fleet(3, Routing.PREFIX)
    told = []
    found = replay_engine(made, settings, told.append, fleet)
    assert [round(80 * share) for share in told] == [*range(1, 81), 80]
    runs = [
        replay_once(share.columns, settings, settings.transfer_config())
        for share in RoutedTrace(made, fleet).shares
    ]
    alone, together = [answers_of(finished_of(*run)) for run in runs], found.with_connector
    assert found.load == RoutedTrace(made, fleet).load
    for name in (
        "requests", "prompt_tokens", "prompt_blocks", "full_prompt_blocks", "output_tokens", "gpu_hit_tokens",
        "cpu_hit_tokens", "disk_hit_tokens", "gpu_hit_blocks", "cpu_hit_blocks", "disk_hit_blocks", "preemptions",
        "steps", "fused_steps",
    ):  # fmt: skip
        assert getattr(together, name) == sum(getattr(one, name) for one in alone), name
    assert together.cpu_hit_tokens > 0 and together.loads.blocks > 0
    for name in ("jobs", "blocks", "bytes"):
        assert getattr(together.loads, name) == sum(getattr(one.loads, name) for one in alone), name
        assert getattr(together.stores, name) == sum(getattr(one.stores, name) for one in alone), name
    assert together.stores.busy_seconds == pytest.approx(sum(one.stores.busy_seconds for one in alone))
    assert together.seconds == max(one.seconds for one in alone)
    assert together.ttft.worst == max(one.ttft.worst for one in alone)
    assert together.ttft.count == together.requests == 40
    assert together.ttft.mean == pytest.approx(
        sum(one.ttft.mean * one.requests for one in alone) / together.requests
    )
    assert together.load_wait.count == sum(one.load_wait.count for one in alone)
    assert len({together.digest, *(one.digest for one in alone)}) == 4
    first, second, third = (finished_of(*run) for run in runs)
    loaded = max(first, second, third, key=lambda one: len(one.durations["load_wait"]))
    assert {name for name, found in loaded.of_prompts().durations.items() if found} == {"load_wait"}
    assert answers_of(first, second).digest != answers_of(first, third).digest
    assert answers_of(first).digest == first.digest and len(together.digest) == len(first.digest)
    for number, (engine, _) in enumerate(runs, 1):
        engine.clock.waited_ns = 10**8 * number
    assert answers_of(*(finished_of(*run) for run in runs)).host_wait_seconds == pytest.approx(0.6)
    stored = "vllm:kv_offload_store_bytes"
    assert together.connector[stored] == sum(one.connector[stored] for one in alone) > 0
    assert f"3 servers, routing prefix: the busiest got {found.load.most:.2f} × the prompt" in "\n".join(
        timed_lines(found)
    )
    assert timed_as_json(found)["load"]["tokens"] == found.load.tokens


def test_a_limit_is_of_the_trace_and_not_of_each_server():
    made = open_trace("mooncake-synthetic", TraceOptions(requests=30))
    settings = EngineSettings(gpu_blocks=500, cpu_bytes_to_use=1 << 30, limit=9)
    assert replay_engine(made, settings, fleet=Fleet(2)).load.requests == (5, 4)


def test_of_a_trace_that_was_not_read_nobody_knows_who_shares_what():
    class Made:
        name, block_tokens = "made", 512

    with pytest.raises(ConfigError, match=r"^made: several servers need a trace that open_trace has read$"):
        replay_engine(Made(), EngineSettings(), fleet=Fleet(2))


# What is printed


def test_what_a_replay_says_of_servers(small, capsys):
    command = ["replay", str(small), "--servers", "2", "--capacity", "3blocks", "--jobs", "1"]
    assert main(command) == 0
    said = capsys.readouterr().out.splitlines()
    assert "  2 servers, routing round-robin: the busiest got 1.09 × the prompt tokens of the average" in said
    assert (
        said[3]
        == "an infinite cache on each server would hit: 0.182 of blocks, 0.183 of tokens, 0.286 of full blocks"
    )
    assert (
        said[4]
        == "one infinite cache for all servers would hit: 0.455 of blocks, 0.456 of tokens, 0.571 of full blocks"
    )
    assert "Sizes are per server; hits and traffic are totals over all servers." in said
    assert main([*command, "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["load"] == {"routing": "round-robin", "requests": [2, 2], "tokens": [3048, 2536]}
    assert found["infinite_shared"]["block"] == 5 / 11 and found["infinite"]["block"] == 2 / 11


def test_what_a_size_says_of_servers(small, capsys, tmp_path):
    command = [
        "size",
        str(small),
        "--servers",
        "2",
        "--routing",
        "prefix",
        "--bytes-per-token",
        "1000",
        "--jobs",
        "1",
    ]
    page = tmp_path / "page.html"
    assert main([*command, "--points", "3", "--html", str(page)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "hits by prompt tokens, over all servers; sizes are per server:" in said
    [recommended] = [line for line in said if line.startswith("recommended")]
    assert recommended.endswith(" on each of 2 servers")
    text = page.read_text()
    assert " on each of 2 servers, policy lru</p>" in text and "<dt>servers</dt><dd>2</dd>" in text
    assert "<dt>reusable tokens</dt><dd>45.6%</dd>" in text and "<dt>reusable on one</dt><dd>45.6%</dd>" in text
    assert "2 servers, routing prefix: " in text and "Sizes are per server.</li>" in text
    assert main(["size", str(small), "--bytes-per-token", "1000", "--jobs", "1", "--html", str(page)]) == 0
    assert "server" not in capsys.readouterr().out and "servers" not in page.read_text()


def test_a_sweep_ends_where_nothing_leaves_the_server_that_has_most(small, monkeypatch, capsys):
    found = size(small, servers=2, points=4)
    assert found.capacities[-1] == 5 and found.unique_blocks == 6
    assert found.infinite_shared.block == 5 / 11 > found.infinite.block == found.best[-1].block
    assert main(["size", str(small), "--servers", "2", "--points", "4", "--jobs", "1", "--json", "-"]) == 0
    assert tuple(json.loads(capsys.readouterr().out)["capacities"]) == found.capacities


def test_the_knee_lies_over_what_one_server_needs(monkeypatch, small):
    asked, recommend = [], capacities.recommend
    monkeypatch.setattr(capacities, "recommend", lambda *args: asked.append(args[3]) or recommend(*args))
    size(small, servers=2)
    assert asked == [5]


def test_the_usual_capacities_are_shares_of_what_one_server_gets(capsys):
    command = ["replay", "mooncake-synthetic", "--requests", "200", "--servers", "4", "--jobs", "1", "--json", "-"]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    most = RoutedTrace(open_trace("mooncake-synthetic", TraceOptions(requests=200)), Fleet(4)).most_blocks
    assert most < found["unique_blocks"] / 2
    expected = [int(most * share) for share in (0.001, 0.01, 0.05, 0.1, 0.25)]
    assert [run["setup"]["capacity"] for run in found["runs"]] == expected


def test_the_library(small):
    run = replay(small, capacity=6, servers=2, routing="prefix")
    [expected] = replay_all(RoutedTrace(open_trace(small), Fleet(2, Routing.PREFIX)), [Setup("lru", 6)])
    assert run.loaded_blocks == int(expected.cpu_hits.sum()) > 0
    with pytest.raises(ConfigError, match=r"^routing: unknown routing 'sessions'"):
        replay(small, servers=2, routing="sessions")
    with pytest.raises(ConfigError, match=r"opened without sessions \(TraceOptions\.sessions\)$"):
        replay(open_trace(small), servers=2, routing="session")


REFUSED = {
    ("--servers", "0"): "--servers: expected 1 to 1024, got 0",
    ("--servers", "1025"): "--servers: expected 1 to 1024, got 1025",
    ("--routing", "prefix"): "--routing is for --servers, which isn't given",
    ("--servers", "2", "--routing", "prefx"): (
        "--routing: unknown routing 'prefx'; known: prefix, round-robin, session; did you mean 'prefix'?"
    ),
    ("--servers", "2", "--routing", "session"): (
        "small.jsonl: --routing session, but no request of the trace names its session; other routings: "
        "round-robin, prefix"
    ),
}


@pytest.mark.parametrize("options", list(REFUSED), ids=" ".join)
@pytest.mark.parametrize(
    "command",
    [["size"], ["replay"], ["replay", "--stream", "--capacity", "3blocks"], ["replay", "--fidelity", "engine"]],
    ids=" ".join,
)
def test_what_can_not_be_routed_is_refused(small, capsys, command, options):
    assert main([*command, str(small), *options]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"kv-sim {command[0]}: {REFUSED[options]}\n")


def test_a_stream_remembers_no_prefixes(small, capsys):
    command = ["replay", str(small), "--stream", "--capacity", "3blocks", "--servers", "2", "--routing", "prefix"]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert said == "kv-sim replay: small.jsonl: --stream doesn't keep the trace, which --routing prefix needs\n"


def test_one_server_is_routed_by_whatever(small, capsys):
    printed = []
    for options in ([], ["--servers", "1"], ["--servers", "1", "--routing", "session"]):
        assert main(["replay", str(small), "--capacity", "3blocks", *options]) == 0
        printed.append(capsys.readouterr().out)
    assert len({*printed}) == 1
