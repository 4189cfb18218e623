"""A worker's side of a MultiConnector: every call reaches every child, every report reaches the engine once.

Its state is in ``saves`` (which children haven't yet reported a finished request) and ``loads`` (loads in
flight); every child is called through ``quarantine``. Which children another process has switched off arrives
with the step's metadata. They are switched off here in ``handle_preemptions``, so their copies end before the
step writes a block.
"""

from contextlib import AbstractContextManager
from typing import Any, ClassVar

from kv_api import (
    AttentionMetadata,
    ConfigError,
    CopyBlocksOp,
    ForwardContext,
    KVCacheConfig,
    KVCaches,
    KVConnectorHandshakeMetadata,
    KVConnectorKVEvents,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    Tensor,
    VllmConfig,
    WorkerSide,
)
from kv_multi.children import Child
from kv_multi.events import MultiKVConnectorKVEvents
from kv_multi.loads import LoadReports
from kv_multi.metadata import (
    MultiKVConnectorHandshakeMetadata,
    MultiKVConnectorMetadata,
    MultiKVConnectorWorkerMetadata,
    expect_slots,
)
from kv_multi.saves import SaveReports
from kv_multi.side import MultiSide


class MultiWorkerSide(MultiSide, WorkerSide):
    """Joins the worker sides of several connectors. It has metadata bound whenever they have."""

    role: ClassVar[KVConnectorRole] = KVConnectorRole.WORKER

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self._saves = SaveReports()
        self._loads = LoadReports()

    def _on_switch_off(self, child: Child) -> None:
        """A child was shut down and its copies have ended: no report of it is awaited any more."""
        self._loads.abandon(child.place)
        self._saves.abandon(child.place)

    # -- start and sleep -----------------------------------------------------------------------

    def get_mem_pool_context(self) -> AbstractContextManager[Any] | None:
        """The context of the only child that has one. If several have one, the error names them."""
        found = {
            child.name: context
            for child in self._children
            if (context := child.connector.get_mem_pool_context()) is not None
        }
        if len(found) > 1:
            raise ConfigError(
                f"connectors {', '.join(map(repr, found))} each want the KV caches in a memory pool of their own, "
                "but there is one allocation: at most one of them may"
            )
        return next(iter(found.values()), None)

    def register_kv_caches(self, kv_caches: KVCaches) -> None:
        """Call every child."""
        for child in self._children:
            child.connector.register_kv_caches(kv_caches)

    def unregister_kv_caches(self) -> None:
        """Call every child."""
        for child in self._quarantine.live():
            child.connector.unregister_kv_caches()

    def restore_kv_caches(self) -> None:
        """Call every child."""
        for child in self._quarantine.live():
            child.connector.restore_kv_caches()

    def set_host_xfer_buffer_ops(self, copy_operation: CopyBlocksOp) -> None:
        """Call every child."""
        for child in self._children:
            child.connector.set_host_xfer_buffer_ops(copy_operation)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """The metadata of each child that has any, by name. None if no child has any."""
        found = {
            child.name: metadata
            for child in self._children
            if (metadata := child.connector.get_handshake_metadata()) is not None
        }
        return MultiKVConnectorHandshakeMetadata(found) if found else None

    # -- begin of a step -----------------------------------------------------------------------

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Call every child with its slot."""
        metadata = self._take(kv_connector_metadata)
        for child, own in zip(self._children, metadata.metadata, strict=True):
            self._quarantine.ask(child, _handle_preemptions, None, child, own)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Every child gets its slot; the scheduler's list of holds and loads is taken over."""
        metadata = self._take(connector_metadata)
        super().bind_connector_metadata(metadata)
        self._saves.expect(metadata.async_saves)
        self._loads.expect(metadata.loads)
        for child in self._children:
            if self._quarantine.is_off(child):
                self._on_switch_off(child)
        for child, own in zip(self._children, metadata.metadata, strict=True):
            self._quarantine.ask(child, _bind_connector_metadata, None, child, own)

    def _take(self, metadata: KVConnectorMetadata) -> MultiKVConnectorMetadata:
        if not isinstance(metadata, MultiKVConnectorMetadata):
            raise TypeError(
                f"connector metadata: expected MultiKVConnectorMetadata, got {type(metadata).__name__}"
            )
        expect_slots("connector metadata", metadata.metadata, self._names)
        self._quarantine.mark_told(metadata.quarantined)
        self._quarantine.obey(metadata.quarantined)
        return metadata

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        """Call every child."""
        for child in self._children:
            self._quarantine.ask(child, child.connector.start_load_kv, None, forward_context, **kwargs)

    # -- forward pass --------------------------------------------------------------------------

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Call every child."""
        for child in self._children:
            self._quarantine.ask(child, child.connector.wait_for_layer_load, None, layer_name)

    def save_kv_layer(
        self, layer_name: str, kv_layer: Tensor, attn_metadata: AttentionMetadata, **kwargs: Any
    ) -> None:
        """Call every child that saves."""
        for child in self._children:
            if child.saves:
                save = child.connector.save_kv_layer
                self._quarantine.ask(child, save, None, layer_name, kv_layer, attn_metadata, **kwargs)

    def finish_forward(self) -> None:
        """Call every child."""
        for child in self._children:
            self._quarantine.ask(child, child.connector.finish_forward, None)

    def reset_capture_state(self) -> None:
        """Call every child."""
        for child in self._children:
            self._quarantine.ask(child, child.connector.reset_capture_state, None)

    # -- end of a step -------------------------------------------------------------------------

    def wait_for_save(self) -> None:
        """Call every child, even one that doesn't save (see ``saves``)."""
        for child in self._children:
            self._quarantine.ask(child, child.connector.wait_for_save, None)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Like ``get_transfer_results``; None where nothing ended."""
        results = self.get_transfer_results(finished_req_ids)
        return results.finished_sending or None, results.finished_recving or None

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """A store ends with the report of the last child that holds the request, a load with its loader's."""
        nothing = KVConnectorTransferResults()
        for child in self._children:
            own = self._quarantine.ask(child, child.connector.get_transfer_results, nothing, finished_req_ids)
            self._saves.report(child.place, own.finished_sending)
            self._loads.report(child.place, own.finished_recving, own.failed_recving)
        loads = self._loads.take()
        return KVConnectorTransferResults(self._saves.take(), loads.finished, loads.failed)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """The failed blocks of all children, and those of loads that were lost when a child was switched off."""
        failed: set[int] = set()
        for child in self._children:
            failed |= self._quarantine.ask(child, child.connector.get_block_ids_with_load_errors, set())
        return failed | self._loads.take_failed_blocks()

    def get_kv_connector_kv_cache_events(self) -> KVConnectorKVEvents | None:
        """The events of each child, by name. None if no child has any."""
        found = {
            child.name: events
            for child in self._children
            if (events := self._quarantine.ask(child, child.connector.get_kv_connector_kv_cache_events, None))
            is not None
        }
        return MultiKVConnectorKVEvents(found) if found else None

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """One slot for each child. None if all answer None and no child was switched off."""
        slots = tuple(
            self._quarantine.ask(child, child.connector.build_connector_worker_meta, None)
            for child in self._children
        )
        news = self._quarantine.untold()
        if not news and all(slot is None for slot in slots):
            return None
        return MultiKVConnectorWorkerMetadata(slots, news)

    def clear_connector_metadata(self) -> None:
        """Clear the metadata of every child, and its own."""
        for child in self._children:
            self._quarantine.ask(child, child.connector.clear_connector_metadata, None)
        super().clear_connector_metadata()

    def check(self) -> None:
        """Recount every book."""
        self._saves.check(len(self._children))
        self._loads.check(len(self._children))
        self._quarantine.check()


def _bind_connector_metadata(child: Child, metadata: Any) -> None:
    child.connector.bind_connector_metadata(metadata)


def _handle_preemptions(child: Child, metadata: Any) -> None:
    child.connector.handle_preemptions(metadata)
