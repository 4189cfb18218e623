"""The scheduler's side: it gets the engine's calls and passes each to the half that decides.

An engine may prefill for others, have others prefill for it, or do both. As a ``producer`` it holds blocks and
issues tickets, as a ``consumer`` it uses tickets and pulls. Neither half knows of the other. Two rules concern
both and are here. A request that ends while its blocks are still being pulled is not held. And a prompt that
can't be held for lack of room *gives way*: it isn't begun while a request with a ticket waits for blocks. That one
ends a hold, at this engine or at another, but it may have come later, and engines begin requests in the order in
which they came. Without this rule an engine with too much to do computes prompts that nobody can pull.
"""

from typing import Any

from kv_api import (
    BlockIds,
    CacheHitSource,
    KVCacheBlocks,
    KVCacheConfig,
    KVConnectorHandshakeMetadata,
    KVConnectorOutput,
    Request,
    SchedulerOutput,
    SchedulerSide,
    SupportsHMA,
    VllmConfig,
)
from kv_p2p.pulling.consumer import Consumer
from kv_p2p.pulling.groups import Group
from kv_p2p.pulling.metadata import P2PMetadata
from kv_p2p.pulling.model import model_of
from kv_p2p.pulling.options import Options
from kv_p2p.pulling.producer import Producer
from kv_p2p.pulling.stats import P2PStats
from kv_p2p.pulling.ticket import Shape


class P2PSchedulerSide(SchedulerSide, SupportsHMA):
    """Decides which blocks are held, and which are pulled."""

    _cache_hit_source = CacheHitSource.P2P

    def __init__(
        self,
        vllm_config: VllmConfig,
        kv_cache_config: KVCacheConfig | None,
        options: Options,
        groups: tuple[Group, ...],
    ) -> None:
        super().__init__(vllm_config, kv_cache_config)
        parallel = vllm_config.parallel_config
        self._shape = Shape(
            vllm_config.cache_config.block_size,
            parallel.tensor_parallel_size,
            parallel.pipeline_parallel_size,
            groups,
            model_of(vllm_config, options.model_name),
        )
        self._stats = P2PStats()
        self._consumer = Consumer(self._kv_transfer_config, self._shape, self._stats)
        blocks = None if kv_cache_config is None else kv_cache_config.num_blocks
        self._producer = Producer(self._kv_transfer_config, self._shape, options, self._stats, blocks)

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """Ignored: these workers send no handshake metadata.

        vLLM's MultiConnector hands one child's metadata to every child.
        """

    # -- requests ------------------------------------------------------------------------------

    def on_new_request(self, request: Request) -> None:
        self._consumer.begin_request(request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        if self._gives_way(request):
            return None, False
        more = self._consumer.match(request, num_computed_tokens)
        return more, more > 0

    def _gives_way(self, request: Request) -> bool:
        """Whether a request is begun later, since what is held leaves no room for it and others have tickets."""
        ticketed = self._consumer.ticketed
        if not ticketed or request.request_id in ticketed:
            return False
        return self._producer.leaves_no_room_for(request)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        self._consumer.begin_pull(request, blocks, num_external_tokens)
        self._producer.begin_request(request)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Request, block_ids: BlockIds
    ) -> tuple[bool, dict[str, Any] | None]:
        self._consumer.end_request(request.request_id)
        self._producer.end_request(request.request_id)
        if request.request_id in self._consumer.pulling:
            return False, None
        return self._producer.hold(request, block_ids)

    def reset_cache(self) -> bool:
        """Stop serving all holds, and decline all tickets from before the reset."""
        self._producer.revoke_holds()
        self._consumer.drop_tickets()
        return True

    # -- every step ----------------------------------------------------------------------------

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> P2PMetadata:
        holds, revoked = self._producer.take_told()
        pulls, declined = self._consumer.take_told()
        is_idle = scheduler_output.total_num_scheduled_tokens == 0
        return P2PMetadata(holds=holds, pulls=pulls, declined=declined, revoked=revoked, is_idle=is_idle)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        self._consumer.end_pulls(connector_output.finished_recving or ())
        self._producer.end_holds(connector_output.finished_sending or ())

    def get_kv_connector_stats(self) -> P2PStats | None:
        return self._stats.take()

    def has_pending_push_work(self) -> bool:
        return self._consumer.is_busy() or self._producer.is_busy()

    def check(self) -> None:
        """Recount: a request has a ticket, or is being pulled, or is held, and only one of these."""
        ticketed, pulled, held = self._consumer.ticketed, self._consumer.pulling, self._producer.holding
        assert not (ticketed & pulled or ticketed & held or pulled & held), (
            f"ticketed {sorted(ticketed)}, pulled {sorted(pulled)}, held {sorted(held)}"
        )
        self._consumer.check()
        self._producer.check()
