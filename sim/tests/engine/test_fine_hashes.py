"""Blocks with several hashes: hits that end within one, copies on write, and who is caught by them."""

from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Literal

import pytest
from kv_sim_seeds import seeds

from kv_api import ConfigError, Request
from kv_offload import OffloadingConnector
from kv_sim.actions import Action, Kind
from kv_sim.config import GroupConfig, WorldConfig
from kv_sim.console.selection import unclaimed
from kv_sim.engine.output import Step
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import LATER, MEMORY, OFFLOAD, offloading
from kv_sim.failures.schedule_file import Schedule
from kv_sim.fuzz import run_seed
from kv_sim.history.draws import config_for
from kv_sim.subject import Trait
from kv_sim.violation import Invariant, Violation
from kv_sim.watching.brief import brief_step
from kv_sim.world import World

CONFIG = WorldConfig(num_blocks=12, block_size=4, hashes_per_block=2, max_step_tokens=16)
STEP = Action(Kind.STEP)


def request(name: str, tokens: int, output: int = 1, own: int = 0) -> RequestSpec:
    return RequestSpec(name, 0, tokens, own, output, output)


def world(*requests: RequestSpec, config: WorldConfig = CONFIG) -> World:
    made = World(config, OFFLOAD)
    for spec in requests:
        made.engine.add(spec)
    return made


def schedule(made: World) -> Step:
    return made.engine.schedule(lambda request, drafts: 0)


def after_one(first: RequestSpec, second: RequestSpec, config: WorldConfig = CONFIG) -> tuple[World, Step]:
    """The world and the step in which ``second`` begins, when ``first`` has ended."""
    made = world(first, config=config)
    made.apply(STEP)
    made.engine.add(second)
    return made, schedule(made)


def test_a_request_has_a_hash_for_each_part_of_a_block() -> None:
    made = world(request("r1", 9))
    r1 = made.engine.scheduler.requests["r1"]
    fine = [int(r1.hashes[end - 1]).to_bytes(8, "big") for end in (2, 4, 6, 8)]
    assert r1.block_hashes == fine
    assert r1.hashes_up_to(9) == r1.prompt_hashes == fine[1::2]
    assert made.engine.describe_caches().hash_block_size == 2


@pytest.mark.parametrize(
    ("prompt", "found"),
    [(7, 6), (8, 8), (9, 8), (10, 8), (6, 4), (3, 2), (2, 0)],
    ids=lambda tokens: f"{tokens}",
)
def test_the_last_hash_that_a_prompt_like_it_can_hit_names_its_end(prompt: int, found: int) -> None:
    _, step = after_one(request("r1", prompt), request("r2", 12))
    assert step.output.num_scheduled_tokens == {"r2": 12 - found}
    assert bool(step.output.kv_cache_block_copies) is (found % 4 != 0)


def test_it_does_as_soon_as_its_last_token_is_computed() -> None:
    """One more of the prompt is left, and is computed beside who goes on from there."""
    made = world(request("r1", 7), config=replace(CONFIG, max_step_tokens=6))
    made.apply(STEP)
    made.engine.add(request("r2", 11))
    assert schedule(made).output.num_scheduled_tokens == {"r1": 1, "r2": 5}


def test_only_the_last_hash_does() -> None:
    _, step = after_one(request("r1", 8), request("r2", 4, own=4), replace(CONFIG, hashes_per_block=4))
    assert step.output.num_scheduled_tokens == {"r2": 4}, "token 5 is hashed, and names nothing"


def test_the_end_is_copied_into_a_block_of_its_own() -> None:
    made, step = after_one(request("r1", 7), request("r2", 12))
    [(source, target)] = step.output.kv_cache_block_copies or []
    [table] = made.engine.scheduler.blocks.tables_of("r2").groups
    assert target == table[1]
    assert source not in table
    assert source in made.engine.scheduler.blocks.block_pool.key_of, "others can still find it"
    assert brief_step(step.output) == f"new r2+6 after 6; copies block {source} into {target}; finished r1"
    made.engine.finish_step()
    device, r2 = made.engine.devices[0], made.engine.outcome.ended[1]
    page = device.memory[target, 0] ^ device.kernels.keys[0][0]
    assert page.tolist() == r2.hashes[4:8].tolist()
    assert made.engine.scheduler.blocks.block_pool.key_of[target] == (0, r2.block_hashes[3]), "it is full now"


def test_who_goes_on_in_a_copy_names_all_of_its_blocks_and_no_other() -> None:
    """What it was copied from keeps its name; of its own last block only a part is full."""
    made, step = after_one(request("r1", 3), request("r2", 11))
    [(source, target)] = step.output.kv_cache_block_copies or []
    [table] = made.engine.scheduler.blocks.tables_of("r2").groups
    first, second, _, fourth, fifth = made.engine.scheduler.requests["r2"].block_hashes
    named = dict(zip((source, *table), ((0, name) for name in (first, second, fourth, fifth)), strict=True))
    assert table[0] == target
    assert made.engine.scheduler.blocks.block_pool.key_of == named


def test_what_is_copied_into_is_new_as_other_blocks_are() -> None:
    made, step = after_one(request("r1", 7), request("r2", 12), replace(CONFIG, zero_new_blocks=True))
    [(_, target)] = step.output.kv_cache_block_copies or []
    [table] = made.engine.scheduler.blocks.tables_of("r2").groups
    assert step.output.new_block_ids_to_zero == [target, *table[2:]]


def test_a_copy_that_is_not_made_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    made, step = after_one(request("r1", 7), request("r2", 12))
    monkeypatch.setattr(step.output, "kv_cache_block_copies", None)
    with pytest.raises(Violation, match=r"CONTENT  request r2 token 4: .* holds poison") as raised:
        made.engine.finish_step()
    assert raised.value.invariant is Invariant.CONTENT


def test_a_longer_prefix_takes_the_name_of_the_end() -> None:
    made = world(request("r1", 7, output=3))
    made.apply(STEP)
    blocks = made.engine.scheduler.blocks
    [table] = blocks.tables_of("r1").groups
    pool, r1 = blocks.block_pool, made.engine.scheduler.requests["r1"]
    end = r1.block_hashes[2]
    assert pool.key_of[table[1]] == (0, end)
    made.apply(STEP)  # the eighth token is computed
    made.apply(STEP)
    assert pool.key_of[table[1]] == (0, r1.block_hashes[3])
    assert pool.find(0, end) is None


def test_requests_of_one_step_do_not_copy_each_others_ends() -> None:
    made = world(request("r1", 7), request("r2", 7), config=replace(CONFIG, max_step_tokens=32))
    assert list(schedule(made).output.num_scheduled_tokens) == ["r1"]


def test_both_ends_are_held_until_the_step_has_come_back() -> None:
    config = replace(CONFIG, run_ahead=1)
    made = world(request("r1", 7), config=config)
    made.apply(STEP)
    made.apply(STEP)
    made.engine.add(request("r2", 12))
    step = schedule(made)
    [(source, target)] = step.output.kv_cache_block_copies or []
    counts = made.engine.scheduler.blocks.block_pool.ref_counts
    assert (counts[source], counts[target]) == (1, 2)
    made.engine.abort("r2")
    assert (counts[source], counts[target]) == (1, 2), "its own reference waits, too"
    while made.engine.steps:
        made.engine.finish_step()
    assert (counts[source], counts[target]) == (0, 0)
    made.engine.check()


def test_they_are_held_while_an_earlier_step_comes_back() -> None:
    made = world(request("r1", 7), config=replace(CONFIG, num_blocks=24, run_ahead=1))
    made.apply(STEP)
    made.apply(STEP)
    made.engine.add(request("r3", 3, output=9, own=8))
    schedule(made)
    made.engine.add(request("r2", 12))
    [(source, target)] = schedule(made).output.kv_cache_block_copies or []
    counts = made.engine.scheduler.blocks.block_pool.ref_counts
    while len(made.engine.steps) > 1:
        made.engine.finish_step()
        assert (counts[source], counts[target]) == (1, 2)
    made.engine.finish_step()
    assert counts[source] == 0
    made.engine.check()


@pytest.mark.parametrize(("free", "fits"), [(1, False), (2, True)])
def test_a_copy_takes_a_block_more(free: int, fits: bool) -> None:
    """The block that is copied from is free, and must not become the one that is copied into."""
    made = world(request("r1", 7))
    made.apply(STEP)
    blocks = made.engine.scheduler.blocks
    ours = blocks.block_pool.allocate(blocks.block_pool.num_free - 2)
    blocks.block_pool.free(ours[: free - 1])
    hit, tokens = blocks.find_hit(made.engine.outcome.ended[0].block_hashes, 6)
    assert tokens == 6
    if free == 1:
        blocks.block_pool.hold(hit[0][:1])  # of the two that are left, one is somebody else's
    assert blocks.allocate("r2", 7, computed_tokens=6, hit=hit) is fits


@pytest.mark.parametrize("answer", [1, 2])
def test_an_answer_that_adds_nothing_to_the_end_is_dropped(monkeypatch: pytest.MonkeyPatch, answer: int) -> None:
    made = world(request("r1", 7))
    made.apply(STEP)
    asked = []

    def match(self: OffloadingConnector, request: Request, local: int) -> tuple[int, bool]:
        asked.append(local)
        return answer, True

    monkeypatch.setattr(OffloadingConnector, "get_num_new_matched_tokens", match)
    made.engine.add(request("r2", 12))
    step = schedule(made)
    assert asked == [4]
    assert step.output.num_scheduled_tokens == {"r2": 6}
    assert step.output.kv_cache_block_copies


def test_there_is_room_for_the_block_that_is_copied_from() -> None:
    longest = CONFIG.max_model_len
    assert longest == (12 - 2) * 4
    made = world(request("r1", 7))
    made.apply(STEP)
    made.engine.add(request("r2", longest - 1))
    made.rest()
    assert [r.request_id for r in made.engine.outcome.ended[:2]] == ["r1", "r2"]


def test_a_load_takes_the_place_of_the_end_if_it_has_more() -> None:
    """All of r1 was stored; on the GPU its first block is left, and the end of r0."""
    made = world()
    for spec in (request("r1", 12, own=1), request("r0", 7)):
        made.engine.add(spec)
        for _ in range(3):
            made.apply(STEP)
            made.apply(Action(Kind.SETTLE))
    pool, (r1, r0) = made.engine.scheduler.blocks.block_pool, made.engine.outcome.ended
    end = (0, r0.block_hashes[2])
    for block, key in list(pool.key_of.items()):
        if key not in (end, (0, r1.block_hashes[1])):
            pool.uncache(block)
    made.engine.add(request("r2", 12, own=2))
    made.apply(STEP)
    situations = made.coverage.situations
    assert situations["match: more than the end of a block"] == 1
    assert situations["match: asynchronous load"] == 1
    assert "a block is copied on write" not in situations
    r2 = made.engine.scheduler.requests["r2"]
    assert (r2.status.value, r2.num_computed_tokens) == ("waiting for a load", 12)
    made.rest()


# -- who meets them ----------------------------------------------------------------------------


def test_worlds_have_them_for_those_who_claim_them() -> None:
    drawn = [config_for(OFFLOAD, Random(seed)) for seed in range(300)]
    fine = [config for config in drawn if config.is_fine]
    assert {config.hashes_per_block for config in fine} == {2, 4, 8}
    assert all(config.groups == (GroupConfig(),) or config.has_tails for config in fine)
    assert Trait.FINE not in LATER.traits
    assert all(config_for(LATER, Random(seed)).hashes_per_block == 1 for seed in range(100))
    unsafe = offloading(without=frozenset({Trait.ZEROING}), hold_blocks="never")
    worlds = [config_for(unsafe, Random(seed)) for seed in range(300)]
    assert {config.runner for config in worlds if config.is_fine} == {1}


@pytest.mark.once
def test_nothing_breaks_in_ours() -> None:
    copies = 0
    for seed in seeds(45, 60_031):  # of which the first copies several
        if config_for(OFFLOAD, Random(seed)).is_fine:
            run = run_seed(OFFLOAD, seed)
            assert run.failure is None, f"seed {seed}: {run.failure.violation}"
            copies += run.coverage.situations["a block is copied on write"]
    assert copies > 3


@pytest.mark.once
def test_who_takes_a_hash_for_a_block_is_caught() -> None:
    hasty = replace(MEMORY, traits=frozenset({Trait.FINE}))
    found = (run_seed(hasty, seed).failure for seed in range(40))
    assert {f.violation.invariant for f in found if f} & {
        Invariant.CONTENT,
        Invariant.PROTOCOL,
        Invariant.NO_CRASH,
    }


@pytest.mark.parametrize("runner", [1, 2])
def test_a_fence_comes_too_late_for_a_copy_on_runner_v2(runner: Literal[1, 2]) -> None:
    """Who is sure that nobody writes a freed block before its fence: the copy goes to one that is being stored."""
    careless = offloading(hold_blocks="never")
    made = World(replace(CONFIG, num_blocks=5, runner=runner), careless)
    for spec in (request("r0", 7), replace(request("r1", 8), conversation=1)):
        made.engine.add(spec)
        made.apply(STEP)
    made.engine.add(request("r2", 8))
    step = schedule(made)
    [(_, target)] = step.output.kv_cache_block_copies or []
    if runner == 1:
        made.engine.finish_step()
    else:
        with pytest.raises(Violation, match=f"OWNERSHIP  .* block {target} .* step 3 copies into it while store"):
            made.engine.finish_step()


def test_a_schedule_says_that_it_needs_them() -> None:
    schedule = Schedule(LATER, replace(CONFIG, runner=2), [])
    assert unclaimed(schedule) == ["fine (its blocks have 2 hashes each)"]
    plain = replace(LATER, traits=frozenset({Trait.FINE}))
    assert unclaimed(replace(schedule, subject=plain)) == [
        "zeroing (runner V2 writes new blocks before handle_preemptions)"
    ]


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="hashes_per_block: got 3, which doesn't divide a block of 4 tokens"):
        replace(CONFIG, hashes_per_block=3)
    with pytest.raises(ConfigError, match="hashes_per_block: got 2; with these groups only 1 is possible"):
        replace(CONFIG, groups=(GroupConfig(), GroupConfig("sliding", 4)))


def test_the_same_seed_is_the_same_history() -> None:
    seed = next(seed for seed in range(100) if config_for(OFFLOAD, Random(seed)).is_fine)
    runs = [run_seed(OFFLOAD, seed).digest for _ in range(2)]
    assert all(one == other for one, other in pairwise(runs))
