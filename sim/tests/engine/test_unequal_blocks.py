"""Groups whose blocks have several sizes: how many blocks each gets, where hits end, and which worlds can be."""

from dataclasses import replace
from random import Random

import pytest

from kv_api import ConfigError
from kv_sim.actions import Action, Kind
from kv_sim.config import NULL, STATE, GroupConfig, WorldConfig
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.engine.settings import kv_cache_config, vllm_config
from kv_sim.examples.catalogue import LATER, OFFLOAD, P2P
from kv_sim.failures.shrink import shrink
from kv_sim.fuzz import run_seed
from kv_sim.history.draws import config_for
from kv_sim.history.features import with_unequal_blocks
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant
from kv_sim.world import World
from kv_sim.zoo.registry import PLANTED

FULL, SMALL = GroupConfig(), GroupConfig(parts=2)
WINDOW = GroupConfig("sliding", 5, parts=4)
CONFIG = WorldConfig(num_blocks=60, block_size=4, hashes_per_block=4, groups=(SMALL, WINDOW, FULL))
STEP = Action(Kind.STEP)


def request(name: str, tokens: int, own: int = 0) -> RequestSpec:
    return RequestSpec(name, 0, tokens, own, 2, 2)


def test_each_group_gets_as_many_blocks_as_its_size_takes() -> None:
    world = World(CONFIG, OFFLOAD)
    world.engine.add(request("r1", 9))
    world.apply(STEP)
    small, window, full = world.engine.scheduler.blocks.tables_of("r1").groups
    assert (len(small), len(window), len(full)) == (5, 9, 3)
    words = world.engine.scheduler.requests["r1"].hashes
    kernels = world.engine.devices[0].kernels
    page = world.engine.devices[0].memory[small[3], 0, :2] ^ kernels.keys[0][0]
    assert page.tolist() == words[6:8].tolist(), "the fourth block of two tokens"
    world.rest()


def test_a_hit_on_the_gpu_ends_with_the_largest_block() -> None:
    world = World(CONFIG, OFFLOAD)
    world.engine.add(request("r1", 11))
    world.apply(STEP)
    blocks = world.engine.scheduler.blocks
    again = world.engine.add(request("r2", 10, own=5))
    tables, tokens = blocks.find_hit(again.block_hashes, again.num_tokens - 1)
    assert tokens == 8, "ten tokens are five small blocks, but only two large ones"
    assert [len(table) for table in tables] == [4, 8, 2]
    assert tables[1][:4] == [NULL] * 4, "the window begins with the fifth token"
    assert NULL not in tables[1][4:]


def test_blocks_that_no_hit_needs_are_not_kept_for_hits() -> None:
    """A window that is shorter than the largest block begins within it: blocks before that are anybody's."""
    world = World(replace(CONFIG, block_size=8, num_blocks=80), OFFLOAD)
    world.engine.add(request("r1", 17))
    world.apply(STEP)
    blocks = world.engine.scheduler.blocks
    _, window, _ = blocks.tables_of("r1").groups
    kept = [index for index, block in enumerate(window) if block in blocks.block_pool.key_of]
    assert kept == [2, 3, 6, 7], "of four blocks of 2 tokens, the two with the 4 tokens before the next"
    again = world.engine.add(request("r2", 17))
    tables, tokens = blocks.find_hit(again.block_hashes, again.num_tokens - 1)
    assert (tokens, tables[1]) == (16, [*[NULL] * 6, *window[6:8]])


def test_connectors_are_told_each_size_as_vllm_tells_them() -> None:
    told = kv_cache_config(CONFIG)
    specs = [group.kv_cache_spec for group in told.kv_cache_groups]
    assert [spec.block_size for spec in specs] == [2, 1, 4]
    assert {spec.page_size_bytes for spec in specs} == {CONFIG.page_bytes}, "all pages have the same bytes"
    assert told.hash_block_size == 1
    assert vllm_config(CONFIG, OFFLOAD).cache_config.block_size == 1, "the smallest"


def test_the_longest_request_fits_alone() -> None:
    assert CONFIG.max_model_len == (CONFIG.num_blocks - 1) // 7 * 4
    world = World(CONFIG, OFFLOAD)
    world.engine.add(request("r1", CONFIG.longest_request - 2))
    world.rest()
    assert not world.engine.has_work


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups": (FULL, GroupConfig(parts=3))}, r"groups\[1\]\.parts: got 3; expected 1 for states"),
        ({"groups": (SMALL, replace(STATE, parts=2))}, r"groups\[1\]\.parts: got 2; expected 1 for states"),
        ({"groups": (FULL, GroupConfig(parts=0))}, r"groups\[1\]\.parts: got 0"),
        ({"groups": (SMALL, SMALL)}, r"groups: got parts \[2, 2\]; expected one group without"),
        ({"hashes_per_block": 1}, r"parts \[2, 4, 1\]\) need hashes_per_block 4, got 1"),
    ],
)
def test_worlds_that_cannot_be(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(CONFIG, **changes)  # type: ignore[arg-type]


def test_they_are_drawn_for_those_who_claim_them_and_states_have_the_largest() -> None:
    drawn = [config_for(OFFLOAD, Random(seed)) for seed in range(600)]
    found = [config for config in drawn if config.is_unequal]
    assert len(found) > 30
    assert {group.parts for config in found for group in config.groups if group == STATE} == {1}
    assert {config.groups[0].parts > 1 for config in found} == {True, False}
    assert not any(config.is_fine or config.writes_before_fences > config.zero_new_blocks for config in found)
    without = replace(OFFLOAD, traits=OFFLOAD.traits - {Trait.UNEQUAL})
    assert not any(config_for(without, Random(seed)).is_unequal for seed in range(200))
    assert Trait.UNEQUAL not in LATER.traits
    alone = WorldConfig()
    assert with_unequal_blocks(alone) == alone


@pytest.mark.parametrize("subject", [OFFLOAD, P2P], ids=["offload", "p2p"])
def test_what_is_stored_and_pulled_is_right(subject: Subject) -> None:
    seeds = [seed for seed in range(400) if config_for(subject, Random(seed)).is_unequal][:12]
    assert len(seeds) == 12
    assert [seed for seed in seeds if run_seed(subject, seed).failure is not None] == []


def test_a_failure_that_needs_no_such_blocks_is_shrunk_to_a_world_without() -> None:
    """And a failure that needs them keeps them."""
    for name, needs in (("StoresBeforeCompute", False), ("BlocksOfTheFirst", True)):
        [planted] = [planted for planted in PLANTED if planted.name == name]
        seeds = (seed for seed in range(400) if config_for(planted.subject, Random(seed)).is_unequal)
        failure = next(
            failure for failure in (run_seed(planted.subject, seed).failure for seed in seeds) if failure
        )
        small = shrink(failure, most_replays=150)
        assert small.config.is_unequal is needs, name
        assert small.violation.invariant in {*Invariant}
