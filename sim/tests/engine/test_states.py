"""Groups of states: what their blocks hold, when they are found, and that a wrong state is seen."""

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from kv_sim.actions import Action, Kind
from kv_sim.config import NULL, STATE, GroupConfig, WorldConfig
from kv_sim.engine.blocks import KVCacheManager
from kv_sim.engine.output import Step
from kv_sim.engine.pool import BlockPool
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import LATER, OFFLOAD
from kv_sim.fuzz import run_seed
from kv_sim.history.draws import config_for
from kv_sim.offload.host_memory import TimedWorkerSide
from kv_sim.subject import Trait
from kv_sim.violation import Invariant, Violation
from kv_sim.world import World
from kv_sim.zoo.offload_states import StatesLoadedInTheStep

CONFIG = WorldConfig(num_blocks=40, block_size=4, groups=(GroupConfig(), STATE), max_step_tokens=6)
STEP = Action(Kind.STEP)


def request(name: str, tokens: int, output: int = 1) -> RequestSpec:
    return RequestSpec(name, 0, tokens, 0, output, output)


def world(*requests: RequestSpec, config: WorldConfig = CONFIG) -> World:
    made = World(config, OFFLOAD)
    for spec in requests:
        made.engine.add(spec)
    return made


def test_a_block_holds_the_state_after_its_last_token() -> None:
    made = world(request("r1", 10, output=2))
    for _ in range(2):  # six tokens, four tokens
        made.apply(STEP)
    engine = made.engine
    device, running = engine.devices[0], engine.scheduler.requests["r1"]
    full, state = engine.scheduler.blocks.tables_of("r1").groups
    words = running.hashes
    assert len(full) == len(state) == 3
    for index, end in ((1, 8), (2, 10)):
        page = device.memory[state[index], 0] ^ device.kernels.keys[1][0]
        assert set(page.tolist()) == {int(words[end - 1])}, f"block {index}"


def test_a_wrong_state_is_seen_by_the_step_that_goes_on_from_it() -> None:
    made = world(request("r1", 10, output=3))
    made.apply(STEP)
    (_, state) = made.engine.scheduler.blocks.tables_of("r1").groups
    made.engine.devices[0].memory[state[1], 0, 3] ^= 1
    with pytest.raises(Violation) as raised:
        made.apply(STEP)
    assert raised.value.invariant is Invariant.CONTENT
    assert "request r1 token 5" in raised.value.message
    assert "which goes on from this state" in raised.value.message


LATE: dict[int, int] = {}
"""Blocks of states that the last step loads, and where each was copied before."""


class FillsBothWorker(TimedWorkerSide):
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        super().start_load_kv(forward_context, **kwargs)
        for cache in forward_context.no_compile_layers.values():
            for source, target in LATE.items():
                cache.write(target, cache.read(source))


class FillsBoth(StatesLoadedInTheStep):
    """Loads a state to the end of the hit, and to where the request goes on."""

    worker_class = FillsBothWorker


class FillsTheRunningOneWorker(FillsBothWorker):
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        super().start_load_kv(forward_context, **kwargs)
        for cache in forward_context.no_compile_layers.values():
            for source in LATE:
                cache.write(source, cache.read(source) * 0)


class FillsTheRunningOne(StatesLoadedInTheStep):
    """Loads a state only to where the request goes on."""

    worker_class = FillsTheRunningOneWorker


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    load_states_late = Step.load_states_late

    def noted(self: Step, states: dict[int, int]) -> None:
        LATE.update(states)
        load_states_late(self, states)

    LATE.clear()
    monkeypatch.setattr(Step, "load_states_late", noted)
    return LATE


def run_on(made: World) -> None:
    for _ in range(6):
        made.apply(STEP)
        made.apply(Action(Kind.SETTLE))


def found_again(connector: type, config: WorldConfig = CONFIG) -> World:
    """A world in which a prompt was stored, the GPU has lost it, and a longer one comes."""
    module = StatesLoadedInTheStep.__module__ if connector is StatesLoadedInTheStep else __name__
    made = World(config, replace(OFFLOAD, kv_connector=connector.__name__, module_path=module))
    made.engine.add(request("r1", 9))
    run_on(made)
    assert made.engine.reset(running=False, connector=False)
    made.engine.add(request("r2", 11))
    return made


@pytest.mark.parametrize("runner", [1, 2])
def test_a_state_that_a_step_loads_comes_after_its_copy(late: dict[int, int], runner: int) -> None:
    made = found_again(StatesLoadedInTheStep, replace(CONFIG, runner=runner, hands_over_states=True))
    with pytest.raises(Violation) as raised:
        run_on(made)
    ((source, running),) = late.items()
    assert made.engine.scheduler.blocks.tables_of("r2").groups[1][1:] == [source, running]
    assert raised.value.invariant is Invariant.CONTENT
    where = (
        f"rank 0 block {running} holds poison, last written by step {{}}, which copied the state in block {source}"
    )
    comes_late = f"the step's load fills block {source} only when that has been copied to block {running}"
    step = made.engine.num_steps
    assert raised.value.message == (
        f"request r2 token 7: {where.format(step)} into it (group 1, layer 0, step {step}, which goes on from "
        f"this state: {comes_late}; load states asynchronously, or fill both)"
    )


def test_who_loads_a_state_within_the_step_may_fill_where_the_request_goes_on(late: dict[int, int]) -> None:
    made = found_again(FillsBoth)
    made.apply(STEP)
    assert len(late) == 1
    late.clear()
    made.engine.add(request("r3", 11))  # finds the state on the GPU
    run_on(made)
    assert not late
    assert made.coverage.situations["match: load in the step"] == 1
    assert [ended.request_id for ended in made.engine.outcome.ended] == ["r1", "r2", "r3"]


def test_who_fills_nothing_else_leaves_wrong_bytes_to_those_who_find_them_on_the_gpu(late: dict[int, int]) -> None:
    made = found_again(FillsTheRunningOne)
    made.apply(STEP)
    ((source, _),) = late.items()
    late.clear()
    made.engine.add(request("r3", 11))
    with pytest.raises(Violation) as raised:
        run_on(made)
    assert raised.value.invariant is Invariant.CONTENT
    assert f"rank 0 block {source} holds 0x0" in raised.value.message or "zeroes" in raised.value.message
    assert "request r3 token 7" in raised.value.message


def test_a_state_goes_on_where_the_step_ends() -> None:
    """Before its forward pass a step copies it there, and whoever waits for the device sees the copy."""
    made = world(request("r1", 10, output=2))
    made.apply(STEP)
    made.engine.schedule(lambda request, drafts: 0)
    (_, state) = made.engine.scheduler.blocks.tables_of("r1").groups
    device, seen = made.engine.devices[0], []
    guard = made.engine.workers[0].connector
    bind = guard.bind_connector_metadata
    guard.bind_connector_metadata = lambda meta: seen.append(device.memory[state, 0].copy()) or bind(meta)
    made.engine.execute(0)
    (pages,) = seen
    assert (pages[1] == pages[2]).all() and pages[1, 0] == device.kernels.keys[1][0] ^ np.uint64(
        made.engine.scheduler.requests["r1"].hashes[5]
    )


def test_only_the_last_state_of_a_hit_is_held() -> None:
    made = world(request("r1", 13), config=replace(CONFIG, max_step_tokens=16))
    made.apply(STEP)
    hashes = made.engine.scheduler.blocks
    manager: KVCacheManager = hashes
    (hit, tokens) = manager.find_hit(made.engine.outcome.ended[0].block_hashes, 12)
    assert tokens == 12
    assert [block != NULL for block in hit[0]] == [True, True, True]
    assert [block != NULL for block in hit[1]] == [False, False, True]


def test_requests_of_one_step_do_not_go_on_from_each_others_states() -> None:
    specs = request("r1", 9), request("r2", 9)
    made = world(*specs, config=replace(CONFIG, max_step_tokens=32))
    step = made.engine.schedule(lambda request, drafts: 0)
    assert list(step.output.num_scheduled_tokens) == ["r1"]
    plain = world(*specs, config=replace(CONFIG, groups=(GroupConfig(),), max_step_tokens=32))
    step = plain.engine.schedule(lambda request, drafts: 0)
    assert step.output.num_scheduled_tokens == {"r1": 9, "r2": 1}


def test_worlds_have_states_for_those_who_claim_them() -> None:
    drawn = [config_for(OFFLOAD, Random(seed)) for seed in range(300)]
    kinds = {tuple(group.kind for group in config.groups) for config in drawn}
    several = {("full", "sliding"), ("full", "state"), ("full", "sliding", "state")}
    assert kinds == {("full",), ("sliding",), *several}
    assert not any(config.spec_tokens for config in drawn if STATE in config.groups)
    assert Trait.STATES not in LATER.traits
    assert not any(STATE in config_for(LATER, Random(seed)).groups for seed in range(100))


@pytest.mark.once
def test_states_are_stored_and_loaded() -> None:
    loads = 0
    for seed in range(40_080, 40_200):
        if STATE in config_for(OFFLOAD, Random(seed)).groups:
            run = run_seed(OFFLOAD, seed)
            assert run.failure is None, f"seed {seed}: {run.failure.violation}"
            loads += run.coverage.situations["match: asynchronous load"]
    assert loads > 10


def handed(made: World) -> dict[str, list[tuple[int, int, int]]]:
    """What the next step hands over."""
    told: list[Any] = []
    guard = made.engine.guards[-1]
    build = guard.build_connector_meta
    guard.build_connector_meta = lambda output: told.append(output.kv_connector_block_state) or build(output)
    step = made.engine.schedule(lambda request, drafts: 0)
    guard.build_connector_meta = build
    assert step.output.kv_connector_block_state is None  # what it hands over is only for the scheduler's side
    (block_state,) = told
    return dict(block_state.boundary_state_offloads)


def test_each_state_is_handed_over_in_the_step_that_computes_it() -> None:
    made = world(request("r1", 13), config=replace(CONFIG, hands_over_states=True, max_step_tokens=10))
    first, second = handed(made), handed(made)
    table = made.engine.scheduler.blocks.tables["r1"].groups[1]
    assert [(group, tokens) for group, _, tokens in first["r1"]] == [(1, 4), (1, 8)]
    assert second == {"r1": [(1, table[2], 12)]}
    assert handed(world(request("r1", 13))) == {}


def test_who_loses_its_blocks_in_a_step_hands_over_nothing() -> None:
    made = world(request("r1", 13), config=replace(CONFIG, hands_over_states=True))
    blocks = made.engine.scheduler.blocks
    handed(made)
    blocks._hand_over("r1", 1, 5, 1)
    blocks.free("r1")
    assert blocks.take_handed() == {}


def test_a_connector_holds_blocks() -> None:
    pool = BlockPool(4)
    (block,) = pool.allocate(1)
    pool.touch([pool.blocks[block]])
    pool.free([block])
    assert (pool.num_free, dict(pool.touched)) == (2, {block: 1})
    pool.free_blocks([block])
    assert (pool.num_free, dict(pool.touched)) == (3, {})


def test_about_half_of_the_worlds_with_states_hand_them_over() -> None:
    drawn = [config_for(OFFLOAD, Random(seed)) for seed in range(300)]
    counts = Counter(config.hands_over_states for config in drawn if STATE in config.groups)
    assert 0.3 < counts[True] / counts.total() < 0.7
    assert not any(config.hands_over_states for config in drawn if STATE not in config.groups)
