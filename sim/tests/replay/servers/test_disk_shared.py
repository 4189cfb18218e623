"""Servers that read each other's disks: who answers, what isn't stored twice, and what that is worth."""

import json
import re
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_sim_file_specs import spec_of
from kv_sim_fleets import routed, traces
from kv_sim_slow_replay import BLOCK, leading_hits, prefix_trace, trace_of
from kv_sim_slow_replay import min_hits as slow_min_hits

from kv_api import ConfigError, LookupResult, ReqContext
from kv_offload import StoreWhen
from kv_offload_file.sharing.place import MOST_ENGINES
from kv_sim.cli.main import main
from kv_sim.replay import TraceOptions, open_trace, replay, size
from kv_sim.replay.caches.bounds import infinite_hits
from kv_sim.replay.caches.cache import CacheRun, feed_in_turn, replay_cache
from kv_sim.replay.caches.homes import Homes, replay_sharing
from kv_sim.replay.caches.medium import Traffic
from kv_sim.replay.caches.outcome import Borrowed, Outcome, Setup
from kv_sim.replay.caches.ratios import Hits, Totals
from kv_sim.replay.caches.tally import ages_of, hits_by_tier, series_of
from kv_sim.replay.crew import Crew
from kv_sim.replay.hit_rates import stream
from kv_sim.replay.hit_rates.results import results_of
from kv_sim.replay.hit_rates.setups import replay_all
from kv_sim.replay.readers.format import Turns
from kv_sim.replay.readers.opening import open_stream
from kv_sim.replay.servers.fleet import Fleet, RoutedTrace
from kv_sim.replay.servers.routing import Routing
from kv_sim.replay.sizing.around import Around, Disk
from kv_sim.replay.sizing.capacities import sweep
from kv_sim.replay.units import Footprint

fleets = st.builds(Fleet, st.integers(2, 5), st.sampled_from(list(Routing)), st.just(True))
setups = st.builds(
    Setup,
    st.sampled_from(["lru", "arc", "s3fifo", "sieve"]),
    st.integers(0, 6),
    st.integers(0, 4),
    disk=st.integers(1, 12),
    disk_store_threshold=st.sampled_from([0, 0, 2]),
)


def shared(requests, servers, setup):
    """What servers that get requests in turns answer."""
    columns = trace_of(requests)
    server_of = np.arange(len(requests)) % servers
    outcome = replay_sharing(columns, setup, server_of, servers)
    outcome.check(columns, servers)
    return outcome


# By hand


def test_a_prompt_comes_from_its_own_home_and_from_those_of_neighbours():
    outcome = shared([[1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]], 2, Setup("lru", disk=9))
    # The second server borrows all three, and keeps only the fourth. The first borrows that one, and keeps the
    # fifth, which the second borrows with the first three: only the fourth is its own.
    assert outcome.disk_hits.tolist() == [0, 3, 4, 5]
    assert outcome.borrowed.blocks.tolist() == [0, 3, 1, 4]
    assert outcome.borrowed.last.tolist() == [0, 0, 0, 1], "of the third the fifth was the last, and is new"
    assert outcome.disk == Traffic(stored=5)
    assert not outcome.cpu_hits.any()


def test_what_neighbours_borrow_stays_as_if_it_were_used_at_home():
    """When nobody does any more it leaves, and whoever wants it then stores it itself."""
    requests = [[1], [1], [2], [1], [3], [1], [4], [9], [5], [1]]
    outcome = shared(requests, 2, Setup("lru", disk=2))
    # For 3 and 4 the first server lets 2 and 3 go, and 1 for 5.
    assert outcome.disk_hits.tolist() == [0, 1, 0, 1, 0, 1, 0, 0, 0, 0]
    assert outcome.borrowed.blocks.tolist() == [0, 1, 0, 1, 0, 1, 0, 0, 0, 0]
    assert outcome.disk == Traffic(stored=7, evicted=3)


def test_each_has_host_memory_of_its_own_in_front():
    outcome = shared([[1, 2], [1, 2], [1, 2], [1, 2]], 2, Setup("lru", 2, disk=4))
    assert outcome.cpu_hits.tolist() == [0, 0, 2, 2]
    assert outcome.disk_hits.tolist() == [0, 2, 0, 0] == outcome.borrowed.blocks.tolist()
    assert outcome.host == Traffic(stored=4) and outcome.disk == Traffic(stored=2)


def test_a_half_of_an_offer_is_a_half_of_all_of_it():
    """As the connector has it, which knows nothing of neighbours: it halves what it offers."""
    outcome = shared([[1, 2], [1, 2, 3, 4]], 2, Setup("lru", disk=1))
    # The first keeps half of its two. The second borrows it and offers three, then the first of these.
    assert outcome.disk_hits.tolist() == [0, 1] == outcome.borrowed.blocks.tolist()
    assert outcome.disk == Traffic(stored=1 + 1, refused=1 + 2)
    outcome = shared([[1], [2, 1, 3]], 2, Setup("lru", disk=2))
    # What the second can't keep for itself it doesn't have to: of 2, 1, 3 a neighbour has the middle one.
    assert outcome.disk_hits.tolist() == [0, 0]
    assert outcome.disk == Traffic(stored=1 + 2)


def test_each_counts_for_itself_what_it_was_offered():
    outcome = shared([[1], [1], [2], [3], [1], [1]], 2, Setup("lru", disk=4, disk_store_threshold=2))
    # Each is offered 1 twice. The first stores it then, so that the second may borrow it at its third request.
    assert outcome.disk == Traffic(stored=1, skipped=4)
    assert outcome.borrowed.blocks.tolist() == [0, 0, 0, 0, 0, 1]


def test_tokens_of_a_borrowed_block_that_is_not_full():
    columns = trace_of([[1], [1, 2], [1], [1, 2], [1, 2]])
    assert (columns.inputs.tolist(), columns.block_input_tokens.tolist()) == ([4, 7, 12, 7, 12], [4, 7, 4, 7, 8])
    outcome = replay_sharing(columns, Setup("lru", disk=9), np.array([0, 1, 0, 0, 0]), 2)
    # The second stores its last block, which lacks a token; the fourth and the fifth borrow that.
    assert outcome.borrowed.blocks.tolist() == [0, 1, 0, 1, 1]
    assert outcome.borrowed.last.tolist() == [0, 0, 0, 1, 1]
    tiers = hits_by_tier(columns, outcome)
    assert tiers.neighbours == Hits(3, 2, 4 + 3 + 4)
    assert tiers.disk == Hits(3, 3, 12)
    assert tiers.together() == Hits(6, 5, 23)
    assert tiers.plus(tiers).neighbours == Hits(6, 4, 22)


def test_what_the_gpu_is_about_to_lose_is_stored_where_no_neighbour_has_it():
    requests = [[1, 2], [1, 2], [3, 4], [3, 4], [5], [5], [1, 2], [1, 2]]
    outcome = shared(requests, 2, Setup("lru", 0, 2, disk=9, store_when=StoreWhen.EVICTED))
    alone = replay_cache(trace_of(requests[::2]), Setup("lru", 0, 2, disk=9, store_when=StoreWhen.EVICTED))
    assert outcome.disk.stored == alone.disk.stored > 0, "by the first alone"
    assert outcome.borrowed.blocks[1::2].tolist() == outcome.disk_hits[1::2].tolist() == [0, 0, 0, 2]
    assert not outcome.borrowed.blocks[::2].any()


# Against an obvious model, and at the ends


@pytest.mark.once
@given(requests=traces, servers=st.integers(1, 4), disk=st.integers(0, 20))
def test_homes_of_an_lru_are_each_a_list_ordered_by_uses_of_all(requests, servers, disk):
    capacity = max([1, *map(len, requests)]) + disk
    outcome = shared(requests, servers, Setup("lru", disk=capacity))
    homes, hits, borrowed = [{} for _ in range(servers)], [], []
    for place, ids in enumerate(requests):
        own = homes[place % servers]
        others = {one for home in homes if home is not own for one in home}
        found = leading_hits({*own, *others}, ids)
        hits.append(found)
        borrowed.append(sum(one in others for one in ids[:found]))
        for one in reversed(ids[:found]):
            for home in homes:
                if one in home and home is not own:
                    home[one] = home.pop(one)
        for one in reversed([one for one in ids if one not in others]):
            own.pop(one, None)
            own[one] = None
        for one in [*own][: max(0, len(own) - capacity)]:
            del own[one]
    assert outcome.disk_hits.tolist() == hits
    assert (outcome.borrowed.blocks.tolist() if servers > 1 else borrowed) == borrowed


@pytest.mark.once
@given(requests=traces, fleet=fleets, seed=st.integers(0, 99), setup=setups)
def test_a_chunk_is_in_one_home_and_what_is_said_of_it_adds_up(requests, fleet, seed, setup):
    trace = routed(requests, fleet, seed)
    homes = Homes()
    runs = [CacheRun(setup, open_disk=homes.open) for _ in range(fleet.servers)]
    hits = feed_in_turn(runs, trace.columns, trace.server_of.tolist())
    homes.check()
    for run in runs:
        run.check()
    outcome = replay_sharing(trace.columns, setup, trace.server_of, fleet.servers)
    outcome.check(trace.columns, fleet.servers)
    assert [part.tolist() for part in hits[:3]] == [
        getattr(outcome, f"{name}_hits").tolist() for name in ("gpu", "cpu", "disk")
    ]
    assert [part.tolist() for part in hits.borrowed] == [part.tolist() for part in outcome.borrowed]
    tiers = hits_by_tier(trace.columns, outcome)
    assert tiers.disk.blocks + tiers.neighbours.blocks == outcome.disk_hits.sum()
    assert (
        sum(one.borrowed_hits for one in series_of(trace.columns, trace.shape, outcome)) == tiers.neighbours.blocks
    )


@given(requests=traces, setup=setups, idle=st.integers(1, 3))
def test_beside_neighbours_that_have_nothing_a_server_does_what_it_does_alone(requests, setup, idle):
    columns = trace_of(requests)
    outcome = replay_sharing(columns, setup, np.zeros(len(requests), dtype=np.int64), 1 + idle)
    alone = replay_cache(columns, setup)
    for name in ("gpu_hits", "cpu_hits", "disk_hits"):
        assert getattr(outcome, name).tolist() == getattr(alone, name).tolist()
    assert (outcome.host, outcome.disk) == (alone.host, alone.disk)
    assert not outcome.borrowed.blocks.any() and not outcome.borrowed.last.any()


@given(requests=traces, fleet=fleets, seed=st.integers(0, 99), policy=st.sampled_from(["lru", "arc", "s3fifo"]))
def test_homes_that_lose_nothing_answer_what_one_cache_without_end_answers(requests, fleet, seed, policy):
    trace = routed(requests, fleet, seed)
    if not trace.fleet.disk_shared:
        trace = RoutedTrace(trace.columns, Fleet(trace.fleet.servers, disk_shared=True))
    enough = max(1, trace.most_blocks)
    [outcome] = replay_all(trace, [Setup(policy, disk=enough)])
    assert outcome.disk.evicted == 0 and outcome.disk.stored == trace.shape.unique_blocks
    assert hits_by_tier(trace.columns, outcome).together() == infinite_hits(trace.columns, trace.shape)
    if enough > 1 and trace.columns.counts.max() < enough:
        [outcome] = replay_all(trace, [Setup("lru", disk=enough - 1)])
        assert outcome.disk.evicted > 0, f"{enough - 1} blocks were enough"


@given(requests=traces, servers=st.integers(2, 4), setup=setups)
def test_nothing_beats_one_cache_of_all_sizes_together_that_knows_the_future(requests, servers, setup):
    trace = RoutedTrace(trace_of(requests), Fleet(servers, disk_shared=True))
    best = trace.best_hits(setup.blocks)
    assert best.blocks == sum(slow_min_hits(requests, servers * setup.blocks))
    outcomes = replay_all(trace, [setup])
    assert hits_by_tier(trace.columns, outcomes[0]).together().blocks <= best.blocks
    [run] = results_of(trace, outcomes, Footprint(BLOCK, None)).runs
    assert run.best == best.ratios(Totals.of(trace.columns))


@pytest.mark.once
@given(requests=traces, fleet=fleets, seed=st.integers(0, 99), host=st.integers(0, 9), gpu=st.integers(0, 5))
def test_a_sweep_is_what_replays_say(requests, fleet, seed, host, gpu):
    trace = routed(requests, fleet, seed)
    totals, sizes = Totals.of(trace.columns), [1, 4, 20]
    for policy, found in sweep(trace, ["lru", "arc"], sizes, Around(gpu, Disk("/kv", host))).items():
        points = [Setup(policy, host, gpu, disk=disk) for disk in sizes]
        for outcome, ratios in zip(replay_all(trace, points), found, strict=True):
            assert hits_by_tier(trace.columns, outcome).together().ratios(totals) == ratios, outcome.setup


def test_without_a_disk_there_is_nothing_to_share():
    requests = prefix_trace(Random(2), 30)
    for points in ([Setup("lru", 5)], [Setup("lru", 5), Setup("lru", 5, disk=3)]):
        fleet = Fleet(3, disk_shared=True)
        outcome = replay_all(RoutedTrace(trace_of(requests), fleet), points)[0]
        [alone] = replay_all(RoutedTrace(trace_of(requests), Fleet(3)), [Setup("lru", 5)])
        assert outcome.cpu_hits.tolist() == alone.cpu_hits.tolist() and outcome.host == alone.host
        assert not outcome.disk_hits.any()


def test_ages_count_from_whoever_used_a_block_last():
    trace = RoutedTrace(trace_of([[1], [1], [2], [1]], arrivals=[0, 10, 20, 40]), Fleet(2, disk_shared=True))
    outcomes = replay_all(trace, [Setup("lru", disk=4)])
    [run] = results_of(trace, outcomes, Footprint(BLOCK, None)).runs
    assert run.ages == ages_of(trace.columns, trace.shape, outcomes[0])
    assert (run.ages.p50_seconds, run.ages.p99_seconds) == (10, 30)
    assert sum(window.reusable for window in run.series) == 2


@pytest.mark.once
def test_processes_change_nothing():
    trace = RoutedTrace(trace_of(prefix_trace(Random(3), 40)), Fleet(3, disk_shared=True))
    points, told, at_once = [Setup("lru", 2, disk=6), Setup("arc", disk=5)], [], []
    for one, two in zip(
        replay_all(trace, points, Crew(1, at_once.append)),
        replay_all(trace, points, Crew(2, told.append)),
        strict=True,
    ):
        assert (one.setup, one.host, one.disk) == (two.setup, two.host, two.disk)
        assert one.disk_hits.tolist() == two.disk_hits.tolist() and one.cpu_hits.tolist() == two.cpu_hits.tolist()
        assert [part.tolist() for part in one.borrowed] == [part.tolist() for part in two.borrowed]
        assert one.borrowed.blocks.any()
    assert told == [0.5, 1.0] and at_once[-1] == 1.0 and all(a <= b for a, b in pairwise(at_once))


@pytest.mark.parametrize("routing", [Routing.ROUND_ROBIN, Routing.SESSION])
def test_a_stream_counts_what_the_whole_trace_counts(tmp_path, monkeypatch, routing):
    monkeypatch.setattr(stream, "PART_REQUESTS", 7)
    file, fleet = tmp_path / "trace.jsonl", Fleet(3, routing, disk_shared=True)
    with file.open("w") as out:
        for place, ids in enumerate(prefix_trace(Random(5), 60)):
            tokens = 512 * len(ids) - 5 * bool(ids)
            record = {"timestamp": place, "input_length": tokens, "hash_ids": ids, "session_id": f"s{place % 4}"}
            out.write(json.dumps(record) + "\n")
    options = TraceOptions(sessions=fleet.needs_sessions, turns=Turns.WHOLE)
    points = [Setup("lru", 4, 2, disk=9), Setup("arc", disk=7)]
    trace = RoutedTrace(open_trace(file, options), fleet)
    whole = results_of(trace, replay_all(trace, points), Footprint(512, 10))
    found = stream.replay_stream(open_stream(file, options), points, Footprint(512, 10), fleet=fleet)
    assert (found.load, found.totals, found.disk_shared) == (whole.load, whole.totals, True)
    assert whole.runs[0].disk.borrowed_blocks > 0
    for one, other in zip(found.runs, whole.runs, strict=True):
        names = [*one.__dataclass_fields__]
        assert [getattr(one, name) for name in names] == [getattr(other, name) for name in names]


# Recounts


def test_a_recount_finds_what_can_not_be():
    homes = Homes()
    first, second = (CacheRun(Setup(disk=4), open_disk=homes.open) for _ in range(2))
    feed_in_turn([first, second], trace_of([[1, 2], [1, 2, 3]]), [0, 1])
    homes.check()
    home, other = homes._homes
    [key] = [key for key, owner in homes._owner_of.items() if owner is other]
    assert home.manager.lookup(key, ReqContext("r")) is LookupResult.MISS
    home.manager.store([key], ReqContext("r"))
    with pytest.raises(AssertionError, match=r"HIT in a home where it should be a .*MISS"):
        homes.check()
    del homes._owner_of[key]
    with pytest.raises(AssertionError, match=r"^a home keeps 1 chunks, and 0 are known to be in it"):
        homes.check()


@pytest.mark.parametrize(
    ("blocks", "last", "problem"),
    [(2, 0, "more blocks borrowed than"), (0, 1, "a request that borrowed none"), (1, 1, "is no hit")],
)
def test_a_recount_of_what_was_borrowed(blocks, last, problem):
    columns = trace_of([[1, 2, 3]])
    none, one = np.array([0]), np.array([1])
    borrowed = Borrowed(np.array([blocks]), np.array([last]))
    with pytest.raises(AssertionError, match=problem):
        Outcome(Setup(disk=4), none, none, one, borrowed).check(columns, 2)
    kept = Traffic(stored=5)
    Outcome(Setup(disk=4), none, none, one, Borrowed(one, none), disk=kept).check(columns, 2)
    with pytest.raises(AssertionError, match="5 chunks kept in 4 slots"):
        Outcome(Setup(disk=4), none, none, one, disk=kept).check(columns)


# What is printed


SHARED = ["--servers", "2", "--disk-shared", "--jobs", "1"]


def test_what_a_replay_says(small, capsys, tmp_path):
    page = tmp_path / "page.html"
    command = ["replay", str(small), "--disk-capacity", "4blocks,6blocks", *SHARED]
    assert main([*command, "--html", str(page)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[2:6] == [
        "  2 servers, routing round-robin: the busiest got 1.09 × the prompt tokens of the average",
        "  each server loads what the others have on their disks, without storing it again",
        "an infinite cache on each server would hit: 0.182 of blocks, 0.183 of tokens, 0.286 of full blocks",
        "one infinite cache for all servers would hit: 0.455 of blocks, 0.456 of tokens, 0.571 of full blocks",
    ]
    assert said[7:13] == [
        "policy  blocks  tokens  memory      disk  block  token  full block  CPU token  disk token  "
        "neighbours' token    MIN  loaded  stored  evicted  refused  age  90 %",
        "lru          0       0       -  4 blocks  0.455  0.456       0.571      0.000       0.183  "
        "            0.273  0.456       0       0        0        0  4 s   6 s",
        "lru          0       0       -  6 blocks  0.455  0.456       0.571      0.000       0.183  "
        "            0.273  0.456       0       0        0        0  4 s   6 s",
        "",
        "the disk behind it:",
        "policy    memory  blocks  tokens  disk  loaded  borrowed  stored  evicted  refused",
    ]
    assert said[13].split() == ["lru", "0", "blocks", "4", "2048", "-", "2", "3", "6", "0", "0"]
    assert "Neighbours: the other servers' disks. Borrowed: loaded from these, and not counted in loaded." in said
    text = page.read_text()
    assert "<li>each server loads what the others have on their disks, without storing it again</li>" in text
    assert "<th>by neighbours</th><th>borrowed</th>" in text and "<td>27.3%</td><td>3 blocks</td>" in text
    assert "</svg>neighbours' disks</li>" in text.replace("&#x27;", "'")
    assert main([*command, "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["disk_shared"] is True
    disk = found["runs"][0]["disk"]
    assert (disk["loaded_blocks"], disk["borrowed_blocks"]) == (2, 3)
    assert (disk["ratios"]["block"], disk["neighbours"]["block"]) == (2 / 11, 3 / 11)
    windows = found["runs"][0]["series"]
    assert [sum(one[name] for one in windows) for name in ("disk_hits", "borrowed_hits")] == [5, 3]


def test_without_sharing_nobody_speaks_of_neighbours(small, capsys, tmp_path):
    page = tmp_path / "page.html"
    command = ["replay", str(small), "--disk-capacity", "4blocks,6blocks", "--servers", "2", "--jobs", "1"]
    assert main([*command, "--html", str(page)]) == 0
    assert not re.search("neighbour|[Bb]orrow", capsys.readouterr().out + page.read_text())
    assert main([*command, "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["disk_shared"] is False and found["runs"][0]["disk"]["borrowed_blocks"] == 0


def test_what_size_recommends(small, capsys, tmp_path):
    page = tmp_path / "page.html"
    sized = ["size", str(small), "--disk", "/mnt/kv", "--bytes-per-token", "1000", "--policy", "lru"]
    sized += ["--capacity", "1block,2blocks,3blocks,4blocks"]
    assert main([*sized, *SHARED, "--html", str(page)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[4] == "  each server loads what the others have on their disks, without storing it again"
    assert said[8:-2] == [
        "hits by prompt tokens, over all servers; sizes are per server:",
        "blocks  tokens      disk    lru    MIN    +1 GiB",
        "1          512   500 KiB  0.092  0.367      +0 %",
        "2         1024  1000 KiB  0.092  0.456  +57.7k %",
        "3         1536  1.46 MiB  0.367  0.456  +18.8k %  ◀ here",
        "4         2048  1.95 MiB  0.456  0.456      +0 %",
        "",
        "recommended: lru, 3 blocks = 1536 tokens = 1.46 MiB of disk on each of 2 servers, 2.93 MiB in all",
        "  the knee: up to here more room buys more than on average, from here on less",
        "  hits 0.364 of blocks, 0.367 of tokens, 0.571 of full blocks",
        '  each has a "file_engine" of its own besides, 0 to 1, but for replicas of one --data-parallel-size',
    ]
    [config] = re.fullmatch("--kv-transfer-config '(.*)'", said[-2]).groups()
    extra = json.loads(config)["kv_connector_extra_config"]
    assert (extra["file_shared"], extra["file_dir"], spec_of(extra, 512_000).num_chunks) == (True, "/mnt/kv", 3)
    assert spec_of(extra | {"file_bytes_to_use": extra["file_bytes_to_use"] - 1}, 512_000).num_chunks == 2
    text = page.read_text()
    assert "1.46 MiB of disk on each of 2 servers, 2.93 MiB in all, policy lru</p>" in text
    assert "A cache without end: 45.6%." in text
    assert '<p class="soft">Each has a &quot;file_engine&quot; of its own besides, 0 to 1, but for' in text
    assert main([*sized, *SHARED, "--host-capacity", "1block", "--json", "-"]) == 0
    config = json.loads(capsys.readouterr().out)["kv_transfer_config"]
    host, files = (one["kv_connector_extra_config"] for one in config["kv_connector_extra_config"]["connectors"])
    assert files["file_shared"] is True and "file_shared" not in host
    assert main([*sized, "--servers", "2", "--jobs", "1"]) == 0
    assert "file_shared" not in capsys.readouterr().out


def test_in_a_notebook(small):
    run = replay(small, disk_capacity="4blocks", servers=2, disk_shared=True)
    assert (run.disk.loaded_blocks, run.disk.borrowed_blocks) == (2, 3)
    found = size(small, ["lru"], [1, 3], disk="/kv", servers=2, disk_shared=True, bytes_per_token=10)
    assert found.disk_shared and found.most_possible == found.infinite_shared
    assert found.config()["kv_connector_extra_config"]["file_shared"] is True
    apart = size(small, ["lru"], [1, 5], disk="/kv", servers=2, bytes_per_token=10)
    assert apart.most_possible == apart.infinite and not apart.disk_shared
    for ask, disk in ((replay, "disk_capacity"), (size, "disk")):
        with pytest.raises(ConfigError, match=rf"^disk_shared is for {disk}, which isn't given$"):
            ask(small, servers=2, disk_shared=True)
    with pytest.raises(ConfigError, match=r"^--disk-shared needs several servers; --servers says"):
        size(small, disk="/kv", disk_shared=True)
    assert Fleet(MOST_ENGINES, disk_shared=True).servers == MOST_ENGINES


ONE = "--disk-shared needs several servers; --servers says how many"


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("replay --disk-capacity 4blocks", "--disk-shared is for --servers, which isn't given"),
        ("replay --disk-capacity 4blocks --servers 1", ONE),
        (f"replay --disk-capacity 4blocks --servers {MOST_ENGINES + 1}",
         f"--disk-shared: at most {MOST_ENGINES} servers can share a disk, got {MOST_ENGINES + 1}"),
        ("replay --capacity 4blocks --servers 2", "--disk-shared is for --disk-capacity, which isn't given"),
        ("replay --stream --capacity 4blocks --servers 2",
         "--disk-shared is for --disk-capacity, which isn't given"),
        ("size --disk /kv", "--disk-shared is for --servers, which isn't given"),
        ("size --disk /kv --servers 1", ONE),
        ("size --servers 2", "--disk-shared is for --disk, which isn't given"),
        ("replay --fidelity engine --disk-capacity 1GiB", "--disk-shared is for --servers, which isn't given"),
        ("replay --fidelity engine --servers 2", "--disk-shared is for --disk-capacity, which isn't given"),
        ("size --fidelity engine --goal ttft-p90=1s --servers 2",
         "--disk-shared is for --disk-capacity, which isn't given"),
    ],
)  # fmt: skip
def test_where_it_means_nothing_it_is_refused(small, capsys, command, problem):
    name, *options = command.split()
    assert main([name, str(small), *options, "--disk-shared"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"kv-sim {name}: {problem}\n")
