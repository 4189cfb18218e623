"""The metrics that vLLM has deprecated, beside the connector's own; without a vLLM."""

from functools import partial
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kv_offload import OffloadingConnectorStats, TransferStats
from kv_offload.metrics import LOAD_BYTES, LOAD_SIZE, SIZE_BUCKETS, STORE_BYTES
from kv_offload_cpu import CPUOffloadingSpec
from kv_vllm.connectors.prom import DeprecatedToo


def test_deprecated_metrics_count_the_same():
    registry = CollectorRegistry()
    kinds = {kind: partial(kind, registry=registry) for kind in (Gauge, Counter, Histogram)}
    config = SimpleNamespace(kv_transfer_config=None)
    metrics = DeprecatedToo(config, kinds, ["engine"], {0: ["0"]}, CPUOffloadingSpec, {})
    stats = OffloadingConnectorStats()
    stats.increase(LOAD_BYTES, 5)
    stats.increase(STORE_BYTES, 7)
    stats.observe(LOAD_SIZE, 5)
    metrics.observe(stats.to_dict())

    def value(name, **labels):
        return registry.get_sample_value(name, {"engine": "0", **labels})

    assert value("vllm:kv_offload_total_bytes_total", transfer_type="CPU_to_GPU") == 5
    assert value("vllm:kv_offload_total_bytes_total", transfer_type="GPU_to_CPU") == 7
    assert value("vllm:kv_offload_size_count", transfer_type="CPU_to_GPU") == 1
    assert value("vllm:kv_offload_size_count", transfer_type="GPU_to_CPU") == 0
    assert value("vllm:kv_offload_load_bytes_total") == 5


@pytest.mark.parametrize("moving", [0, 1])
def test_all_deprecated_metrics_by_engine(moving):
    """Those of the engine that has moved nothing are there, too."""
    registry, transfers = CollectorRegistry(), TransferStats()
    transfers.load.record(5, 0.5)
    transfers.load.record(6, 0.25)
    transfers.store.record(7, 2.0)
    stats = OffloadingConnectorStats()
    stats.add_transfers(transfers)
    kinds = {kind: partial(kind, registry=registry) for kind in (Gauge, Counter, Histogram)}
    engines = {0: ["0"], 1: ["1"]}
    config = SimpleNamespace(kv_transfer_config=None)
    metrics = DeprecatedToo(config, kinds, ["engine"], engines, CPUOffloadingSpec, {})
    metrics.observe(stats.to_dict(), moving)
    metrics.observe({})
    loaded_bytes = [registry.get_sample_value("vllm:kv_offload_load_bytes_total", {"engine": e}) for e in "01"]
    assert loaded_bytes == ([11, None] if moving == 0 else [None, 11])
    names = {f"vllm:kv_offload_{name}" for name in ("total_bytes", "total_time", "size")}
    families = [family for family in registry.collect() if family.name in names]
    samples = [sample for family in families for sample in family.samples]
    seen = {
        (sample.name.removeprefix("vllm:kv_offload_"), *sample.labels.values()): sample.value
        for sample in samples
        if not sample.name.endswith(("_created", "_bucket"))
    }
    loaded, stored = (11, 0.75, 2, 11), (7, 2.0, 1, 7)
    parts = ("total_bytes_total", "total_time_total", "size_count", "size_sum")
    assert seen == {
        (part, engine, way): told[place] if engine == str(moving) else 0
        for place, part in enumerate(parts)
        for engine in ("0", "1")
        for way, told in (("CPU_to_GPU", loaded), ("GPU_to_CPU", stored))
    }
    buckets = {float(sample.labels["le"]) for sample in samples if sample.name.endswith("_bucket")}
    assert buckets == {*SIZE_BUCKETS, float("inf")}
