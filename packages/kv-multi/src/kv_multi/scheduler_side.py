"""The scheduler's side of a MultiConnector: its start, what it tells and learns in every step, what it is asked.

What concerns one request is in ``requests``. Where several children answer, the rule is stated at the method.
"""

from collections.abc import Iterable
from itertools import chain

from kv_api import (
    BlockPool,
    ConfigError,
    KVCacheEvent,
    KVCacheManager,
    KVConnectorHandshakeMetadata,
    KVConnectorOutput,
    SchedulerOutput,
)
from kv_multi.children import Child
from kv_multi.metadata import MultiKVConnectorMetadata, MultiKVConnectorWorkerMetadata, expect_slots
from kv_multi.requests import MultiRequests
from kv_multi.view import handshakes_for, output_for


class MultiSchedulerSide(MultiRequests):
    """Joins the scheduler sides of several connectors."""

    # -- start ---------------------------------------------------------------------------------

    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        """Each."""
        for child in self._children:
            child.connector.bind_kv_cache_manager(kv_cache_manager)

    def bind_gpu_block_pool(self, gpu_block_pool: BlockPool) -> None:
        """Each. ``bind_kv_cache_manager`` doesn't come here: each child passes its pool on itself."""
        for child in self._children:
            child.connector.bind_gpu_block_pool(gpu_block_pool)

    def get_finished_count(self) -> int | None:
        """What all say; None when any says so. Different numbers are an error that names who said what."""
        counts = {child.name: child.connector.get_finished_count() for child in self._children}
        different = set(counts.values())
        if None in different:
            return None
        if len(different) > 1:
            said = ", ".join(f"{name!r} {count}" for name, count in counts.items())
            raise ConfigError(f"the connectors expect different numbers of reports of a transfer: {said}")
        [count] = different
        if self._quarantine.may_happen:
            raise ConfigError(
                f"on_child_error: 'quarantine' needs a report of every worker, but the connectors expect {count}; "
                "choices: raise"
            )
        return count

    def set_xfer_handshake_metadata(self, metadata: dict[int, KVConnectorHandshakeMetadata]) -> None:
        """Each gets its own workers' metadata, by name, and nobody else's; one that has none gets ``{}``."""
        for child in self._children:
            child.connector.set_xfer_handshake_metadata(handshakes_for(child, metadata))

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """As ``set_xfer_handshake_metadata``."""
        for child in self._children:
            child.connector.set_xfer_handshake_metadata_pp_aware(handshakes_for(child, metadata))

    @property
    def requires_kv_delivery(self) -> bool:
        """Whether any does."""
        return any(child.connector.requires_kv_delivery for child in self._children)

    @property
    def supports_divergent_local_hybrid_hits(self) -> bool:
        """Whether all do."""
        return all(child.connector.supports_divergent_local_hybrid_hits for child in self._children)

    # -- every step ----------------------------------------------------------------------------

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> MultiKVConnectorMetadata:
        """A slot for each; None for one that is switched off."""
        slots = tuple(
            self._quarantine.ask(child, child.connector.build_connector_meta, None, scheduler_output)
            for child in self._children
        )
        async_saves = self._holds.tell()
        extra = {request_id: len(held) - 1 for request_id, held in async_saves.items() if len(held) > 1}
        quarantined = self._quarantine.reasons()
        self._quarantine.mark_told(quarantined)
        return MultiKVConnectorMetadata(slots, extra or None, async_saves, self._loads.tell(), quarantined)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """Each, with a copy that has its own payloads, no other's transfers, and all blocks that weren't filled.

        The engine's object stays as it is, but for the first of two reports of a request (``last_report``).
        """
        meta = connector_output.kv_connector_worker_meta
        if meta is not None:
            if not isinstance(meta, MultiKVConnectorWorkerMetadata):
                raise TypeError(
                    f"kv_connector_worker_meta: expected MultiKVConnectorWorkerMetadata, got {type(meta).__name__}"
                )
            expect_slots("kv_connector_worker_meta", meta.metadata, self._names)
            self._quarantine.obey(meta.quarantined)
        for child in self._children:
            own = output_for(child, connector_output, self._holds, self._loads)
            self._quarantine.ask(child, child.connector.update_connector_output, None, own)
        self._holds.release(connector_output.finished_sending or ())
        self._loads.finish(connector_output.finished_recving or ())
        self._last_report.filter(connector_output)

    def take_events(self) -> Iterable[KVCacheEvent]:
        """All of all, in order."""
        drained = [self._quarantine.ask(child, _take_events, [], child) for child in self._children]
        return chain.from_iterable(drained)

    # -- questions at any time ------------------------------------------------------------------

    def has_pending_push_work(self) -> bool:
        """Whether any has, or the workers don't know yet that a child is switched off."""
        asked = [self._quarantine.ask(c, c.connector.has_pending_push_work, False) for c in self._children]
        return any(asked) or bool(self._quarantine.untold())

    def has_pending_block_frees(self) -> bool:
        """Whether any has."""
        asked = [self._quarantine.ask(c, c.connector.has_pending_block_frees, False) for c in self._children]
        return any(asked)

    def reset_cache(self) -> bool | None:
        """Each; False if any says so, else None if any can't. One that is switched off serves nothing any more."""
        answers = [self._quarantine.ask(child, child.connector.reset_cache, True) for child in self._children]
        if any(answer is False for answer in answers):
            return False
        return None if None in answers else True

    def check(self) -> None:
        """Recount every book."""
        self._choices.check(len(self._children))
        self._holds.check(len(self._children))
        self._loads.check(len(self._children))
        self._last_report.check()
        self._quarantine.check()


def _take_events(child: Child) -> list[KVCacheEvent]:
    return list(child.connector.take_events())
