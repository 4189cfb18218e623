"""``TraceConnector``: writes the requests of a live engine as a trace, from which host memory can be sized.

``kv_connector_extra_config`` has ``trace_path``, and may have ``connector``, the wrapped connector; without one
the engine behaves as without a connector. ``traffic`` describes the file.
"""

from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any, Final

from kv_api.blocks import bytes_per_block, tokens_per_hash
from kv_api.groups import workers_of
from kv_vllm.recording.before import ConnectorBefore, Opens, path_in
from kv_vllm.recording.behind import Kept, kept_by
from kv_vllm.recording.clock import read_clock
from kv_vllm.recording.traffic import Blocks, Traffic, path_of_replica
from kv_vllm.translate import describe_group, reads_all

NOTHING: Final = {"kv_connector": "NoConnector", "kv_connector_module_path": "kv_vllm.recording.nothing"}

NULL_BLOCKS: Final = 1
"""Blocks of vLLM's pool that never hold KV."""

_log: Final = getLogger("kv_vllm")


class TraceConnector(ConnectorBefore):
    """Does what the wrapped connector does, and writes the requests."""

    keys = ("connector", "trace_path")
    usual = NOTHING
    traffic: Traffic | None = None
    """The writer; only on the scheduler's side."""

    def prepare(self, vllm_config: Any, config_behind: Any, kv_cache_config: Any) -> Opens:
        parallel = vllm_config.parallel_config
        path = path_in(vllm_config.kv_transfer_config.kv_connector_extra_config, "trace_path")
        path = path_of_replica(path, getattr(parallel, "data_parallel_index", 0))
        transfer = config_behind.kv_transfer_config
        kept = kept_by(transfer.kv_connector, transfer.kv_connector_extra_config)
        return partial(self._open, path, _blocks_of(vllm_config, kv_cache_config, kept))

    def _open(self, path: Path, blocks: Blocks) -> None:
        self.traffic = Traffic(path, blocks, read_clock, _log.warning)

    def on_new_request(self, request: Any) -> None:
        if self.traffic is not None:
            self.traffic.arrive(request)
        self.inner.on_new_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        if self.traffic is not None:
            self.traffic.look_up(request, num_computed_tokens)
        return self.inner.get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if self.traffic is not None:
            groups = blocks.get_block_ids() if num_external_tokens else []
            self.traffic.begin(request, num_external_tokens, groups[0] if len(groups) == 1 else ())
        self.inner.update_state_after_alloc(request, blocks, num_external_tokens)

    def update_connector_output(self, connector_output: Any) -> None:
        if self.traffic is not None:
            self.traffic.fail(connector_output.invalid_block_ids)
            self.traffic.loaded(connector_output.finished_recving or ())
        super().update_connector_output(connector_output)

    def request_finished(self, request: Any, block_ids: list[int]) -> Any:
        self._end(request)
        return self.inner.request_finished(request, block_ids)

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        self._end(request)
        return super().request_finished_all_groups(request, block_ids)

    def shutdown(self) -> None:
        try:
            self.inner.shutdown()
        finally:
            if self.traffic is not None:
                self.traffic.close()

    def _end(self, request: Any) -> None:
        if self.traffic is not None:
            self.traffic.end(request)


def _blocks_of(vllm_config: Any, kv_cache_config: Any, kept: Kept) -> Blocks:
    """The engine's blocks, as the hashes of its requests name them."""
    groups = kv_cache_config.kv_cache_groups
    specs = [group.kv_cache_spec for group in groups]
    block_sizes = [spec.block_size * workers_of(vllm_config, spec) for spec in specs]
    size = tokens_per_hash(vllm_config, kv_cache_config, block_sizes)
    if block_sizes != [size] or not reads_all(specs[0]):
        return Blocks(size)
    of_layers = describe_group(specs[0]).page_size_bytes * len(groups[0].layer_names)
    num_bytes = bytes_per_block(kv_cache_config, [of_layers]) * vllm_config.parallel_config.world_size
    return Blocks(size, num_bytes, kv_cache_config.num_blocks - NULL_BLOCKS, **vars(kept))
