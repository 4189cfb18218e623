"""Planted in kv-p2p's connector: mistakes with several KV cache groups, and with sliding windows."""

from dataclasses import replace
from typing import Any

from kv_api import (
    BlockIds,
    KVCacheBlocks,
    KVConnectorTransferResults,
    Request,
)
from kv_p2p.pulling.consumer import Consumer
from kv_p2p.pulling.metadata import Part
from kv_p2p.pulling.producer import Producer
from kv_p2p.pulling.ticket import TICKET, Ticket
from kv_sim.p2p import TimedP2PWorkerSide, WorldP2PConnector
from kv_sim.zoo.planted import with_parts
from kv_sim.zoo.pulls import PartedP2PScheduler


class _ToTheEnd(Consumer):
    def _tokens_to_load(self, ticket: Ticket, request: Request) -> int:
        is_whole = ticket.num_tokens == request.num_tokens
        return ticket.num_tokens if is_whole else super()._tokens_to_load(ticket, request)


class _HoldsForThat(Producer):
    def _lacking(self, tables: tuple[tuple[int, ...], ...], num_tokens: int) -> int | None:
        return super()._lacking(tables, num_tokens + 1)


class LastTokenFromAWindowPassed(WorldP2PConnector):
    """With sliding windows a prompt is loaded to its last token; that token, computed again, may lack a block."""

    scheduler_class = with_parts(PartedP2PScheduler, consumer=_ToTheEnd, producer=_HoldsForThat)


class _Swaps(Consumer):
    def begin_pull(self, request: Request, blocks: KVCacheBlocks, num_tokens: int) -> None:
        super().begin_pull(request, blocks, num_tokens)
        self._pulls = [replace(pull, parts=self._swapped(pull.parts)) for pull in self._pulls]

    def _swapped(self, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        """Pulls the last group's blocks into the first group's places, and the other way round."""
        if len(parts) == 1 or {part.first for part in parts} != {0}:
            return parts
        return tuple(reversed(parts))


class GroupsSwapped(WorldP2PConnector):
    """Blocks are filled with another group's blocks, if both groups have the same number."""

    scheduler_class = with_parts(PartedP2PScheduler, consumer=_Swaps)


class _PullsAll(Consumer):
    def begin_pull(self, request: Request, blocks: KVCacheBlocks, num_tokens: int) -> None:
        first = self._asked_from.get(request.request_id, 0)
        before = len(self._pulls)
        super().begin_pull(request, blocks, num_tokens)
        for index, pull in enumerate(self._pulls[before:], before):
            parts = [
                Part(first // group.block_size, (0,) * (part.first - first // group.block_size) + part.block_ids)
                for group, part in zip(self._shape.groups, pull.parts, strict=True)
            ]
            self._pulls[index] = replace(pull, parts=tuple(parts))


class NullBlocksPulled(WorldP2PConnector):
    """Places before a window are pulled, too, into the null block that all requests share."""

    scheduler_class = with_parts(PartedP2PScheduler, consumer=_PullsAll)


class _Promises(Producer):
    def hold(self, request: Request, block_ids: BlockIds) -> tuple[bool, dict[str, Any] | None]:
        is_held, ticket = super().hold(request, block_ids)
        for group in (ticket or {}).get("remote_groups", ()):
            assert ticket is not None and ticket[TICKET], "a hold has a ticket"
            group["first_block"] = 0
        return is_held, ticket


class PromisesWhatSlid(WorldP2PConnector):
    """A ticket doesn't say which blocks have slid out of a window, so blocks are pulled that are freed already."""

    scheduler_class = with_parts(PartedP2PScheduler, producer=_Promises)


class _TellsBlocks(TimedP2PWorkerSide):
    def _fail_pull(self, request_id: str, reason: str, results: KVConnectorTransferResults) -> None:
        self._fails_requests = False
        super()._fail_pull(request_id, reason, results)


class FailedGroupsToldByBlock(WorldP2PConnector):
    """Failed pulls are reported by block id, which an engine with several KV cache groups doesn't accept."""

    worker_class = _TellsBlocks
