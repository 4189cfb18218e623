"""A device, a step of one request on it, and slot by slot what must lie there; and what a call is refused with."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from kv_sim.config import STATE, GroupConfig, WorldConfig
from kv_sim.engine.request import SimRequest
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.memory.content import (
    layer_keys,
)
from kv_sim.memory.device import Device
from kv_sim.memory.kernels import Slot
from kv_sim.memory.launched import Attention, LaunchedStep
from kv_sim.memory.shadow import Shadow
from kv_sim.violation import Referee, Violation

RANK, SIZE = 1, 4
GROUPS = (GroupConfig(), GroupConfig("sliding", 5), STATE)
CONFIG = WorldConfig(num_blocks=24, block_size=SIZE, groups=GROUPS, layers=2, tp_size=2)
TAILS = replace(CONFIG, groups=(GroupConfig(), STATE), hashes_per_block=2, hands_over_states=True)
APART = replace(CONFIG, tp_size=1, pp_size=2, stages="groups_apart")
"""Of its groups this rank has three layers of the second, and none of the others."""
TABLES = ((1, 2, 3, 4, 5), (6, 7, 8, 9, 10), (11, 12, 13, 14, 15))
HASHES = SimRequest(RequestSpec("r1", 0, 20, 0, 1, 1), SIZE, 0).hashes
SPANS = [(0, 3), (1, 2), (0, 4), (0, 9), (3, 4), (4, 5), (5, 12), (7, 16), (11, 13), (12, 20), (17, 19)]
spans = pytest.mark.parametrize(("start", "end"), SPANS)
configs = pytest.mark.parametrize("config", [CONFIG, TAILS, APART], ids=["groups", "tails", "apart"])


def device(config: WorldConfig = CONFIG) -> Device:
    made = Device(RANK, config, Shadow(2, Referee()))
    assert made.allocate_host(8) == 0
    return made


def tables_of(config: WorldConfig) -> tuple[tuple[int, ...], ...]:
    return (TABLES[0], TABLES[2]) if config is TAILS else TABLES


def step(
    config: WorldConfig, *spans: tuple[int, int], tables: Any = None, poison: tuple[int, ...] = (), number: int = 7
) -> LaunchedStep:
    """One in which a request goes over these tokens."""
    where = tables or tables_of(config)
    attentions = [Attention("r1", start, end, where, HASHES) for start, end in spans]
    return LaunchedStep(number, attentions, [*poison], [], SIZE, tuple(group.window for group in config.groups))


def slots(config: WorldConfig, start: int, end: int) -> Iterator[tuple[int, int, Slot, int]]:
    """Of tokens that were computed: group, token, where it lies, and what must lie there."""
    keys = layer_keys(RANK, config.layers_of(RANK))
    for group, table in enumerate(tables_of(config)):
        for token in range(start, end):
            for layer in range(config.layers_of(RANK)[group]):
                block, held = table[token // SIZE], int(HASHES[token]) ^ int(keys[group][layer])
                for offset in [token % SIZE] if config.groups[group].kind != "state" else range(SIZE):
                    yield group, token, (block, layer, offset), held


def fill(made: Device, tokens: int) -> None:
    """As if these had been computed."""
    for _, _, slot, held in slots(made.config, 0, tokens):
        made.memory[slot] = held


def refused(act: Any, *args: Any) -> str | None:
    try:
        act(*args)
    except Violation as violation:
        return violation.message
    return None
