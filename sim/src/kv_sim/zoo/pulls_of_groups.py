"""Planted in kv-p2p's connector: what of which KV cache group is promised, pulled and told."""

from dataclasses import replace
from typing import Any

from kv_api import (
    BlockIds,
    KVCacheBlocks,
    KVConnectorTransferResults,
    Request,
)
from kv_p2p import P2PSchedulerSide
from kv_p2p.pulling.metadata import Part
from kv_p2p.pulling.ticket import TICKET
from kv_sim.p2p import TimedP2PWorkerSide, WorldP2PConnector


class _ToTheEnd(P2PSchedulerSide):
    def _whole(self, num_tokens: int) -> int:
        return num_tokens


class LastTokenFromAWindowPassed(WorldP2PConnector):
    """With windows, too, a prompt is loaded to its end; the last token, computed anew, may miss a block."""

    scheduler_class = _ToTheEnd


class _Swaps(P2PSchedulerSide):
    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        self._next.pulls = [replace(pull, parts=self._swapped(pull.parts)) for pull in self._next.pulls]

    def _swapped(self, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        """Blocks of the last group for places of the first one, and the other way round."""
        if len(parts) == 1 or {part.first for part in parts} != {0}:
            return parts
        return tuple(reversed(parts))


class GroupsSwapped(WorldP2PConnector):
    """Blocks are filled with those of another group, where both have as many."""

    scheduler_class = _Swaps


class _PullsAll(P2PSchedulerSide):
    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        first = self._asked_from.get(request.request_id, 0)
        before = len(self._next.pulls)
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        for index, pull in enumerate(self._next.pulls[before:], before):
            parts = [
                Part(first // group.block_size, (0,) * (part.first - first // group.block_size) + part.block_ids)
                for group, part in zip(self._groups, pull.parts, strict=True)
            ]
            self._next.pulls[index] = replace(pull, parts=tuple(parts))


class NullBlocksPulled(WorldP2PConnector):
    """Places before a window are pulled, too, into the block that everybody has there."""

    scheduler_class = _PullsAll


class _Promises(P2PSchedulerSide):
    def request_finished_all_groups(
        self, request: Request, block_ids: BlockIds
    ) -> tuple[bool, dict[str, Any] | None]:
        hold, ticket = super().request_finished_all_groups(request, block_ids)
        for group in (ticket or {}).get("remote_groups", ()):
            assert ticket is not None and ticket[TICKET], "a hold has a ticket"
            group["first_block"] = 0
        return hold, ticket


class PromisesWhatSlid(WorldP2PConnector):
    """A ticket doesn't say what of a window has slid, so the beginning of it is pulled where that is gone."""

    scheduler_class = _Promises


class _TellsBlocks(TimedP2PWorkerSide):
    def _fail_pull(self, request_id: str, reason: str, results: KVConnectorTransferResults) -> None:
        self._fails_requests = False
        super()._fail_pull(request_id, reason, results)


class FailedGroupsToldByBlock(WorldP2PConnector):
    """Failed pulls are told by block, where an engine with several groups can't tell whose these are."""

    worker_class = _TellsBlocks
