"""What a real engine does beyond the calls: sends copies, leaves out hooks, adds up stats, goes on meanwhile."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from kv_api import CacheHitSource, Direction, KVConnectorMetadata
from kv_api.stats import CountedStats
from kv_sim.actions import Action, Kind
from kv_sim.checkers.accounting import check_sources
from kv_sim.checkers.protocol import check_params, check_step, step_as_it_is
from kv_sim.config import WorldConfig
from kv_sim.engine.crossing import Crossing
from kv_sim.engine.output import BlockCopy, BlockState, CachedRequestData, NewRequestData, SchedulerOutput
from kv_sim.engine.request_spec import RequestSpec, Turn
from kv_sim.examples.catalogue import LATER, MEMORY, PATIENT, SUBJECTS
from kv_sim.fuzz import run_seed
from kv_sim.history.rest import come_to_rest
from kv_sim.memory.errands import Errands
from kv_sim.subject import Subject
from kv_sim.violation import Invariant, Referee, Violation
from kv_sim.world import World


def world_of(subject: Subject, *without: Invariant, **config: Any) -> World:
    """One with a request of three blocks that has just come."""
    referee = Referee()
    referee.switched_off.update(without)
    made = World(WorldConfig(num_blocks=32, **config), subject, referee=referee)
    made.engine.add(RequestSpec("r1", 0, 10, 0, 2, 2))
    return made


def half(made: World, rank: int | None = None) -> Any:
    """The scheduler's, or that of a rank's worker."""
    connector: Any = made.engine.connectors[-1 if rank is None else rank]
    return connector.side


def step(made: World) -> None:
    assert made.apply(Action(Kind.STEP))


def broken(made: World, invariant: Invariant) -> str:
    with pytest.raises(Violation) as raised:
        step(made)
    assert raised.value.invariant is invariant
    return raised.value.message


# -- the step that was decided --------------------------------------------------------------------


def output() -> SchedulerOutput:
    return SchedulerOutput(
        [NewRequestData("r1", [5, 6], ([1], [2]), 0)],
        CachedRequestData(["r2"], {"r3"}, [None, ([4], [])], [3], [1]),
        {"r1": 2},
        2,
        {"r2": [-1]},
        {"r4"},
        {"r5"},
        new_block_ids_to_zero=[7],
        kv_cache_block_copies=[BlockCopy(1, 2)],
        kv_connector_block_state=BlockState({"r1": [(0, 3, 4)]}),
    )


CHANGES: dict[str, Callable[[Any], object]] = {
    "scheduled_new_reqs": lambda one: one.scheduled_new_reqs[0].block_ids[1].append(3),
    "scheduled_cached_reqs": lambda one: one.scheduled_cached_reqs.new_block_ids[1][0].clear(),
    "num_scheduled_tokens": lambda one: one.num_scheduled_tokens.update(r1=1),
    "total_num_scheduled_tokens": lambda one: setattr(one, "total_num_scheduled_tokens", 1),
    "scheduled_spec_decode_tokens": lambda one: one.scheduled_spec_decode_tokens["r2"].append(-1),
    "finished_req_ids": lambda one: one.finished_req_ids.add("r1"),
    "preempted_req_ids": lambda one: one.preempted_req_ids.clear(),
    "has_sync_kv_loads": lambda one: setattr(one, "has_sync_kv_loads", True),
    "new_block_ids_to_zero": lambda one: one.new_block_ids_to_zero.pop(),
    "kv_cache_block_copies": lambda one: one.kv_cache_block_copies.pop(),
    "kv_connector_metadata": lambda one: setattr(one, "kv_connector_metadata", 1),
    "kv_connector_block_state": lambda one: one.kv_connector_block_state.boundary_state_offloads.clear(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_part_of_a_step_is_looked_at(name: str) -> None:
    made = output()
    before = step_as_it_is(made)
    check_step(before, made, Referee())
    assert set(before) == set(CHANGES)
    CHANGES[name](made)
    with pytest.raises(Violation) as raised:
        check_step(before, made, Referee())
    assert raised.value.invariant is Invariant.PROTOCOL
    was, now = before[name], step_as_it_is(made)[name]
    if name != "finished_req_ids":  # whose order is another thing
        assert raised.value.message == (
            f"scheduler side, build_connector_meta changed the step: {name} was {was} and is {now}"
        )


def test_ids_of_a_step_are_told_in_their_order() -> None:
    made = output()
    made.finished_req_ids = {f"r{number}" for number in range(10, 40)}
    before = step_as_it_is(made)
    made.finished_req_ids.clear()
    with pytest.raises(Violation) as raised:
        check_step(before, made, Referee())
    ids = ", ".join(f"'r{number}'" for number in range(10, 40))
    assert raised.value.message.endswith(f": finished_req_ids was {{{ids}}} and is set()")


def test_a_step_of_another_engine_is_its_own_affair() -> None:
    assert step_as_it_is({"finished_req_ids": set()}) == {}
    check_step({}, object(), Referee())


def test_who_takes_ids_out_of_a_step() -> None:
    made = world_of(LATER)
    build = half(made).build_connector_meta

    def build_connector_meta(scheduler_output: Any) -> Any:
        scheduler_output.num_scheduled_tokens.pop("r1")
        return build(scheduler_output)

    half(made).build_connector_meta = build_connector_meta
    assert broken(made, Invariant.PROTOCOL) == (
        "scheduler side, build_connector_meta changed the step: num_scheduled_tokens was {'r1': 10} and is {}"
    )


# -- what a connector may keep ----------------------------------------------------------------------


def test_kept_blocks_are_the_table_that_grows() -> None:
    made, kept = world_of(LATER, max_step_tokens=4), []
    half(made).update_state_after_alloc = lambda request, blocks, tokens: kept.append(blocks)
    step(made)
    assert [len(table) for table in kept[0].get_block_ids()] == [1]
    step(made)
    assert kept[0].get_block_ids() == tuple(made.engine.scheduler.blocks.tables_of("r1").groups)
    assert [len(table) for table in kept[0].get_block_ids()] == [2]
    kept[0].get_block_ids()[0].clear()
    assert [len(table) for table in kept[0].get_block_ids()] == [2]


def test_kept_lists_of_a_request_grow() -> None:
    made = World(WorldConfig(num_blocks=32), LATER)
    request = made.engine.add(RequestSpec("r1", 0, 11, 0, 3, 3))
    kept, prompt, hashes = request.all_token_ids, request.prompt_token_ids, request.block_hashes
    assert (len(kept), len(prompt), len(hashes)) == (11, 11, 2)
    step(made)
    assert (len(kept), len(prompt), len(hashes)) == (12, 11, 3)
    assert request.all_token_ids is kept and request.block_hashes is hashes
    assert hashes == request.known_block_hashes


def test_kept_lists_of_a_session_begin_its_next_turn() -> None:
    made = World(WorldConfig(num_blocks=32), LATER)
    request = made.engine.add(RequestSpec("r1", 0, 8, 0, 3, 3, turns=(Turn(5, 2, 2),)))
    kept, prompt, hashes = request.all_token_ids, request.prompt_token_ids, request.block_hashes
    before = list(kept)
    for _ in range(3):
        step(made)
    made.engine.take_turn("r1")
    assert (len(kept), len(prompt), len(hashes)) == (15, 15, 3)
    assert kept[:8] == before and kept == prompt
    assert hashes == request.known_block_hashes and not request.unlike


@pytest.mark.parametrize("name", ["all_token_ids", "prompt_token_ids", "block_hashes"])
def test_who_changes_a_list_of_a_request(name: str) -> None:
    made = world_of(LATER)
    half(made).update_state_after_alloc = lambda request, blocks, tokens: getattr(request, name).pop(0)
    step(made)
    assert (
        broken(made, Invariant.PROTOCOL) == f"request r1: the connector changed its {name}, which are the engine's"
    )


def test_who_changes_the_params_of_a_request_changes_only_these() -> None:
    made, sent = World(WorldConfig(num_blocks=32), LATER), {"places": [1, 2]}
    request = made.engine.add(RequestSpec("r1", 0, 10, 0, 2, 2, kv_transfer_params=sent))
    request.kv_transfer_params["places"].clear()
    assert sent == {"places": [1, 2]}


# -- between processes ---------------------------------------------------------------------------


@dataclass
class Unsent(KVConnectorMetadata):
    """What can't be sent, or not be taken out again."""

    call: Any = field(default=lambda: None)

    def __getstate__(self) -> Any:
        if self.call == "arrives not":
            return {"call": self.call}
        return vars(self)

    def __setstate__(self, state: Any) -> None:
        raise LookupError("nobody is here")


@pytest.mark.parametrize("size", [1, 2])
def test_each_worker_of_several_gets_a_copy(size: int) -> None:
    made = world_of(MEMORY, tp_size=size)
    sent, bound = [], []
    build = half(made).build_connector_meta
    half(made).build_connector_meta = lambda output: sent.append(build(output)) or sent[-1]
    for rank in range(size):
        bind = half(made, rank).bind_connector_metadata
        half(made, rank).bind_connector_metadata = lambda meta, bind=bind: (bound.append(meta), bind(meta))
    step(made)
    assert sent == bound[:1] and len(bound) == size
    assert all(one == sent[0] and (one is sent[0]) == (size == 1) for one in bound)
    assert size == 1 or bound[0] is not bound[1]
    come_to_rest(made)


@pytest.mark.parametrize("size", [1, 2])
def test_what_is_said_of_a_step_is_what_it_was_before_the_next(size: int) -> None:
    """Also if one object says all, and a step is executed later."""
    made = world_of(MEMORY, tp_size=size, run_ahead=1)
    build, told, bound = half(made).build_connector_meta, [], []

    def build_connector_meta(output: Any) -> Any:
        meta = told[0] if told else build(output)
        told.append(meta)
        meta.number = len(told)
        return meta

    half(made).build_connector_meta = build_connector_meta
    bind = half(made, 0).bind_connector_metadata
    half(made, 0).bind_connector_metadata = lambda meta: (bound.append(meta.number), bind(meta))
    for kind in (Kind.SCHEDULE, Kind.SCHEDULE, Kind.EXECUTE, Kind.EXECUTE):
        assert made.apply(Action(kind, {"rank": 0} if kind is Kind.EXECUTE else {}))
    assert bound == [1, 2]


@pytest.mark.parametrize(
    ("call", "why"),
    [(len, None), (lambda: None, "PicklingError|AttributeError"), ("arrives not", "LookupError: nobody is here")],
)
def test_metadata_that_reaches_nobody(call: Any, why: str | None) -> None:
    alone = world_of(MEMORY, tp_size=1)
    crossing = alone.engine.crossing
    assert crossing.carry(Unsent(call), "x").call is call, "it is shared in one process"
    if why is None:
        return
    made = world_of(MEMORY, tp_size=2)
    build = half(made).build_connector_meta
    half(made).build_connector_meta = lambda output: build(output) and Unsent(call)
    message = broken(made, Invariant.PROTOCOL)
    begin = (
        "scheduler side, build_connector_meta answered a Unsent that doesn't survive pickling, and so reaches no "
        "other process: "
    )
    assert message.startswith(begin)
    assert any(message.removeprefix(begin).startswith(name) for name in why.split("|"))


@pytest.mark.parametrize(
    "method", ["get_kv_connector_stats", "get_kv_connector_kv_cache_events", "build_connector_worker_meta"]
)
def test_what_a_worker_says_reaches_the_scheduler(method: str) -> None:
    made = world_of(PATIENT, tp_size=2)

    class Local(CountedStats):
        """Nobody finds this class elsewhere."""

        def is_empty(self) -> bool:
            return True

        add_events = get_all_events = increment_workers = is_empty

    setattr(half(made, 1), method, Local)
    message = broken(made, Invariant.PROTOCOL)
    assert message.startswith(f"worker 1 side, {method} answered a Local that doesn't survive pickling, and so")


def test_nobody_looks_at_what_crosses() -> None:
    """Then it is shared."""
    referee = Referee()
    referee.switched_off.add(Invariant.PROTOCOL)
    crossing, value = Crossing(2, referee), Unsent("arrives not")
    assert crossing.carry(value, "x") is value
    value.call = lambda: None
    assert crossing.carry(value, "x") is value
    assert Crossing(2, referee).carry([1], "x") == [1] == pickle.loads(pickle.dumps([1]))


# -- the hooks of layers -------------------------------------------------------------------------


@pytest.mark.parametrize("has", [True, False])
def test_a_layer_calls_its_hooks_if_metadata_is_bound(has: bool) -> None:
    made = world_of(MEMORY, layers=2)
    called: list[str] = []
    worker = half(made, 0)
    worker.has_connector_metadata = lambda: has
    worker.wait_for_layer_load = lambda name: called.append("load")
    worker.save_kv_layer = lambda *args: called.append("save")
    step(made)
    assert called == (["load", "load", "save", "save"] if has else [])


# -- stats of both sides ----------------------------------------------------------------------------


class Steps(CountedStats):
    def is_empty(self) -> bool:
        return not self.data


class Others(Steps):
    pass


def counting(made: World, worker: Any, scheduler: Any) -> None:
    half(made, 0).get_kv_connector_stats = lambda: worker
    half(made).get_kv_connector_stats = lambda: scheduler


def test_stats_of_both_sides_are_added_up() -> None:
    made = world_of(MEMORY)
    counting(made, worker := Steps({"a": 1}), Steps({"a": 2, "b": 3}))
    step(made)
    assert worker.data == {"a": 3, "b": 3}


@pytest.mark.parametrize(("worker", "scheduler"), [(None, Others()), (Steps({"a": 1}), None), (Steps(), Others())])
def test_stats_of_one_side_or_none(worker: Any, scheduler: Any) -> None:
    made = world_of(MEMORY)
    counting(made, worker, scheduler)
    step(made)


def test_stats_that_do_not_go_together() -> None:
    made = world_of(MEMORY)
    counting(made, Others({"a": 1}), Steps({"a": 1}))
    message = broken(made, Invariant.NO_CRASH)
    assert message.startswith(
        "what the workers and the scheduler's side counted, added up: TypeError: stats: expected Others, got Steps"
    )


# -- waiting ------------------------------------------------------------------------------------------


def loading(subject: Subject, **config: Any) -> World:
    """A world in which the next step begins to load what was computed and stored before."""
    made = world_of(subject, **config)
    assert come_to_rest(made)
    assert made.engine.reset(running=False, connector=False)
    made.engine.add(RequestSpec("r2", 0, 10, 0, 2, 2))
    return made


def test_who_waits_for_an_asynchronous_load_where_it_begins_it() -> None:
    made = loading(LATER)
    worker = half(made, 0)
    start = worker.start_load_kv

    def start_load_kv(context: Any) -> None:
        start(context)
        worker._copies.wait(list(worker._loads))

    worker.start_load_kv = start_load_kv
    assert broken(made, Invariant.WORK) == (
        "worker 0 side, start_load_kv waited for load copy 1 (of request r2), which is asynchronous: the engine "
        "computes nothing meanwhile"
    )


@pytest.mark.parametrize("is_errand", [False, True])
def test_who_waits_for_an_asynchronous_load_when_asked_what_has_ended(is_errand: bool) -> None:
    """A copy, or an errand that fills the same blocks."""
    made = loading(LATER)
    worker = half(made, 0)
    ended, device = worker.get_transfer_results, made.engine.devices[0]
    cache, errands = device.kv_cache(0), Errands(device)

    def fill() -> None:
        for block in device.shadow.load_rights:
            cache.write(block, cache.read(block))

    def get_transfer_results(finished: Any) -> Any:
        if worker._loads:
            loads = list(worker._loads)
            device.copies.running[loads[0]].pairs = () if is_errand else device.copies.running[loads[0]].pairs
            errands.submit(fill).result() if is_errand else worker._copies.wait(loads)
        return ended(finished)

    worker.get_transfer_results = get_transfer_results
    what = "errand 2 (of r2)" if is_errand else "load copy 1 (of request r2)"
    assert broken(made, Invariant.WORK) == (
        f"worker 0 side, get_transfer_results waited for {what}, which is asynchronous: the engine computes "
        "nothing meanwhile"
    )


def test_who_shuts_a_child_down_waits_for_its_copies() -> None:
    """It is switched off in the middle of ``start_load_kv``. Of each child alone all is judged."""
    subject = SUBJECTS["flaky-busy+later"]
    assert run_seed(subject, 70259).failure is None


def test_who_waits_elsewhere_or_for_a_load_of_the_step() -> None:
    made = loading(LATER)
    worker = half(made, 0)
    save = worker.wait_for_save

    def wait_for_save() -> None:
        worker._copies.wait(list(worker._loads))
        save()

    worker.wait_for_save = wait_for_save
    assert come_to_rest(made)
    assert come_to_rest(loading(MEMORY)) and come_to_rest(loading(PATIENT))


# -- what others show --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Named:
    value: Any


@pytest.mark.parametrize("source", [*CacheHitSource, "host", Named("disk")], ids=str)
def test_a_source_that_is_known(source: Any) -> None:
    """vLLM's enum is another one, with the same values."""
    check_sources("r1", 4, [(source, 4)], Referee())


@pytest.mark.parametrize(("source", "shown"), [("attic", "'attic'"), (7, "7"), (None, "None")])
def test_a_source_that_nobody_counts(source: Any, shown: str) -> None:
    with pytest.raises(Violation) as raised:
        check_sources("r1", 4, {source: 4}, Referee())
    assert str(raised.value) == (
        f"ACCOUNTING  request r1: get_external_cache_hit_sources names {shown}, which is not a source of hits; "
        "known: device, host, p2p, disk, "
        "external_unspecified"
    )


@pytest.mark.parametrize(
    "params",
    [
        None,
        {},
        {"a": [1, 2.5, "x", None, True, b"y", (3,), {4}]},
        {1: {"b": Direction.LOAD}, "c": BlockCopy(1, 2)},
        {"d": Unsent()},
        {"e": np.zeros(2)},
    ],
)
def test_what_reaches_a_client(params: Any) -> None:
    check_params("r1", params, Referee())


@pytest.mark.parametrize(
    ("params", "kind"),
    [
        ({"a": object()}, "object"),
        ({"a": np.int64(3)}, "int64"),
        ({"a": [np.float64(3)]}, "float64"),
        ({"a": [1, {"b": len}]}, "builtin_function_or_method"),
        ({range(2): 1}, "range"),
    ],
)
def test_what_does_not(params: Any, kind: str) -> None:
    made = world_of(MEMORY)
    end = half(made).request_finished_all_groups
    half(made).request_finished_all_groups = lambda request, blocks: (end(request, blocks)[0], params)
    with pytest.raises(Violation) as raised:
        come_to_rest(made)
    assert str(raised.value) == (
        f"PROTOCOL  request r1: request_finished puts a {kind} into kv_transfer_params, which can't be sent to "
        "the process that answers the client"
    )


# -- shapes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "shown"), [(0, "0"), (1, "1"), ("done", "'done'"), ((True,), r"(True,)")])
def test_what_a_reset_answers(answer: Any, shown: str) -> None:
    """An engine takes 0 for a reset that was not refused."""
    made = world_of(MEMORY)
    half(made).reset_cache = lambda: answer
    with pytest.raises(Violation) as raised:
        made.apply(Action(Kind.RESET, {"running": False, "connector": True}))
    assert str(raised.value) == (
        f"PROTOCOL  scheduler side, reset_cache answered {shown}, expected True, False or None"
    )


@pytest.mark.parametrize("answer", [True, False, None])
def test_what_a_reset_may_answer(answer: bool | None) -> None:
    made = world_of(MEMORY)
    half(made).reset_cache = lambda: answer
    made.apply(Action(Kind.RESET, {"running": False, "connector": True}))


@pytest.mark.parametrize(
    ("answer", "shown"), [(None, "None"), (0, "0"), (("full",), "('full',)"), ((-1,), "(-1,)")]
)
def test_the_groups_that_a_load_fills(answer: Any, shown: str) -> None:
    made = loading(LATER)
    half(made).get_loaded_kv_cache_group_ids = lambda request: answer
    assert broken(made, Invariant.PROTOCOL) == (
        f"scheduler side, get_loaded_kv_cache_group_ids answered {shown}, expected numbers of KV cache groups"
    )


@pytest.mark.parametrize("answer", [(0,), [0], {0}, frozenset(), range(1)])
def test_any_collection_of_them_does(answer: Any) -> None:
    made = loading(LATER)
    half(made).get_loaded_kv_cache_group_ids = lambda request: answer
    assert come_to_rest(made)
