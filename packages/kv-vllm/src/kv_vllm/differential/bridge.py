"""The connector of vLLM's scheduler in the differential: it passes calls to a ``Script`` and returns its answers.

The script is in the connector's extra config, so each scheduler of a process has its own. There are two classes,
since vLLM asks by ``isinstance`` whether a connector supports several KV cache groups. vLLM imports this file by
its name.
"""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)

SCRIPT_KEY = "kv_vllm_script"
DELIVERY_KEY = "kv_vllm_requires_delivery"


class ScriptedMetadata(KVConnectorMetadata):  # type: ignore[misc]
    """Empty metadata: no worker reads it."""


class ScriptedConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """The scheduler's side of a connector, played by a script. It has no worker's side."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self._script = extra[SCRIPT_KEY]
        self._requires_delivery: bool = extra[DELIVERY_KEY]

    @property
    def requires_kv_delivery(self) -> bool:
        return self._requires_delivery

    def on_new_request(self, request: Any) -> None:
        self._script.call("on_new_request", request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        return self._script.call("get_num_new_matched_tokens", request, num_computed_tokens)

    def get_loaded_kv_cache_group_ids(self, request: Any) -> Any:
        return self._script.call("get_loaded_kv_cache_group_ids", request)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._script.call("update_state_after_alloc", request, blocks, num_external_tokens)

    def has_pending_block_frees(self) -> Any:
        return self._script.call("has_pending_block_frees")

    def build_connector_meta(self, scheduler_output: Any) -> ScriptedMetadata:
        self._script.call("build_connector_meta", scheduler_output)
        return ScriptedMetadata()

    def request_finished(self, request: Any, block_ids: list[int]) -> Any:
        return self._script.call("request_finished", request, block_ids)

    def update_connector_output(self, connector_output: Any) -> None:
        self._script.call("update_connector_output", connector_output)

    def reset_cache(self) -> Any:
        return self._script.call("reset_cache")

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        raise _no_worker("start_load_kv")

    def wait_for_layer_load(self, layer_name: str) -> None:
        raise _no_worker("wait_for_layer_load")

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        raise _no_worker("save_kv_layer")

    def wait_for_save(self) -> None:
        raise _no_worker("wait_for_save")


class ScriptedHMAConnector(ScriptedConnector, SupportsHMA):  # type: ignore[misc]
    """A scripted connector that supports several KV cache groups."""

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        return self._script.call("request_finished_all_groups", request, block_ids)


def _no_worker(name: str) -> RuntimeError:
    return RuntimeError(f"{name} belongs to a worker, and a scripted connector has none")
