"""What ``size`` recommends: the knee, a budget, and another policy only if it is worth it."""

from dataclasses import replace

import pytest

from kv_api import ConfigError
from kv_sim.replay import TraceOptions, open_trace, size
from kv_sim.replay.caches.ratios import Ratios
from kv_sim.replay.caches.shape import shape_of
from kv_sim.replay.servers.fleet import RoutedTrace
from kv_sim.replay.sizing.capacities import size_trace, usual_capacities
from kv_sim.replay.sizing.recommended import recommend
from kv_sim.replay.units import Footprint


@pytest.fixture(scope="module")
def synthetic():
    return open_trace("mooncake-synthetic")


@pytest.mark.once
def test_a_budget_bounds_what_is_recommended(synthetic):
    free = size(synthetic, ["lru"], points=12)
    assert free.recommended.capacity > 1000 and free.reason.startswith("the knee")
    bound = size(synthetic, ["lru"], points=12, budget=1000)
    assert bound.recommended.capacity == 1000
    assert bound.reason == "the budget: it ends before the knee"
    assert 1000 in bound.capacities and len(bound.gains()) == len(bound.capacities)
    assert [ratios.token for ratios in bound.curves["lru"]] == sorted(r.token for r in bound.curves["lru"])


@pytest.mark.once
def test_another_policy_has_to_be_worth_it(synthetic):
    shape = shape_of(synthetic)
    sizing = size(synthetic, ["lru", "arc"], [4392, 10981, 30000])
    lru, arc = sizing.curves["lru"], sizing.curves["arc"]
    assert sizing.recommended.policy == "arc" and arc[1].token - lru[1].token > 0.005
    point, _ = recommend({"lru": lru[:1], "arc": arc[:1]}, [4392], 0.0, shape.unique_blocks, None)
    assert point.policy == "lru"


def ratios(*tokens):
    return [Ratios(0.0, token, 0.0) for token in tokens]


def test_what_is_recommended():
    """The line from nothing to everything: a third of the rise at a third of the blocks."""
    knee = "the knee: up to here more room buys more than on average, from here on less"
    none = "there is no knee: up to here more room buys no less than on average"
    sizes, curve = [10, 20, 30], ratios(0.3, 0.5, 0.6)
    for curves, without, budget, expected in [
        ({"lru": curve}, 0.0, None, ("lru", 20, knee)),
        ({"lru": curve}, 0.0, 20, ("lru", 20, knee)),
        ({"lru": curve}, 0.0, 19, ("lru", 10, "the budget: it ends before the knee")),
        ({"lru": curve}, 0.3, 19, ("lru", 10, "the budget: up to there host memory answers nothing")),
        # What the GPU finds alone makes the rise smaller, and the first GiB count more.
        ({"lru": curve}, 0.25, None, ("lru", 20, knee)),
        ({"lru": ratios(0.5, 0.5, 0.6), "arc": curve}, 0.3, None, ("lru", 10, knee)),
        ({"arc": curve}, 0.0, None, ("arc", 20, knee)),
        ({"lru": ratios(0.0, 0.0, 0.0), "arc": ratios(0.0, 0.005, 0.005)}, 0.0, None, ("lru", 20, none)),
        ({"lru": ratios(0.0, 0.0, 0.0), "arc": ratios(0.0, 0.006, 0.006)}, 0.0, None, ("arc", 20, none)),
        # Half a point above the line, which many a first block is, is no reason to do without all that follows.
        ({"lru": ratios(0.304, 0.5, 0.9)}, 0.0, None, ("lru", 30, none)),
        ({"lru": ratios(0.306, 0.5, 0.9)}, 0.0, None, ("lru", 10, knee)),
        ({"lru": ratios(0.404, 0.5, 0.9)}, 0.15, None, ("lru", 30, none)),
        ({"lru": ratios(0.406, 0.5, 0.9)}, 0.15, None, ("lru", 10, knee)),
        (
            {"lru": ratios(0.304, 0.5, 0.9)},
            0.0,
            20,
            ("lru", 20, "the budget: it ends before the most is answered"),
        ),
        ({"lru": ratios(0.304, 0.9, 0.9)}, 0.0, None, ("lru", 20, knee)),
    ]:
        point, reason = recommend(curves, sizes, without, 30, budget)
        assert (point.policy, point.capacity, reason) == expected
        assert point.ratios == curves[point.policy][sizes.index(point.capacity)]
    # The blocks of the trace, if they are more than the last capacity: then memory for all is far away.
    point, _ = recommend({"lru": curve}, sizes, 0.0, 1000, None)
    assert point.capacity == 30
    # Where more is tried than all blocks need, the line goes on to the largest.
    point, reason = recommend({"lru": ratios(0.2, 0.5, 0.6)}, sizes, 0.0, 15, None)
    assert (point.capacity, reason) == (20, knee)
    # Of capacities that lie equally high above the line the smallest is enough.
    point, _ = recommend({"lru": ratios(0.5, 0.75, 1.0)}, sizes, 0.0, 40, None)
    assert point.capacity == 10
    nothing = "it answers nothing on this trace at any size that was tried"
    for without in (0.6, 0.7):
        point, reason = recommend({"lru": curve}, sizes, without, 30, None)
        assert (point.capacity, reason) == (10, nothing)


def test_a_gain_is_the_best_policys():
    found = size(open_trace("mooncake-synthetic", TraceOptions(requests=20)), ["lru"], [1, 3, 4])
    curves = {"lru": ratios(0.1, 0.2, 0.6), "arc": ratios(0.3, 0.5, 0.5)}
    assert replace(found, curves=curves).gains() == pytest.approx([(0.5 - 0.3) / 2, 0.6 - 0.5, 0.0])


def test_there_is_no_configuration_for_what_answers_nothing_more():
    columns = open_trace("mooncake-synthetic", TraceOptions(requests=200))
    found = replace(size(columns, ["lru"], [500]), footprint=Footprint(512, 1024))
    assert found.config()["kv_connector_extra_config"]["cpu_bytes_to_use"] == 500 * 512 * 1024
    for more in (0.0, 0.1):
        ratios_without = replace(found.without, token=found.recommended.ratios.token + more)
        assert replace(found, without=ratios_without).config() is None


@pytest.mark.parametrize(("policies", "capacities"), [([], [1]), (["lru"], [])])
def test_a_sweep_of_nothing(policies, capacities):
    columns = open_trace("mooncake-synthetic", TraceOptions(requests=20))
    with pytest.raises(ConfigError) as caught:
        size_trace(RoutedTrace(columns), policies, capacities, Footprint(512, None))
    assert str(caught.value) == "size needs at least one policy and one capacity"


def test_usual_capacities_go_from_a_thousandth_to_everything():
    sizes = usual_capacities(100_000, 20)
    assert (sizes[0], sizes[-1], len(sizes)) == (100, 100_000, 20)
    assert usual_capacities(3, 20) == [1, 2, 3]
    assert usual_capacities(0, 5) == [1]
    assert usual_capacities(100, 3, 64) == [64, 80, 100]
    assert usual_capacities(100, 3, 101) == [100], "and to no more than that"
