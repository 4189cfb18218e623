"""Checked by mypy and pyright, never run: a connector for an engine with specs of its own."""

from typing import Any

from kv_api import AttentionKind, KVCacheConfig, KVConnectorRole, VllmConfig
from kv_offload import GroupDescription, OffloadingConnector, OffloadingWorkerSide, parse_options


class PatientWorkerSide(OffloadingWorkerSide):
    clock = staticmethod(lambda: 0.0)


class MyConnector(OffloadingConnector):
    worker_class = PatientWorkerSide

    @classmethod
    def describe_group(cls, kv_cache_spec: Any) -> GroupDescription:
        return GroupDescription(AttentionKind.FULL, tokens_per_block=16, page_size_bytes=4096)


def use(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> bool:
    connector = MyConnector(vllm_config, KVConnectorRole.SCHEDULER, kv_cache_config)
    seconds: float = parse_options({"load_timeout_seconds": 5}).load_timeout_seconds
    return connector.has_pending_push_work() and seconds > 0
