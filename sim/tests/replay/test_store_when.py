"""Stored when evicted: what a replay without a clock says of it, and that the connector does so in the engine."""

import json
from dataclasses import replace
from html import unescape
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_sim_slow_replay import BLOCK, prefix_trace, trace_of

from kv_api import ConfigError
from kv_offload import StoreWhen, parse_options
from kv_offload_cpu import AtOnceManager
from kv_sim.cli.main import main
from kv_sim.replay import replay, size
from kv_sim.replay.caches.cache import CacheRun, replay_cache
from kv_sim.replay.caches.leaving import LeavingTier, Owner
from kv_sim.replay.caches.medium import Traffic
from kv_sim.replay.caches.outcome import Setup
from kv_sim.replay.caches.ratios import Ratios
from kv_sim.replay.caches.tally import hits_by_tier
from kv_sim.replay.columns import ColumnsBuilder
from kv_sim.replay.servers.fleet import RoutedTrace
from kv_sim.replay.sizing.around import Around, Disk
from kv_sim.replay.sizing.capacities import size_trace, sweep
from kv_sim.replay.timed import EngineSettings
from kv_sim.replay.timed.runs.answers import answers_of
from kv_sim.replay.timed.runs.finished import finished_of
from kv_sim.replay.timed.runs.run import replay_once
from kv_sim.replay.units import Footprint

EVICTED = StoreWhen.EVICTED


def in_turns(seed, count=40):
    """Prompts of full blocks that never come again whole, each long after the last one, and what caches hold."""
    random = Random(seed)
    builder = ColumnsBuilder()
    walks = prefix_trace(random, count, random.randint(1, 3), random.randint(2, 12))
    for index, ids in enumerate(walks):
        ids = [*ids, 10**6 + index]
        builder.add(10.0 * index, BLOCK * len(ids), 1, ids)
    return builder.finish("in turns", BLOCK), random.randint(20, 60), random.randint(16, 60)


@pytest.mark.parametrize("when", StoreWhen)
def test_it_answers_what_the_connector_does_in_the_engine(when):
    """To the block, where a step computes one of them and waits for what it loads."""
    for seed in (1, 6, 9, 11):
        columns, gpu, host = in_turns(seed)
        outcome = replay_cache(columns, Setup("lru", host, gpu, store_when=when))
        outcome.check(columns)
        settings = EngineSettings(gpu_blocks=gpu, block_tokens=BLOCK, max_step_tokens=BLOCK, max_running=1)
        block_bytes = settings.model.kv_bytes_per_token(1) * BLOCK
        transfer = settings.transfer_config()
        transfer["kv_connector_extra_config"] = {
            "cpu_bytes_to_use": host * block_bytes,
            "eviction_policy": "lru",
            "store_when": when.value,
            "sync_load_budget_bytes": 1 << 50,
        }
        answers = answers_of(finished_of(*replay_once(columns, settings, transfer)))
        tokens = columns.input_tokens
        hits = [answers.gpu_token_ratio * tokens / BLOCK, answers.cpu_token_ratio * tokens / BLOCK]
        assert hits == pytest.approx([outcome.gpu_hits.sum(), outcome.cpu_hits.sum()]), seed
        assert answers.stores.bytes == outcome.host.stored * block_bytes, seed


def used(tier, number, *keys):
    """What is due when a request uses these, as pairs of its owner and its keys."""
    owner = Owner(str(number), [*keys])
    found = [[(owner.request_id, keys) for owner, keys in look.items()] for look in tier.use_by(owner, 0)]
    tier.check()
    return found


def test_due_is_what_was_left_in_the_blocks_that_are_given_away_next():
    tier = LeavingTier(20)  # of which 16 are looked at, and again when 8 of them are gone
    first, second = [*range(1, 9)], [*range(11, 15)]
    assert used(tier, 0, *first) == []
    assert used(tier, 1, *second) == [[("0", [5, 6, 7, 8])]], "free are 12, and the tail of the first prompt"
    assert used(tier, 2, 1, 2, 21) == [], "8 of those that were looked at are left"
    assert used(tier, 3, 31) == [], "more than half of them"


def test_what_is_used_again_is_left_again():
    tier = LeavingTier(20)
    used(tier, 0, *range(1, 11))
    assert used(tier, 1, *range(11, 21)) == [[("0", [5, 6, 7, 8, 9, 10])], [("0", [1, 2, 3, 4])]]
    assert used(tier, 2, *range(1, 11)) == [], "12 were looked at and 2 of them given away, for all that is known"
    found = used(tier, 3, *range(21, 29))
    assert found == [[("1", [*range(11, 19)]), ("2", [*range(3, 11)])]], "20 and 19 have gone, and nobody looked"


def test_a_prompt_longer_than_the_tier_leaves_its_head_in_it():
    tier = LeavingTier(3)
    used(tier, 0, 1, 2)
    assert used(tier, 1, *range(11, 18)) == [[("0", [1, 2])]]
    assert tier.hits([11, 12, 13, 14]) == 3


def test_what_is_due_was_left_by_who_says_so_and_is_due_once():
    """Also of prompts longer than the tier, and of such that fill it."""
    for seed in range(100):
        random, left = Random(seed), {}
        tier = LeavingTier(random.randint(8, 24))
        for number in range(12):
            first = random.randint(0, 2 * tier.capacity)
            owner = Owner(str(number), [*range(first, first + random.randint(1, 2 * tier.capacity))])
            for look in tier.use_by(owner, random.choice([0, 0, len(owner.keys) // 2])):
                for of, keys in look.items():
                    assert [left.pop(key, None) for key in keys] == [of] * len(keys), (seed, number)
            left.update(dict.fromkeys(owner.keys, owner))
            tier.check()


traces = st.builds(
    lambda seed, count: prefix_trace(Random(seed), count), st.integers(0, 10**9), st.integers(1, 40)
)


@given(requests=traces, host=st.integers(1, 30), disk=st.integers(0, 30), gpu=st.integers(1, 40))
def test_whatever_is_evicted_everything_adds_up(requests, host, disk, gpu):
    columns = trace_of(requests)
    run = CacheRun(Setup("lru", host, gpu, disk=disk, store_when=EVICTED))
    outcome = run.outcome(*run.feed(columns))
    run.check()
    outcome.check(columns)
    at_once = replay_cache(columns, Setup("lru", host, gpu, disk=disk))
    assert outcome.gpu_hits.tolist() == at_once.gpu_hits.tolist()
    for medium in (outcome.host, outcome.disk):  # a use makes a block due once
        assert medium.stored + medium.refused <= columns.counts.sum()


IN_TURNS = [[*range(10 * n, 10 * n + 8)] for n in range(1, 8)] * 6
"""Seven prompts of eight blocks."""


def test_host_memory_has_what_the_gpu_has_not():
    """With room for five of seven prompts in either: stored at once neither ever has the next."""
    both = {when: replay_cache(trace_of(IN_TURNS), Setup("lru", 40, 40, store_when=when)) for when in StoreWhen}
    assert not both[StoreWhen.COMPUTED].loaded.any()
    assert not both[EVICTED].gpu_hits.any()
    assert both[EVICTED].cpu_hits.sum() == 8 * 18, "of 35 prompts that come again"


def test_files_and_host_memory_store_what_is_evicted():
    requests = [[1, 2], *([n] for n in range(3, 40)), [1, 2]]
    outcome = replay_cache(trace_of(requests), Setup("lru", 3, 20, disk=30, store_when=EVICTED))
    assert (outcome.disk_hits.tolist()[-1], outcome.cpu_hits.sum()) == (2, 0)
    assert (outcome.host, outcome.disk) == (Traffic(stored=30, evicted=27), Traffic(stored=30))
    assert 30 == (39 + 2 - 20) + 9, "what was given away, and what was looked at"


def test_without_memory_there_is_the_gpu_alone():
    columns = trace_of([[1, 2, 3], [4], [1, 2, 3]])
    outcome = replay_cache(columns, Setup("lru", 0, 8, store_when=EVICTED))
    assert outcome.gpu_hits.tolist() == replay_cache(columns, Setup("lru", 0, 8)).gpu_hits.tolist() == [0, 0, 3]


def test_a_policy_knows_the_places_of_late_chunks_in_their_whole_prompt(monkeypatch):
    places = []

    def store(manager, keys, context):
        places.append([context.get_offload_key_position(key) for key in keys])
        return stored(manager, keys, context)

    stored = AtOnceManager.store
    monkeypatch.setattr(AtOnceManager, "store", store)
    prompts = [[1, 2, 3, 4], [1, 2], *([n] for n in range(5, 70))]
    replay_cache(trace_of(prompts), Setup("lru", 40, 40, store_when=EVICTED))
    assert sorted(each for each in places if len(each) > 1) == [[0, 1], [2, 3]], "the second has used two of four"


def test_without_a_gpu_s_cache_nothing_is_evicted():
    with pytest.raises(ConfigError, match=r"^store_when: got 'evicted', .* but gpu_blocks is 0"):
        replay_cache(trace_of([[1]]), Setup("lru", 4, store_when=EVICTED))


@pytest.mark.parametrize("disk", [None, Disk("/mnt/kv", 10)])
def test_size_says_what_a_server_answers_that_stores_what_is_evicted(disk):
    trace, footprint = RoutedTrace(trace_of(IN_TURNS)), Footprint(BLOCK, 1000)
    around = Around(40, disk, store_when=EVICTED)
    found = size_trace(trace, ["lru", "arc"], [16, 40, 56], footprint, around)
    for policy, curve in found.curves.items():
        for capacity, ratios in zip(found.capacities, curve, strict=True):
            outcome = replay_cache(trace.columns, around.setup(policy, capacity))
            assert hits_by_tier(trace.columns, outcome).together().ratios(found.totals) == ratios
    assert found.curves != sweep(trace, ["lru", "arc"], [16, 40, 56], Around(40, disk))
    assert (found.if_evicted, found.gains_if_evicted, found.setup.store_when) == (None, False, EVICTED)
    extra = found.config()["kv_connector_extra_config"]
    media = [child["kv_connector_extra_config"] for child in extra.get("connectors", [])] or [extra]
    assert len(media) == (1 if disk is None else 2)
    for medium in media:
        del medium["eviction_policy"]
    assert all(medium["store_when"] == "evicted" for medium in media)


def test_size_says_what_is_gained():
    trace, footprint = RoutedTrace(trace_of(IN_TURNS)), Footprint(BLOCK, 1000)
    found = size_trace(trace, ["lru"], [16, 40, 56], footprint, Around(40), budget_blocks=40)
    assert not found.is_worth_it
    late = replay_cache(trace.columns, Setup("lru", 40, 40, store_when=EVICTED))
    assert found.gains_if_evicted
    assert (found.if_evicted.policy, found.if_evicted.capacity) == ("lru", 40), "all that may be had"
    assert found.if_evicted.ratios == hits_by_tier(trace.columns, late).together().ratios(found.totals)
    tried = size_trace(trace, ["lru"], [16, 40], footprint, Around(40))
    assert (tried.recommended.capacity, tried.if_evicted) == (16, found.if_evicted), "nothing is answered at once"
    enough = size_trace(trace, ["lru"], [16, 40, 56], footprint, Around(40))
    assert (enough.recommended.capacity, enough.if_evicted.capacity) == (56, 56)
    assert not enough.gains_if_evicted, "as much is answered anyway"
    bad, without, late = (Ratios(token, token, token) for token in (0.1, 0.302, 0.306))
    worse = replace(enough.recommended, ratios=bad)
    little = replace(enough, recommended=worse, without=without, if_evicted=replace(worse, ratios=late))
    assert not little.gains_if_evicted, "more is answered without it"
    assert size_trace(trace, ["lru"], [56], footprint).if_evicted is None, "nothing is in front"


@pytest.fixture
def turns(tmp_path):
    """A file of prompts in turns."""
    file = tmp_path / "turns.jsonl"
    requests = [
        {"timestamp": 1000 * n, "input_length": 512 * 8, "output_length": 1, "hash_ids": ids}
        for n, ids in enumerate(IN_TURNS)
    ]
    file.write_text("".join(json.dumps(request) + "\n" for request in requests))
    return file


GPU = ("--gpu-capacity", "40blocks", "--policy", "lru", "--bytes-per-token", "1000", "--jobs", "1")


def test_the_report_of_size(turns, capsys, tmp_path):
    page = tmp_path / "page.html"
    command = ["size", str(turns), *GPU, "--capacity", "40blocks", "--html", str(page)]
    assert main(command) == 0
    out = capsys.readouterr().out
    late = replay(turns, capacity=40, gpu_capacity=40, store_when="evicted").token_ratio
    assert f"  with --store-when evicted lru, 40 blocks would hit {late:.3f} of tokens\n" in out
    assert f"--store-when evicted lru, 40 blocks answer {late:.1%}" in unescape(
        page.read_text().replace("<code>", "").replace("</code>", "").replace("<b>", "").replace("With ", "")
    )
    assert main([*command, "--store-when", "evicted"]) == 0
    out = capsys.readouterr().out
    assert "  blocks are stored when the GPU's prefix cache is about to evict them\n" in out
    assert "with --store-when evicted" not in out
    assert "blocks are stored when the GPU's prefix cache is about to evict them" in unescape(page.read_text())
    config = json.loads(out.partition("--kv-transfer-config '")[2].partition("'\n")[0])
    assert parse_options(config["kv_connector_extra_config"]).store_when is EVICTED


@pytest.mark.parametrize("more", [(), ("--stream",), ("--servers", "2")])
def test_the_report_of_replay(turns, capsys, more):
    command = ["replay", str(turns), *GPU, "--capacity", "40blocks", *more]
    assert main([*command, "--store-when", "evicted"]) == 0
    out = capsys.readouterr().out
    assert "\nBlocks are stored when the GPU's prefix cache is about to evict them.\n" in out
    assert main([*command, "--store-when", "evicted", "--json", "-"]) == 0
    [run] = json.loads(capsys.readouterr().out)["runs"]
    servers = 2 if "--servers" in more else 1
    expected = replay(turns, capacity=40, gpu_capacity=40, store_when="evicted", servers=servers)
    assert run["both"]["token"] == expected.token_ratio > 0.3
    assert run["setup"]["store_when"] == "evicted"
    assert main(command) == 0
    assert "Stored is what" not in capsys.readouterr().out


@pytest.mark.parametrize("command", ["replay", "size"])
def test_what_is_evicted_takes_a_gpu(turns, capsys, command):
    assert main([command, str(turns), "--store-when", "evicted"]) == 2
    assert capsys.readouterr().err == (
        f"kv-sim {command}: --store-when evicted stores what the GPU's prefix cache is about to evict, but "
        "there is no such cache; give its size with --gpu-capacity\n"
    )


@pytest.mark.parametrize("call", [replay, size])
def test_a_notebook_is_told_the_choices(turns, call):
    with pytest.raises(ConfigError, match=r"^store_when: expected one of computed, evicted, got 'later'$"):
        call(turns, gpu_capacity=4, store_when="later")


def test_in_the_engine_it_goes_to_the_connector(turns, capsys):
    command = ["replay", str(turns), "--fidelity", "engine", "--gpu-capacity", "40blocks", "--capacity", "2.5GiB"]
    hits = {}
    for when in StoreWhen:
        assert main([*command, "--store-when", when.value, "--json", "-"]) == 0
        hits[when] = json.loads(capsys.readouterr().out)["with_connector"]["cpu_token_ratio"]
    assert hits[EVICTED] > hits[StoreWhen.COMPUTED]
    config = '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}'
    assert main([*command[:-2], "--connector-config", config, "--store-when", "evicted"]) == 2
    assert "--store-when and --connector-config (where it is store_when): give one of them" in (
        capsys.readouterr().err
    )
