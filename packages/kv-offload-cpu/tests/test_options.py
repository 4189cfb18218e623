"""The extra config: defaults, what is refused and in which words, what is let be."""

import pytest

from kv_api import ConfigError
from kv_offload_cpu import CopyEngineChoice, MemoryChoice, Options
from kv_offload_cpu.options import OTHER_KEYS, read_options


def test_the_defaults():
    assert read_options({"cpu_bytes_to_use": 1e9}) == Options(
        cpu_bytes_to_use=1_000_000_000,
        eviction_policy="lru",
        cache_policy_module_path=None,
        store_threshold=0,
        max_tracker_size=64_000,
        copy_engine=CopyEngineChoice.AUTO,
        copy_threads=0,
        host_memory=MemoryChoice.AUTO,
        shared_memory_dir="/dev/shm",
        pin_memory=True,
        checksum=False,
    )


def test_everything_can_be_set():
    given = {
        "cpu_bytes_to_use": 10,
        "eviction_policy": "Mine",
        "cache_policy_module_path": "mine",
        "store_threshold": 2,
        "max_tracker_size": 3,
        "copy_engine": "host",
        "copy_threads": 5,
        "host_memory": "shared",
        "shared_memory_dir": "/mnt",
        "pin_memory": False,
        "checksum": True,
    }
    assert read_options(given) == Options(
        10, "Mine", "mine", 2, 3, CopyEngineChoice.HOST, 5, MemoryChoice.SHARED, "/mnt", False, True
    )


def test_the_least():
    given = {"cpu_bytes_to_use": 1, "store_threshold": 0, "max_tracker_size": 1, "copy_threads": 0}
    assert read_options(given | {"cache_policy_module_path": None}) == Options(1, max_tracker_size=1)


def test_keys_of_others_are_let_be():
    others = {
        "backpressure": {},
        "block_size": 32,
        "blocks_per_chunk": 2,
        "canonical_layout": True,
        "offload_prompt_only": False,
        "secondary_tiers": [],
        "self_describing_kv_events": True,
        "spec_module_path": "mine",
        "spec_name": "CPUOffloadingSpec",
        "sync_load_budget_bytes": 0,
        "tier_poll_interval_s": 1,
    }
    assert others.keys() == {*OTHER_KEYS}
    assert read_options({"cpu_bytes_to_use": 1, **others}) == Options(1)
    foreign = {"connectors": [], "load_policy": "first", 7: None}
    assert read_options({"cpu_bytes_to_use": 1, **foreign}) == Options(1)


WRONG = {
    "cpu_bytes_to_use: not set; it is the host memory to use, in bytes, over all workers": {},
    "cpu_bytes_to_use: expected a number of bytes, at least 1, got 0": {"cpu_bytes_to_use": 0},
    "cpu_bytes_to_use: expected a number of bytes, at least 1, got '4G'": {"cpu_bytes_to_use": "4G"},
    "cpu_bytes_to_use: expected a number of bytes, at least 1, got True": {"cpu_bytes_to_use": True},
    "cpu_bytes_to_use: expected a number of bytes, at least 1, got nan": {"cpu_bytes_to_use": float("nan")},
    "cpu_bytes_to_use: expected a number of bytes, at least 1, got inf": {"cpu_bytes_to_use": float("inf")},
    "store_threshold: expected a whole number of at least 0, got -1": {"store_threshold": -1},
    "max_tracker_size: expected a whole number of at least 1, got 0": {"max_tracker_size": 0},
    "copy_threads: expected a whole number of at least 0, got 1.5": {"copy_threads": 1.5},
    "copy_threads: expected a whole number of at least 0, got True": {"copy_threads": True},
    "eviction_policy: expected str, got 3 (int)": {"eviction_policy": 3},
    "eviction_policy: expected str, got None (NoneType)": {"eviction_policy": None},
    "cache_policy_module_path: expected str, got 3 (int)": {"cache_policy_module_path": 3},
    "checksum: expected bool, got 'yes' (str)": {"checksum": "yes"},
    "unknown copy_engine 'cude'; known: auto, cuda, cuda-batch, cuda-best, cuda-gather, cuda-staged, host, "
    "host-stream; did you mean 'cuda'?": {"copy_engine": "cude"},
    "unknown host_memory 7; known: auto, private, shared": {"host_memory": 7},
    "kv_connector_extra_config: unknown key 'cpu_byte_to_use'; did you mean 'cpu_bytes_to_use'?": {
        "cpu_byte_to_use": 5
    },
    "kv_connector_extra_config: unknown key 'Checksums'; did you mean 'checksum'?": {"Checksums": True},
    # four fifths alike, and no less
    "kv_connector_extra_config: unknown key 'checsuz'; did you mean 'checksum'?": {"checsuz": True},
    "kv_connector_extra_config: unknown key 'store_treshold'; did you mean 'store_threshold'?": {
        "store_treshold": 2
    },
}


@pytest.mark.parametrize(("message", "given"), WRONG.items(), ids=range(len(WRONG)))
def test_what_is_wrong_is_named(message, given):
    base = {} if not given or "cpu_byte" in next(iter(given)) else {"cpu_bytes_to_use": 1}
    with pytest.raises(ConfigError) as caught:
        read_options(base | given)
    assert str(caught.value) == message
