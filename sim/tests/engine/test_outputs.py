"""What a step's output changes: the books of requests, ends, frees that wait."""

from itertools import product
from random import Random
from typing import Any

import pytest
from kv_sim_steps import Steps

from kv_sim.config import STATE, GroupConfig
from kv_sim.engine.output import Step
from kv_sim.engine.request import SimRequest, Status
from kv_sim.engine.request_spec import Turn
from kv_sim.violation import Invariant, Violation


class Book:
    """What an obvious accountant knows of one request: its steps under way, and what came of the others."""

    def __init__(self, made: Steps, request: SimRequest) -> None:
        self.made, self.request = made, request
        self.under_way: list[list[Any]] = []
        """Of each step: tokens, drafts, rejected ones, whether it samples, whether it is stale."""
        self.position: int | None = 0
        """Where the device is; None: that is seen when the request is admitted again."""
        self.output = 0

    def scheduled(self, step: Step) -> None:
        name = self.request.request_id
        count, drafts = step.output.num_scheduled_tokens.get(name, 0), self.made.drafts.get(name, 0)
        rejected = step.rejected.get(name, 0)
        self.under_way.append([count, drafts, rejected, name in step.sampling, False])
        for attention in step.attentions:
            assert self.position in (None, attention.start), "a step begins where the model is"
            assert attention.end == attention.start + count
            self.position = attention.end - rejected

    def is_processed(self) -> None:
        _, drafts, rejected, samples, is_stale = self.under_way.pop(0)
        if samples and not (is_stale and self.request.drop_stale_output):
            self.output = min(self.output + 1 + drafts - rejected, self.request.spec.output_tokens)

    def lost(self) -> None:
        """Its blocks are gone, and what is under way is stale."""
        self.position = None
        for step in self.under_way:
            step[4] = True

    def check(self) -> None:
        request, steps = self.request, self.under_way
        fresh = [step for step in steps if not step[4]]
        is_async = self.made.config.async_scheduling
        assert {
            "output": request.num_output_tokens,
            "in flight": request.num_in_flight_tokens,
            "stale": request.num_stale_output_tokens,
            "unseen": request.num_unseen_rejects,
            "placeholders": request.num_output_placeholders,
        } == {
            "output": self.output,
            "in flight": sum(step[0] for step in steps),
            "stale": sum(step[0] for step in steps if step[4]),
            "unseen": sum(step[2] for step in fresh),
            "placeholders": sum(1 + step[1] for step in fresh if step[3]) if is_async else 0,
        }
        computed = 0 if self.position is None else self.position + request.num_unseen_rejects
        assert request.num_computed_tokens == computed


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("spec", [0, 1, 2])
@pytest.mark.parametrize(("ahead", "is_async"), [(0, False), (1, False), (1, True), (2, True)])
def test_the_books_of_a_request_agree_with_its_steps(spec: int, ahead: int, is_async: bool, drop: bool) -> None:
    for seed in range(20):
        random = Random(seed)
        made = Steps(
            spec_tokens=spec, run_ahead=ahead, async_scheduling=is_async, max_step_tokens=4, num_blocks=16
        )
        request = made.add("r1", random.randint(1, 9), 12)
        book = Book(made, request)
        while not request.status.is_finished:
            if len(made.under_way) <= ahead and (not made.under_way or random.random() < 0.6):
                made.schedule(r1=random.randint(0, 2))
                book.scheduled(made.under_way[-1])
            elif request.status is Status.RUNNING and random.random() < 0.1:
                made.scheduler.preempt(made.scheduler.running.pop(), drop_stale_output=drop)
                book.lost()
            else:
                made.process()
                book.is_processed()
            if not request.status.is_finished:
                book.check()
        assert request.num_output_tokens == 12


@pytest.mark.parametrize("all_groups", [False, True])
@pytest.mark.parametrize("spec", [0, 1, 2])
@pytest.mark.parametrize(("ahead", "is_async"), [(0, False), (1, True)])
def test_who_ends_shows_and_leaves_what_it_computed(
    ahead: int, is_async: bool, spec: int, all_groups: bool
) -> None:
    """The last token that it samples is computed by nobody, and of wrong drafts nothing counts."""
    for tokens, output, rejects in product((4, 5), (1, 2, 3, 4), range(spec + 1)):
        made = Steps(
            spec_tokens=spec, block_size=2, all_groups=all_groups, run_ahead=ahead, async_scheduling=is_async
        )
        request = made.add("r1", tokens, output)
        while "r1" in made.scheduler.requests:
            made.schedule(r1=rejects)
            if len(made.under_way) > ahead:
                made.process()
        computed, pool = tokens + output - 1, made.scheduler.blocks.block_pool
        (told,) = made.connector.take("ended")
        shown = list(told[1][0] if all_groups else told[1])
        if not is_async:  # else a step that came too late was computed, too
            assert shown == list(range(1, -(-computed // 2) + 1))
        found = [pool.find(0, name) is not None for name in request.hashes_up_to(tokens + 8)]
        assert found == [index < computed // 2 for index in range(len(found))]


@pytest.mark.parametrize("hold", [False, True])
@pytest.mark.parametrize(
    "place", ["running", "waiting", "loading", "loaded", "failed", "preempted", "paused", "goes on"]
)
def test_who_is_aborted_leaves_everything(place: str, hold: bool) -> None:
    """It keeps its blocks while a load of it is under way, or if the connector wants them."""
    made = Steps()
    scheduler, pool = made.scheduler, made.scheduler.blocks.block_pool
    is_session = place in ("paused", "goes on")
    request = made.add("r1", 9, 1 if is_session else 4, turns=(Turn(3, 1, 1),) if is_session else None)
    if place in ("loading", "loaded", "failed"):
        made.connector.has["r1"] = (8, True)
        made.schedule()
        if place == "loading":
            made.process()
        else:
            made.process(finished_recving={"r1"}, failed_recving={"r1"} if place == "failed" else set())
    elif place != "waiting":
        made.step()
    if place == "preempted":
        scheduler.preempt(scheduler.running.pop(), drop_stale_output=False)
    if place == "goes on":
        made.outcome.take_turn(request)
    made.connector.holds = {"r1"} if hold else set()
    if hold and place == "loading":
        with pytest.raises(Violation, match="request r1: request_finished holds its blocks for a store while its"):
            made.outcome.finish(["r1"], Status.FINISHED_ABORTED)
        return
    made.outcome.finish(["r1", "r2"], Status.FINISHED_ABORTED)
    made.outcome.finish(["r1"], Status.FINISHED_ERROR)
    stays = hold or place == "loading"
    assert (list(scheduler.requests), request.status, request.is_held) == (
        ["r1"] if stays else [],
        Status.FINISHED_ABORTED,
        hold,
    )
    assert (made.queues, scheduler.loaded, scheduler.failed_loads) == (([], [], []), set(), set())
    assert (scheduler.finished_req_ids, made.outcome.ended) == ({"r1"}, [request])
    assert scheduler.inflight_prefills == []
    assert (set(scheduler.shadow.load_rights.values()) == {"r1"}) == (place == "loading")
    made.schedule()
    made.process(**{"finished_recving" if place == "loading" else "finished_sending": {"r1"} if stays else None})
    assert (scheduler.requests, pool.num_free, scheduler.has_work) == ({}, 23, False)
    assert scheduler.shadow.load_rights == {}


@pytest.mark.parametrize(("under_way", "passed"), [(True, 0), (False, 2)])
def test_who_is_aborted_keeps_what_a_step_under_way_may_still_read(under_way: bool, passed: int) -> None:
    """What its window has passed is gone only when that step has come back."""
    made = Steps(groups=(GroupConfig(), GroupConfig("sliding", 4)))
    made.add("r1", 12, 4)
    made.schedule()
    if not under_way:
        made.process()
    made.outcome.finish(["r1"], Status.FINISHED_ABORTED)
    ((_, (full, window)),) = made.connector.take("ended")
    assert ([block == 0 for block in window], 0 in full) == ([index < passed for index in range(3)], False)


@pytest.mark.parametrize("loads", [False, True])
def test_blocks_come_back_in_the_order_of_the_names(loads: bool) -> None:
    """A report is a set, and a set has no order that two processes share."""
    made = Steps(max_step_tokens=64)
    names = ["r3", "r1", "r2"]
    made.connector.has = dict.fromkeys(names if loads else (), (8, True))
    made.connector.holds = set() if loads else set(names)
    blocks = {}
    for name in names:
        made.add(name, 9, 4)
    made.schedule()
    for name in names:
        blocks[name] = made.scheduler.blocks.tables[name].get_block_ids()[0]
    made.scheduler.blocks.block_pool.key_of.clear()
    made.scheduler.blocks.block_pool.cached.clear()
    made.outcome.finish(names, Status.FINISHED_ABORTED)
    made.process(**{"finished_recving" if loads else "finished_sending": set(names)})
    assert [ended.request_id for ended in made.outcome.ended] == ["r1", "r2", "r3"]
    order = [block for name in ("r3", "r2", "r1") for block in reversed(blocks[name])]
    assert list(made.scheduler.blocks.block_pool.free_queue)[: len(order)] == order


@pytest.mark.parametrize("ahead", [0, 1])
def test_the_end_of_a_prompt_leaves_the_cache_before_its_beginning(ahead: int) -> None:
    """Freed at once, or when the step that was under way has come back."""
    made = Steps(run_ahead=ahead)
    made.add("r1", 12, 4)
    made.schedule()
    [blocks] = made.scheduler.blocks.tables["r1"].get_block_ids()
    made.outcome.finish(["r1"], Status.FINISHED_ABORTED)
    assert len(made.scheduler.deferred_frees) == ahead
    made.process()
    assert list(made.scheduler.blocks.block_pool.free_queue)[-3:] == blocks[::-1]


def test_a_connector_hears_of_a_report_before_what_that_frees_is_free() -> None:
    made = Steps()
    made.connector.holds = {"r1"}
    made.add("r1", 9)
    made.step()
    heard: list[tuple[list[str], int]] = []

    def hears(report: Any) -> None:
        heard.append((list(made.scheduler.requests), made.scheduler.blocks.block_pool.num_free))

    made.connector.update_connector_output = hears  # type: ignore[attr-defined]
    made.schedule()
    made.process(finished_sending={"r1"})
    assert heard == [(["r1"], 20)]
    assert (made.scheduler.requests, made.scheduler.blocks.block_pool.num_free) == ({}, 23)


def test_whose_blocks_two_reports_free_loses_them_once() -> None:
    """A connector that holds the blocks of an aborted load, and is forgiven, may tell both ends in one report."""
    made = Steps()
    made.referee.switched_off.add(Invariant.PROTOCOL)
    made.connector.has["r1"], made.connector.holds = (8, True), {"r1"}
    made.add("r1", 9)
    made.schedule()
    made.outcome.finish(["r1"], Status.FINISHED_ABORTED)
    made.process(finished_recving={"r1"}, finished_sending={"r1"})
    assert (made.scheduler.requests, made.scheduler.blocks.block_pool.num_free) == ({}, 23)


@pytest.mark.parametrize("role", ["kv_both", "kv_consumer", "kv_producer"])
@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_freed_blocks_wait_for_the_steps_that_were_scheduled_before(role: Any, ahead: int) -> None:
    """With steps under way, and not for a producer, which has no loads that could come into them."""
    made = Steps(role=role, run_ahead=ahead, async_scheduling=ahead > 0, block_size=8, max_step_tokens=32)
    free = []
    made.add("r1", 17, 8)
    made.add("r2", 9, 8)
    for _ in range(ahead + 1):
        made.schedule()
    made.outcome.finish(["r1"], Status.FINISHED_ABORTED)
    free.append(made.scheduler.blocks.block_pool.num_free)
    for _ in range(ahead + 1):
        made.process()
        free.append(made.scheduler.blocks.block_pool.num_free)
        made.schedule()  # for this one nobody waits
    waits = 3 if ahead and role != "kv_producer" else 0
    assert free == [21 - waits] * (ahead + 1) + [21]


def test_of_those_that_wait_only_what_no_step_writes_any_more_is_freed() -> None:
    made = Steps(run_ahead=1, async_scheduling=True, max_step_tokens=32)
    made.add("r1", 9, 8)
    made.add("r2", 5, 8)
    for name in ("r1", "r2"):
        made.schedule()
        made.outcome.finish([name], Status.FINISHED_ABORTED)
    free = [made.scheduler.blocks.block_pool.num_free]
    for _ in range(2):
        made.process()
        free.append(made.scheduler.blocks.block_pool.num_free)
    assert free == [23 - 3 - 2, 23 - 2, 23]


def test_blocks_that_no_step_computed_come_back_with_the_report_of_their_load() -> None:
    made = Steps(run_ahead=1, async_scheduling=True)
    made.connector.has["r1"] = (8, True)
    made.add("r1", 9)
    made.schedule()
    made.outcome.finish(["r1"], Status.FINISHED_ABORTED)
    made.process(finished_recving={"r1"})
    assert (made.scheduler.requests, made.scheduler.blocks.block_pool.num_free) == ({}, 23)


@pytest.mark.parametrize("role", ["kv_both", "kv_consumer", "kv_producer"])
@pytest.mark.parametrize("keeps", [False, True])
def test_who_stores_is_shown_the_state_that_a_request_ends_with(role: Any, keeps: bool) -> None:
    made = Steps(
        num_blocks=40,
        block_size=8,
        hashes_per_block=4,
        groups=(GroupConfig(), STATE),
        hands_over_states=True,
        role=role,
    )
    made.connector.keeps_tails = keeps
    request = made.add("r1", 13, 4)
    made.step()
    tables = made.scheduler.blocks.tables["r1"].get_block_ids()
    made.outcome.finish(["r1"], Status.FINISHED_ABORTED)
    state = tables[1][1]
    shown = [] if role == "kv_consumer" else [("r1", (tables[0], [0, state]), [(1, state, 12)])]
    assert made.connector.take("tail") == shown
    assert request.is_held == (keeps and bool(shown))


@pytest.mark.parametrize(
    ("output", "most", "longest", "ended"),
    [
        (1, 1, 40, Status.FINISHED_LENGTH_CAPPED),
        (1, 2, 40, Status.FINISHED_STOPPED),
        (3, 3, 40, Status.FINISHED_LENGTH_CAPPED),
        (3, 4, 40, Status.FINISHED_STOPPED),
        (3, 4, 10, Status.FINISHED_STOPPED),
        (3, 4, 9, Status.FINISHED_LENGTH_CAPPED),
    ],
)
def test_an_end_at_a_limit_is_no_stop(
    output: int, most: int, longest: int, ended: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is the request's own, or the engine's for all tokens of a request."""
    made = Steps()
    monkeypatch.setitem(vars(made.config), "max_model_len", longest)
    r1 = made.add("r1", 6, output, max_tokens=most)
    for _ in range(output):
        assert not r1.status.is_finished
        made.step()
    assert r1.status is ended
    assert (ended.is_finished, ended.ran_to_its_end) == (True, True)


@pytest.mark.parametrize("status", Status)
def test_who_has_ended_ran_to_its_end_or_was_ended(status: Status) -> None:
    was_ended = status in (Status.FINISHED_ABORTED, Status.FINISHED_ERROR)
    assert status.is_finished is status.name.startswith("FINISHED_")
    assert status.ran_to_its_end is (status.is_finished and not was_ended)
