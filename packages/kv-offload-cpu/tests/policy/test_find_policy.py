"""Policies by name, and from somebody else's module."""

import pytest

from kv_api import KVError, ReqContext
from kv_offload_cpu import POLICIES, CPUOffloadingManager, find_policy

PLUGIN = "kv_offload_cpu_plugin"


def test_our_names_win():
    for name, policy in POLICIES.items():
        assert find_policy(name) is policy
        assert find_policy(name, "no.such.module") is policy


def test_a_policy_of_somebody_else(make, keys, store):
    manager = make(3, "MostRecentPolicy", cache_policy_module_path=PLUGIN)
    for number in range(3):
        store(manager, [number])
    assert store(manager, [3]) == keys([2])


@pytest.mark.parametrize(
    ("name", "module_path", "message"),
    [
        ("lru2", None, "unknown eviction_policy 'lru2'; known: arc, lru, s3fifo, sieve; did you mean 'lru'?"),
        ("lfu-da", None, "unknown eviction_policy 'lfu-da'; known: arc, lru, s3fifo, sieve"),
        (None, None, "unknown eviction_policy None; known: arc, lru, s3fifo, sieve"),
        (
            "Mine", "kv_offload_cpu_missing",
            "policy 'Mine' from cache_policy_module_path 'kv_offload_cpu_missing': the module can't be imported: "
            "ModuleNotFoundError: No module named 'kv_offload_cpu_missing'",
        ),
        (
            "Mine", "kv_offload_cpu_broken",
            "policy 'Mine' from cache_policy_module_path 'kv_offload_cpu_broken': the module can't be imported: "
            "RuntimeError: no such luck",
        ),
        (
            "MostRecent", PLUGIN,
            f"policy 'MostRecent' from cache_policy_module_path '{PLUGIN}': the module has no such attribute",
        ),
        (
            "not_a_class", PLUGIN,
            f"policy 'not_a_class' from cache_policy_module_path '{PLUGIN}': expected a subclass of "
            "kv_offload_cpu.policy.base.CachePolicy, got 7",
        ),
        (
            "NotAPolicy", PLUGIN,
            f"policy 'NotAPolicy' from cache_policy_module_path '{PLUGIN}': expected a subclass of "
            f"kv_offload_cpu.policy.base.CachePolicy, got <class '{PLUGIN}.NotAPolicy'>",
        ),
    ],
)  # fmt: skip
def test_names_that_stand_for_no_policy(name, module_path, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the whole message is compared
        find_policy(name, module_path)
    assert str(error.value) == message
    assert isinstance(error.value, KVError)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("LazyPolicy", "evicted 0 chunks instead of 1"), ("GreedyPolicy", "pinned and evicted: [0]")],
)
def test_a_policy_that_breaks_its_contract_is_caught(keys, name, complaint):
    manager, context = CPUOffloadingManager(2, name, PLUGIN), ReqContext("any")
    manager.prepare_store(keys([0, 1]), context)
    manager.complete_store(keys([0, 1]), context)
    manager.prepare_load(keys([0]), context)
    with pytest.raises(AssertionError, match=complaint.replace("[", r"\[")):
        manager.prepare_store(keys([2]), context)
