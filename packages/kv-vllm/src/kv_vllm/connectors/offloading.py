"""``OffloadingConnector`` for ``kv_connector_module_path: kv_vllm``: ours, inside vLLM."""

from typing import Any

from kv_api.groups import GroupDescription
from kv_factory import OffloadingSpecFactory
from kv_offload import OffloadingConnector as OurOffloadingConnector
from kv_vllm.connectors.inside import VLLM_BASES, InsideVllm
from kv_vllm.connectors.keys import refuse_keys_of_others, warn_of_unread_keys, warn_of_vllms_option
from kv_vllm.connectors.prom import DeprecatedToo
from kv_vllm.connectors.room import warn_of_little_room
from kv_vllm.translate import describe_group, hash_extras, role_of


class OffloadingConnector(InsideVllm, OurOffloadingConnector, *VLLM_BASES):  # type: ignore[misc]
    """kv-offload's connector, of vLLM's class and for vLLM's KV cache groups."""

    shares_tokens = True

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        refuse_keys_of_others(vllm_config)
        super().__init__(vllm_config, role, kv_cache_config)
        if role_of(role).name == "SCHEDULER":  # once an engine
            warn_of_vllms_option(vllm_config)
            warn_of_unread_keys(vllm_config.kv_transfer_config.kv_connector_extra_config)
            deciding: Any = self.side
            warn_of_little_room(deciding.manager, vllm_config, kv_cache_config)

    @classmethod
    def describe_group(cls, kv_cache_spec: Any) -> GroupDescription:
        return describe_group(kv_cache_spec)

    @classmethod
    def hash_extras(cls, request: Any, tokens: range) -> tuple[Any, ...] | None:
        return hash_extras(request, tokens)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: dict[type[Any], type[Any]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> DeprecatedToo:
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        spec_class = OffloadingSpecFactory.get_spec_cls(extra)
        return DeprecatedToo(vllm_config, metric_types, labelnames, per_engine_labelvalues, spec_class, extra)
