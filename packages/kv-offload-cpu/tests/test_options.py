"""The extra config: defaults, what is refused and in which words, what is let be."""

import pytest

from kv_api import ConfigError
from kv_offload_cpu import CopyEngineChoice, CopySubmission, MemoryChoice, Options
from kv_offload_cpu.options import read_options


def test_the_defaults():
    assert read_options({"cpu_bytes_to_use": 1e9}) == Options(
        cpu_bytes_to_use=1_000_000_000,
        eviction_policy="lru",
        cache_policy_module_path=None,
        store_threshold=0,
        max_tracker_size=64_000,
        copy_engine=CopyEngineChoice.AUTO,
        copy_threads=0,
        copy_submission=CopySubmission.CALLER,
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
        "copy_submission": "thread",
        "host_memory": "shared",
        "shared_memory_dir": "/mnt",
        "pin_memory": False,
        "checksum": True,
    }
    assert read_options(given) == Options(
        10,
        MemoryChoice.SHARED,
        "/mnt",
        checksum=True,
        eviction_policy="Mine",
        cache_policy_module_path="mine",
        store_threshold=2,
        max_tracker_size=3,
        copy_engine=CopyEngineChoice.HOST,
        copy_threads=5,
        copy_submission=CopySubmission.THREAD,
        pin_memory=False,
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
        "connectors": [],
        "cpu_bytes_to_use_per_rank": 4,
        "hold_blocks": "never",
        "load_policy": "first",
        "load_timeout_seconds": 3,
        "max_deferred_lookups": 5,
        "name": "near",
        "offload_prompt_only": False,
        "save": False,
        "secondary_tiers": [],
        "self_describing_kv_events": True,
        "spec_module_path": "mine",
        "spec_name": "CPUOffloadingSpec",
        "store_timeout_seconds": 3,
        "sync_load_budget_bytes": 0,
        "tier_poll_interval_s": 1,
        7: None,
    }
    assert read_options({"cpu_bytes_to_use": 1, **others}) == Options(1)


def test_a_subclass_of_the_spec_may_have_keys_that_resemble_ours():
    given = {"cpu_bytes_to_use": 1, "checksums": "crc"}
    assert read_options(given, {"checksums"}) == Options(1)
    assert read_options({"cpu_bytes_to_use": 1, "block_size": 32}, {"block_sizes"}) == Options(1)
    with pytest.raises(ConfigError, match=r"unknown key 'checksumm'; .* did you mean 'checksum'\?"):
        read_options({"cpu_bytes_to_use": 1, "checksumm": "crc"}, {"checksums"})


def unknown(key, meant):
    return (
        f"kv_connector_extra_config: unknown key {key!r}; known: cache_policy_module_path, checksum, copy_engine, "
        "copy_submission, copy_threads, cpu_bytes_to_use, eviction_policy, host_memory, max_tracker_size, "
        f"pin_memory, shared_memory_dir, store_threshold; did you mean {meant!r}?"
    )


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
    "unknown copy_engine 'cude'; known: auto, cuda, cuda-batch, cuda-best, cuda-bulk, cuda-gather, cuda-staged, "
    "host, host-stream; did you mean 'cuda'?": {"copy_engine": "cude"},
    "unknown copy_submission 'treads'; known: caller, thread; did you mean 'thread'?": {
        "copy_submission": "treads"
    },
    "unknown host_memory 7; known: auto, private, shared": {"host_memory": 7},
    unknown("cpu_byte_to_use", "cpu_bytes_to_use"): {"cpu_byte_to_use": 5},
    unknown("Checksums", "checksum"): {"Checksums": True},
    unknown("store_treshold", "store_threshold"): {"store_treshold": 2},
}


@pytest.mark.parametrize(("message", "given"), WRONG.items(), ids=range(len(WRONG)))
def test_what_is_wrong_is_named(message, given):
    base = {} if not given or "cpu_byte" in next(iter(given)) else {"cpu_bytes_to_use": 1}
    with pytest.raises(ConfigError) as caught:
        read_options(base | given)
    assert str(caught.value) == message
