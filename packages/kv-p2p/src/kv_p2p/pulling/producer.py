"""``Producer``: the half of the scheduler's side that serves other engines, and holds blocks for them.

When a request ends whose blocks another engine is to pull, they are *held*: the engine doesn't free them until the
workers report that they were pulled or declined, or that their time is over. The request's output gets a ticket
for them. ``max_held_blocks`` limits how many blocks are held at once: a client that asks for holds and never pulls
them would keep these blocks from all other requests.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Any, Final

from kv_api import BlockIds, Request
from kv_api.engine import TransferConfig
from kv_p2p.log import warn
from kv_p2p.pulling.groups import tokens_to_load
from kv_p2p.pulling.metadata import Hold, first_place, hold_id_of, num_blocks_of
from kv_p2p.pulling.options import Options
from kv_p2p.pulling.stats import HELD_BLOCKS, REFUSED_HOLDS, P2PStats
from kv_p2p.pulling.ticket import WANTED, Address, Shape, Ticket, digest_of, is_of_tokens

FAILED: Final = ("FINISHED_ABORTED", "FINISHED_ERROR")
"""Finish reasons, by vLLM's names, after which nobody pulls the blocks."""


class Producer:
    """Holds, by request, and the news of holds that the next metadata takes to the workers."""

    def __init__(self, transfer: TransferConfig, shape: Shape, options: Options, stats: P2PStats) -> None:
        self._transfer = transfer
        self._shape = shape
        self._address = Address(options.host, options.port)
        self._max_held_blocks = options.max_held_blocks
        self._stats = stats
        self._holding: dict[str, int] = {}
        """How many blocks are held for each request."""
        self._held_blocks = 0
        self._num_holds = 0
        """How many holds there ever were: each one has a number."""
        self._holds: list[Hold] = []
        self._revoked: list[str] = []

    @property
    def holding(self) -> AbstractSet[str]:
        """The requests whose blocks are held."""
        return self._holding.keys()

    def hold(self, request: Request, block_ids: BlockIds) -> tuple[bool, dict[str, Any] | None]:
        """A request has ended. Returns whether its blocks are held, and the ticket for the request's output."""
        tokens = request.num_prompt_tokens
        tables = tuple(
            tuple(table[: -(-tokens // group.block_size)])
            for group, table in zip(self._shape.groups, block_ids, strict=True)
        )
        if not self._is_to_be_held(request, tables):
            return False, None
        self._num_holds += 1
        hold_id, digest = hold_id_of(request.request_id, self._num_holds), digest_of(request, tokens)
        hold = Hold(request.request_id, hold_id, digest, tables)
        first_places = tuple(first_place(table) for table in tables)
        ticket = Ticket(self._address, self._shape, hold_id, digest, tokens, first_places)
        self._holding[request.request_id] = hold.num_blocks
        self._count_held(hold.num_blocks)
        self._holds.append(hold)
        return True, ticket.to_params(self._transfer.engine_id)

    def _is_to_be_held(self, request: Request, tables: tuple[tuple[int, ...], ...]) -> bool:
        """Whether a hold was asked for, the request ended well, and all of its prompt is computed and kept."""
        params = request.kv_transfer_params
        if not isinstance(params, dict) or not params.get(WANTED):
            return False
        if not self._transfer.is_kv_producer:
            role = self._transfer.kv_role
            warn("request %s: its blocks are to be held, but kv_role is %r", request.request_id, role)
            return False
        ended = getattr(getattr(request, "status", None), "name", "")
        if ended in FAILED or request.num_computed_tokens < request.num_prompt_tokens:
            return False
        lacking = self._lacking(tables, request.num_prompt_tokens)
        if lacking is not None:
            said = "request %s: part of its prompt slid out of the window of KV cache group %d; it isn't held"
            warn(said, request.request_id, lacking)
            return False
        if not is_of_tokens(request):
            warn("request %s: some of its prompt is embeddings; it isn't held", request.request_id)
            return False
        return self._has_room(request.request_id, num_blocks_of(tables))

    def _lacking(self, tables: tuple[tuple[int, ...], ...], num_tokens: int) -> int | None:
        """The first KV cache group without blocks that a load of these tokens needs; None if all have theirs."""
        tokens = tokens_to_load(self._shape.groups, num_tokens)
        slid = (
            group.first_needed(tokens) < first_place(table)
            for group, table in zip(self._shape.groups, tables, strict=True)
        )
        return next((number for number, has_slid in enumerate(slid) if has_slid), None)

    def _has_room(self, request_id: str, num_blocks: int) -> bool:
        """Whether ``num_blocks`` more blocks may be held."""
        most = self._max_held_blocks
        if most is None or self._held_blocks + num_blocks <= most:
            return True
        said = "request %s: its %d blocks are to be held, but %d are held and max_held_blocks is %d; it isn't held"
        warn(said, request_id, num_blocks, self._held_blocks, most)
        self._stats.add(REFUSED_HOLDS, 1)
        return False

    def end_holds(self, request_ids: Iterable[str]) -> None:
        """All workers have released the blocks of these requests. Requests without a hold here are ignored."""
        for request_id in request_ids:
            if request_id in self._holding:
                self._count_held(-self._holding.pop(request_id))

    def _count_held(self, more: int) -> None:
        self._held_blocks += more
        self._stats.add(HELD_BLOCKS, self._held_blocks)

    def revoke_holds(self) -> None:
        """Have the workers stop serving all current holds."""
        self._revoked += sorted(self._holding)

    # -- what the workers are told -----------------------------------------------------------------

    def is_busy(self) -> bool:
        """Whether blocks are held, or the workers are to be told of holds that were revoked."""
        return bool(self._holding or self._revoked)

    def take_told(self) -> tuple[list[Hold], list[str]]:
        """The holds that began, and the requests whose holds are no longer served, since the last call."""
        told = self._holds, self._revoked
        self._holds, self._revoked = [], []
        return told

    def check(self) -> None:
        """Recount: blocks that are held, and holds that the workers are to be told of."""
        held = sum(self._holding.values())
        assert self._held_blocks == held, f"{self._held_blocks} blocks are held, counted again {held}"
        assert held <= (self._max_held_blocks or held), f"{held} blocks are held, at most {self._max_held_blocks}"
        assert {hold.request_id for hold in self._holds} <= self._holding.keys(), f"{self._holds} not held"
