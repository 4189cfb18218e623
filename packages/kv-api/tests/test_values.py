"""Values of all kinds: names of enums, defaults, and which of them can't be changed."""

import inspect
from dataclasses import FrozenInstanceError, fields
from enum import Enum
from typing import Any

import pytest
from kv_api_offloading_config import offloading_config

import kv_api
from kv_api import CacheHitSource, Locality, Medium, TierFilter
from kv_api.groups import GroupDescription

NAMES: dict[type[Enum], list[object]] = {
    kv_api.AttentionKind: ["full_attention", "sliding_window", "state_space"],
    CacheHitSource: ["device", "host", "p2p", "disk", "external_unspecified"],
    kv_api.Direction: ["store", "load"],
    kv_api.KVConnectorRole: [0, 1],
    Locality: ["LOCAL", "REMOTE"],
    Medium: ["CPU", "STORAGE"],
    kv_api.OffloadPolicy: ["chunk_level", "request_level"],
}


@pytest.mark.parametrize("kind", NAMES, ids=lambda kind: kind.__name__)
def test_names_that_configurations_events_and_metrics_have(kind: type[Enum]) -> None:
    assert [member.value for member in kind] == NAMES[kind]
    assert (kv_api.MEDIUM_GPU, kv_api.MEDIUM_CPU, kv_api.MEDIUM_STORAGE) == ("GPU", "CPU", "STORAGE")


def test_defaults_of_what_a_medium_is_told() -> None:
    config = offloading_config()
    assert (config.replicated_layout, config.canonical_layout, config.kv_cache_layout) == (False, False, None)
    assert config.model.max_model_len == 0
    assert config.parallel.cp_kv_cache_interleave_size == 1
    assert config.groups[0].sliding_window_size_in_chunks is None
    assert kv_api.OffloadingGaugeMetadata("text").multiprocess_mode == "mostrecent"
    success = inspect.signature(kv_api.OffloadingManager.complete_store).parameters["success"]
    assert success.default is True


def test_defaults_of_values_that_a_medium_makes_and_gets() -> None:
    event = kv_api.OffloadingEvent([], Medium.CPU, removed=True)
    assert vars(event) == {
        "keys": [],
        "medium": Medium.CPU,
        "removed": True,
        "locality": None,
        "ownership": None,
        "removal_expected": False,
        "metadata_only": False,
    }
    assert vars(kv_api.TransferResult(1, True)) == {
        "job_id": 1,
        "success": True,
        "transfer_size": None,
        "transfer_time": None,
    }
    assert kv_api.OffloadingHistogramMetadata("text") == kv_api.OffloadingHistogramMetadata("text", (), None)
    assert kv_api.CanonicalKVCacheRef(0, 64).mapping is None
    context = kv_api.ReqContext("r")
    assert (context.kv_transfer_params, context.kv_hints) == (None, None)
    assert context.load_tier_filter is TierFilter.ALL


@pytest.mark.parametrize(
    ("method", "name", "default"),
    [
        (kv_api.OffloadingWorker.submit_load, "expedited", False),
        (kv_api.KVConnectorPromMetrics.observe, "engine_idx", 0),
        (kv_api.KVConnectorKVEvents.increment_workers, "count", 1),
        (kv_api.KVConnectorBase_V1.build_kv_connector_stats, "data", None),
    ],
    ids=["submit_load", "observe", "increment_workers", "build_kv_connector_stats"],
)
def test_what_callers_of_other_peoples_classes_may_leave_out(method: Any, name: str, default: object) -> None:
    assert inspect.signature(method).parameters[name].default is default


def test_values_that_many_share_do_not_change() -> None:
    config = offloading_config()
    run = kv_api.CopyRun(0, 0, 8, 2, 8, 16)
    shared: list[Any] = [
        config,
        config.groups[0],
        config.model,
        config.cache,
        config.parallel,
        GroupDescription(kv_api.AttentionKind.FULL, 4),
        kv_api.OffloadingKVEventsConfig(True, False),
        kv_api.OffloadingCounterMetadata("text"),
        TierFilter.ALL,
        run,
        kv_api.CanonicalPageMapping(32, 16, (run,), 3, 0, True),
    ]
    for value in shared:
        name = fields(value)[0].name
        with pytest.raises(FrozenInstanceError, match=name):
            setattr(value, name, None)
    assert hash(kv_api.AllBlocksCleared()) == hash(kv_api.AllBlocksCleared())
