"""Hit ratios of the shipped traces, as independent programs measured them, and a figure of a paper."""

import pytest
from kv_sim_slow_replay import block_ratio, fifo_hits, one_by_one_hits

from kv_sim.replay import open_trace
from kv_sim.replay.caches import bounds
from kv_sim.replay.caches.outcome import Setup
from kv_sim.replay.caches.ratios import Totals
from kv_sim.replay.caches.shape import shape_of
from kv_sim.replay.caches.stack import Order, lru_curve
from kv_sim.replay.hit_rates.setups import replay_all
from kv_sim.replay.servers.fleet import RoutedTrace

ROUNDED = 0.0005 + 1e-9
"""The references have three digits."""

CAPACITIES = {
    "mooncake-conversation": (182, 1827, 9139, 18279, 45697),
    "mooncake-synthetic": (43, 439, 2196, 4392, 10981),
}
# forward, reversed
LRU = {
    "mooncake-conversation": ((0.042, 0.052, 0.195, 0.278, 0.353), (0.042, 0.052, 0.196, 0.279, 0.353)),
    "mooncake-synthetic": ((0.002, 0.034, 0.155, 0.260, 0.443), (0.004, 0.038, 0.157, 0.262, 0.444)),
}
FIFO = {
    "mooncake-conversation": ((0.037, 0.050, 0.175, 0.248, 0.326), (0.042, 0.051, 0.176, 0.248, 0.327)),
    "mooncake-synthetic": ((0.002, 0.036, 0.151, 0.247, 0.419), (0.004, 0.040, 0.152, 0.248, 0.419)),
}
MIN = {
    "mooncake-conversation": (0.087, 0.246, 0.366, 0.366, 0.366),
    "mooncake-synthetic": (0.037, 0.185, 0.396, 0.506, 0.626),
}
INFINITE = {"mooncake-conversation": (0.3664, 0.3736), "mooncake-synthetic": (0.6396, 0.6512)}
BLOCKS = {"mooncake-conversation": (288_500, 182_790), "mooncake-synthetic": (121_877, 43_924)}
# Of the textbook's policies in reversed order, on synthetic
TEXTBOOK = {
    "sieve": (0.002, 0.019, 0.106, 0.177, 0.390),
}
# What a server does there: a prompt's blocks are offered together, and an offer never evicts its own blocks
OFFERED_TOGETHER = {
    "lru": (0.0038, 0.0381, 0.1566, 0.2623, 0.4441),
    "arc": (0.0035, 0.0422, 0.1629, 0.2632, 0.4600),
    "s3fifo": (0.0032, 0.0359, 0.1545, 0.2618, 0.4455),
    "sieve": (0.0039, 0.0372, 0.1297, 0.2245, 0.4101),
}

names = pytest.mark.parametrize("name", list(CAPACITIES))


@pytest.fixture(scope="module")
def traces():
    opened = {name: open_trace(name) for name in CAPACITIES}
    for columns in opened.values():
        columns.check()
    return {name: (columns, shape_of(columns), Totals.of(columns)) for name, columns in opened.items()}


@pytest.mark.once
@names
def test_the_traces_are_the_ones_that_were_measured(traces, name):
    columns, shape, totals = traces[name]
    shape.check(columns)
    assert (columns.references, shape.unique_blocks) == BLOCKS[name]
    infinite = bounds.infinite_hits(columns, shape).ratios(totals)
    assert (infinite.block, infinite.token) == pytest.approx(INFINITE[name], abs=5e-5)


@names
@pytest.mark.parametrize("order", list(Order))
def test_lru(traces, name, order):
    columns, shape, totals = traces[name]
    curve = lru_curve(columns, shape, max(CAPACITIES[name]), order)
    found = [curve.at(capacity).ratios(totals).block for capacity in CAPACITIES[name]]
    assert found == pytest.approx(LRU[name][order is Order.HEAD_LAST], abs=ROUNDED)


@names
def test_min(traces, name):
    columns, shape, totals = traces[name]
    found = [bounds.min_hits(columns, shape, capacity).ratios(totals).block for capacity in CAPACITIES[name]]
    assert found == pytest.approx(MIN[name], abs=ROUNDED)


@pytest.mark.parametrize("is_forward", [True, False])
def test_fifo(traces, is_forward):
    """There is no such policy here; this is that both programs mean the same by a hit."""
    columns, _, _ = traces["mooncake-synthetic"]
    requests = [request.blocks for request in columns]
    sizes = CAPACITIES["mooncake-synthetic"]
    found = [block_ratio(fifo_hits(requests, size, is_forward), requests) for size in sizes]
    assert found == pytest.approx(FIFO["mooncake-synthetic"][not is_forward], abs=ROUNDED)


@pytest.mark.once
def test_a_real_policy_is_the_textbook_s_a_block_at_a_time(traces):
    """The one that differs most from what a server makes of it. benchmarks/ratios.py has all policies."""
    columns, _, totals = traces["mooncake-synthetic"]
    found = one_by_one_hits(columns, "sieve", 2196) / totals.blocks
    assert found == pytest.approx(TEXTBOOK["sieve"][2], abs=ROUNDED)


@pytest.mark.once
@pytest.mark.parametrize("place", [2, 4])
def test_the_real_manager_as_a_server_drives_it(traces, place):
    columns, shape, totals = traces["mooncake-synthetic"]
    capacity = CAPACITIES["mooncake-synthetic"][place]
    outcomes = replay_all(RoutedTrace(columns), [Setup(policy, capacity) for policy in OFFERED_TOGETHER])
    found = [outcome.cpu_hits.sum() / totals.blocks for outcome in outcomes]
    assert found == pytest.approx([ratios[place] for ratios in OFFERED_TOGETHER.values()], abs=6e-5)
    assert max(found) <= bounds.min_hits(columns, shape, capacity).ratios(totals).block


def test_figure_9_of_the_mooncake_paper(traces):
    """FAST 2025, Synthetic; its ratios are hits on full blocks."""
    columns, shape, totals = traces["mooncake-synthetic"]
    figure = {
        10**4: 0.0004,
        10**5: 0.0117,
        10**6: 0.1461,
        2 * 10**6: 0.2345,
        4 * 10**6: 0.3805,
        5 * 10**6: 0.4352,
        8 * 10**6: 0.5447,
        10**7: 0.5886,
        5 * 10**7: 0.6583,
        10**8: 0.6583,
        10**9: 0.6583,
    }
    curve = lru_curve(columns, shape, shape.unique_blocks, Order.TAIL_LAST)
    found = {tokens: curve.at(tokens // 512).ratios(totals).full_block for tokens in figure}
    assert found == pytest.approx(figure, abs=0.005)
