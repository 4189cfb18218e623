"""One pass over segments comes to what obvious models and the real manager do block by block."""

import gc
import tracemalloc
from itertools import accumulate, pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kv_sim_slow_replay import BLOCK, lru_hits, min_hits, prefix_trace, trace_of

from kv_api import ConfigError
from kv_sim.replay.caches import bounds, cache, keys, stack, tally
from kv_sim.replay.caches.cache import replay_cache
from kv_sim.replay.caches.keys import KEYS_LOOKED_FOR, KeysContext, keys_of
from kv_sim.replay.caches.medium import Traffic
from kv_sim.replay.caches.outcome import Setup
from kv_sim.replay.caches.ratios import Hits, Ratios, Totals
from kv_sim.replay.caches.shape import shape_of, uses_again
from kv_sim.replay.caches.stack import Order, longest_prompt, lru_curve
from kv_sim.replay.servers.fleet import RoutedTrace
from kv_sim.replay.sizing import capacities
from kv_sim.replay.sizing.around import Around, Disk
from kv_sim.replay.sizing.capacities import sweep

traces = st.builds(
    lambda seed, count, width, depth: prefix_trace(Random(seed), count, width, depth),
    st.integers(0, 10**9),
    st.integers(1, 40),
    st.integers(1, 4),
    st.integers(1, 12),
)
orders = pytest.mark.parametrize(("order", "is_forward"), [(Order.TAIL_LAST, True), (Order.HEAD_LAST, False)])


def sums(hits, requests, columns):
    """Blocks, full blocks and tokens of hits."""
    full = sum(min(hit, tokens // BLOCK) for hit, tokens in zip(hits, columns.inputs.tolist(), strict=True))
    tokens = sum(min(hit * BLOCK, tokens) for hit, tokens in zip(hits, columns.inputs.tolist(), strict=True))
    return sum(hits), full, tokens


def as_sums(hits):
    return hits.blocks, hits.full_blocks, hits.tokens


@orders
@given(requests=traces)
def test_a_curve_is_lru_at_every_capacity(order, is_forward, requests):
    columns = trace_of(requests)
    shape = shape_of(columns)
    shape.check(columns)
    curve = lru_curve(columns, shape, shape.unique_blocks + 1, order)
    for capacity in range(1, shape.unique_blocks + 3):
        hits = lru_hits(requests, capacity, is_forward)
        assert as_sums(curve.at(capacity)) == sums(hits, requests, columns), capacity


@given(requests=traces, gpu_blocks=st.integers(0, 20))
def test_a_curve_is_what_the_real_manager_does_from_the_longest_prompt_on(requests, gpu_blocks):
    columns = trace_of(requests)
    shape, longest = shape_of(columns), longest_prompt(columns)
    for capacity in {longest, longest + 1, longest + 3, 2 * longest + 5}:
        outcome = replay_cache(columns, Setup("lru", capacity, gpu_blocks))
        outcome.check(columns)
        both = sums((outcome.gpu_hits + outcome.cpu_hits).tolist(), requests, columns)
        curve = lru_curve(columns, shape, max(capacity, gpu_blocks))
        assert as_sums(curve.at(max(capacity, gpu_blocks))) == both, (capacity, gpu_blocks)
        found = sweep(RoutedTrace(columns), ["lru"], [capacity], Around(gpu_blocks))
        assert found == {"lru": (Hits(*both).ratios(Totals.of(columns)),)}, (capacity, gpu_blocks)


@pytest.mark.parametrize(
    ("requests", "blocks"), [([[1], [1, 2, 3], [4, 5]], 3), ([[1], []], 1), ([[]], 1), ([], 1)]
)
def test_the_longest_prompt_has_at_least_one_block(requests, blocks):
    assert longest_prompt(trace_of(requests)) == blocks


@given(requests=traces, gpu_blocks=st.integers(1, 20))
def test_the_gpu_s_tier_is_lru_with_the_head_last(requests, gpu_blocks):
    columns = trace_of(requests)
    outcome = replay_cache(columns, Setup(capacity=0, gpu_blocks=gpu_blocks))
    assert outcome.gpu_hits.tolist() == lru_hits(requests, gpu_blocks, is_forward=False)
    assert not outcome.cpu_hits.any()


@example(requests=[[], [1, 2], [1], [9], [9], [1, 2]])  # 9 is in the way of two that are needed by one request
@given(requests=traces)
def test_min_is_belady_on_prefixes(requests):
    columns = trace_of(requests)
    shape = shape_of(columns)
    of_all = bounds.Bounds(columns, shape)
    for capacity in range(shape.unique_blocks + 2):
        expected = sums(min_hits(requests, capacity), requests, columns)
        assert as_sums(bounds.min_hits(columns, shape, capacity)) == expected, capacity
        assert of_all.at(capacity) == of_all.at(capacity) == bounds.min_hits(columns, shape, capacity)
    everything = bounds.min_hits(columns, shape, shape.unique_blocks + 1)
    assert bounds.infinite_hits(columns, shape) == everything


@given(requests=traces, data=st.data())
def test_no_policy_beats_min(requests, data):
    columns = trace_of(requests)
    shape, totals = shape_of(columns), Totals.of(columns)
    capacity = data.draw(st.integers(1, shape.unique_blocks + 2))
    best = bounds.min_hits(columns, shape, capacity).ratios(totals)
    for policy, [ratios] in sweep(RoutedTrace(columns), ["lru", "arc", "s3fifo", "sieve"], [capacity]).items():
        assert ratios.block <= best.block and ratios.token <= best.token, policy


@given(requests=traces)
def test_sorting_in_parts_gives_the_same_shape(requests):
    columns = trace_of(requests)
    whole, parts = shape_of(columns), shape_of(columns, sort_at_once=7)
    for name in ("request", "start", "length", "user"):
        assert getattr(whole, name).tolist() == getattr(parts, name).tolist()


@pytest.mark.parametrize("order", list(Order))
def test_a_curve_takes_no_more_memory_for_more_blocks(order):
    taken = []
    for blocks in (1_000, 100_000):
        columns = trace_of([[*range(blocks)], [*range(blocks)], [*range(blocks // 2)]])
        shape = shape_of(columns)
        tracemalloc.start()
        curve = lru_curve(columns, shape, blocks, order)
        taken.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert curve.at(blocks).blocks == blocks + blocks // 2
        short = lru_curve(columns, shape, 500, order)
        assert short.at(900) == short.at(500) == curve.at(500)
    assert taken[1] < 2 * taken[0], taken


@given(requests=traces)
def test_uses_again_are_those_of_a_dictionary(requests):
    blocks = trace_of(requests).blocks
    last, expected = {}, set()
    for place, one in enumerate(blocks.tolist()):
        if one in last:
            expected.add((place, last[one]))
        last[one] = place
    for at_once in (1, 7, 1000):
        found = [pair for part in uses_again(blocks, at_once) for pair in zip(*map(list, part), strict=True)]
        assert len(found) == len(expected) and set(found) == expected


class Ids(np.ndarray):
    """Counts how many of them somebody reads in pieces."""

    read = 0

    def __getitem__(self, index):
        found = super().__getitem__(index)
        if isinstance(index, slice) and self.size == TOTAL:
            type(self).read += len(found)
        return found


TOTAL = 10_000


@pytest.mark.parametrize("at_once", [3000, 300, 30])
def test_ids_are_gone_through_once_however_many_parts_they_are_sorted_in(at_once):
    ids = np.random.default_rng(0).integers(0, 4000, TOTAL).view(Ids)
    Ids.read = 0
    found = sum(len(again) for again, _ in uses_again(ids, at_once))
    assert (found, Ids.read) == (TOTAL - len(set(ids.tolist())), TOTAL)


@pytest.mark.parametrize("parts", [2, 3, 5, 9])
def test_so_many_ids_are_sorted_in_no_fewer_parts_than_it_takes(parts):
    ids = np.arange(TOTAL)
    assert sum(1 for _ in uses_again(ids, -(-TOTAL // parts))) >= parts


@given(requests=traces)
def test_piles_can_be_recounted(requests):
    piles = stack._Piles(len(requests))
    for index, ids in enumerate(requests):
        piles.move([], index, len(ids))
        piles.check()


@pytest.mark.parametrize(
    ("requests", "text"),
    [
        ([[1, 2, 3], [3, 2]], "request 2 has id 3 after other ids than request 1"),
        ([[1, 2], [3, 2]], "request 2 has id 2 after other ids than request 1"),
        ([[5], [7, 8, 7]], "request 2 has id 7 after other ids than request 2"),
    ],
)
def test_ids_that_are_no_prefix_ids_are_refused(requests, text):
    with pytest.raises(ConfigError) as caught:
        shape_of(trace_of(requests))
    assert (
        str(caught.value)
        == f"made: {text}, so these ids don't name prefixes; --ids block reads them as ids of blocks"
    )


def test_who_says_nothing_of_a_setup_has_no_cache_at_all():
    assert Setup() == Setup("lru", 0, 0, 0, None, 0, 0)
    assert (Setup().blocks, Setup("lru", 7, 20, disk=300).blocks) == (0, 327)


def test_a_trace_of_nothing():
    columns = trace_of([])
    columns.check()
    assert (len(columns), [*columns], columns.references, columns.input_tokens) == (0, [], 0, 0)
    assert columns.duration_seconds == 0
    assert shape_of(columns).unique_blocks == 0


def test_a_request_that_lacks_ids_has_as_many_full_blocks_as_ids():
    columns = trace_of([[1], [1, 2], [1, 2]])  # the second one is a token short, the third two blocks longer
    assert Totals.of(columns) == Totals(5, 4, 7 * BLOCK - 1, BLOCK)


def test_ratios_are_shares_and_nothing_of_nothing_is_nothing():
    assert Hits(1, 1, 1).ratios(Totals(1, 1, 1, 4)) == Ratios(1.0, 1.0, 1.0)
    assert Hits(1, 2, 3).ratios(Totals(10, 10, 10, 4)) == Ratios(0.1, 0.3, 0.2)
    assert Hits(0, 0, 0).ratios(Totals(0, 0, 0, 4)) == Ratios(0.0, 0.0, 0.0)
    assert Totals(1, 2, 3, 4).plus(Totals(10, 20, 30, 4)) == Totals(11, 22, 33, 4)
    assert Hits(1, 2, 3).plus(Hits(10, 20, 30)) == Hits(11, 22, 33)
    assert Hits(11, 22, 33).minus(Hits(10, 20, 30)) == Hits(1, 2, 3)


def test_ages_and_times_are_told_in_these_parts():
    minute, hour = 60, 3600
    edges = (1, 3, 10, 30, minute, 3 * minute, 10 * minute, hour // 2, hour, 3 * hour, 10 * hour, 24 * hour)
    assert edges == tally.AGE_EDGES_SECONDS
    columns = trace_of([[1]] * 3, arrivals=[0.0, 59.5, 60.0])
    series = tally.series_of(columns, shape_of(columns), replay_cache(columns, Setup("lru", 1)))
    assert [window.begin_seconds for window in series] == [*range(60)]
    assert [place for place, window in enumerate(series) for _ in range(window.cpu_hits)] == [59, 59]


@pytest.mark.parametrize("was_on", [True, False])
def test_a_replay_leaves_the_garbage_collector_as_it_was(was_on):
    during = []
    try:
        (gc.enable if was_on else gc.disable)()
        replay_cache(trace_of([[1], [1]]), Setup("lru", 4), lambda count: during.append(gc.isenabled()))
        assert (during, gc.isenabled()) == ([False], was_on)
    finally:
        gc.enable()


def test_a_manager_hears_of_each_request_from_its_beginning_to_its_end(monkeypatch):
    class Watched(cache.AtOnceManager):
        def on_new_request(self, req_context):
            calls.append(("new", req_context.req_id))
            return super().on_new_request(req_context)

        def on_request_finished(self, req_context):
            calls.append(("finished", req_context.req_id))
            super().on_request_finished(req_context)

    calls = []
    monkeypatch.setattr(cache, "AtOnceManager", Watched)
    run = cache.CacheRun(Setup("lru", 4, disk=8))
    for part in ([[1], [1, 2]], [[3], []]):
        run.feed(trace_of(part))
    assert calls == [(what, name) for name in "0123" for what in ("new", "new", "finished", "finished")]


def test_of_a_prompt_that_does_not_fit_the_first_half_is_stored():
    columns = trace_of([[1, 2, 3, 4, 5, 6]] * 2)
    outcome = replay_cache(columns, Setup("lru", 4))
    assert outcome.cpu_hits.tolist() == [0, 3]
    assert outcome.host == Traffic(stored=3 + 3, evicted=2, refused=3)
    # The GPU has the first block. The second and the third are loaded, and the others fit beside the first.
    outcome = replay_cache(columns, Setup("lru", 4, gpu_blocks=1))
    assert (outcome.gpu_hits.tolist(), outcome.cpu_hits.tolist()) == ([0, 1], [0, 2])
    assert outcome.host == Traffic(stored=3 + 3, evicted=2, refused=3)
    # So below the longest prompt a sweep replays LRU: a curve would say that nothing is found.
    found = sweep(RoutedTrace(columns), ["lru"], [4, 6])
    assert [ratios.block for ratios in found["lru"]] == [3 / 12, 6 / 12]


def test_who_says_nothing_of_a_gpu_sweeps_without_one():
    trace = RoutedTrace(trace_of([[1], [2], [1], [1]]))
    assert [ratios.block for ratios in sweep(trace, ["arc"], [0, 1])["arc"]] == [0.0, 1 / 4]


def test_a_check_finds_more_ids_than_an_input_has_room_for():
    columns = trace_of([[1, 2, 3]])
    for tokens in (2 * BLOCK + 1, 3 * BLOCK):
        columns.inputs[0] = tokens
        columns.check()
    columns.inputs[0] = 2 * BLOCK
    with pytest.raises(AssertionError, match="more ids than blocks fit the input"):
        columns.check()


@example(requests=[[1]], steps=[], capacity=1, gpu_blocks=0, disk=0, windows=2)
@given(
    requests=traces,
    steps=st.lists(st.sampled_from([0, 0.5, 1, 3, 700, 100_000]), min_size=40, max_size=40),
    capacity=st.integers(1, 60),
    gpu_blocks=st.integers(0, 6),
    disk=st.sampled_from([0, 0, 5, 20, 60]),
    windows=st.integers(1, 5),
)
def test_ages_and_the_series_are_those_of_the_blocks(requests, steps, capacity, gpu_blocks, disk, windows):
    arrivals = [0.0, *accumulate(steps)][: len(requests)]
    columns = trace_of(requests, arrivals=arrivals)
    shape, outcome = shape_of(columns), replay_cache(columns, Setup("lru", capacity, gpu_blocks, disk=disk))
    width = arrivals[-1] / windows or 1.0
    ages, used, counts = [], {}, [[0] * 5 for _ in range(windows)]
    hits = zip(*(of.tolist() for of in (outcome.gpu_hits, outcome.cpu_hits, outcome.disk_hits)), strict=True)
    for ids, now, (gpu, cpu, of_disk) in zip(requests, arrivals, hits, strict=True):
        ages += [now - used[block] for block in ids[gpu : gpu + cpu + of_disk]]
        window = counts[min(int(now / width), windows - 1)]
        for place, count in enumerate((len(ids), gpu, cpu, of_disk, sum(block in used for block in ids))):
            window[place] += count
        used |= dict.fromkeys(ids, now)
    gpu = sums(outcome.gpu_hits.tolist(), requests, columns)
    both = sums((outcome.gpu_hits + outcome.cpu_hits).tolist(), requests, columns)
    everything = sums((outcome.gpu_hits + outcome.cpu_hits + outcome.disk_hits).tolist(), requests, columns)
    cpu = tuple(of_both - of_gpu for of_both, of_gpu in zip(both, gpu, strict=True))
    of_disk = tuple(of_all - of_both for of_all, of_both in zip(everything, both, strict=True))
    tiers = tally.hits_by_tier(columns, outcome)
    assert [as_sums(tier) for tier in tiers] == [gpu, cpu, of_disk, (0, 0, 0)]
    assert as_sums(tiers.together()) == everything
    ages.sort()
    found, edges = tally.ages_of(columns, shape, outcome), (0, *tally.AGE_EDGES_SECONDS, float("inf"))
    assert found.counts == tuple(sum(low <= age < high for age in ages) for low, high in pairwise(edges))
    assert (found.p50_seconds, found.p90_seconds, found.p99_seconds) == tuple(
        next((age for number, age in enumerate(ages, 1) if number >= share * len(ages)), 0.0)
        for share in (0.5, 0.9, 0.99)
    )
    assert tally.series_of(columns, shape, outcome, windows) == [
        tally.Window(number * width, *counts[number]) for number in range(windows)
    ]


@pytest.mark.parametrize("at_once", [1, 3, 4, 9, 100])
def test_keys_are_hashes_and_a_group_however_many_are_made_at_once(monkeypatch, at_once):
    monkeypatch.setattr(keys, "_KEYS_AT_ONCE", at_once)
    requests = [[], [1, 2, 3], [], [4], [2**40, 6, 7, 8, 9], [1], []]
    made = [[one.to_bytes(8, "little") + bytes(4) for one in ids] for ids in requests]
    assert [*keys_of(trace_of(requests))] == made


@pytest.mark.parametrize(
    ("policies", "disk", "replayed"),
    [
        (["lru"], None, [("lru", 2)]),
        (["sieve", "lru"], None, [("sieve", 2), ("sieve", 3), ("sieve", 9), ("lru", 2)]),
        (["lru"], Disk("/kv", 3), [("lru", 2)]),
        (["lru"], Disk("/kv", 2), [("lru", 2), ("lru", 3), ("lru", 9)]),
    ],
)
def test_a_sweep_replays_only_what_one_pass_leaves_open(monkeypatch, policies, disk, replayed):
    """LRU isn't replayed where the longest prompt, of three blocks, fits, also into host memory in front."""
    columns, run, asked = trace_of([[1, 2, 3], [1], [4, 5]]), capacities.replay_all, []
    monkeypatch.setattr(
        capacities, "replay_all", lambda trace, setups, *rest: asked.extend(setups) or run(trace, setups)
    )
    sweep(RoutedTrace(columns), policies, [2, 3, 9], Around(disk=disk))
    assert [(setup.policy, setup.disk or setup.capacity) for setup in asked] == replayed


class Prompt(list):
    """Counts how often somebody goes along it in search of a key."""

    searches = 0

    def index(self, *args):
        self.searches += 1
        return super().index(*args)


def test_who_asks_for_many_places_of_a_prompt_makes_nobody_search_for_each():
    keys = Prompt(range(100, 150))
    context = KeysContext("r", keys)
    for _ in range(2):
        assert [context.get_offload_key_position(key) for key in (99, *keys)] == [None, *range(50)]
    assert keys.searches == KEYS_LOOKED_FOR
