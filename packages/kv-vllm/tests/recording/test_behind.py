"""What a trace says of the memory that its server's connector had, and of which it says nothing."""

import pytest

from kv_sim.replay.sizing.transfer_config import disk_config, host_config
from kv_vllm.recording.behind import NOT_SAID, Kept, kept_by

HOST = {"cpu_bytes_to_use": 100}


def kept(config):
    return kept_by(config["kv_connector"], config["kv_connector_extra_config"])


def test_what_size_prints_is_said() -> None:
    assert kept(host_config(100, "arc")) == Kept(100, None, "arc")
    assert kept(disk_config("/disk", 200, 0, "lru")) == Kept(None, 200, "lru")
    assert kept(disk_config("/disk", 200, 100, "sieve")) == Kept(100, 200, "sieve")
    assert kept_by("OffloadingConnector", HOST) == Kept(100, None, "lru"), "which is usual"


def test_the_medium_says_which_of_two_sizes_is_meant() -> None:
    sizes = {**HOST, "file_bytes_to_use": 200}
    assert kept_by("OffloadingConnector", sizes) == Kept(100, None, "lru")
    files = {"spec_name": "FileOffloadingSpec", **sizes}
    assert kept_by("OffloadingConnector", files) == Kept(None, 200, "lru")


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"cpu_bytes_to_use": "100"},
        {**HOST, "spec_name": "TheirSpec"},
        {**HOST, "blocks_per_chunk": 2},
        {**HOST, "block_size": 64},
        {**HOST, "offload_prompt_only": False},
        {**HOST, "store_when": "evicted"},
        {**HOST, "store_threshold": 2},
        {**HOST, "save": False},
        {**HOST, "cache_policy_module_path": "theirs"},
        {"spec_name": "FileOffloadingSpec", "file_bytes_to_use": 100, "file_shared": True},
    ],
)
def test_of_what_a_replay_has_not_by_itself_nothing_is_said(extra) -> None:
    assert kept_by("OffloadingConnector", extra) == NOT_SAID
    child = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": extra}
    assert kept_by("MultiConnector", {"connectors": [child]}) == NOT_SAID


def test_what_is_as_usual_may_be_said() -> None:
    for usual in ({"blocks_per_chunk": 1, "block_size": None}, {"blocks_per_chunk": None, "store_when": None}):
        assert kept_by("OffloadingConnector", {**HOST, **usual}) == Kept(100, None, "lru")


def test_of_several_nothing_is_said_unless_they_are_one_of_each() -> None:
    both = disk_config("/disk", 200, 100, "lru")["kv_connector_extra_config"]
    host, disk = both["connectors"]
    first = {key: value for key, value in both.items() if key != "load_policy"}
    other = {**disk, "kv_connector_extra_config": {**disk["kv_connector_extra_config"], "eviction_policy": "arc"}}
    assert kept_by("MultiConnector", both) == Kept(100, 200, "lru")
    assert kept_by("MultiConnector", {"connectors": [host]}) == Kept(100, None, "lru")
    for wrong in (
        first,
        {**both, "connectors": [host, host]},
        {**both, "connectors": [disk, disk]},
        {**both, "connectors": [host, other]},
        {**both, "connectors": [host, {"kv_connector": "LMCacheConnectorV1"}]},
        {**both, "connectors": [host, "files"]},
        {**both, "connectors": [host, {**disk, "kv_connector_extra_config": None}]},
        {**both, "connectors": []},
        {**both, "connectors": None},
    ):
        assert kept_by("MultiConnector", wrong) == NOT_SAID
    assert kept_by("LMCacheConnectorV1", HOST) == NOT_SAID
