"""The scheduler's side of a connector: it decides what is loaded and stored, and moves no byte.

One object lives beside the engine's scheduler. Only the scheduler calls it, from one thread. A request passes
through it in this order: ``on_new_request`` · ``get_num_new_matched_tokens`` (any number of times) ·
``update_state_after_alloc`` · ``build_connector_meta`` of every step · ``request_finished``. Reports of the
workers come back through ``update_connector_output``. Under run-ahead a step is scheduled before the one before
it has been processed, so what is "computed" here may still be running on the device.
"""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

from kv_api.engine import (
    BlockIds,
    BlockPool,
    KVCacheBlocks,
    KVCacheManager,
    PartialTails,
    Request,
    SchedulerOutput,
)
from kv_api.events import KVCacheEvent
from kv_api.metadata import KVConnectorHandshakeMetadata, KVConnectorMetadata
from kv_api.output import KVConnectorOutput
from kv_api.side import ConnectorSide
from kv_api.stats import CacheHitSource


class SchedulerSide(ConnectorSide):
    """Every method that an engine's scheduler calls, with its contract and its default."""

    _cache_hit_source: ClassVar[CacheHitSource] = CacheHitSource.EXTERNAL_UNSPECIFIED
    """Where this connector's hits come from; set it, or override ``get_external_cache_hit_sources``."""

    _kv_cache_manager: KVCacheManager | None = None

    # -- start ---------------------------------------------------------------------------------

    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        """Take the scheduler's cache manager.

        Called once, after construction; hands its pool to ``bind_gpu_block_pool``.
        """
        self._kv_cache_manager = kv_cache_manager
        self.bind_gpu_block_pool(kv_cache_manager.block_pool)

    def bind_gpu_block_pool(self, gpu_block_pool: BlockPool) -> None:
        """Take the pool of GPU blocks, for connectors that watch or reference single blocks."""

    def get_finished_count(self) -> int | None:
        """How many workers must report a transfer before it counts as finished.

        Asked once, at start. ``None``: all of them.
        """
        return None

    def set_xfer_handshake_metadata(self, metadata: dict[int, KVConnectorHandshakeMetadata]) -> None:
        """Take the workers' handshake metadata by tensor-parallel rank, to serve it to peers."""

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """Take the workers' handshake metadata by ``(pp_rank, tp_rank)``. Called even with ``{}``.

        The default serves connectors that know no pipeline parallelism: it drops the first rank, and refuses
        metadata of any but the first stage.
        """
        later = sorted(ranks for ranks in metadata if ranks[0] != 0)
        if later:
            raise ValueError(
                f"{type(self).__name__} got handshake metadata of (pp_rank, tp_rank) {later} but does not "
                "override set_xfer_handshake_metadata_pp_aware, so it supports pipeline rank 0 only"
            )
        self.set_xfer_handshake_metadata({tp_rank: m for (_, tp_rank), m in metadata.items()})

    # -- what the connector is ----------------------------------------------------------------

    @property
    def requires_kv_delivery(self) -> bool:
        """Whether a finished request's KV must be delivered to another engine, rather than being a cache entry.

        When it must, the engine recomputes a request that was preempted before its hand-over. By default
        producers require it; a cache in role ``kv_both`` returns False.
        """
        return self._kv_transfer_config.is_kv_producer

    @property
    def supports_divergent_local_hybrid_hits(self) -> bool:
        """Whether an external hit may complete local hits of different depth in different groups."""
        return False

    # -- a request comes, is matched and gets its blocks --------------------------------------

    def on_new_request(self, request: Request) -> None:
        """A request was added. Called once for each request; a later request may have the same id."""

    @abstractmethod
    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """How many tokens can be loaded beyond the first ``num_computed_tokens``, and whether asynchronously.

        Asked while a waiting request has no computed tokens of its own; ``num_computed_tokens`` is the GPU's
        own, block-aligned hit. May be asked in many steps, or once and then dropped: the engine may ignore the
        answer, shorten it or fail to allocate, without another call. Only ``update_state_after_alloc`` makes it
        a load, so a promise that pins memory must be able to expire.

        Returns ``(n, asynchronous)``. ``n`` is None: ask again in a later step. ``n`` is 0: nothing; then
        ``asynchronous`` must be False. An asynchronous load happens between steps, and the request waits for
        it; otherwise the load is part of the step's forward pass. Local and external tokens together never
        exceed the request, and a load in the step must leave a token to compute. Load states (of state-space
        layers) asynchronously: a step copies the state at the end of a hit to the block in which the request
        goes on, before it calls ``start_load_kv``.
        """

    def get_loaded_kv_cache_group_ids(self, request: Request) -> tuple[int, ...]:
        """The KV cache groups that the load of ``request`` fills; asked after a positive match.

        The engine doesn't zero their new blocks. The default names the groups that prefix caching covers,
        which is what a store addressed by hashes holds.
        """
        if self._kv_cache_config is None:
            raise RuntimeError(
                f"{type(self).__name__} was created without a kv_cache_config: its __init__ has to take one and "
                "pass it to super().__init__, or the class has to override get_loaded_kv_cache_group_ids"
            )
        cacheable: tuple[int, ...] | None = getattr(self._kv_cache_config, "prefix_cacheable_group_ids", None)
        if cacheable is not None:
            return cacheable
        return tuple(range(len(self._kv_cache_config.kv_cache_groups)))

    @abstractmethod
    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """The request got ``blocks`` (its whole table); load ``num_external_tokens`` of it, now.

        ``num_external_tokens`` decides, never whether ``blocks`` is empty. 0 means "load nothing", and may come
        with real blocks:

        - another connector loads them;
        - there was no hit;
        - this is the second call after an asynchronous load, which is neither a cancellation nor a miss;
        - a session goes on: a request that paused for its next input keeps its blocks, isn't asked about again,
          and is scheduled as a new one with its whole table.

        Only this call tells the targets of an asynchronous load; the step's ``SchedulerOutput`` doesn't.
        """

    def get_external_cache_hit_sources(
        self, request: Request, num_external_tokens: int
    ) -> dict[CacheHitSource, int]:
        """Where the tokens of the load come from; asked after ``update_state_after_alloc``.

        Counts are positive and add up to ``num_external_tokens``.
        """
        if num_external_tokens == 0:
            return {}
        return {self._cache_hit_source: num_external_tokens}

    # -- every step ----------------------------------------------------------------------------

    @abstractmethod
    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """Say what the workers have to do in this step. Called in every step, an empty one too.

        Must not change ``scheduler_output``. What was collected for the step is handed over and forgotten. An
        id may be in ``finished_req_ids`` and, as a new life, among the new requests of the same step.
        """

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """Take the joined report of all workers after a step, before the next one is scheduled.

        In an engine of one process it is the worker's own report, with the sets that this returned; there is no
        call for a step that computed nothing, if there is nothing to report.

        The engine acts on ``finished_sending`` and ``finished_recving`` only after this call, and a connector may
        take ids out of them that it wants reported later. Whatever a failed load left behind must be dropped here
        at the latest: the next schedule asks again.
        """

    def take_events(self) -> Iterable[KVCacheEvent]:
        """The KV events since the last call."""
        return ()

    # -- a request ends ------------------------------------------------------------------------

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """A request ended or was aborted; its blocks are freed next.

        Called once, whatever state the request is in.

        Returns ``(hold, params)``. ``hold`` True keeps the blocks until the workers report the id in
        ``finished_sending``; never while a load of the same request is in flight, because then whichever report
        comes first frees them. ``params`` goes into the request's output.
        """
        return False, None

    def register_finished_partial_tail(
        self, request: Request, block_ids: BlockIds, partial_tail_offloads: PartialTails
    ) -> bool:
        """Offer the states of a request that ends within a block.

        True: its blocks stay until the store is reported.

        Called just before ``request_finished``, of a request that ends exactly where a prompt's last hash ends.
        If either call answers True, the request is reported once in ``finished_sending``, after the stores of
        both calls.
        """
        return False

    # -- questions at any time ------------------------------------------------------------------

    def has_pending_push_work(self) -> bool:
        """Whether the engine must keep stepping although no request asks for it."""
        return False

    def has_pending_block_frees(self) -> bool:
        """Whether transfers will soon free blocks, so that the scheduler should wait instead of preempting."""
        return False

    def reset_cache(self) -> bool | None:
        """Forget what is stored: nothing that was stored before may be loaded afterwards.

        Running jobs may still finish.

        True: done. False: refused. None: this connector can't. Only False makes the engine's reset fail.
        """
        return None
