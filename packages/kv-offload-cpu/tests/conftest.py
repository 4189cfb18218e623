import sys
from pathlib import Path

import pytest

# Not a package: the modules there must be importable by name, also as a cache_policy_module_path.
sys.path.append(str(Path(__file__).parent / "support"))

from kv_api import OffloadKey, ReqContext
from kv_offload_cpu import POLICIES, CPUOffloadingManager


@pytest.fixture(params=sorted(POLICIES))
def policy(request):
    """The name of each policy."""
    return request.param


@pytest.fixture
def make():
    """Makes managers, and recounts them after the test."""
    made = []

    def make_one(num_chunks=8, cache_policy="lru", kind=CPUOffloadingManager, **options):
        made.append(kind(num_chunks, cache_policy, **options))
        return made[-1]

    yield make_one
    for manager in made:
        manager.check()


@pytest.fixture
def keys():
    """`keys(range(3))`: the keys of chunks 0 to 2, of group 0."""
    return lambda numbers, group=0: [OffloadKey(b"%06d" % n + group.to_bytes(4, "big")) for n in numbers]


@pytest.fixture
def store(keys):
    """Stores chunks in one go, for a request of their own or a given one; returns what was evicted."""

    def store_all(manager, numbers, context=None):
        context = context or ReqContext(f"stores {numbers}")
        output = manager.prepare_store(keys(numbers), context)
        assert output is not None, f"no room for {numbers}"
        manager.complete_store(output.keys_to_store, context)
        return output.evicted_keys

    return store_all
