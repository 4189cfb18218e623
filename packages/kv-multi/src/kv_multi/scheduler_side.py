"""The scheduler's side of a MultiConnector: its start, each step's metadata and reports, and questions.

Calls about one request are in ``requests``. Each method's docstring is the rule by which the children answer.
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
        """Call every child."""
        for child in self._children:
            child.connector.bind_kv_cache_manager(kv_cache_manager)

    def bind_gpu_block_pool(self, gpu_block_pool: BlockPool) -> None:
        """Call every child.

        ``bind_kv_cache_manager`` doesn't call this: each child passes the pool on by itself.
        """
        for child in self._children:
            child.connector.bind_gpu_block_pool(gpu_block_pool)

    def get_finished_count(self) -> int | None:
        """The number on which all children agree; None if any answers None.

        If they disagree, the error names each.
        """
        counts = {child.name: child.connector.get_finished_count() for child in self._children}
        different = set(counts.values())
        if None in different:
            return None
        if len(different) > 1:
            said = ", ".join(f"{name!r} {count}" for name, count in counts.items())
            raise ConfigError(
                f"get_finished_count: the connectors expect reports from different numbers of workers: {said}"
            )
        [count] = different
        if self._quarantine.may_happen:
            raise ConfigError(
                "on_child_error: 'quarantine' needs reports from all workers, but get_finished_count of the "
                f"connectors is {count}; choices: raise"
            )
        return count

    def set_xfer_handshake_metadata(self, metadata: dict[int, KVConnectorHandshakeMetadata]) -> None:
        """Each child gets only its own workers' metadata, found by its name; a child that has none gets ``{}``."""
        for child in self._children:
            child.connector.set_xfer_handshake_metadata(handshakes_for(child, metadata))

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """Like ``set_xfer_handshake_metadata``."""
        for child in self._children:
            child.connector.set_xfer_handshake_metadata_pp_aware(handshakes_for(child, metadata))

    @property
    def requires_kv_delivery(self) -> bool:
        """Whether any child does."""
        return any(child.connector.requires_kv_delivery for child in self._children)

    @property
    def supports_divergent_local_hybrid_hits(self) -> bool:
        """Whether all children do."""
        return all(child.connector.supports_divergent_local_hybrid_hits for child in self._children)

    # -- every step ----------------------------------------------------------------------------

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> MultiKVConnectorMetadata:
        """One slot for each child; None for a child that is switched off."""
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
        """Every child gets a copy with its own payloads and transfers, and all blocks that weren't filled.

        The engine's object is unchanged, except that the first of two reports of a request is taken out
        (``last_report``).
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
        """The events of all children, in the children's order."""
        drained = [self._quarantine.ask(child, _take_events, [], child) for child in self._children]
        return chain.from_iterable(drained)

    # -- questions at any time ------------------------------------------------------------------

    def has_pending_push_work(self) -> bool:
        """Whether any child has, or the workers haven't been told yet that a child is switched off."""
        asked = [self._quarantine.ask(c, c.connector.has_pending_push_work, False) for c in self._children]
        return any(asked) or bool(self._quarantine.untold())

    def has_pending_block_frees(self) -> bool:
        """Whether any child has."""
        asked = [self._quarantine.ask(c, c.connector.has_pending_block_frees, False) for c in self._children]
        return any(asked)

    def reset_cache(self) -> bool | None:
        """Call every child.

        False if any answers False, else None if any answers None. Switched-off children don't count.
        """
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
