"""A step by itself: what becomes of its plan for the connector and the devices, what its output changes."""

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kv_sim.actions import Action, Kind
from kv_sim.config import NULL, WorldConfig
from kv_sim.engine.blocks import Tables
from kv_sim.engine.output import BlockCopy
from kv_sim.engine.plan import StepPlan
from kv_sim.engine.pool import BlockPool
from kv_sim.engine.request import SimRequest, Status
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import LATER, MEMORY
from kv_sim.subject import Subject
from kv_sim.violation import Invariant
from kv_sim.world import World


def request(name: str, computed: int = 0, **of: Any) -> SimRequest:
    made = SimRequest(RequestSpec(name, 0, 10, 0, 8, 8), 4, 24)
    made.num_computed_tokens = computed
    for attribute, value in of.items():
        setattr(made, attribute, value)
    return made


def plan() -> StepPlan:
    """Two that run, one of them with drafts, one that is new, and one that comes back after a preemption.

    One that is new was preempted before: a session in an earlier turn.
    """
    made = StepPlan(40)
    made.new_blocks = {"r1": ([5], []), "r2": ([], [])}
    made.run(request("r1", 4), 6)
    made.run(
        request(
            "r2", 12, num_output_tokens=2, num_output_placeholders=1, num_draft_tokens=3, is_prefill_chunk=False
        ),
        4,
    )
    made.admit(request("r3", num_preemptions=1), 0, 10, Tables(([1, 2], [3, 4])))
    made.padded["r4"] = 2
    made.admit(request("r4", status=Status.PREEMPTED, num_output_tokens=3), 8, 3, Tables(([6, 7], [8, 9])))
    return made


def told(output: Any) -> dict[str, Any]:
    values = {name: value for name, value in vars(output).items() if value not in (None, [], {}, set())}
    values["scheduled_new_reqs"] = [
        (new.req_id, list(new.prompt_token_ids), new.block_ids, new.num_computed_tokens)
        for new in output.scheduled_new_reqs
    ]
    values["scheduled_cached_reqs"] = asdict(output.scheduled_cached_reqs)
    return values


@pytest.mark.parametrize("runner", [1, 2])
@pytest.mark.parametrize("zeroes", [False, True])
def test_what_the_connector_and_the_workers_see(runner: Any, zeroes: bool) -> None:
    """Runner V1 has who comes back among the known ones, V2 among the new ones, the last."""
    made = plan()
    assert made.budget == 40 - 6 - 4 - 10 - 3
    made.fresh, made.has_sync_loads = [5, 6, 7], True
    made.load(request("r5"), [6], is_async=True)
    made.copies = [BlockCopy(1, 2)]
    prompt = list(request("r1").prompt_token_ids)
    new = [("r3", prompt, ([1, 2], [3, 4]), 0)]
    cached = {
        "req_ids": ["r1", "r2"],
        "resumed_req_ids": set(),
        "new_block_ids": [([5], []), None],
        "num_computed_tokens": [4, 12],
        "num_output_tokens": [0, 3],
    }
    back = ([6, 7], [8, 9])
    if runner == 2:
        new.append(("r4", prompt, back, 8))
    else:
        for name, value in (("req_ids", "r4"), ("new_block_ids", back), ("num_computed_tokens", 8)):
            cached[name].append(value)  # type: ignore[attr-defined]
        cached["num_output_tokens"].append(3)  # type: ignore[attr-defined]
        cached["resumed_req_ids"] = {"r4"}
    output = made.output(WorldConfig(runner=runner, zero_new_blocks=zeroes), {"r8"}, {"r9"})
    seen = told(output)
    known = seen.pop("scheduled_cached_reqs")
    assert {name: known[name] for name in cached} == cached
    assert seen == {
        "scheduled_new_reqs": new,
        "num_scheduled_tokens": {"r1": 6, "r2": 4, "r3": 10, "r4": 3},
        "total_num_scheduled_tokens": 23,
        "scheduled_spec_decode_tokens": {"r2": [-1] * 3, "r4": [-1] * 2},
        "finished_req_ids": {"r8"},
        "preempted_req_ids": {"r9"},
        "has_sync_kv_loads": True,
        "kv_cache_block_copies": [(1, 2)],
        **({"new_block_ids_to_zero": [5, 7]} if zeroes else {}),
    }


def test_an_empty_step_says_nothing() -> None:
    output = StepPlan(4).output(WorldConfig(zero_new_blocks=True), set(), set())
    assert (output.new_block_ids_to_zero, output.kv_cache_block_copies) == (None, None)
    assert (output.total_num_scheduled_tokens, output.has_sync_kv_loads) == (0, False)


@pytest.mark.parametrize(("tokens", "drafts"), [(1, None), (2, 1), (4, 3)])
def test_how_many_drafts_a_running_request_has(tokens: int, drafts: int | None) -> None:
    made, one = StepPlan(9), request("r1", 10, num_output_tokens=1, num_draft_tokens=3, is_prefill_chunk=False)
    made.run(one, tokens)
    assert made.drafts == ({} if drafts is None else {"r1": drafts})
    assert (made.has_prefill, made.continued, made.counts) == (False, [one], {"r1": tokens})
    made.run(request("r2", 4), 2)
    assert made.has_prefill
    made.run(one, 1)
    assert made.has_prefill, "somebody's is enough"


def test_new_blocks_that_nothing_is_promised_for_are_poisoned() -> None:
    made = StepPlan(9)
    made.fresh, made.copies = [1, 2, 3, 4, 5, 6], [BlockCopy(2, 4)]
    made.load(request("r1"), [1, 9], is_async=True)
    made.load(request("r2"), [3], is_async=False)
    made.load(request("r3"), [6], is_async=True)
    assert made.poison == [2, 5]
    assert (made.async_targets, made.sync_targets) == ([1, 9, 6], {"r2": [3]})


def test_what_devices_compute_and_which_drafts_are_wrong() -> None:
    """Where drafts were rejected that the scheduler doesn't know of yet, a request is not as far as it thinks."""
    made = StepPlan(40)
    one = request("r1", 12, num_unseen_rejects=1)
    two = request("r2", 4)
    made.counts, made.drafts = {"r1": 4, "r2": 3}, {"r1": 3}
    asked = []

    def reject(name: str, drafts: int) -> int:
        asked.append((name, drafts))
        return 2

    blocks: Any = SimpleNamespace(tables={name: Tables(([1, 2, 3, 4],)) for name in ("r1", "r2")})
    made.attend({"r1": one, "r2": two}, blocks, reject)
    assert asked == [("r1", 3)]
    assert (made.rejected, one.num_unseen_rejects, two.num_unseen_rejects) == ({"r1": 2}, 3, 0)
    first, second = made.attentions
    assert [(a.request_id, a.start, a.end, a.tables) for a in (first, second)] == [
        ("r1", 11, 15, ((1, 2, 3, 4),)),
        ("r2", 4, 7, ((1, 2, 3, 4),)),
    ]
    assert second.hashes is two.hashes
    wrong = np.nonzero(first.hashes != one.hashes)[0].tolist()
    assert wrong == [13, 14]
    assert first.hashes[13:15].tolist() == one.wrong_draft_hashes(13, 15).tolist()


# -- blocks that a connector holds, and names that move -----------------------------------------


def test_what_a_connector_touches_it_lets_go() -> None:
    pool = BlockPool(6)
    assert list(pool.blocks) == [0, 1, 2, 3, 4, 5]
    pool.touch(iter([2, 3]))
    pool.touch([2, NULL])
    assert (pool.touched, pool.ref_counts, list(pool.free_queue)) == (
        {2: 2, 3: 1, 0: 1},
        [0, 0, 2, 1, 0, 0],
        [1, 4, 5],
    )
    pool.free_blocks(iter([2, NULL, 3]))
    assert (pool.touched, pool.ref_counts, list(pool.free_queue)) == ({2: 1}, [0, 0, 1, 0, 0, 0], [3, 1, 4, 5])
    pool.check()


def test_a_name_moves_and_a_block_has_one() -> None:
    pool = BlockPool(6)
    one, two = pool.allocate(2)
    pool.cache(1, b"a", one)
    pool.cache(1, b"a", one)
    pool.cache(1, b"a", NULL)
    assert (pool.find(1, b"a"), pool.find(0, b"a"), pool.key_of) == (one, None, {one: (1, b"a")})
    pool.move_name(two, one)
    assert pool.key_of == {one: (1, b"a")}, "nobody could find it"
    pool.move_name(one, two)
    assert (pool.find(1, b"a"), pool.key_of) == (two, {two: (1, b"a")})
    pool.cache(0, b"b", two)
    assert (pool.find(1, b"a"), pool.find(0, b"b"), pool.cached) == (None, two, {(0, b"b"): [two]})
    pool.cache(0, b"b", one)
    assert pool.find(0, b"b") == two, "the first that had it"
    pool.uncache(two)
    assert pool.find(0, b"b") == one
    pool.check()


def test_a_request_is_shown_as_far_as_it_is() -> None:
    assert repr(request("r1", 4, num_output_tokens=2, status=Status.PREEMPTED)) == "<request r1 preempted 4/12>"


@pytest.mark.parametrize(
    ("status", "is_held", "awaits_load", "waits"),
    [
        (Status.FINISHED_STOPPED, True, False, ", held, waits for finished_sending"),
        (Status.FINISHED_ABORTED, True, False, ", held, waits for finished_sending"),
        (Status.FINISHED_ABORTED, False, True, ", loading, waits for finished_recving"),
        (Status.FINISHED_STOPPED, False, False, ""),
        (Status.WAITING_FOR_REMOTE_KVS, False, True, ""),
    ],
)
def test_it_is_shown_what_one_that_ended_waits_for(
    status: Status, is_held: bool, awaits_load: bool, waits: str
) -> None:
    made = request("r1", 4, status=status, is_held=is_held, awaits_load=awaits_load)
    assert repr(made) == f"<request r1 {status.value} 4/10{waits}>"


@pytest.mark.parametrize(("salt", "adapter"), [(None, None), ("s", None), (None, "s")])
def test_whose_blocks_are_others_says_why(salt: str | None, adapter: str | None) -> None:
    made = SimRequest(RequestSpec("r1", 0, 8, 0, 1, 1, salt=salt, adapter=adapter), 4, 16)
    plain = SimRequest(RequestSpec("r2", 0, 8, 0, 1, 1), 4, 16)
    assert (made.cache_salt, made.lora_request and made.lora_request.lora_name) == (salt, adapter)
    assert (made.block_hashes == plain.block_hashes) is (salt is adapter)
    assert made.prompt_token_ids == plain.prompt_token_ids


@pytest.mark.parametrize(
    ("per_block", "at", "named"),
    [(1, 5, {1: ("i", 1)}), (2, 5, {2: ("i", 1), 3: ("i", 1)}), (2, 6, {3: ("i", 2)}), (1, 8, {})],
)
def test_a_connector_is_told_which_image_a_token_stands_for(
    per_block: int, at: int, named: dict[int, tuple[str, int]]
) -> None:
    """And who judges events, in which block that token is, or part of one. Beyond the prompt there is none."""
    made = SimRequest(RequestSpec("r1", 0, 8, 0, 1, 1, image="i", image_at=at), 4, 16, per_block)
    plain = SimRequest(RequestSpec("r2", 0, 8, 0, 1, 1), 4, 16, per_block)
    assert made.prompt_token_ids == plain.prompt_token_ids
    alike = [ours == theirs for ours, theirs in zip(made.block_hashes, plain.block_hashes, strict=True)]
    assert alike == [end <= at for end in range(4 // per_block, 9, 4 // per_block)]
    told = [(one.identifier, one.modality, *one.mm_position) for one in made.mm_features]
    assert told == ([("i", "image", at, 1)] if named else [])
    assert made.images_by_hash() == {made.block_hashes[index]: image for index, image in named.items()}
    assert plain.mm_features == [] and plain.images_by_hash() == {}
    world = World(WorldConfig(), MEMORY)
    world.engine.add(made.spec)
    assert world.apply(Action(Kind.SCHEDULE))
    (new,) = world.engine.steps[0].output.scheduled_new_reqs
    assert list(new.mm_features) == made.mm_features


@pytest.mark.parametrize("per_block", [1, 2, 4])
def test_a_request_as_long_as_the_model_has_all_hashes(per_block: int) -> None:
    made = SimRequest(RequestSpec("r1", 0, 6, 2, 8, 8), 4, 16, per_block)
    ends = range(4 // per_block, 17, 4 // per_block)
    for output in range(9):
        made.num_output_tokens = output
        hashes = [int(made.hashes[end - 1]).to_bytes(8, "big") for end in ends if end <= 8 + output]
        assert made.block_hashes == hashes
        assert made.fine_hashes_up_to(8 + output) == hashes
        assert made.hashes_up_to(8 + output) == hashes[per_block - 1 :: per_block]
        assert (len(made.all_token_ids), len(made.prompt_token_ids)) == (8 + output, 8)
    names = [None, *made.hashes_up_to(16)]
    whole = [(names[n + 1], names[n], made.all_token_ids[4 * n : 4 * n + 4]) for n in range(4)]
    assert list(made.all_blocks()) == whole


# -- what a step's output changes ---------------------------------------------------------------


def running(subject: Subject = MEMORY, *, tokens: int = 9, output: int = 4, **config: Any) -> World:
    """A world in which the first step of a request has come back."""
    made = World(WorldConfig(**config), subject)
    made.engine.add(RequestSpec("r1", 0, tokens, 0, output, output))
    assert made.apply(Action(Kind.STEP))
    return made


def test_a_connector_is_told_which_rank_it_is_for() -> None:
    made = World(WorldConfig(tp_size=2), MEMORY)
    ranks = [connector._vllm_config.parallel_config.rank for connector in made.engine.connectors]
    assert ranks == [0, 1, 0], "the scheduler's is the last"


def test_a_request_that_ends_has_the_blocks_that_were_computed() -> None:
    """Not those that only rejected drafts reached."""
    told = []
    made = running(tokens=7, output=2, spec_tokens=2)
    half: Any = made.engine.connectors[-1].side  # type: ignore[attr-defined]
    half.request_finished_all_groups = lambda request, blocks: (told.append(blocks), (False, None))[1]
    table = made.engine.scheduler.blocks.tables["r1"].groups[0]
    assert made.apply(Action(Kind.STEP, {"rejects": {"r1": 2}}))
    assert len(table) == 3
    assert told == [(table[:2],)]


@pytest.mark.parametrize(("place", "left"), [(None, 10), (0, 0), (1, 4), (2, 8)])
def test_failed_blocks_set_a_request_back_to_before_the_first(place: int | None, left: int) -> None:
    """And nobody finds it and those behind it any more; blocks of others are no reason."""
    made = running()
    made.referee.switched_off |= {
        Invariant.PROTOCOL,
        Invariant.HITS,
    }  # no load was to fill these, and no copy failed
    (table,) = made.engine.scheduler.blocks.tables["r1"].groups
    worker: Any = made.engine.connectors[0].side  # type: ignore[attr-defined]
    worker.get_block_ids_with_load_errors = lambda: {table[place] if place is not None else 20}
    pool, request_ = made.engine.scheduler.blocks.block_pool, made.engine.scheduler.requests["r1"]
    assert set(pool.key_of) == set(table[:2])
    made.apply(Action(Kind.STEP))
    assert request_.num_computed_tokens == left
    assert set(pool.key_of) == set(table[: min(2, 2 if place is None else place)])
    worker.get_block_ids_with_load_errors = set
    made.rest()
    assert made.engine.outcome.ended[0].num_output_tokens == 4


@pytest.mark.parametrize("policy", ["recompute", "fail"])
def test_what_becomes_of_a_request_whose_load_failed(policy: Any) -> None:
    made = running(failure_policy=policy)
    made.referee.switched_off |= {Invariant.PROTOCOL, Invariant.HITS}  # no load was to fill it, and no copy failed
    worker: Any = made.engine.connectors[0].side  # type: ignore[attr-defined]
    worker.get_block_ids_with_load_errors = lambda: {made.engine.scheduler.blocks.tables["r1"].groups[0][1]}
    made.apply(Action(Kind.STEP))
    statuses = [one.status for one in (*made.engine.outcome.ended, *made.engine.scheduler.requests.values())]
    assert statuses == [Status.FINISHED_ERROR if policy == "fail" else Status.RUNNING]


def test_an_engine_goes_on_for_blocks_that_are_held() -> None:
    made = running(LATER, output=1)
    scheduler = made.engine.scheduler
    assert made.apply(Action(Kind.STEP)), "it tells that the request has ended"
    (held,) = scheduler.requests.values()
    assert (held.is_held, scheduler.finished_req_ids, scheduler.num_running) == (True, set(), 0)
    assert scheduler.has_work
    made.rest()
    assert not scheduler.has_work
