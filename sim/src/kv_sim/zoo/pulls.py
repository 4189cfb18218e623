"""Planted in kv-p2p's connector: wrong tickets, and blocks that are freed or kept at the wrong time."""

from dataclasses import replace
from typing import Any, ClassVar

from kv_api import (
    BlockIds,
    KVCacheBlocks,
    KVCacheConfig,
    KVConnectorTransferResults,
    Request,
    VllmConfig,
)
from kv_p2p import P2PSchedulerSide
from kv_p2p.pulling.consumer import Consumer
from kv_p2p.pulling.groups import Group
from kv_p2p.pulling.options import Options
from kv_p2p.pulling.producer import Producer
from kv_p2p.pulling.ticket import Ticket
from kv_sim.p2p import TimedP2PWorkerSide, WorldP2PConnector, WorldWire
from kv_sim.zoo.planted import with_parts


class PartedP2PScheduler(P2PSchedulerSide):
    """kv-p2p's scheduler side, whose producer and consumer can be replaced."""

    consumer: ClassVar[type[Consumer]] = Consumer
    producer: ClassVar[type[Producer]] = Producer

    def __init__(
        self,
        vllm_config: VllmConfig,
        kv_cache_config: KVCacheConfig | None,
        options: Options,
        groups: tuple[Group, ...],
    ) -> None:
        super().__init__(vllm_config, kv_cache_config, options, groups)
        self._consumer = self.consumer(self._kv_transfer_config, self._shape, self._stats)
        blocks = None if kv_cache_config is None else kv_cache_config.num_blocks
        self._producer = self.producer(self._kv_transfer_config, self._shape, options, self._stats, blocks)


class _HastyWire(WorldWire):
    def withdraw(self, hold_id: str) -> bool:
        self.holds.pop(hold_id, None)
        return True


class FreedWhilePulled(WorldP2PConnector):
    """When a hold's time is over, the producer frees its blocks although they are still being read."""

    wire_class = _HastyWire


class _Credulous(Consumer):
    def _reason_against(self, ticket: Ticket, request: Request) -> str | None:
        reason = super()._reason_against(ticket, request)
        return None if reason and "another salt" in reason else reason


class TakesAnyTicket(WorldP2PConnector):
    """Tickets are accepted without comparing cache salt and LoRA adapter, so equal tokens get wrong KV."""

    scheduler_class = with_parts(PartedP2PScheduler, consumer=_Credulous)


class _KnowsNoModels(Consumer):
    def _reason_against(self, ticket: Ticket, request: Request) -> str | None:
        ours = replace(ticket.shape, model=self._shape.model)
        return super()._reason_against(replace(ticket, shape=ours), request)


class TakesTicketsOfOtherModels(WorldP2PConnector):
    """A ticket is accepted if block shape and prompt match, even if another model computed the blocks."""

    scheduler_class = with_parts(PartedP2PScheduler, consumer=_KnowsNoModels)


class _TakesAgain(Consumer):
    def begin_pull(self, request: Request, blocks: KVCacheBlocks, num_tokens: int) -> None:
        ticket = self._tickets.get(request.request_id)
        super().begin_pull(request, blocks, num_tokens)
        if ticket is not None and num_tokens:
            self._tickets[request.request_id] = ticket

    def end_request(self, request_id: str) -> None:
        self._tickets.pop(request_id, None)
        super().end_request(request_id)


class TicketTakenAgain(WorldP2PConnector):
    """The ticket of a failed pull isn't dropped, so the request tries the same pull again and again."""

    scheduler_class = with_parts(PartedP2PScheduler, consumer=_TakesAgain)


class _Optimistic(TimedP2PWorkerSide):
    def _fail_pull(self, request_id: str, reason: str, results: KVConnectorTransferResults) -> None:
        self._end_pull(request_id, results)


class BrokenPullIsFine(WorldP2PConnector):
    """A broken pull is reported as successful, so the request reads unfilled blocks."""

    worker_class = _Optimistic


class _DropsAborted(TimedP2PWorkerSide):
    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        results = super().get_transfer_results(finished_req_ids)
        for request_id in sorted(finished_req_ids & self._pulling.keys()):
            self._end_pull(request_id, results)
        return results


class AbortFreesTarget(WorldP2PConnector):
    """The blocks of a request that is aborted during its pull are freed while the pull still writes them."""

    worker_class = _DropsAborted


class _LeavesABlock(Consumer):
    def match(self, request: Request, num_computed_tokens: int) -> int:
        more, size = super().match(request, num_computed_tokens), self._shape.block_size
        return more - size if more > size else more


class LeavesABlock(WorldP2PConnector):
    """A ticket's last block is never pulled, and is computed again."""

    scheduler_class = with_parts(PartedP2PScheduler, consumer=_LeavesABlock)


class _FailsWhatCame(TimedP2PWorkerSide):
    def _end_pull(self, request_id: str, results: KVConnectorTransferResults) -> Any:
        pulling = super()._end_pull(request_id, results)
        if pulling is not None and len(pulling.pull.block_ids) > 2:
            results.failed_recving.add(request_id)
            if not self._fails_requests:
                self._unfilled.update(pulling.pull.block_ids)
        return pulling


class FailsWhatCame(WorldP2PConnector):
    """A long pull that filled all of its blocks is reported as failed, so the prompt is computed again."""

    worker_class = _FailsWhatCame


class _AskedOnce(Consumer):
    def match(self, request: Request, num_computed_tokens: int) -> int:
        return 0 if request.request_id in self._asked_from else super().match(request, num_computed_tokens)


class DeclinesWhenAskedAgain(WorldP2PConnector):
    """If the engine had no room for a request after its match, the next query finds no ticket any more."""

    scheduler_class = with_parts(PartedP2PScheduler, consumer=_AskedOnce)


class _TicketsLiveOn(Consumer):
    def drop_tickets(self) -> None:
        pass


class TicketsSurviveReset(WorldP2PConnector):
    """Tickets from before a reset of the cache are still used after it."""

    scheduler_class = with_parts(PartedP2PScheduler, consumer=_TicketsLiveOn)


class _HoldsLiveOn(Producer):
    def revoke_holds(self) -> None:
        pass


class HoldsSurviveReset(WorldP2PConnector):
    """Holds from before a reset of the cache are still served after it."""

    scheduler_class = with_parts(PartedP2PScheduler, producer=_HoldsLiveOn)


class _LeavesTheOldTicket(Producer):
    def hold(self, request: Request, block_ids: BlockIds) -> tuple[bool, dict[str, Any] | None]:
        is_held, ticket = super().hold(request, block_ids)
        left: dict[str, dict[str, Any]] = self.__dict__.setdefault("left", {})
        if ticket is None or left.setdefault(ticket["remote_digest"], ticket) is ticket:
            return is_held, ticket
        self._holds.pop()
        self.end_holds([request.request_id])
        return False, left[ticket["remote_digest"]]


class OldTicketLeft(WorldP2PConnector):
    """A prompt that was held before isn't held again: its old ticket is returned, even if that hold is over."""

    scheduler_class = with_parts(PartedP2PScheduler, producer=_LeavesTheOldTicket)


class _DropsRevoked(Producer):
    def revoke_holds(self) -> None:
        super().revoke_holds()
        untold = {hold.request_id for hold in self._holds}
        self._revoked = [request_id for request_id in self._revoked if request_id not in untold]


class NewHoldsSurviveReset(WorldP2PConnector):
    """Holds that the workers hadn't been sent when the cache was reset are still served after it."""

    scheduler_class = with_parts(PartedP2PScheduler, producer=_DropsRevoked)


class _PullsAllOrNothing(Consumer):
    def match(self, request: Request, num_computed_tokens: int) -> int:
        return 0 if num_computed_tokens else super().match(request, num_computed_tokens)


class DeclinesWithLocalHits(WorldP2PConnector):
    """A consumer that has the beginning of a prompt declines the ticket, and computes the rest."""

    scheduler_class = with_parts(PartedP2PScheduler, consumer=_PullsAllOrNothing)


class _CountsFromTheEnd(Consumer):
    def begin_pull(self, request: Request, blocks: KVCacheBlocks, num_tokens: int) -> None:
        ticket, before = self._tickets.get(request.request_id), len(self._pulls)
        super().begin_pull(request, blocks, num_tokens)
        for index, pull in enumerate(self._pulls[before:], before):
            assert ticket is not None
            ends = [-(-ticket.num_tokens // group.block_size) for group in self._shape.groups]
            parts = zip(pull.parts, ends, strict=True)
            self._pulls[index] = replace(
                pull, parts=tuple(part._replace(first=end - len(part.block_ids)) for part, end in parts)
            )


class _CountsFromTheBeginning(Consumer):
    def begin_pull(self, request: Request, blocks: KVCacheBlocks, num_tokens: int) -> None:
        before = len(self._pulls)
        super().begin_pull(request, blocks, num_tokens)
        for index, pull in enumerate(self._pulls[before:], before):
            if len(pull.parts) == 1:
                self._pulls[index] = replace(pull, parts=(pull.parts[0]._replace(first=0),))


class PullsTheFirstOnes(WorldP2PConnector):
    """A pull that goes on after blocks that are here already begins with the first block of the hold."""

    scheduler_class = with_parts(PartedP2PScheduler, consumer=_CountsFromTheBeginning)


class PullsTheLastOnes(WorldP2PConnector):
    """As many blocks as are missing are pulled from the end of a hold, although a longer prompt lacks others."""

    scheduler_class = with_parts(PartedP2PScheduler, consumer=_CountsFromTheEnd)
