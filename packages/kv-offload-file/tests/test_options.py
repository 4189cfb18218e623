"""The settings, their defaults, and what is wrong with them."""

from dataclasses import asdict

import pytest

from kv_api import ConfigError
from kv_offload_cpu.options import CopyEngineChoice, CopySubmission
from kv_offload_file import FileOffloadingSpec, FileOptions
from kv_offload_file.options import read_options

OURS = {"file_dir": "somewhere", "file_bytes_to_use": 1e9}


def without(extra, key):
    return {name: value for name, value in extra.items() if name != key}


def test_settings_and_their_defaults():
    assert asdict(read_options(OURS)) == {
        "file_dir": "somewhere",
        "file_bytes_to_use": 10**9,
        "file_tag": "",
        "file_staging_bytes": 2**30,
        "file_threads": 4,
        "file_direct": False,
        "file_shared": False,
        "file_engine": None,
        "eviction_policy": "lru",
        "cache_policy_module_path": None,
        "store_threshold": 0,
        "max_tracker_size": 64_000,
        "copy_engine": CopyEngineChoice.AUTO,
        "copy_threads": 0,
        "copy_submission": CopySubmission.CALLER,
        "pin_memory": True,
    }
    given = {
        "file_dir": "/there",
        "file_bytes_to_use": 10**6,
        "file_tag": "tuned",
        "file_staging_bytes": 10**5,
        "file_threads": 1024,
        "file_direct": True,
        "file_shared": True,
        "file_engine": 7,
        "eviction_policy": "arc",
        "cache_policy_module_path": "theirs",
        "store_threshold": 3,
        "max_tracker_size": 9,
        "copy_engine": "host",
        "copy_threads": 2,
        "copy_submission": "thread",
        "pin_memory": False,
    }
    assert read_options({**given, "block_size": 48}) == FileOptions(
        **{**given, "copy_engine": CopyEngineChoice.HOST, "copy_submission": CopySubmission.THREAD}
    )
    assert {*given} == {*FileOptions.__dataclass_fields__} == FileOffloadingSpec.extra_keys


@pytest.mark.parametrize(
    ("key", "meaning"),
    [
        ("file_dir", "the folder to keep chunks in"),
        ("file_bytes_to_use", "the room that they may take there, in bytes, over all workers"),
    ],
)
@pytest.mark.parametrize("unset", [without, lambda extra, key: {**extra, key: None}])
def test_what_must_be_set(key, meaning, unset):
    with pytest.raises(ConfigError) as refused:
        read_options(unset(OURS, key))
    assert str(refused.value) == f"{key}: not set; it is {meaning}"


KNOWN = (
    "cache_policy_module_path, copy_engine, copy_submission, copy_threads, eviction_policy, file_bytes_to_use, "
    "file_dir, file_direct, file_engine, file_shared, file_staging_bytes, file_tag, file_threads, "
    "max_tracker_size, pin_memory, store_threshold"
)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("file_dir", 7, "file_dir: expected str, got 7 (int)"),
        ("file_dir", "", "file_dir: '' names no folder; it is the folder to keep chunks in"),
        ("file_dir", "/kv\0", "file_dir: '/kv\\x00': no folder's name has a NUL in it"),
        ("file_dir", "~/kv", "file_dir: '~/kv': ~ is not expanded here; write the full path"),
        ("file_dir", "~kv/kv", "file_dir: '~kv/kv': ~ is not expanded here; write the full path"),
        ("file_bytes_to_use", 0, "file_bytes_to_use: expected a number of bytes, at least 1, got 0"),
        ("file_bytes_to_use", "1e9", "file_bytes_to_use: expected a number of bytes, at least 1, got '1e9'"),
        ("file_tag", None, "file_tag: expected str, got None (NoneType)"),
        ("file_staging_bytes", -1, "file_staging_bytes: expected a number of bytes, at least 1, got -1"),
        ("file_threads", 0, "file_threads: expected a whole number of at least 1, got 0"),
        ("file_threads", 1025, "file_threads: expected at most 1024, got 1025"),
        ("file_direct", 1, "file_direct: expected bool, got 1 (int)"),
        ("file_shared", "yes", "file_shared: expected bool, got 'yes' (str)"),
        ("file_engine", -1, "file_engine: expected a whole number of at least 0, got -1"),
        ("file_engine", 253, "file_engine: expected a number below 253, got 253"),
        (
            "copy_engine",
            "fast",
            f"unknown copy_engine 'fast'; known: {', '.join(sorted(choice.value for choice in CopyEngineChoice))}",
        ),
        (
            "file_thread",
            1,
            f"kv_connector_extra_config: unknown key 'file_thread'; known: {KNOWN}; did you mean 'file_threads'?",
        ),
        (
            "file_byte_to_use",
            1,
            f"kv_connector_extra_config: unknown key 'file_byte_to_use'; known: {KNOWN}; "
            "did you mean 'file_bytes_to_use'?",
        ),
    ],
)
def test_what_is_wrong_is_named(key, value, said):
    with pytest.raises(ConfigError) as refused:
        read_options({**OURS, key: value})
    assert str(refused.value) == said
