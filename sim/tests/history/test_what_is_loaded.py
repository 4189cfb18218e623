"""Worlds of every kind load: a testbed finds no bug of a load that never happens."""

from collections import Counter, defaultdict
from random import Random
from typing import Any

import pytest

from kv_sim.config import BUILTIN_ENGINE, STATE, WorldConfig
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.fuzz import run_seed
from kv_sim.history.coverage import LOADS
from kv_sim.history.draws import config_for
from kv_sim.world import World

WORLDS = 12
"""Worlds of each kind, the first that are drawn."""
FEWEST = 3
"""Of these at least so many must load."""
SHARE = 0.4
"""And of all together this share."""


class Loads(World):
    """Counts what is matched in a history, and not what is asked at rest."""

    loads = 0

    def rest(self) -> None:
        self.loads = sum(self.coverage.situations[name] for name in LOADS)
        super().rest()


def kind_of(config: WorldConfig) -> str:
    """The kind of a world, as far as it changes what a load is."""
    if len(config.groups) == 1:
        return "one group"
    kinds = ["states" if STATE in config.groups else "windows"]
    if STATE in config.groups:
        kinds += ["handed over"] if config.hands_over_states else ["in tables"]
    kinds += ["at ends within blocks"] if config.has_tails else []
    kinds += ["blocks of several sizes"] if config.is_unequal else []
    return ", ".join(kinds)


def drawn(name: str) -> dict[str, list[int]]:
    """The first seeds of each kind with several groups."""
    seeds = defaultdict[str, list[int]](list)
    for seed in range(1000):
        config = config_for(SUBJECTS[name], Random(seed), BUILTIN_ENGINE)
        if len(config.groups) > 1 and len(seeds[kind_of(config)]) < WORLDS:
            seeds[kind_of(config)].append(seed)
    return {kind: some for kind, some in sorted(seeds.items()) if some}


@pytest.mark.once
@pytest.mark.parametrize("name", ["offload", "offload-chunks"])
def test_worlds_of_each_kind_with_several_groups_load(name: str) -> None:
    worlds: list[Loads] = []

    def make(*args: Any, **more: Any) -> Loads:
        worlds.append(Loads(*args, **more))
        return worlds[-1]

    for seed in (seed for seeds in drawn(name).values() for seed in seeds):
        assert run_seed(SUBJECTS[name], seed, make_world=make).failure is None
    loading = Counter({kind_of(world.config): 0 for world in worlds})
    loading.update(kind_of(world.config) for world in worlds if world.loads)
    assert len(loading) == 7, "every kind is drawn"
    assert min(loading.values()) >= FEWEST, loading
    assert sum(loading.values()) >= SHARE * WORLDS * len(loading), loading
