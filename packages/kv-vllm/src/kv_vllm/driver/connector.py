"""The connector that vLLM gets in the driver: it has vLLM's base class and passes calls to a guarded connector.

vLLM checks a connector's class by ``isinstance``, and the testbed must see every call. So vLLM's scheduler and its
runners have a ``DrivenConnector``, and behind it is a ``Guard`` of the testbed with the driven connector, ours or
vLLM's. Arguments and answers pass unchanged, except the sources of a hit, which vLLM inspects. Some calls are also
told to the testbed's ``Ledger`` or worker. vLLM imports this file by name.
"""

from typing import Any, Final

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, SupportsHMA
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kv_vllm.handing_on import hand_the_rest_on

BEHIND_KEY: Final = "kv_vllm_behind"
"""The key of the extra config that has the ``Guard``, and the object that is told of calls."""


class DrivenConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """A connector of vLLM's base class that does what the connector behind it does."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.inner, self._told = vllm_config.kv_transfer_config.kv_connector_extra_config[BEHIND_KEY]

    @property
    def requires_kv_delivery(self) -> bool:
        return bool(self.inner.requires_kv_delivery)

    @property
    def supports_divergent_local_hybrid_hits(self) -> bool:
        return bool(self.inner.connector.supports_divergent_local_hybrid_hits)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        answer = self.inner.get_num_new_matched_tokens(request, num_computed_tokens)
        self._told.matched(request.request_id, num_computed_tokens, answer)
        return answer

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._told.allocated(request.request_id, blocks.get_block_ids(), num_external_tokens)
        self.inner.update_state_after_alloc(request, blocks, num_external_tokens)

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> Any:
        sources = self.inner.get_external_cache_hit_sources(request, num_external_tokens)
        return {CacheHitSource(source.value): count for source, count in sources.items()}

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        meta = self.inner.build_connector_meta(scheduler_output)
        # Read here: vLLM takes it out of the output before the workers get that.
        self._told.handed_over(getattr(scheduler_output, "kv_connector_block_state", None))
        return meta

    def register_finished_partial_tail(self, request: Any, block_ids: Any, partial_tail_offloads: Any) -> Any:
        answer = self.inner.register_finished_partial_tail(request, block_ids, partial_tail_offloads)
        self._told.registered(request.request_id, answer)
        return answer

    def request_finished(self, request: Any, block_ids: list[int]) -> Any:
        answer = self.inner.request_finished(request, block_ids)
        self._told.finished(request, answer[0])
        return answer

    def take_events(self) -> Any:
        events = list(self.inner.take_events())
        self._told.announced(events)
        return events

    def reset_cache(self) -> Any:
        answer = self.inner.reset_cache()
        self._told.forgot(answer)
        return answer

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        self._told.begins()
        self.inner.bind_connector_metadata(connector_metadata)


class DrivenHMAConnector(DrivenConnector, SupportsHMA):  # type: ignore[misc]
    """A ``DrivenConnector`` that supports several KV cache groups."""

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        answer = self.inner.request_finished_all_groups(request, block_ids)
        self._told.finished(request, answer[0])
        return answer


hand_the_rest_on(DrivenConnector, KVConnectorBase_V1)
DrivenHMAConnector.__abstractmethods__ = frozenset()
