"""The engine calls a connector in vLLM's order. The expected lists were observed on a real vLLM 0.32 (runner V1).

Names only, as a server prints them when every connector method is traced; arguments where they matter.
"""

from typing import Any

import pytest

from kv_sim.actions import Action, Kind
from kv_sim.config import GroupConfig, WorldConfig
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import LATER, MEMORY
from kv_sim.site import Call
from kv_sim.subject import Subject
from kv_sim.world import World

EVERY_STEP_SCHEDULER = ["build_connector_meta"]
EVERY_STEP_REPORT = ["update_connector_output", "get_kv_connector_stats", "take_events"]
BEGIN = ["handle_preemptions", "bind_connector_metadata"]
COLLECT = [
    "get_transfer_results",
    "get_block_ids_with_load_errors",
    "get_kv_connector_stats",
    "get_kv_connector_kv_cache_events",
    "build_connector_worker_meta",
]
FORWARD = ["wait_for_layer_load", "save_kv_layer"]


class Traced:
    """A world whose connector calls are written down, those to the scheduler's and the worker's side apart."""

    def __init__(self, subject: Subject, **config: Any) -> None:
        self.calls: list[Call] = []
        self.world = World(WorldConfig(num_blocks=32, **config), subject, observe=self.calls.append)

    def add(self, name: str, tokens: int, output: int = 1) -> None:
        spec = RequestSpec(name, 0, tokens, 0, output, output)
        self.world.engine.add(spec)

    def step(self, kind: Kind = Kind.STEP) -> tuple[list[str], list[str]]:
        """Take a step; the calls to the scheduler's side and those to the workers' in it."""
        self.calls.clear()
        assert self.world.apply(Action(kind))
        return self.names("scheduler"), self.names("worker")

    def names(self, side: str) -> list[str]:
        polled = "has_pending_push_work"
        return [call.method for call in self.calls if call.side.startswith(side) and call.method != polled]

    def args(self, name: str) -> list[tuple[Any, ...]]:
        return [call.args for call in self.calls if call.method == name]


def test_start_up() -> None:
    traced = Traced(MEMORY)
    assert traced.names("worker") == ["get_mem_pool_context", "register_kv_caches", "get_handshake_metadata"]
    assert traced.names("scheduler") == [
        "bind_kv_cache_manager",
        "get_finished_count",
        "set_xfer_handshake_metadata_pp_aware",
    ]


def test_first_request() -> None:
    traced = Traced(MEMORY)
    traced.calls.clear()
    traced.add("r1", 10, output=2)
    assert traced.names("scheduler") == ["on_new_request"]
    scheduler, worker = traced.step()
    assert scheduler == [
        "get_num_new_matched_tokens",
        "update_state_after_alloc",
        *EVERY_STEP_SCHEDULER,
        *EVERY_STEP_REPORT,
    ]
    assert worker == [*BEGIN, *FORWARD, "start_load_kv", "wait_for_save", *COLLECT, "clear_connector_metadata"]
    ((_, blocks, external),) = traced.args("update_state_after_alloc")
    assert blocks.get_block_ids() == ([1, 2, 3],)
    assert external == 0
    assert traced.args("get_num_new_matched_tokens")[0][1] == 0


def test_the_end_of_a_request_comes_before_the_report_of_its_step() -> None:
    traced = Traced(MEMORY)
    traced.add("r1", 10)
    scheduler, _ = traced.step()
    assert scheduler[-4:] == ["request_finished_all_groups", *EVERY_STEP_REPORT]
    ((_, block_ids),) = traced.args("request_finished_all_groups")
    assert block_ids == ([1, 2, 3],)
    traced.step()
    assert traced.args("get_transfer_results") == [({"r1"},)]


def test_a_load_in_the_step_starts_before_the_forward_pass() -> None:
    traced = Traced(MEMORY)
    traced.add("r1", 10)
    traced.step()
    assert traced.world.engine.reset(running=False, connector=False)
    traced.add("r2", 10)
    scheduler, worker = traced.step()
    assert scheduler[:4] == [
        "get_num_new_matched_tokens",
        "update_state_after_alloc",
        "get_external_cache_hit_sources",
        "build_connector_meta",
    ]
    assert worker == [*BEGIN, "start_load_kv", *FORWARD, "wait_for_save", *COLLECT, "clear_connector_metadata"]


def test_an_asynchronous_load_takes_a_step_of_its_own_and_a_second_allocation_call() -> None:
    traced = Traced(LATER)
    traced.add("r1", 10)
    traced.step()
    traced.step()
    traced.world.apply(Action(Kind.SETTLE))
    traced.step()
    assert traced.world.engine.reset(running=False, connector=False)
    traced.add("r2", 10)
    scheduler, worker = traced.step()
    assert scheduler[:5] == [
        "get_num_new_matched_tokens",
        "get_loaded_kv_cache_group_ids",
        "update_state_after_alloc",
        "get_external_cache_hit_sources",
        "build_connector_meta",
    ]
    assert traced.args("update_state_after_alloc")[0][2] == 8
    assert "save_kv_layer" not in worker
    traced.world.apply(Action(Kind.SETTLE))
    traced.step()
    scheduler, worker = traced.step()
    assert scheduler[:2] == ["update_state_after_alloc", "build_connector_meta"]
    ((_, blocks, external),) = traced.args("update_state_after_alloc")
    assert external == 0
    assert len(blocks.get_block_ids()[0]) == 3
    assert "save_kv_layer" in worker


def test_the_sources_of_a_preempted_request_are_not_asked_for() -> None:
    traced = Traced(MEMORY)
    traced.add("r1", 10, output=3)
    traced.step()
    assert traced.world.engine.reset(running=True, connector=False)
    scheduler, _ = traced.step()
    assert traced.args("update_state_after_alloc")[0][2] == 8
    assert "get_external_cache_hit_sources" not in scheduler


def test_with_drafts_the_end_of_the_stores_waits_for_the_draft_model() -> None:
    traced = Traced(MEMORY, spec_tokens=1)
    traced.add("r1", 10)
    _, worker = traced.step()
    assert worker[-len(COLLECT) - 2 :] == [*COLLECT, "wait_for_save", "clear_connector_metadata"]


def test_a_step_that_computes_nothing_waits_for_no_drafts() -> None:
    traced = Traced(MEMORY, spec_tokens=1)
    traced.add("r1", 10)
    traced.step()
    scheduler, worker = traced.step()  # it tells that the request has ended
    assert scheduler[0] == "build_connector_meta"
    assert worker == [*BEGIN, "start_load_kv", "wait_for_save", *COLLECT, "clear_connector_metadata"]


def test_runner_v2_says_that_the_forward_pass_is_over() -> None:
    traced = Traced(MEMORY, runner=2)
    traced.add("r1", 10)
    _, worker = traced.step()
    begin = [*BEGIN, *FORWARD, "finish_forward", "start_load_kv"]
    assert worker == [*begin, "wait_for_save", *COLLECT, "clear_connector_metadata"]
    traced.step()
    assert traced.names("worker")[:4] == [*BEGIN, "finish_forward", "start_load_kv"]


@pytest.mark.parametrize("runner", [1, 2])
def test_new_blocks_are_zeroed_and_copied_into_once(runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By runner V2 before the connector hears of preemptions, by V1 after it."""
    traced = Traced(MEMORY, runner=runner, zero_new_blocks=True)
    (device,) = traced.world.engine.devices
    for name in ("zero", "copy_blocks", "poison"):
        monkeypatch.setattr(
            device, name, lambda *args, name=name: traced.calls.append(Call(0, "worker", name, args, 0))
        )
    traced.add("r1", 10)
    _, worker = traced.step()
    prepare, fence = ["zero", "copy_blocks"], ["handle_preemptions"]
    begin = prepare + fence if runner == 2 else fence + prepare
    assert worker[:5] == [*begin, "poison", "bind_connector_metadata"]
    assert (traced.args("zero"), traced.args("copy_blocks")) == ([([1, 2, 3], 1)], [((), 1)])


@pytest.mark.parametrize("runner", [1, 2])
def test_a_preempted_request_resumes_as_its_runner_wants(runner: Any) -> None:
    traced = Traced(MEMORY, runner=runner)
    traced.add("r1", 10, output=9)
    traced.step()
    assert traced.world.engine.reset(running=True, connector=False)
    traced.step()
    (output,) = traced.args("build_connector_meta")[0]
    assert output.preempted_req_ids == {"r1"}
    new = [request.req_id for request in output.scheduled_new_reqs]
    assert (new, output.scheduled_cached_reqs.resumed_req_ids) == (
        ([], {"r1"}) if runner == 1 else (["r1"], set())
    )
    if runner == 1:
        assert len(output.scheduled_cached_reqs.new_block_ids[0][0]) >= 3


def test_blocks_are_freed_from_the_tail_and_cached_ones_are_taken_last() -> None:
    traced = Traced(MEMORY, host_slots=1)
    pool = traced.world.engine.scheduler.blocks.block_pool
    traced.add("r1", 10)
    traced.step()
    queue = list(pool.free_queue)
    assert queue[0] == 3, "the partial block holds no hash and is reused first"
    assert queue[-2:] == [2, 1], "of the cached blocks the tail goes first"


def test_a_sliding_window_leaves_null_blocks_behind() -> None:
    traced = Traced(MEMORY, groups=(GroupConfig(), GroupConfig("sliding", 4)), max_step_tokens=8)
    traced.add("r1", 24, output=4)
    for _ in range(3):
        traced.step()
    full, sliding = traced.world.engine.scheduler.blocks.tables_of("r1").get_block_ids()
    assert 0 not in full
    assert sliding[:2] == [0, 0]
    assert len(sliding) == len(full)
