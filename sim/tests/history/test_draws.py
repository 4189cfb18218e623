"""What is drawn for a world and for its requests: every choice, every boundary, and nothing that can't be."""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from kv_api import AttentionKind, ConfigError
from kv_sim.config import STATE, Drafter, GroupConfig, Stages, WorldConfig
from kv_sim.engine.builtin import BuiltinEngine
from kv_sim.engine.request import SimRequest
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.engine.settings import kv_cache_config, vllm_config
from kv_sim.examples.catalogue import LATER, SUBJECTS
from kv_sim.history.arrivals import CONVERSATIONS, MOST_BLOCKS, Arrivals
from kv_sim.history.draws import (
    SWARM,
    config_for,
    draw_config,
    with_fine_hashes,
    with_states,
)
from kv_sim.history.features import (
    with_drafter,
    with_failing_loads,
    with_strange_peer,
    with_tails,
)
from kv_sim.subject import Subject, Trait
from kv_sim.world import World

FULL = GroupConfig()
TAILS = (FULL, STATE)
SLIDING = [GroupConfig("sliding", window) for window in (4, 5, 8, 11)]
MANY = 3000


@cache
def worlds() -> list[WorldConfig]:
    return [draw_config(Random(seed)) for seed in range(MANY)]


def values(name: str) -> set[Any]:
    return {getattr(config, name) for config in worlds()}


def test_every_size_of_a_world_is_drawn_and_no_other() -> None:
    assert {name: values(name) for name in VALUES} == VALUES
    assert values("groups") == {(FULL,), *((FULL, window) for window in SLIDING)}
    assert {(config.num_blocks, len(config.groups)) for config in worlds()} == {
        (blocks * groups, groups) for blocks in (9, 12, 16, 24, 40) for groups in (1, 2)
    }
    assert set[str]().union(*values("silent")) == set(SWARM) == SILENT
    silent = Counter(kind for config in worlds() for kind in config.silent)
    assert all(count / MANY == pytest.approx(0.5, abs=0.05) for count in silent.values())


VALUES: dict[str, set[Any]] = {
    "engine": {"builtin"},
    "block_size": {2, 4, 8},
    "hashes_per_block": {1},
    "hands_over_states": {False},
    "layers": {1, 2},
    "tp_size": {1, 2},
    "pp_size": {1, 2},
    "stages": {"alike"},
    "max_running": {1, 2, 4, 6},
    "max_step_tokens": {4, 8, 16, 32},
    "run_ahead": {0, 1, 2, 3},
    "async_scheduling": {False, True},
    "runner": {1, 2},
    "zero_new_blocks": {False, True},
    "spec_tokens": {0, 1, 2},
    "drafter": {"text"},
    "role": {"kv_both", "kv_consumer", "kv_producer"},
    "failure_policy": {"recompute", "fail"},
    "host_slots": {4, 8, 16, 64},
    "trouble": {1, 5},
}
SILENT = {"abort", "advance", "fail", "lose", "repeat", "reset", "reset_all", "restart", "same_id", "spec", "tear"}
OFTEN = {
    ("block_size", 4): 1 / 2,
    ("groups", (FULL,)): 3 / 4,
    ("layers", 1): 2 / 3,
    ("tp_size", 1): 3 / 4,
    ("pp_size", 1): 5 / 6,
    ("run_ahead", 0): 4 / 9,
    ("run_ahead", 1): 3 / 9,
    ("zero_new_blocks", True): 1 / 4,
    ("spec_tokens", 0): 2 / 3,
    ("trouble", 1): 3 / 4,
    ("async_scheduling", True): 0.7 * 5 / 9,
}


@pytest.mark.parametrize(("name", "value"), OFTEN)
def test_how_often_a_feature_is_absent(name: str, value: Any) -> None:
    share = sum(getattr(config, name) == value for config in worlds()) / MANY
    assert share == pytest.approx(OFTEN[name, value], abs=0.05)


def test_what_excludes_each_other_in_a_world() -> None:
    roles: dict[bool, Counter[str]] = defaultdict(Counter)
    for config in worlds():
        assert config.run_ahead or not config.async_scheduling
        assert not config.spec_tokens or "spec" not in config.silent
        roles[config.run_ahead > 0][config.role] += 1
    assert set(roles[True]) == {"kv_both", "kv_consumer"}, "a producer's blocks are freed at once"
    assert roles[False]["kv_both"] / sum(roles[False].values()) == pytest.approx(5 / 7, abs=0.05)
    assert {len(draw_config(Random(seed), groups=3).groups) for seed in range(50)} == {3}


def test_finer_hashes_states_and_their_ends_are_added_to_some_worlds() -> None:
    plain = WorldConfig(block_size=8, num_blocks=24)
    fine = Counter(with_fine_hashes(plain, Random(seed)).hashes_per_block for seed in range(400))
    assert set(fine) == {1, 2, 8}
    assert 160 < fine[1] < 240
    two = replace(plain, groups=(FULL, SLIDING[0]), spec_tokens=2)
    assert with_fine_hashes(two, Random(1)) == two
    assert with_states(plain, Random(1)) == plain
    drawn = [with_states(replace(two, max_running=1 + seed % 6), Random(seed)) for seed in range(400)]
    for config in drawn:
        with_state = STATE in config.groups
        assert BuiltinEngine.fit(config).spec_tokens == (0 if with_state else 2), (
            "it has no blocks for their states"
        )
        assert with_state or not config.hands_over_states
        assert config.num_blocks == 12 * len(config.groups)
    groups = Counter(config.groups for config in drawn)
    assert set(groups) == {two.groups, (FULL, STATE), (*two.groups, STATE)}
    assert 130 < groups[two.groups] < 190
    assert {config.hands_over_states for config in drawn if STATE in config.groups} == {False, True}
    handed = [config for config in drawn if config.hands_over_states]
    assert [with_tails(config) for config in drawn if not config.hands_over_states] == [
        config for config in drawn if not config.hands_over_states
    ]
    sizes = product((4, 8, 16, 32), (4, 8, 16, 64), (1, 2))
    ends = [
        with_tails(replace(config, max_step_tokens=tokens, host_slots=slots, runner=runner))
        for tokens, slots, runner in sizes
        for config in handed[:20]
    ]
    has = [config for config in ends if config.hashes_per_block > 1]
    assert all(config.groups == (FULL, STATE) and config.num_blocks == 24 and config.has_tails for config in has)
    assert {config.hashes_per_block for config in has} == {2, 8}
    assert 0.45 < len(has) / len(ends) < 0.75


def test_in_half_of_the_worlds_without_a_prefix_cache_loads_fail_in_steps() -> None:
    base = replace(WorldConfig(), run_ahead=2, async_scheduling=True, silent=frozenset({"fail", "reset"}))
    failing = {"run_ahead": 0, "async_scheduling": False, "silent": frozenset({"reset"})}
    assert {
        with_failing_loads(replace(base, host_slots=slots)) == replace(base, host_slots=slots)
        for slots in range(40)
    } == {True}
    drawn = Counter[bool]()
    for slots in range(200):
        config = replace(base, host_slots=slots, prefix_caching=False)
        changed = with_failing_loads(config)
        assert changed in (config, replace(config, **failing))
        assert with_failing_loads(changed) == changed, "sizes say it"
        drawn[changed != config] += 1
    assert 70 < drawn[True] < 130


def test_a_window_is_alone_in_some_worlds_of_who_knows_groups() -> None:
    for traits in (frozenset(Trait), frozenset(Trait) - {Trait.GROUPS}):
        worlds = [config_for(Subject("X", traits=traits), Random(seed)) for seed in range(400)]
        ones = [config.groups[0].kind for config in worlds if len(config.groups) == 1]
        assert (0.02 < ones.count("sliding") / len(ones) < 0.3) is (Trait.GROUPS in traits)


def test_only_who_withstands_failures_meets_them_there() -> None:
    for traits in (frozenset(Trait), frozenset(Trait) - {Trait.FAILURES}):
        worlds = [config_for(Subject("X", traits=traits), Random(seed)) for seed in range(400)]
        without = [config for config in worlds if not config.prefix_caching]
        share = sum(config.run_ahead == 0 and "fail" not in config.silent for config in without) / len(without)
        often = 1 / 2 + 1 / 2 * 2 / 9 if Trait.FAILURES in traits else 2 / 9
        assert share == pytest.approx(often, abs=0.12)


def test_images_come_with_prompts_of_who_withstands_them_and_change_nothing_else() -> None:
    """In a quarter of the worlds; of a conversation at one place, and not with all."""
    everything, without = Subject("X"), Subject("X", traits=frozenset(Trait) - {Trait.IMAGES})
    pairs = [[config_for(one, Random(seed)) for one in (everything, without)] for seed in range(200)]
    assert all(replace(config, images=False) == plain for config, plain in pairs)
    assert 30 < sum(config.images for config, _ in pairs) < 70
    config = WorldConfig(num_blocks=40, images=True)
    drawn: list[list[RequestSpec]] = [[], []]
    for specs, images in zip(drawn, (True, False), strict=True):
        random, arrivals = Random(7), Arrivals(replace(config, images=images))
        specs += [arrivals.draw(random, ()) for _ in range(200)]
    assert [replace(spec, image=None, image_at=0) for spec in drawn[0]] == drawn[1]
    seen = [(spec.conversation, spec.seen) for spec in drawn[0] if spec.seen is not None]
    assert 40 < len(seen) < 120
    assert {image.name for _, image in seen} == {"i", "j"}
    places = {(conversation, image.at) for conversation, image in seen}
    assert len(places) == len({conversation for conversation, _ in places}), "each conversation has one place"


@pytest.mark.parametrize("evicts", [0, 2])
def test_an_image_is_among_the_tokens_that_a_conversation_shares(evicts: int) -> None:
    """Also of a prompt that is cut where a state is left."""
    config = WorldConfig(num_blocks=40, images=True, prefix_caching=bool(evicts), evicts=evicts)
    drawn = [spec for size in (2, 3, 4, 8) for spec in arrivals(replace(config, block_size=size))]
    seen = [spec for spec in drawn if spec.image is not None]
    assert len(seen) > 100
    assert all(spec.image_at < spec.shared_tokens for spec in seen)


@pytest.mark.parametrize(("evicts", "most"), [(0, 1), (2, 3)])
def test_prompts_are_repeated_in_turn_where_the_prefix_cache_loses_blocks(evicts: int, most: int) -> None:
    """Elsewhere it is the latest one that comes again."""
    random, source = Random(1), Arrivals(replace(ROOMY, evicts=evicts), of_peers=True)
    counts = set()
    for _ in range(200):
        source.draw(random, ())
        counts.add(len(source._before))
    assert max(counts) == most


SHOWS: dict[Trait, Callable[[WorldConfig], bool]] = {
    Trait.GROUPS: lambda config: len(config.groups) > 1,
    Trait.STATES: lambda config: STATE in config.groups,
    Trait.UNEQUAL: lambda config: config.is_unequal,
    Trait.FINE: lambda config: config.is_fine,
    Trait.RANKS: lambda config: config.world_size != 1,
    Trait.ZEROING: lambda config: config.runner == 2 and (config.zero_new_blocks or config.is_fine),
    Trait.IMAGES: lambda config: config.images,
}


@pytest.mark.parametrize("missing", SHOWS)
def test_a_world_is_within_what_its_subject_claims(missing: Trait) -> None:
    shows = SHOWS[missing]
    everything, without = Subject("X"), Subject("X", traits=frozenset(Trait) - {missing})
    assert any(shows(config_for(everything, Random(seed))) for seed in range(60))
    assert not any(shows(config_for(without, Random(seed))) for seed in range(200))
    other = next(trait for trait in (Trait.RANKS, Trait.ZEROING) if trait is not missing)
    assert any(SHOWS[other](config_for(without, Random(seed))) for seed in range(60)), "the rest is there"


@pytest.mark.parametrize(
    ("config", "longest", "host_bytes"),
    [
        (WorldConfig(num_blocks=9, block_size=4, host_slots=8), 32, 8 * 32),
        (WorldConfig(num_blocks=9, block_size=4, hashes_per_block=2, layers=2), 28, 64 * 2 * 32),
        (WorldConfig(num_blocks=9, block_size=4, spec_tokens=3), 32, 64 * 32),
        (WorldConfig(num_blocks=19, groups=TAILS, hands_over_states=True, hashes_per_block=2), 28, 64 * 32),
        (WorldConfig(num_blocks=18, groups=(FULL, STATE), hands_over_states=True, tp_size=2), 32, 64 * 32 * 2),
        (
            WorldConfig(
                num_blocks=18, groups=(FULL, STATE), hands_over_states=True, hashes_per_block=2, pp_size=2
            ),
            28,
            64 * 32 * 2,
        ),
    ],
)
def test_sizes_that_follow_from_others(config: WorldConfig, longest: int, host_bytes: int) -> None:
    """The longest request fits alone, with blocks to copy from."""
    assert config.max_model_len == longest
    assert config.longest_request == (longest - 3 if config.spec_tokens else longest)
    assert config.host_bytes == host_bytes
    assert config.page_bytes == 32
    assert config.world_size == config.tp_size * config.pp_size
    assert config.max_concurrent_steps == config.run_ahead + 1 == 1
    assert config.hit_ends_per_block == (2 if config.has_tails else 1)
    assert WorldConfig.from_json(config.to_json()) == config


def test_where_a_step_of_drafts_takes_more_than_there_is_no_request_ends_for_sure() -> None:
    small = WorldConfig(num_blocks=3, block_size=2, spec_tokens=4)
    assert (small.max_model_len, small.longest_request) == (4, 0)
    assert (replace(small, spec_tokens=3).longest_request, replace(small, spec_tokens=1).longest_request) == (1, 3)


# -- requests -----------------------------------------------------------------------------------


def arrivals(config: WorldConfig, count: int = 1500) -> list[RequestSpec]:
    random, source = Random(1), Arrivals(config)
    return [source.draw(random, ()) for _ in range(count)]


ROOMY = WorldConfig(block_size=4, num_blocks=40, silent=frozenset({"same_id"}))


def test_requests_end_next_to_every_boundary() -> None:
    """Of a block, or of what is hashed within one; and some go on where the last of their conversation ended."""
    drawn = arrivals(ROOMY)
    assert [spec.request_id for spec in drawn] == [f"r{number}" for number in range(1, len(drawn) + 1)]
    assert {spec.own_tokens for spec in drawn} == {0, 1, 3, 4}
    assert {spec.output_tokens for spec in drawn} >= {1, 2, 3, 4, 5, 8}
    assert {spec.max_tokens - spec.output_tokens for spec in drawn} == {0, 1, 3}
    assert {spec.salt for spec in drawn} == {None, "s", "t"}
    assert {spec.adapter for spec in drawn} == {None, "s"}
    often = Counter(spec.conversation for spec in drawn)
    assert sorted(often, key=lambda one: -often[one]) == list(range(CONVERSATIONS))
    assert 0.38 < often[0] / len(drawn) < 0.5
    assert 0.02 < sum(spec.skip_reading_prefix_cache for spec in drawn) / len(drawn) < 0.06
    for hashes, ends in ((1, {0, 1, 3}), (2, {0, 1, 2, 3}), (4, {0, 1, 2, 3})):
        config = replace(ROOMY, hashes_per_block=hashes)
        fresh = [Arrivals(config).draw(Random(seed), ()) for seed in range(400)]
        fit = [one for one in fresh if one.shared_tokens + one.own_tokens + one.max_tokens + 1 < MOST_BLOCKS * 4]
        assert {spec.shared_tokens % 4 for spec in fit} == ends
    last: dict[int, int] = {}
    steps: Counter[int] = Counter()
    for spec in drawn:
        if spec.conversation in last:
            steps[spec.shared_tokens - last[spec.conversation]] += 1
        last[spec.conversation] = spec.shared_tokens
    assert min(steps[1], steps[4], steps[5]) > 2 * max(steps[2], steps[3], steps[6])


@pytest.mark.parametrize("spec_tokens", [0, 2])
@pytest.mark.parametrize(("num_blocks", "hashes_per_block"), [(3, 1), (9, 1), (9, 4), (40, 1)])
def test_every_request_fits(num_blocks: int, hashes_per_block: int, spec_tokens: int) -> None:
    """With drafts of two steps, and a token more; and some leave no room."""
    config = replace(ROOMY, num_blocks=num_blocks, hashes_per_block=hashes_per_block, spec_tokens=spec_tokens)
    room = min(config.max_model_len, MOST_BLOCKS * 4)
    sizes = set()
    for spec in arrivals(config):
        assert min(spec.shared_tokens, spec.output_tokens) >= 1
        size = spec.shared_tokens + spec.own_tokens + spec.max_tokens + 2 * spec_tokens + 1
        assert size <= room or spec.shared_tokens == spec.output_tokens == 1, "it can't be shorter"
        sizes.add(size)
    assert room in sizes


@pytest.mark.parametrize("spec_tokens", [0, 2])
@pytest.mark.parametrize("num_blocks", [9, 40])
def test_every_turn_of_a_session_fits(num_blocks: int, spec_tokens: int) -> None:
    """Half of the requests are sessions, if the world has some."""
    config = replace(ROOMY, num_blocks=num_blocks, spec_tokens=spec_tokens)
    assert all(spec.turns is None for spec in arrivals(config))
    drawn = arrivals(replace(config, sessions=True))
    sessions = [SimRequest(spec, 4, 0) for spec in drawn if spec.turns is not None]
    assert 0.45 < len(sessions) / len(drawn) < 0.55
    turns, room = Counter[int](), min(config.max_model_len, MOST_BLOCKS * 4)
    sizes, more, samples, slack = set(), set(), set(), set()
    for session in sessions:
        turns[len(session.stories) - 1] += 1
        end = session.spec.shared_tokens + session.spec.own_tokens + session.spec.output_tokens
        for turn in session.spec.turns or ():
            more.add(turn.tokens)
            samples.add(turn.output_tokens)
            slack.add(turn.max_tokens - turn.output_tokens)
            end += turn.tokens - 1 + turn.output_tokens  # the last sampled token before is left out
            sizes.add(end + turn.max_tokens - turn.output_tokens + 2 * spec_tokens + 1)
    assert (max(sizes), samples, slack) == (room, {1, 2, 3, 4}, {0, 1, 3})
    assert more == {1, 2, 3, 4, 5, 8}
    assert set(turns) == {0, 1, 2, 3} and (num_blocks == 9 or turns[1] > turns[2] > turns[3] > 40), turns


@pytest.mark.parametrize(("block_size", "spec_tokens"), [(8, 1), (8, 2), (4, 2), (2, 2)])
def test_beside_every_request_there_is_room_for_a_step_of_drafts(block_size: int, spec_tokens: int) -> None:
    config = replace(ROOMY, num_blocks=9, block_size=block_size, spec_tokens=spec_tokens, sessions=True)
    sizes = {spec.total_tokens for spec in arrivals(config)}
    slack = config.max_model_len - 2 * spec_tokens - 1
    assert max(sizes) == min(config.longest_request, slack)


@pytest.mark.parametrize("windows", [(), (4,), (8, 5)])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_half_of_those_whose_windows_are_not_found_want_one_token(
    windows: tuple[int, ...], prefix_caching: bool
) -> None:
    groups = (FULL, *(GroupConfig("sliding", size) for size in windows))
    drawn = arrivals(replace(ROOMY, groups=groups, num_blocks=120, prefix_caching=prefix_caching))
    share = sum(spec.output_tokens == spec.max_tokens == 1 for spec in drawn) / len(drawn)
    assert (share > 0.5) == (bool(windows) and not prefix_caching), share


def test_some_ids_come_back() -> None:
    again = arrivals(replace(ROOMY, silent=frozenset()), 300)
    names = [spec.request_id for spec in again]
    repeated = len(names) - len(set(names))
    assert 30 < repeated < 90
    assert names[0] == "r1"
    random, source, taken = Random(1), Arrivals(replace(ROOMY, silent=frozenset())), set[str]()
    for _ in range(300):
        spec = source.draw(random, taken)
        assert spec.request_id not in taken
        taken.add(spec.request_id)


# -- what a connector is told -------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Namespaces as dictionaries."""
    if hasattr(value, "__dict__") and type(value).__name__ == "SimpleNamespace":
        return {name: plain(item) for name, item in vars(value).items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def test_what_a_connector_is_told_of_the_engine() -> None:
    config = WorldConfig(tp_size=2, pp_size=3, run_ahead=1, async_scheduling=True, runner=2, block_size=8)
    told = plain(vllm_config(config, LATER, 4))
    assert told.pop("kv_transfer_config") == LATER.transfer_config(config)
    expected = {
        "cache_config": {"block_size": 8, "enable_prefix_caching": True},
        "parallel_config": {"tensor_parallel_size": 2, "pipeline_parallel_size": 3, "world_size": 6, "rank": 4},
        "scheduler_config": {
            "disable_hybrid_kv_cache_manager": True,
            "max_num_batched_tokens": 16,
            "max_num_seqs": 4,
            "async_scheduling": True,
        },
        "kv_events_config": {"enable_kv_cache_events": True},
        "use_v2_model_runner": True,
        "max_concurrent_batches": 2,
    }
    assert told == expected
    other = plain(vllm_config(WorldConfig(groups=(FULL, SLIDING[0])), LATER))
    assert other["parallel_config"]["rank"] == 0
    assert (other["scheduler_config"]["disable_hybrid_kv_cache_manager"], other["use_v2_model_runner"]) == (
        False,
    ) * 2


@pytest.mark.parametrize(
    ("stages", "groups", "layers"),
    [
        ("alike", 2, [(2, 2)] * 3),
        ("more_later", 2, [(2, 2), (3, 3), (3, 3)]),
        ("more_first", 1, [(3,), (2,), (2,)]),
        ("groups_apart", 3, [(2, 0, 2), (0, 3, 0), (2, 0, 2)]),
        ("groups_apart", 1, [(2,), (3,), (3,)]),
    ],
)
def test_the_layers_of_stages(stages: Stages, groups: int, layers: list[tuple[int, ...]]) -> None:
    """Two ranks of each stage; with one stage there is nothing to tell apart."""
    config = WorldConfig(groups=(FULL, SLIDING[0], STATE)[:groups], layers=2, tp_size=2, pp_size=3, stages=stages)
    most = max(max(of_stage) for of_stage in layers)
    for rank in range(6):
        expected = layers[rank // 2]
        assert config.layers_of(rank) == expected
        assert config.block_bytes_of(rank) == 32 * max(expected)
        told = plain(kv_cache_config(config, rank))
        names = [[f"group{group}.layer{layer}" for layer in range(n)] for group, n in enumerate(expected)]
        assert [group["layer_names"] for group in told["kv_cache_groups"]] == names
        assert [(one["size"], one["shared_by"]) for one in told["kv_cache_tensors"]] == [
            (24 * 32, [f"group{group}.layer{layer}" for group, n in enumerate(expected) if layer < n])
            for layer in range(max(expected))
        ]
    assert (config.most_layers, config.host_bytes) == (most, 64 * most * 32 * 6)
    assert replace(config, pp_size=1).layers_of(1) == (2,) * groups


def test_stages_of_different_layers_are_drawn_where_there_are_some() -> None:
    configs = [config_for(Subject("X"), Random(seed)) for seed in range(400)]
    stages = Counter((config.pp_size > 1, config.stages) for config in configs)
    assert {*stages} == {(False, "alike"), *((True, one) for one in get_args(Stages))}
    assert sum(stages[True, one] for one in get_args(Stages) if one != "alike") > 30


def test_a_peer_is_a_stranger_in_a_quarter_of_the_worlds() -> None:
    strangers = Counter(with_strange_peer(config).stranger for config in worlds())
    assert set(strangers) == {"none", "model", "path", "dtype"}
    assert strangers["none"] / MANY == pytest.approx(3 / 4, abs=0.05)
    assert min(strangers.values()) / MANY == pytest.approx(1 / 12, abs=0.03)


def test_an_engine_that_can_not_hold_and_pull_does_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the connector's class says; whoever says nothing does both."""
    subject = Subject("P2PConnector", serves_peers=True, engines=2)
    can = [config_for(subject, Random(seed)) for seed in range(60)]
    assert {config.role for config in can} == {"kv_both", "kv_producer", "kv_consumer"}
    for does_both in (True, False):
        connector = SimpleNamespace(holds_and_pulls=does_both)
        monkeypatch.setattr(BuiltinEngine, "connector_class", lambda transfer, found=connector: found)
        drawn = [config_for(subject, Random(seed)) for seed in range(60)]
        assert (drawn == can) is does_both
    assert {config.role for config in drawn} == {"kv_producer", "kv_consumer"}


def test_who_drafts() -> None:
    """A model for three of five engines with drafts, of another engine than the testbed's, which has none."""
    configs = [with_drafter(config) for config in worlds()]
    assert {config.drafter for config in configs if not config.spec_tokens} == {"text"}
    counts = Counter(config.drafter for config in configs if config.spec_tokens)
    assert {*counts} == {*get_args(Drafter)}
    assert counts["text"] / counts.total() == pytest.approx(2 / 5, abs=0.1)
    assert {BuiltinEngine.fit(config).drafter for config in configs} == {"text"}
    assert {config_for(Subject("X"), Random(seed)).drafter for seed in range(50)} == {"text"}


@pytest.mark.parametrize(
    ("drafter", "drafts", "slots", "group", "marks", "longest"),
    [
        ("text", 2, 0, None, False, 41),
        ("model", 0, 0, None, False, 44),
        ("mtp", 0, 0, None, False, 44),
        ("model", 2, 2, 1, False, 37),
        ("eagle", 2, 2, 1, False, 37),
        ("mtp", 2, 2, 1, True, 37),
    ],
)
def test_what_a_draft_model_is_in_a_world(
    drafter: Drafter, drafts: int, slots: int, group: int | None, marks: bool, longest: int
) -> None:
    """It has the last layer of the last group that isn't of states, and a request leaves room for its slots."""
    groups = (FULL, SLIDING[0], STATE)
    config = WorldConfig(groups=groups, num_blocks=34, drafter=drafter, spec_tokens=drafts)
    assert (config.draft_slots, config.draft_group, config.marks_drafts) == (slots, group, marks)
    assert config.drops_last_block is (drafter in ("eagle", "mtp") and drafts > 0)
    assert config.longest_request == longest
    assert replace(config, groups=(STATE,)).draft_group is None


def test_the_testbeds_engine_refuses_a_draft_model() -> None:
    with pytest.raises(
        ConfigError, match=r"^world\.drafter: got 'mtp', and the engine 'builtin' has no draft model"
    ):
        World(WorldConfig(drafter="mtp", spec_tokens=1), SUBJECTS["memory"])


def test_what_a_connector_is_told_of_the_caches() -> None:
    groups = (FULL, GroupConfig("sliding", 5), STATE)
    config = WorldConfig(groups=groups, hands_over_states=True, layers=2, num_blocks=10, zero_new_blocks=True)
    same = {"block_size": 4, "page_size_bytes": 32}
    assert plain(kv_cache_config(config)) == {
        "num_blocks": 10,
        "kv_cache_groups": [
            {
                "layer_names": [f"group{group}.layer0", f"group{group}.layer1"],
                "kv_cache_spec": {**same, "kind": kind, "sliding_window": window, "hands_over_states": hands},
            }
            for group, kind, window, hands in (
                (0, AttentionKind.FULL, None, False),
                (1, AttentionKind.SLIDING_WINDOW, 5, False),
                (2, AttentionKind.STATE_SPACE, None, True),
            )
        ],
        "kv_cache_tensors": [
            {"size": 320, "shared_by": [f"group{group}.layer{layer}" for group in range(3)]} for layer in range(2)
        ],
        "prefix_cacheable_group_ids": (0, 1, 2),
        "hash_block_size": 4,
        "needs_kv_cache_zeroing": True,
    }
    kept = plain(kv_cache_config(WorldConfig(groups=(FULL, STATE), block_size=8)))
    assert kept["kv_cache_groups"][1]["kv_cache_spec"]["hands_over_states"] is False
    assert (kept["hash_block_size"], kept["needs_kv_cache_zeroing"]) == (8, False)
    assert plain(kv_cache_config(WorldConfig(hashes_per_block=2)))["hash_block_size"] == 2
