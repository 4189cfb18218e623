"""HITS where a group has a window: who repeats a prompt finds it, asked of an engine that is made up."""

from dataclasses import replace
from typing import Any

import pytest
from kv_sim_made_up_engine import CONFIG, KEEPS, Engine, asked, copies, judge, request

from kv_sim.config import STATE, GroupConfig
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.memory.copy import State
from kv_sim.subject import Trait

WINDOW = replace(CONFIG, groups=(GroupConfig(), GroupConfig("sliding", 4)), num_blocks=48)
OLDEST = replace(KEEPS, evicts_oldest=True)
RESETS = replace(KEEPS, traits=KEEPS.traits | {Trait.RESET})
FORGET = ("reset", False, True)


def twice(chunks: int, tokens: int, times: int = 1) -> list[tuple[str, int]]:
    """A prompt, and again with a token more."""
    return [(f"unseen-{chunks}", tokens)] * times + [(f"unseen-{chunks}", tokens + 1)]


def all_of(spec: RequestSpec) -> int:
    return spec.own_tokens - 1


@pytest.mark.parametrize(
    ("of", "world", "sizes"),
    [
        ({}, {"host_slots": 8}, (1, 2, 4)),  # four chunks of each group
        ({}, {"host_slots": 11}, (1, 3, 5)),
        ({}, {"host_slots": 3}, (1,)),
        ({}, {"host_slots": 64}, (1, 11, 22)),  # the engine takes none longer than 92 tokens
        ({}, {"block_size": 2, "num_blocks": 9}, (1, 2, 3)),  # none longer than 8, of which one is sampled
        ({"blocks_per_chunk": 2}, {"host_slots": 4, "block_size": 1, "groups": [3]}, (1,)),
        ({"keeps_from": 3}, {"host_slots": 4}, (1, 2)),
        ({"blocks_per_chunk": 2}, {"host_slots": 15, "groups": [6]}, (1, 2, 3)),
        ({"blocks_per_chunk": 2}, {"host_slots": 15, "groups": [9]}, (1, 2, 3)),
        ({}, {"host_slots": 8, "groups": [4, 9]}, (1, 2)),
        ({}, {"host_slots": 2, "groups": [2]}, (1,)),
    ],
)
def test_who_begins_with_a_prompt_finds_it(
    of: dict[str, Any], world: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    """All of it: it ends with a chunk."""
    subject = replace(OLDEST, **of)
    windows = world.pop("groups", [4])
    config = replace(WINDOW, groups=(GroupConfig(), *(GroupConfig("sliding", size) for size in windows)), **world)
    chunk = config.block_size * subject.blocks_per_chunk
    room = config.host_slots // subject.blocks_per_chunk // len(config.groups)
    engine = Engine([request()], all_of)
    assert judge(engine, subject, config) == []
    assert asked(engine) == [each for size in sizes for each in twice(size, size * chunk, subject.keeps_from)]
    engine.finds = lambda spec: spec.own_tokens - 2
    assert judge(engine, subject, config) == [
        f"HITS  request unseen-{size} is repeated at rest: {size * chunk - 1} of its first {size * chunk} tokens "
        f"are found, but it has just computed them all, and {room} chunks of each group fit in "
        f"{config.host_slots} host slots"
        for size in sizes
    ]


@pytest.mark.parametrize(
    ("of", "world", "sizes"),
    [
        ({}, {"host_slots": 8}, (1, 2, 4)),
        ({"blocks_per_chunk": 2}, {"host_slots": 16}, (1, 2, 4)),  # the state of a chunk is that at its end
        ({}, {"host_slots": 8, "hands_over_states": True}, (1, 2, 4)),
        (
            {},
            {"host_slots": 8, "hands_over_states": True, "hashes_per_block": 2},
            (1, 2, 3),
        ),  # two are of the tail
    ],
)
def test_a_state_is_found_where_a_prompt_ends_with_it(
    of: dict[str, Any], world: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    subject, config = replace(OLDEST, **of), replace(WINDOW, groups=(GroupConfig(), STATE), **world)
    chunk = config.block_size * subject.blocks_per_chunk
    engine = Engine([request()], all_of)
    assert judge(engine, subject, config) == []
    assert asked(engine) == [each for size in sizes for each in twice(size, size * chunk)]
    engine.finds = lambda spec: spec.own_tokens - 1 - chunk
    assert len(judge(engine, subject, config)) == len(sizes)


def test_where_it_is_not_known_who_leaves_the_cache_is_emptied_for_each() -> None:
    config = replace(WINDOW, host_slots=4)
    for subject, forgets, does in (
        (RESETS, True, [FORGET, *twice(1, 4), FORGET, *twice(2, 8)]),
        (RESETS, False, [FORGET]),
        (RESETS, None, [FORGET]),
        (replace(RESETS, evicts_oldest=True), True, [*twice(1, 4), *twice(2, 8)]),
        (KEEPS, True, []),
    ):
        engine = Engine([], all_of)
        engine.forgets = forgets
        assert judge(engine, subject, config) == []
        assert asked(engine) == does, subject


@pytest.mark.parametrize(
    ("of", "world"),
    [
        ({}, {"role": "kv_consumer"}),
        ({}, {"role": "kv_producer"}),
        ({"blocks_per_chunk": 2}, {"groups": (GroupConfig(), GroupConfig("sliding", 5))}),
        ({"blocks_per_chunk": 2}, {"groups": (GroupConfig(), GroupConfig("sliding", 10))}),
        (
            {"blocks_per_chunk": 2},
            {"groups": (GroupConfig(), GroupConfig("sliding", 8), GroupConfig("sliding", 5))},
        ),
        ({}, {"host_slots": 1}),
        ({"blocks_per_chunk": 64}, {}),
        ({}, {"num_blocks": 4}),  # the engine takes four tokens
    ],
)
def test_nobody_asks_where_it_is_not_known(of: dict[str, Any], world: dict[str, Any]) -> None:
    """Also where a chunk has lost its beginning when the request ends."""
    engine = Engine([request()], lambda spec: 0)
    assert judge(engine, replace(OLDEST, **of), replace(WINDOW, **world)) == []
    assert engine.did == []


def test_nobody_asks_while_a_copy_is_under_way_or_a_request() -> None:
    for devices in ((copies(), copies(running=1)), (copies(running=1), copies())):
        engine = Engine([], lambda spec: 0, *devices)
        assert judge(engine, OLDEST, WINDOW) == []
        assert engine.did == []
    engine = Engine([], lambda spec: 0)
    engine.works = lambda: True
    assert judge(engine, OLDEST, WINDOW) == []
    assert engine.did == []


def test_one_that_never_ends_is_the_last() -> None:
    """Which is LIVENESS, and told already."""
    engine = Engine([], lambda spec: 0)
    engine.works = lambda: len(asked(engine)) >= 3
    told = judge(engine, OLDEST, replace(WINDOW, host_slots=4))
    assert asked(engine) == [*twice(1, 4), *twice(2, 8)]
    assert len(told) == 1


def test_what_a_failed_copy_dropped_is_not_missed() -> None:
    def fails(spec: RequestSpec) -> int:
        if len(asked(engine)) == 2:
            engine.devices[0].copies.ended.append(copies(State.FAILED).copies.ended[0])
        return 0

    engine = Engine([], fails, copies(State.FAILED), copies())
    assert judge(engine, OLDEST, replace(WINDOW, host_slots=4)) == []
    assert len(asked(engine)) == 4
