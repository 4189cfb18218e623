"""Sessions: requests that stop, wait for their next turn, and go on with a longer prompt."""

from random import Random
from typing import Any

import pytest
from kv_sim_steps import Steps

from kv_sim.actions import Action, Kind
from kv_sim.config import GroupConfig, WorldConfig
from kv_sim.engine.request import SimRequest, Status
from kv_sim.engine.request_spec import RequestSpec, Turn
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.fuzz import run_seed
from kv_sim.history.draws import config_for
from kv_sim.watching.describe import describe, describe_state
from kv_sim.world import World

TURN = Turn(3, 2, 2)


def spec(name: str = "r1", *turns: Turn, tokens: int = 6, output: int = 2) -> dict[str, Any]:
    return RequestSpec(name, 0, tokens, 0, output, output, turns=turns).to_json()


def turn(name: str = "r1") -> Action:
    return Action(Kind.TURN, {"request": name})


# -- what it holds ------------------------------------------------------------------------------


def test_a_turn_begins_with_all_but_the_last_token() -> None:
    made = SimRequest(RequestSpec("r1", 2, 5, 1, 3, 4, turns=(Turn(4, 2, 3), Turn(1, 1, 1))), 4, 40)
    before: list[int] = []
    for count, output, most in ((6, 3, 4), (12, 2, 3), (14, 1, 1)):
        made.num_output_tokens = output
        prompt, held = list(made.prompt_token_ids), list(made.all_token_ids)
        assert (len(prompt), made.asked.output_tokens, made.asked.max_tokens) == (count, output, most)
        assert not made.turn or prompt == before[:-1] + list(made.spec.said_in(made.turn))
        names = [int(made.hashes[end - 1]).to_bytes(8, "big") for end in range(4, len(held) + 1, 4)]
        assert made.block_hashes == names
        before = held
        if made.turn < 2:
            made.begin_turn()
    assert made.spec.total_tokens == len(before)


def test_what_it_says_depends_on_its_conversation_and_its_own_part_on_its_name() -> None:
    made = RequestSpec("r1", 3, 4, 3, 2, 2, turns=(Turn(3, 1, 1), Turn(2, 1, 1)))
    assert (made.prompt, made.said_in(1), made.said_in(2), made.total_tokens) == (
        (3003, 489, 598, 588, 1009, 1939, 1588),
        (2215, 2876, 2330),
        (2983, 2093),
        14,
    )


@pytest.mark.parametrize("per_block", [1, 2, 4])
def test_it_has_known_the_full_blocks_of_each_turn(per_block: int) -> None:
    """In earlier turns with the token that it dropped."""
    for output in range(2, 7):
        made = SimRequest(RequestSpec("r1", 2, 5, 1, output, 9, turns=(Turn(4, 2, 3),)), 4, 40, per_block)
        made.num_output_tokens, known = output, []
        for _ in range(2):
            now = [int(made.hashes[end - 1]).to_bytes(8, "big") for end in range(4, made.num_tokens + 1, 4)]
            assert [list(names) for names in made.known_hashes()] == [*known, now]
            if not made.turn:
                known.append(now)
                made.begin_turn()


def test_sessions_of_one_conversation_get_the_same_tokens() -> None:
    one, other = (RequestSpec(name, 1, 8, 0, 1, 1, turns=(TURN,)) for name in ("r1", "r2"))
    assert one.said_in(1) == other.said_in(1) != RequestSpec("r1", 2, 8, 0, 1, 1, turns=(TURN,)).said_in(1)


def test_conversations_differ_in_their_first_token_alone() -> None:
    """So the same tokens come at the same places after another beginning: only a hash of all tells them apart."""
    told = [RequestSpec("r1", conversation, 30, 0, 1, 1).prompt for conversation in (0, 1, 4, 39_999)]
    assert len({prompt[0] for prompt in told}) == len({prompt[:30] for prompt in told}) == 4
    assert len({prompt[1:] for prompt in told}) == 1
    assert RequestSpec("r1", 1, 0, 3, 1, 1).prompt == RequestSpec("r1", 0, 0, 3, 1, 1).prompt


def test_of_very_many_conversations_no_two_begin_alike() -> None:
    """A recorded schedule may have one for each prompt, and some would have the first token of others."""
    one, other = (RequestSpec("r1", conversation, 3, 0, 1, 1).prompt for conversation in (7, 40_007))
    assert (one[0], one[1:]) != (other[0], other[1:])


def test_nothing_is_said_twice_in_a_conversation_and_its_turns() -> None:
    one = RequestSpec("r1", 3, 30, 0, 1, 1, turns=(Turn(30, 1, 1),) * 3)
    told = [one.prompt, *(one.said_in(turn) for turn in (1, 2, 3))]
    parts = [tokens[place : place + 3] for tokens in told for place in range(28)]
    assert len(set(parts)) == len(parts) == 4 * 28


@pytest.mark.parametrize("turns", [None, (), (TURN, Turn(1, 1, 4))])
def test_a_session_is_written_and_read(turns: tuple[Turn, ...] | None) -> None:
    made = RequestSpec("r1", 0, 5, 0, 1, 1, turns=turns)
    assert RequestSpec.from_json(made.to_json()) == made
    assert ("turns" in made.to_json()) == (turns is not None)


# -- what the scheduler does --------------------------------------------------------------------


def test_it_waits_with_its_blocks_and_goes_on_as_a_new_request_without_a_match() -> None:
    made = Steps(max_running=1)
    r1 = made.add("r1", 6, 2, turns=(TURN,))
    made.step()
    made.step()
    assert (r1.status, made.queues) == (Status.WAITING_FOR_STREAMING_REQ, ([], [], ["r1"]))
    assert (r1.num_computed_tokens, r1.num_tokens, made.scheduler.has_work) == (7, 8, False)
    made.connector.calls.clear()
    made.add("r2", 5)
    assert made.step() == {}  # a session that waits has the place of one that runs
    made.outcome.take_turn(r1)
    assert (r1.status, r1.turn, r1.num_tokens) == (Status.WAITING, 1, 10)
    assert made.schedule() == {"r1": 3}
    ((request, tables, external),) = made.connector.take("update_state_after_alloc")
    assert (request, [len(table) for table in tables.groups], external) == (r1, [3], 0)
    (new,) = made.under_way[-1].output.scheduled_new_reqs
    assert (new.req_id, new.num_computed_tokens, len(new.prompt_token_ids)) == ("r1", 7, 10)
    made.process()
    made.step()
    assert r1.status is Status.WAITING_FOR_STREAMING_REQ
    made.outcome.take_turn(r1)
    assert (r1.status, r1.may_hear_more) == (Status.FINISHED_ABORTED, False)
    assert [name for name, _ in made.connector.take("ended")] == ["r1"]


def test_sessions_that_stop_in_one_step_wait_in_the_order_in_which_they_ran() -> None:
    made = Steps()
    for name in ("r1", "r2"):
        made.add(name, 6, 1, turns=(TURN,))
    assert made.step() == {"r1": 6, "r2": 6}
    assert made.queues == ([], [], ["r1", "r2"])


@pytest.mark.parametrize("arrived", [1, 2])
def test_what_arrives_before_it_stops_waits_for_that(arrived: int) -> None:
    made = Steps()
    r1 = made.add("r1", 6, 1, turns=(TURN,))
    for _ in range(arrived):
        made.outcome.take_turn(r1)
    assert (r1.status, r1.turn) == (Status.WAITING, 0)
    made.step()
    assert (r1.status, r1.turn, made.queues) == (Status.WAITING, 1, ([], [], ["r1"]))
    made.step()
    made.step()
    ended = Status.WAITING_FOR_STREAMING_REQ if arrived == 1 else Status.FINISHED_LENGTH_CAPPED
    assert (r1.status, made.scheduler.num_paused) == (ended, 2 - arrived)


def test_what_steps_under_way_compute_of_its_last_turn_is_dropped() -> None:
    made = Steps(run_ahead=2, async_scheduling=True)
    r1 = made.add("r1", 6, 1, turns=(TURN,), max_tokens=9)
    made.outcome.take_turn(r1)
    made.schedule()
    made.schedule()
    made.process()
    assert (r1.num_computed_tokens, r1.num_tokens, r1.num_stale_output_tokens) == (6, 9, 1)
    assert made.schedule() == {"r1": 3}
    made.process()
    assert (r1.num_output_tokens, r1.num_stale_output_tokens) == (0, 0)
    made.process()
    assert (r1.num_output_tokens, r1.num_computed_tokens) == (1, 9)


def test_drafts_of_its_last_turn_that_were_rejected_count_for_nothing() -> None:
    made = Steps(run_ahead=2, async_scheduling=True, spec_tokens=1)
    r1 = made.add("r1", 6, 1, turns=(TURN,), max_tokens=9)
    made.outcome.take_turn(r1)
    made.schedule()
    assert (made.schedule(r1=1), made.drafts) == ({"r1": 2}, {"r1": 1})
    made.process()
    assert made.schedule() == {"r1": 3}
    (attention,) = made.under_way[-1].attentions
    assert (attention.start, attention.end) == (6, 9)


def test_blocks_of_one_that_is_aborted_while_it_waits_come_back_after_its_steps() -> None:
    """And its id is free for another session."""
    made = Steps(run_ahead=1, async_scheduling=True)
    r1 = made.add("r1", 6, 1, turns=(TURN,), max_tokens=9)
    made.schedule()
    made.schedule()
    made.process()
    assert (r1.status, r1.num_in_flight_tokens) == (Status.WAITING_FOR_STREAMING_REQ, 1)
    made.outcome.finish(["r1"], Status.FINISHED_ABORTED)
    pool = made.scheduler.blocks.block_pool
    assert (pool.num_free, made.queues) == (21, ([], [], []))
    made.process()
    assert pool.num_free == 23
    again = made.add("r1", 6, 1, turns=(TURN,))
    made.outcome.take_turn(again)
    assert [made.step(), made.step()] == [{"r1": 2}, {"r1": 3}]


def test_one_that_is_preempted_when_it_stops_is_matched_again() -> None:
    made = Steps(run_ahead=1, async_scheduling=True, role="kv_producer")
    r1 = made.add("r1", 6, 1, turns=(TURN,))
    made.schedule()
    made.scheduler.preempt(made.scheduler.running.pop(), drop_stale_output=False)
    made.process()
    assert (r1.status, made.queues) == (Status.WAITING_FOR_STREAMING_REQ, ([], ["r1"], []))
    assert not made.scheduler.has_work
    made.connector.has["r1"] = (4, False)
    made.outcome.take_turn(r1)
    assert made.schedule() == {"r1": 5}
    (new,) = made.under_way[-1].output.scheduled_new_reqs
    assert (new.req_id, new.num_computed_tokens) == ("r1", 4)


@pytest.mark.parametrize("is_async", [False, True])
def test_one_that_is_preempted_in_a_later_turn_loads_all_of_it_and_resumes(is_async: bool) -> None:
    made = Steps(max_step_tokens=32)
    r1 = made.add("r1", 6, 1, turns=(Turn(3, 4, 4),))
    made.outcome.take_turn(r1)
    assert [made.step(), made.step()] == [{"r1": 6}, {"r1": 3}]
    made.scheduler.preempt(made.scheduler.running.pop(), drop_stale_output=False)
    made.scheduler.blocks.block_pool.reset()
    made.connector.has["r1"] = (8, is_async)
    if is_async:
        assert made.schedule() == {}
        made.process(finished_recving={"r1"})
    assert made.schedule() == {"r1": 2}
    output = made.under_way[-1].output
    assert (output.scheduled_new_reqs, output.scheduled_cached_reqs.resumed_req_ids) == ([], {"r1"})
    made.process()
    assert (r1.turn, r1.num_tokens, r1.num_output_tokens) == (1, 11, 2)


def test_a_window_gives_up_what_it_has_passed_before_it_gets_more() -> None:
    made = Steps(groups=(GroupConfig(), GroupConfig("sliding", 4)), num_blocks=12, max_step_tokens=32)
    r1 = made.add("r1", 16, 1, turns=(TURN,))
    made.step()
    made.outcome.take_turn(r1)
    made.schedule()
    assert made.scheduler.blocks.tables["r1"].groups[1][:3] == [0, 0, 0]


def test_a_window_has_not_passed_what_a_step_under_way_may_read() -> None:
    groups = (GroupConfig(), GroupConfig("sliding", 4))
    made = Steps(groups=groups, num_blocks=16, run_ahead=1, async_scheduling=True)
    r1 = made.add("r1", 15, 1, turns=(TURN,), max_tokens=9)
    made.outcome.take_turn(r1)
    made.schedule()
    made.schedule()
    made.process()
    assert (r1.num_computed_tokens, r1.num_in_flight_tokens, made.schedule()) == (15, 1, {"r1": 3})
    assert [block == 0 for block in made.scheduler.blocks.tables["r1"].groups[1]] == [True, True, *[False] * 3]


# -- what a world does --------------------------------------------------------------------------


def test_when_a_turn_may_arrive() -> None:
    world = World(WorldConfig(), SUBJECTS["memory"])
    assert not world.apply(turn())
    world.apply(Action(Kind.ADD, {"spec": spec("r1", TURN)}))
    world.apply(Action(Kind.ADD, {"spec": RequestSpec("r2", 0, 5, 0, 1, 1).to_json()}))
    assert [world.apply(turn(name)) for name in ("r2", "r1", "r1", "r1")] == [False, True, True, False]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_at_rest_a_session_gets_its_turns_and_ends(count: int) -> None:
    world = World(WorldConfig(), SUBJECTS["later"])
    world.apply(Action(Kind.ADD, {"spec": spec("r1", TURN, TURN)}))
    for _ in range(3):
        world.apply(Action(Kind.STEP))
    for _ in range(count):
        world.apply(turn())
    world.rest()
    first = world.engine.outcome.ended[0]
    assert (first.request_id, first.turn, first.turns_arrived) == ("r1", 2, 3)


def test_worlds_draw_sessions_where_no_state_could_have_run_ahead() -> None:
    drawn = [config_for(SUBJECTS["offload"], Random(seed)) for seed in range(300)]
    assert 75 < sum(config.sessions for config in drawn) < 115
    for config in drawn:
        has_states = any(group.kind == "state" for group in config.groups)
        assert not (config.sessions and has_states and config.async_scheduling)


@pytest.mark.once
def test_histories_have_sessions_in_all_situations() -> None:
    all_of_them = {
        "a session goes on",
        "a session goes on before its last turn is over",
        "a session's next input comes before it stops",
        "a session ends while it waits",
    }
    seen: set[str] = set()
    for seed in range(60):
        run = run_seed(SUBJECTS["memory"], seed)
        assert run.failure is None
        seen |= {name for name in run.coverage.situations if "session" in name}
        if seed >= 10 and seen == all_of_them:
            break
    assert seen == all_of_them


def test_a_session_reads_like_this() -> None:
    added = Action(Kind.ADD, {"spec": spec("r1", TURN)})
    assert describe(added).endswith("samples 2 of at most 2, a session; 3 more, samples 2")
    assert describe(Action(Kind.ADD, {"spec": spec("r1")})).endswith("samples 2 of at most 2, a session")
    assert describe(turn()) == "turn     r1"
    made = SimRequest(RequestSpec("r1", 0, 5, 0, 1, 1, turns=(TURN,)), 4, 16)
    states = [describe_state(made)]
    made.begin_turn()
    assert [*states, describe_state(made)] == ["waiting", "waiting, turn 2"]
