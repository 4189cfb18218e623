"""Planted in kv-p2p's connector: prompts that are held too long, too short, or not at all."""

from typing import Any

from kv_api import ForwardContext, KVCacheBlocks, Request
from kv_p2p import P2PSchedulerSide
from kv_p2p.pulling.consumer import Consumer
from kv_p2p.pulling.producer import Producer
from kv_sim.p2p import TimedP2PWorkerSide, WorldP2PConnector
from kv_sim.zoo.planted import with_parts
from kv_sim.zoo.pulls import PartedP2PScheduler


class _FindsAllHere(Consumer):
    def begin_pull(self, request: Request, blocks: KVCacheBlocks, num_tokens: int) -> None:
        if not num_tokens:
            self._tickets.pop(request.request_id, None)
        super().begin_pull(request, blocks, num_tokens)


class NotDeclinedWithAllHere(WorldP2PConnector):
    """A consumer that has the whole prompt doesn't decline its ticket, so the producer holds it to the timeout."""

    scheduler_class = with_parts(PartedP2PScheduler, consumer=_FindsAllHere)


class _EndsQuietly(Consumer):
    def end_request(self, request_id: str) -> None:
        self._tickets.pop(request_id, None)
        super().end_request(request_id)


class NotDeclinedAtTheEnd(WorldP2PConnector):
    """A request that ends before it got blocks doesn't decline its ticket, so the producer goes on holding."""

    scheduler_class = with_parts(PartedP2PScheduler, consumer=_EndsQuietly)


class _HoldsWholeBlocks(Producer):
    def _is_to_be_held(self, request: Request, tables: tuple[tuple[int, ...], ...]) -> bool:
        ends_within = request.num_prompt_tokens % self._shape.block_size
        return not ends_within and super()._is_to_be_held(request, tables)


class HoldsWholeBlocks(WorldP2PConnector):
    """A prompt that ends within a block is never held, although a hold was asked for."""

    scheduler_class = with_parts(PartedP2PScheduler, producer=_HoldsWholeBlocks)


class _Impatient(TimedP2PWorkerSide):
    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        super().start_load_kv(forward_context, **kwargs)
        self._held = {request_id: (hold, end - 4) for request_id, (hold, end) in self._held.items()}


class HoldsEndEarly(WorldP2PConnector):
    """Blocks are held for much less than the configured time, so later pulls fail."""

    worker_class = _Impatient


class _NobodyWaits(P2PSchedulerSide):
    requires_kv_delivery = False


class DeliveryNotRequired(WorldP2PConnector):
    """Delivery isn't required, so a request that is preempted in its last step ends with no blocks to hold."""

    scheduler_class = _NobodyWaits


class _TakesAll(Producer):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._max_held_blocks = None


class HoldsAllThereIs(WorldP2PConnector):
    """An engine that also pulls holds as much as is wanted, so tickets wait behind prompts that are held again."""

    scheduler_class = with_parts(PartedP2PScheduler, producer=_TakesAll)
