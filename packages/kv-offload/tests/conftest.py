import sys
from pathlib import Path

import pytest

# Not a package: the spec there must be importable by name, as a spec_module_path.
sys.path.append(str(Path(__file__).parent / "support"))

import kv_offload_configs as configs
import kv_offload_medium as medium
from kv_offload_tails import CACHE

from kv_api import KVConnectorRole


@pytest.fixture(autouse=True)
def fresh_medium():
    medium.ScriptedSpec.manager = None
    medium.ScriptedSpec.workers = []
    yield
    medium.ScriptedSpec.manager = None
    medium.ScriptedSpec.workers = []


@pytest.fixture
def manager():
    """The manager of the next scheduler side."""
    medium.ScriptedSpec.manager = medium.StrictManager()
    return medium.ScriptedSpec.manager


@pytest.fixture
def make():
    """Makes connectors, and recounts them after the test."""
    made = []

    def make_one(side=KVConnectorRole.SCHEDULER, **config):
        made.append(configs.make(side, **config))
        return made[-1]

    yield make_one
    for connector in made:
        connector.side.check()


@pytest.fixture
def worker(make):
    """Makes a worker's side and returns it with its medium's worker."""

    def make_one(**config):
        connector = make(KVConnectorRole.WORKER, **config)
        return connector, medium.ScriptedSpec.workers[-1]

    return make_one


@pytest.fixture
def fenced(make, manager):
    """A scheduler's side that stores while it computes, and its manager."""

    def make_one(**extra):
        return make(**{"hold_blocks": "never", **extra}), manager

    return make_one


@pytest.fixture
def held(make, manager):
    """One that stores at the end."""
    return make(hold_blocks="always"), manager


@pytest.fixture
def tails(make, manager):
    """A scheduler's side for tokens and two groups of states, with fences, and its manager."""

    def make_one(cache=CACHE, **extra):
        return make(**{"hold_blocks": "never", "cache": cache, **extra}), manager

    return make_one
