import sys
from pathlib import Path

import pytest

# Not a package: the classes there must be importable by name, also by a factory and a pickle.
sys.path.append(str(Path(__file__).parent / "support"))

import kv_multi_scripted as scripted

import kv_factory
from kv_api import KVConnectorRole


@pytest.fixture(autouse=True)
def registered():
    """The scripted classes are registered, and nothing else is but what is installed."""
    with kv_factory.isolated():
        for name in scripted.CLASSES:
            kv_factory.KVConnectorFactory.register_connector(name, "kv_multi_scripted", name)
        yield


@pytest.fixture
def make():
    """Makes MultiConnectors, and recounts them after the test."""
    made = []

    def make_one(children, role=KVConnectorRole.SCHEDULER, kv_cache_config=None, **extra):
        made.append(scripted.make(children, role, kv_cache_config, **extra))
        return made[-1]

    yield make_one
    for connector in made:
        connector.check()


@pytest.fixture
def scheduler(make):
    """Makes the scheduler's side over two scripted children, or those that are given."""

    def make_one(*children, **extra):
        multi = make(list(children) or [scripted.child(), scripted.child()], **extra)
        return multi, *multi.sub_connectors

    return make_one


@pytest.fixture
def worker(make):
    """The same for a worker's side."""

    def make_one(*children, **extra):
        multi = make(list(children) or [scripted.child(), scripted.child()], KVConnectorRole.WORKER, **extra)
        return multi, *multi.sub_connectors

    return make_one
