"""A connector's configuration in a replay with a clock: its media are timed, and others are refused."""

from typing import Any

import pytest
from kv_sim_timed_traces import PAGE

from kv_api import ConfigError
from kv_offload_file.options import FileOptions
from kv_sim.replay.sizing.transfer_config import disk_config
from kv_sim.replay.timed.connectors.timed_config import (
    NOTHING,
    decides_in_known_steps,
    has_files,
    timed_config,
    without_files,
)

EXTRA = "kv_connector_extra_config"
OFFLOADING = {"kv_connector": "OffloadingConnector", EXTRA: {"cpu_bytes_to_use": PAGE}}
NO_MODEL = "has no timing model; OffloadingConnector has one, and a MultiConnector of OffloadingConnectors"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "connector.kv_connector: expected a name, got None"),
        ({"kv_connector": 5}, "connector.kv_connector: expected a name, got 5"),
        (
            OFFLOADING,
            "kv_transfer_config.kv_role: required because kv_connector is 'OffloadingConnector'; choices: "
            "kv_producer, kv_consumer, kv_both",
        ),
        ({**OFFLOADING, EXTRA: 3}, f"connector.{EXTRA}: expected a mapping, got 3"),
        (
            {"kv_connector": "MemoryConnector", "kv_connector_module_path": "kv_sim.examples.memory"},
            f"connector.kv_connector: MemoryConnector {NO_MODEL}",
        ),
        (
            {**OFFLOADING, EXTRA: {"spec_name": "TieringOffloadingSpec"}},
            f"connector.{EXTRA}.spec_name: 'TieringOffloadingSpec' is a medium without a timing model; "
            "CPUOffloadingSpec and FileOffloadingSpec have one",
        ),
        (
            {**OFFLOADING, EXTRA: {"spec_module_path": "theirs.cpu"}},
            f"connector.{EXTRA}.spec_module_path: 'theirs.cpu' has a CPUOffloadingSpec of its own, which "
            "has no timing model; that of kv_offload_cpu has one",
        ),
        (
            {"kv_connector": "MultiConnector"},
            f"connector.{EXTRA}.connectors: expected a list, got None",
        ),
        (
            {"kv_connector": "MultiConnector", EXTRA: {"connectors": [OFFLOADING, 5]}},
            f"connector.{EXTRA}.connectors[1]: expected a mapping, got 5",
        ),
    ],
)
def test_connectors_that_cannot_be_timed(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        timed_config(config, 1)
    assert str(caught.value) == message
    assert (has_files(config), without_files(config)) == (False, None), "nobody stumbles over it before"


MEDIUM = "kv_sim.replay.timed.connectors.host_memory"
TIMED = {"spec_name": "ReplayCPUOffloadingSpec", "spec_module_path": MEDIUM}


def test_the_media_of_a_configuration_are_timed() -> None:
    ours = {"kv_connector": "ReplayOffloadingConnector", "kv_connector_module_path": MEDIUM}
    timed = {EXTRA: {"cpu_bytes_to_use": PAGE, **TIMED}}
    assert timed_config({**OFFLOADING, "kv_role": "kv_both"}, 1) == {"kv_role": "kv_both", **ours, **timed}
    bare = {"kv_connector": "OffloadingConnector", "kv_role": "kv_producer"}
    assert timed_config(bare, 1) == {"kv_role": "kv_producer", **ours, EXTRA: TIMED}
    inside = {**bare, "kv_connector_module_path": "kv_vllm"}
    assert timed_config(inside, 1) == timed_config(bare, 1)
    plain = {"kv_connector": "OffloadingConnector", "kv_role": "kv_producer"}
    assert (bare, inside) == (plain, {**plain, "kv_connector_module_path": "kv_vllm"}), "nobody's own is changed"
    other = {"kv_connector": "PlainConnector", "kv_connector_module_path": "kv_sim_timed_broken"}
    nothing = {"kv_connector": "NoConnector", "kv_connector_module_path": "kv_sim.replay.timed.connectors.nothing"}
    several = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_consumer",
        EXTRA: {"connectors": [OFFLOADING, {**other, "kv_role": "kv_both"}, nothing], "more": 1},
    }
    found = timed_config(several, 1)
    assert found == {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_consumer",
        EXTRA: {
            "connectors": [
                {"kv_role": "kv_consumer", **ours, **timed},
                {**other, "kv_role": "kv_both", EXTRA: TIMED},
                {"kv_role": "kv_consumer", **nothing},
            ],
            "more": 1,
        },
    }
    assert not decides_in_known_steps(found), "one of them may count steps"
    found[EXTRA]["connectors"][1:2] = []
    assert decides_in_known_steps(found) and decides_in_known_steps(NOTHING)
    for timeout in ("load_timeout_seconds", "store_timeout_seconds"):
        for seconds, is_known in ((0.5, False), (0, True)):
            found[EXTRA]["connectors"][0][EXTRA][timeout] = seconds
            assert decides_in_known_steps(found) == is_known, (timeout, seconds)


def test_a_medium_may_be_named_by_a_module_of_its_package_and_say_that_it_is_not_shared() -> None:
    whole = {**OFFLOADING, "kv_role": "kv_both", EXTRA: {"spec_module_path": "kv_offload_cpu.spec"}}
    assert timed_config(whole, 1)[EXTRA] == TIMED
    alone = disk_config("/disk", 9 * PAGE, 0, "lru")
    timed = timed_config({**alone, EXTRA: {**alone[EXTRA], "file_shared": False}}, 1)
    assert timed == {**(usual := timed_config(alone, 1)), EXTRA: {**usual[EXTRA], "file_shared": False}}


def test_what_is_pasted_into_a_server_can_be_replayed() -> None:
    """Whether or not kv-vllm is there: inside vLLM our connectors have the same names in another module."""
    pasted = disk_config("/disk", 9 * PAGE, 4 * PAGE, "arc")
    assert pasted["kv_connector_module_path"] == "kv_vllm"
    timed = timed_config(pasted, ranks=2)
    host, disk = timed[EXTRA]["connectors"]
    assert (timed["kv_connector"], "kv_connector_module_path" in timed) == ("MultiConnector", False)
    assert host[EXTRA] == {"cpu_bytes_to_use": 4 * PAGE, "eviction_policy": "arc", **TIMED}
    assert (disk["kv_connector"], disk[EXTRA]["spec_name"]) == (
        "ReplayOffloadingConnector",
        "ReplayFileOffloadingSpec",
    )
    assert disk[EXTRA]["file_staging_bytes"] == 2 * FileOptions.file_staging_bytes, "each rank has its own"
    assert has_files(pasted) and decides_in_known_steps(timed)
    left = without_files(pasted)
    assert left == {**pasted, EXTRA: {**pasted[EXTRA], "connectors": pasted[EXTRA]["connectors"][:1]}}
    assert not has_files(left) and without_files(left) is None
    alone = disk_config("/disk", 9 * PAGE, 0, "lru")
    assert has_files(alone) and without_files(alone) is None
    assert alone[EXTRA] == {
        "spec_name": "FileOffloadingSpec",
        "spec_module_path": "kv_offload_file",
        "file_dir": "/disk",
        "file_bytes_to_use": 9 * PAGE,
        "eviction_policy": "lru",
    }
    assert without_files({**pasted, EXTRA: {"connectors": pasted[EXTRA]["connectors"][1:]}}) is None
