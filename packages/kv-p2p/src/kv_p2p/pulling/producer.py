"""``Producer``: the half of the scheduler's side that serves other engines, and holds blocks for them.

When a request ends whose blocks another engine is to pull, they are *held*: the engine doesn't free them until the
workers report that they were pulled or declined, or that their time is over. The request's output gets a ticket
for them. ``max_held_blocks`` limits how many blocks are held at once: a client that asks for holds and never pulls
them would keep these blocks from all other requests. A block that several holds share, such as those of a system
prompt, counts once.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Any, Final

from kv_api import BlockIds, Request
from kv_api.engine import TransferConfig
from kv_p2p.log import warn
from kv_p2p.pulling.groups import tokens_to_load
from kv_p2p.pulling.metadata import NULL_BLOCK, Hold, first_place, hold_id_of
from kv_p2p.pulling.options import Options
from kv_p2p.pulling.stats import HELD_BLOCKS, REFUSED_HOLDS, P2PStats
from kv_p2p.pulling.ticket import WANTED, Address, Shape, Ticket, digest_of, is_of_tokens

FAILED: Final = ("FINISHED_ABORTED", "FINISHED_ERROR")
"""Finish reasons, by vLLM's names, after which nobody pulls the blocks."""


Block = tuple[int, int]
"""The number of a KV cache group, and a block's id."""


def _blocks_of(tables: BlockIds) -> Iterator[Block]:
    """The blocks of these tables, by group; those that slid out of a window are none."""
    return ((group, block) for group, table in enumerate(tables) for block in table if block != NULL_BLOCK)


def _is_wanted(request: Request) -> bool:
    """Whether a client asks for the request to be held."""
    params = request.kv_transfer_params
    return isinstance(params, dict) and bool(params.get(WANTED))


class Producer:
    """Holds, by request, and the news of holds that the next metadata takes to the workers."""

    def __init__(
        self,
        transfer: TransferConfig,
        shape: Shape,
        options: Options,
        stats: P2PStats,
        num_blocks: int | None = None,
    ) -> None:
        """``num_blocks``: of the engine, the null block among them."""
        self._transfer = transfer
        self._shape = shape
        self._address = Address(options.host, options.port)
        self._max_held_blocks = options.max_held_blocks
        self._num_blocks = num_blocks
        self._stats = stats
        self._holding: dict[str, tuple[Block, ...]] = {}
        """The blocks of each request that is held, those of its output among them: an engine frees all or none."""
        self._holds_of: Counter[Block] = Counter()
        """For each of these blocks, how many requests have it."""
        self._refused = 0
        """How many holds were refused for lack of room."""
        self._warns_at = 1
        """At which number of them the log has the next one."""
        self._to_be_held: dict[str, int] = {}
        """How many blocks each request needs that was begun and is to be held when it ends."""
        self._blocks_to_come = 0
        """The sum of these."""
        self._num_holds = 0
        """How many holds there ever were: each one has a number."""
        self._holds: list[Hold] = []
        self._revoked: list[str] = []

    @property
    def holding(self) -> AbstractSet[str]:
        """The requests whose blocks are held."""
        return self._holding.keys()

    # -- a request that is to be held is begun -------------------------------------------------------

    def leaves_no_room_for(self, request: Request) -> bool:
        """Whether a request without blocks has to wait until holds end: to be held itself, or to get blocks.

        A prompt that is larger than all that may be held only waits for blocks: it is never held.
        """
        most, held, blocks = self._max_held_blocks, len(self._holds_of), self._blocks_needed_by(request)
        if most is None:
            return False
        if self._is_asked_to_hold(request) and blocks <= most:
            of_others = self._blocks_to_come - self._to_be_held.get(request.request_id, 0)
            return held + of_others + blocks > most
        next_ones = len(self._shape.groups)  # for its next token an engine may want a block more of each group
        return self._num_blocks is not None and held > 0 and held + blocks + next_ones >= self._num_blocks

    def begin_request(self, request: Request) -> None:
        """A request got blocks."""
        if self._is_asked_to_hold(request) and request.request_id not in self._to_be_held:
            self._to_be_held[request.request_id] = blocks = self._blocks_needed_by(request)
            self._blocks_to_come += blocks

    def end_request(self, request_id: str) -> None:
        """A request has ended; whether it is held is decided next."""
        self._blocks_to_come -= self._to_be_held.pop(request_id, 0)

    def _is_asked_to_hold(self, request: Request) -> bool:
        return self._transfer.is_kv_producer and _is_wanted(request)

    def _blocks_needed_by(self, request: Request) -> int:
        """How many blocks a request's tokens need, at most: windows are left out of account."""
        return sum(-(-request.num_tokens // group.block_size) for group in self._shape.groups)

    # -- it ends -------------------------------------------------------------------------------------

    def hold(self, request: Request, block_ids: BlockIds) -> tuple[bool, dict[str, Any] | None]:
        """A request has ended. Returns whether its blocks are held, and the ticket for the request's output."""
        tokens = request.num_prompt_tokens
        tables = tuple(
            tuple(table[: -(-tokens // group.block_size)])
            for group, table in zip(self._shape.groups, block_ids, strict=True)
        )
        if not self._is_to_be_held(request, tables) or not self._has_room(request.request_id, block_ids):
            return False, None
        self._num_holds += 1
        hold_id, digest = hold_id_of(request.request_id, self._num_holds), digest_of(request, tokens)
        hold = Hold(request.request_id, hold_id, digest, tables)
        first_places = tuple(first_place(table) for table in tables)
        ticket = Ticket(self._address, self._shape, hold_id, digest, tokens, first_places)
        self._holding[request.request_id] = blocks = tuple(_blocks_of(block_ids))
        self._holds_of.update(blocks)
        self._count_held()
        self._holds.append(hold)
        return True, ticket.to_params(self._transfer.engine_id)

    def _is_to_be_held(self, request: Request, tables: tuple[tuple[int, ...], ...]) -> bool:
        """Whether a hold was asked for, the request ended well, and all of its prompt is computed and kept."""
        if not _is_wanted(request):
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
        return True

    def _lacking(self, tables: tuple[tuple[int, ...], ...], num_tokens: int) -> int | None:
        """The first KV cache group without blocks that a load of these tokens needs; None if all have theirs."""
        tokens = tokens_to_load(self._shape.groups, num_tokens)
        slid = (
            group.first_needed(tokens) < first_place(table)
            for group, table in zip(self._shape.groups, tables, strict=True)
        )
        return next((number for number, has_slid in enumerate(slid) if has_slid), None)

    def _has_room(self, request_id: str, tables: BlockIds) -> bool:
        """Whether the blocks of these tables may be held, too.

        An engine with too much to do refuses many holds, though blocks are freed and held again all the time. So
        the log has only the first of them, the second, the fourth, the eighth and so on; all are counted.
        """
        held, most = len(self._holds_of), self._max_held_blocks
        more = sum(block not in self._holds_of for block in _blocks_of(tables))
        if most is None or held + more <= most:
            return True
        self._stats.add(REFUSED_HOLDS, 1)
        self._refused += 1
        if self._refused == self._warns_at:
            self._warns_at *= 2
            said = (
                "request %s: %d more blocks are to be held, but %d are held and max_held_blocks is %d (if not "
                "set, a third of the blocks of an engine that is kv_both; one that only prefills should be a "
                "kv_producer, which has no limit); it isn't held; %d so far, and the next warning is at %d"
            )
            warn(said, request_id, more, held, most, self._refused, self._warns_at)
        return False

    def end_holds(self, request_ids: Iterable[str]) -> None:
        """All workers have released the blocks of these requests. Requests without a hold here are ignored."""
        for request_id in request_ids:
            blocks = self._holding.pop(request_id, None)
            if blocks is None:
                continue
            for block in blocks:
                self._holds_of[block] -= 1
                if not self._holds_of[block]:
                    del self._holds_of[block]
            self._count_held()

    def _count_held(self) -> None:
        self._stats.add(HELD_BLOCKS, len(self._holds_of))

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
        held = Counter(block for blocks in self._holding.values() for block in blocks)
        assert self._holds_of == held, f"holds of each block {self._holds_of}, counted again {held}"
        to_come = sum(self._to_be_held.values())
        assert self._blocks_to_come == to_come, f"{self._blocks_to_come} blocks to come, counted again {to_come}"
        most = self._max_held_blocks
        assert most is None or len(held) <= most, f"{len(held)} blocks are held, at most {most}"
        assert {hold.request_id for hold in self._holds} <= self._holding.keys(), f"{self._holds} not held"
