"""What loads that failed change: how far requests are set back, who ends, what nobody finds any more."""

from typing import Any

import pytest
from kv_sim_steps import Steps

from kv_sim.config import GroupConfig
from kv_sim.engine.request import SimRequest, Status
from kv_sim.memory.launched import ContentProblem
from kv_sim.violation import Violation

TWO = (GroupConfig(), GroupConfig("sliding", 8))


def loading(tokens: int = 9, *, has: int = 8, is_async: bool = True, **config: Any) -> tuple[Steps, SimRequest]:
    made = Steps(**config)
    made.connector.has["r1"] = (has, is_async)
    request = made.add("r1", tokens, 4)
    made.schedule()
    return made, request


def test_who_failed_to_load_does_not_reserve_against_its_next_load() -> None:
    """There are three blocks, and it needs them all."""
    made, request = loading(num_blocks=4)
    made.process(finished_recving={"r1"}, failed_recving={"r1"})
    assert (request.num_computed_tokens, made.scheduler.failed_loads) == (0, {"r1"})
    assert made.schedule() == {}
    assert (request.status, request.num_computed_tokens) == (Status.WAITING_FOR_REMOTE_KVS, 8)
    assert (made.queues, made.scheduler.failed_loads) == (([], [], ["r1"]), set())
    made.process(finished_recving={"r1"})
    assert made.schedule() == {"r1": 1}


@pytest.mark.parametrize("failed", [set(), {"r1"}])
def test_a_load_that_has_ended_may_write_no_more(failed: set[str]) -> None:
    made, _ = loading()
    assert sorted(made.scheduler.shadow.load_rights) == [1, 2]
    made.process(finished_recving={"r1"}, failed_recving=failed)
    assert made.scheduler.shadow.load_rights == {}


def test_who_failed_to_load_and_finds_no_room_keeps_nobody_from_going_on() -> None:
    made = Steps(num_blocks=8)
    made.connector.has = {"r1": (8, True), "r2": (8, True)}
    made.add("r1", 17, 2)
    made.add("r2", 9, 2)
    made.schedule()
    assert made.queues == ([], [], ["r1", "r2"])
    made.process(finished_recving={"r1", "r2"}, failed_recving={"r1"})
    made.scheduler.blocks.block_pool.touch([7])
    assert (made.step(), made.queues) == ({"r2": 1}, (["r2"], ["r1"], []))
    assert (made.step(), made.queues) == ({"r2": 1}, ([], ["r1"], []))
    assert made.schedule() == {}
    assert made.queues == ([], [], ["r1"]), "there is room now, and it loads once more"


@pytest.mark.parametrize("policy", ["recompute", "fail"])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("bad", [0, 1, 2, None])
def test_a_failed_block_sets_back_who_loads_it(bad: int | None, is_async: bool, policy: Any) -> None:
    """Blocks that are not computed yet are no reason, nor are those of others."""
    made, request = loading(13, has=8, is_async=is_async, failure_policy=policy, max_step_tokens=2)
    scheduler = made.scheduler
    (table,) = scheduler.blocks.tables["r1"].groups
    block = 20 if bad is None else table[bad] if bad < len(table) else 21
    made.process(invalid_block_ids={block}, finished_recving={"r1"} if is_async else None)
    if bad not in (0, 1):
        assert (request.status, request.num_computed_tokens) == (
            Status.WAITING_FOR_REMOTE_KVS if is_async else Status.RUNNING,
            8 if is_async else 10,
        )
    elif policy == "fail":
        assert (request.status, made.queues) == (Status.FINISHED_ERROR, ([], [], []))
    else:
        assert request.num_computed_tokens == bad * 4
        assert scheduler.failed_loads == ({"r1"} if is_async else set())
        assert scheduler.blocks.block_pool.find(0, request.block_hashes[bad]) is None
        assert made.schedule() == {} if is_async and bad == 0 else {"r1": 2}


def test_of_a_load_that_ends_within_a_block_that_one_counts_too() -> None:
    made, request = loading(13, has=9)
    (table,) = made.scheduler.blocks.tables["r1"].groups
    made.process(invalid_block_ids={table[2]}, finished_recving={"r1"})
    assert (request.num_computed_tokens, made.scheduler.failed_loads) == (8, {"r1"})


@pytest.mark.parametrize("policy", ["recompute", "fail"])
@pytest.mark.parametrize("is_async", [False, True])
def test_of_several_only_those_are_set_back_whose_blocks_failed(is_async: bool, policy: Any) -> None:
    made = Steps(failure_policy=policy, max_running=6, max_step_tokens=32)
    names = ["r1", "r2", "r3", "r4", "r5"]
    made.connector.has = dict.fromkeys(names[:4], (8, is_async))
    requests = [made.add(name, 9, 4) for name in names]
    made.schedule()
    tables = made.scheduler.blocks.tables
    made.process(invalid_block_ids={tables["r2"].groups[0][1], *tables["r4"].groups[0][:2]})
    whole = 8 if is_async else 9
    assert [request.num_computed_tokens for request in requests] == [whole, 4, whole, 0, 9]
    left = [name for name in names if policy == "recompute" or name not in ("r2", "r4")]
    assert [request.request_id for request in requests if not request.status.is_finished] == left
    assert {request.request_id for request in made.outcome.ended} == set(names) - set(left)
    again = {"r1": 0, "r2": 4, "r3": 0, "r4": 8, "r5": 0}
    if not is_async:
        assert made.step() == {name: again[name] + 1 for name in left}
        find, found = made.scheduler.blocks.block_pool.find, [0] * 5
        for place, request in enumerate(requests):
            found[place] = sum(find(0, name) is not None for name in request.prompt_hashes)
        assert found == [2 if name in left else again[name] // 4 % 2 for name in names], (
            "what is computed again is found again"
        )


@pytest.mark.parametrize("policy", ["recompute", "fail"])
def test_of_several_only_those_fail_whose_load_did(policy: Any) -> None:
    """Also if block ids are told in the same step. Of who doesn't load nothing is believed."""
    for told in (set(), {23}):
        made = Steps(failure_policy=policy)
        made.connector.has = {"r1": (8, True), "r2": (8, True)}
        for name in ("r1", "r2", "r3"):
            made.add(name, 9, 4)
        made.schedule()
        made.process(finished_recving={"r2"}, failed_recving={"r2", "r3", "r9"}, invalid_block_ids=told)
        failed = policy == "fail"
        assert [request.request_id for request in made.outcome.ended] == (["r2"] if failed else [])
        assert made.scheduler.failed_loads == (set() if failed else {"r2"})
        assert {name: r.num_computed_tokens for name, r in made.scheduler.requests.items()} == {
            "r1": 8,
            **({} if failed else {"r2": 0}),
            "r3": 9,
        }


@pytest.mark.parametrize(("policy", "shown"), [("recompute", None), ("fail", ([1, 2],))])
def test_who_ends_because_its_load_failed_shows_the_blocks_that_it_was_for(policy: Any, shown: Any) -> None:
    made, request = loading(failure_policy=policy)
    made.process(finished_recving={"r1"}, failed_recving={"r1"})
    assert made.connector.take("ended") == ([] if shown is None else [("r1", shown)])
    assert made.scheduler.failed_loads == (set() if shown else {"r1"})
    assert request.status.is_finished == (shown is not None)


def test_what_was_computed_from_wrong_bytes_is_found_no_more() -> None:
    """Of each kernel that read some, when a block is said not to be filled."""
    made, request = loading(17, is_async=False, max_step_tokens=32)
    (table,) = made.scheduler.blocks.tables["r1"].groups
    made.under_way[0].problems += [ContentProblem("r1", 9, "", (table[place],)) for place in (0, 2)]
    made.process(invalid_block_ids={23})
    find = made.scheduler.blocks.block_pool.find
    assert [find(0, name) for name in request.prompt_hashes] == [None, table[1], None, table[3]]


@pytest.mark.parametrize("is_async", [False, True])
def test_who_failed_to_load_has_drafts_only_if_its_output_is_waited_for(is_async: bool) -> None:
    """There the worker has drafted in the step that failed, though nothing of it counts."""
    made, request = loading(9, has=8, is_async=False, spec_tokens=2, async_scheduling=is_async, run_ahead=is_async)
    assert made.drafts == {"r1": 2}
    made.process(invalid_block_ids={made.scheduler.blocks.tables["r1"].groups[0][1]})
    assert (request.num_computed_tokens, request.num_draft_tokens) == (4, 0 if is_async else 2)
    assert made.schedule() == {"r1": 5 if is_async else 7}


def test_blocks_of_several_groups_are_not_reported_by_their_ids() -> None:
    made, _ = loading(groups=TWO, num_blocks=40)
    with pytest.raises(Violation) as found:
        made.process(invalid_block_ids={1})
    assert str(found.value) == (
        "PROTOCOL  get_block_ids_with_load_errors reports blocks, but there are several KV cache groups: report "
        "the requests in failed_recving"
    )
