"""Who has to give his blocks back, and what becomes of what is under way for him."""

from typing import Any

import pytest
from kv_sim_steps import Steps

from kv_sim.config import WorldConfig
from kv_sim.engine.request import Status
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import MEMORY
from kv_sim.world import World


def crowded(**config: Any) -> Steps:
    """Three with two blocks each have all of them, and each needs another one now."""
    made = Steps(num_blocks=7, max_step_tokens=32, **config)
    for number in (1, 2, 3):
        made.add(f"r{number}", 8, 4)
    assert made.schedule() == {"r1": 8, "r2": 8, "r3": 8}
    return made


@pytest.mark.parametrize("delivery", [False, True])
def test_the_last_one_is_preempted(delivery: bool) -> None:
    """And nobody is admitted in that step."""
    made = crowded()
    made.process()
    made.scheduler.requires_delivery = delivery
    made.add("r4", 1)
    assert made.schedule() == {"r1": 1, "r2": 1}
    assert made.under_way[-1].output.preempted_req_ids == {"r3"}
    r3 = made.scheduler.requests["r3"]
    assert (made.queues, r3.status, r3.num_preemptions, r3.num_computed_tokens, r3.drop_stale_output) == (
        (["r1", "r2"], ["r3", "r4"], []),
        Status.PREEMPTED,
        1,
        0,
        delivery,
    )
    made.process()
    assert made.schedule() == {"r1": 1, "r2": 1}
    assert made.under_way[-1].output.preempted_req_ids == set()
    while made.under_way or made.scheduler.requests:
        made.process()
        if made.scheduler.requests:
            made.schedule()
    assert [ended.num_output_tokens for ended in made.outcome.ended] == [4, 4, 1, 4]


def test_nobody_is_admitted_beside_who_is_preempted() -> None:
    """Also not who holds blocks and would find room for what he lacks."""
    made = Steps(num_blocks=9, max_step_tokens=32)
    for number in (1, 2, 3):
        made.add(f"r{number}", 8, 4)
    made.connector.has["r4"] = (4, True)
    made.add("r4", 5)
    assert made.schedule() == {"r1": 8, "r2": 8, "r3": 8}
    made.process(finished_recving={"r4"})
    assert (made.schedule(), made.queues) == ({"r1": 1, "r2": 1}, (["r1", "r2"], ["r3"], ["r4"]))
    assert made.scheduler.blocks.block_pool.num_free == 1
    made.process()
    assert made.schedule() == {"r1": 1, "r2": 1, "r4": 1}


def test_nobody_is_preempted_where_blocks_come_back_soon() -> None:
    made = crowded()
    made.process()
    made.connector.frees_blocks_soon = True
    assert (made.schedule(), made.queues) == ({}, (["r1", "r2", "r3"], [], []))


def test_nor_does_anybody_behind_go_on_meanwhile() -> None:
    """Also not who has room for his next token."""
    made = Steps(num_blocks=5, max_step_tokens=32)
    made.add("r1", 8, 4)
    made.add("r2", 7, 4)
    assert made.schedule() == {"r1": 8, "r2": 7}
    made.process()
    made.connector.frees_blocks_soon = True
    assert made.schedule() == {}
    made.connector.frees_blocks_soon = False
    assert (made.schedule(), made.queues) == ({"r1": 1}, (["r1"], ["r2"], []))


def test_nobody_is_preempted_whom_a_step_under_way_still_writes() -> None:
    """Only where frees are deferred; elsewhere he is, and what comes back of him is stale."""
    for role, counts, stale in (("kv_both", {}, 0), ("kv_producer", {"r1": 1, "r2": 1}, 8)):
        made = crowded(role=role, run_ahead=1, async_scheduling=True)
        assert made.schedule() == counts
        assert made.scheduler.requests["r3"].num_stale_output_tokens == stale
        made.process()
        if stale:
            assert made.scheduler.requests["r3"].num_output_tokens == 1, "he keeps what he sampled"


def test_who_alone_does_not_fit_gives_his_own_back() -> None:
    made = crowded()
    made.process()
    made.scheduler.blocks.block_pool.touch(range(1, 7))
    assert (made.schedule(), made.queues) == ({}, ([], ["r1", "r2", "r3"], []))
    assert made.under_way[-1].output.preempted_req_ids == {"r1", "r2", "r3"}


def test_what_was_to_be_dropped_is_dropped_until_it_came_back() -> None:
    made = Steps(run_ahead=2, async_scheduling=True)
    request = made.add("r1", 5, 8)

    def lose(*, drop: bool) -> tuple[bool, int]:
        made.scheduler.preempt(made.scheduler.running.pop(), drop_stale_output=drop)
        return request.drop_stale_output, request.num_stale_output_tokens

    made.schedule()
    assert lose(drop=True) == (True, 5)
    made.schedule()
    assert lose(drop=False) == (True, 6), "the first step is still under way"
    made.process()
    made.process()
    assert (made.schedule(), request.num_output_tokens) == ({"r1": 1}, 0)
    assert lose(drop=False) == (False, 1)
    assert made.schedule() == {}, "it waits for what it keeps"
    made.process()
    assert (made.schedule(), request.num_output_tokens) == ({"r1": 2}, 1)


def test_a_single_token_that_was_to_be_dropped_is_dropped_until_it_came_back() -> None:
    made = Steps(run_ahead=2, async_scheduling=True, prefix_caching=False)
    request = made.add("r1", 5, 8)
    made.step()
    for drop, stale in ((True, 1), (False, 1 + 6)):
        made.schedule()
        made.scheduler.preempt(made.scheduler.running.pop(), drop_stale_output=drop)
        assert (request.drop_stale_output, request.num_stale_output_tokens) == (True, stale)


def test_who_loads_again_waits_for_that_load_and_resumes_after_it() -> None:
    made = Steps()
    made.connector.has["r1"] = (4, True)
    r1 = made.add("r1", 5, 8)
    made.schedule()
    made.process(finished_recving={"r1"})
    assert made.step() == {"r1": 1}
    made.scheduler.preempt(made.scheduler.running.pop(), drop_stale_output=False)
    made.scheduler.blocks.block_pool.reset()
    assert (made.step(), made.schedule()) == ({}, {})
    assert (r1.status, made.queues) == (Status.WAITING_FOR_REMOTE_KVS, ([], [], ["r1"]))
    made.process(finished_recving={"r1"})
    assert made.schedule() == {"r1": 2}
    assert made.under_way[-1].output.scheduled_cached_reqs.resumed_req_ids == {"r1"}


def test_who_is_preempted_in_its_prefill_does_not_reserve_against_its_load() -> None:
    """There are three blocks, and it needs them all."""
    made = Steps(num_blocks=4, max_step_tokens=4)
    request = made.add("r1", 9)
    assert made.step() == {"r1": 4}
    made.scheduler.preempt(made.scheduler.running.pop(), drop_stale_output=False)
    made.scheduler.blocks.block_pool.reset()
    made.connector.has["r1"] = (8, True)
    assert made.schedule() == {}
    assert (request.status, made.queues) == (Status.WAITING_FOR_REMOTE_KVS, ([], [], ["r1"]))


def test_who_computes_anew_what_it_sampled_samples_nothing_before_all_of_that() -> None:
    made = Steps(max_step_tokens=6, prefix_caching=False)
    request = made.add("r1", 5, 8)
    for _ in range(4):
        made.step()
    made.scheduler.preempt(made.scheduler.running.pop(), drop_stale_output=False)
    assert (made.step(), request.num_output_tokens) == ({"r1": 6}, 4)
    assert (made.step(), request.num_output_tokens) == ({"r1": 3}, 5)


@pytest.mark.parametrize("run_ahead", [0, 1])
def test_what_is_under_way_of_all_who_run_is_dropped_at_a_reset(run_ahead: int) -> None:
    engine = World(WorldConfig(run_ahead=run_ahead, async_scheduling=run_ahead > 0), MEMORY).engine
    requests = [engine.add(RequestSpec(name, number, 5, 0, 4, 4)) for number, name in enumerate(("r1", "r2"))]
    engine.schedule(lambda name, drafts: 0)
    engine.reset(running=True, connector=False)
    engine.finish_step()
    assert [(each.num_output_tokens, each.num_preemptions) for each in requests] == [(0, 1), (0, 1)]


def test_a_reset_of_what_is_cached_alone_takes_nothing_from_who_runs() -> None:
    engine = World(WorldConfig(), MEMORY).engine
    request = engine.add(RequestSpec("r1", 0, 5, 0, 4, 4))
    engine.schedule(lambda name, drafts: 0)
    assert engine.reset(running=False, connector=False) is False, "its blocks are in use"
    engine.finish_step()
    assert (request.num_output_tokens, request.num_preemptions) == (1, 0)
