"""``MultiConnector`` for ``kv_connector_module_path: kv_vllm``: ours, inside vLLM.

Children are found as vLLM finds them, with one exception: without a ``kv_connector_module_path`` the names of
this package's connectors mean its classes.
Any other connector of vLLM's can be a child (``foreign``).
"""

from copy import copy
from typing import Any

from kv_multi import MultiConnector as OurMultiConnector
from kv_vllm.connectors.foreign import with_found_children
from kv_vllm.connectors.inside import VLLM_BASES, InsideVllm


class MultiConnector(InsideVllm, OurMultiConnector, *VLLM_BASES):  # type: ignore[misc]
    """kv-multi's connector, of vLLM's class and with vLLM's connectors among its children."""

    shares_tokens = True

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(_found_in(vllm_config), role, kv_cache_config)

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        return super().get_required_kvcache_layout(_found_in(vllm_config))

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        return super().requires_piecewise_for_cudagraph(with_found_children(extra_config))

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
        return super().supports_sleep_mode(_found_by(kv_transfer_config))

    @classmethod
    def all_children_support_hma(cls, kv_transfer_config: Any) -> bool:
        return super().all_children_support_hma(_found_by(kv_transfer_config))

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any
    ) -> Any:
        config = _found_in(vllm_config)
        return super().build_prom_metrics(config, metric_types, labelnames, per_engine_labelvalues)


def _found_in(vllm_config: Any) -> Any:
    copied = copy(vllm_config)
    copied.kv_transfer_config = _found_by(vllm_config.kv_transfer_config)
    return copied


def _found_by(transfer: Any) -> Any:
    copied = copy(transfer)
    copied.kv_connector_extra_config = with_found_children(transfer.kv_connector_extra_config)
    return copied
