"""The scheduler's side: which prompts are held, which tickets are taken.

Of a request it knows one thing at a time: a ticket that came with it and that nobody has taken yet; that its
blocks are being pulled; or that its blocks are held. A ticket is taken at the first allocation, and only then: a
request that is preempted after that, or whose pull failed, computes its prompt like any other.

To go on after some tokens, a request needs of a group with a window only the places that the next token reads. An
engine that has all of a prompt computes its last token once more, to sample the one after it; and the last token
may read a place before those that the one after it reads. So with windows a whole prompt is loaded without its
last token: then the engine allocates blocks for all that is read, and a hold has all of it.
"""

from dataclasses import replace
from math import lcm
from typing import Any, Final

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
from kv_p2p.log import warn
from kv_p2p.pulling.groups import Group
from kv_p2p.pulling.metadata import Hold, P2PMetadata, Part, Pull, Source, first_place, hold_id_of, num_blocks_of
from kv_p2p.pulling.options import Options
from kv_p2p.pulling.stats import HELD_BLOCKS, REFUSED_HOLDS, REFUSED_TICKETS, P2PStats
from kv_p2p.pulling.ticket import (
    TICKET,
    WANTED,
    Address,
    BadTicketError,
    Shape,
    Ticket,
    digest_of,
    is_of_tokens,
    read_ticket,
)

_MOST_OF_A_SHAPE: Final = 500
"""Characters of a ticket's shape that get into the log."""

FAILED: Final = ("FINISHED_ABORTED", "FINISHED_ERROR")
"""Ends, by vLLM's names, after which nobody asks for the blocks."""


class P2PSchedulerSide(SchedulerSide, SupportsHMA):
    """Decides what is held, and what is pulled."""

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
        self._groups = groups
        self._grain = lcm(*(group.block_size for group in groups))
        """So many tokens are whole blocks of every group."""
        self._has_windows = any(group.window for group in groups)
        self._shape = Shape(
            vllm_config.cache_config.block_size,
            parallel.tensor_parallel_size,
            parallel.pipeline_parallel_size,
            groups,
        )
        self._address = Address(options.host, options.port)
        self._tickets: dict[str, Ticket] = {}
        """By request: not taken yet."""
        self._asked_from: dict[str, int] = {}
        """By request with a ticket: how many tokens the engine had when it last asked."""
        self._pulling: set[str] = set()
        self._holding: dict[str, int] = {}
        """By request: how many blocks."""
        self._held_blocks = 0
        self._max_held_blocks = options.max_held_blocks
        self._num_holds = 0
        self._next = P2PMetadata()
        self._stats = P2PStats()

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """Our workers have none. vLLM's MultiConnector brings everybody that of one child, of all stages."""

    # -- who has a ticket ----------------------------------------------------------------------

    def on_new_request(self, request: Request) -> None:
        params: Any = request.kv_transfer_params  # from a client: vLLM hands on whatever it is
        if not params or (isinstance(params, dict) and not params.get(TICKET)):
            return
        try:
            ticket = read_ticket(params)
        except BadTicketError as error:
            warn("request %s: %s; its prompt is computed here", request.request_id, error)
            self._stats.add(REFUSED_TICKETS, 1)
            return
        reason = self._reason_against(ticket, request)
        if reason is None:
            self._tickets[request.request_id] = ticket
        else:
            warn("request %s: %s; its prompt is computed here", request.request_id, reason)
            self._stats.add(REFUSED_TICKETS, 1)
            self._decline(ticket)

    def _reason_against(self, ticket: Ticket, request: Request) -> str | None:
        """Why a ticket can't be taken. None: it can."""
        if not self._kv_transfer_config.is_kv_consumer:
            return f"it came with a ticket, but kv_role is {self._kv_transfer_config.kv_role!r}"
        if ticket.shape != self._shape:
            return f"the ticket is of {ticket.shape!s:.{_MOST_OF_A_SHAPE}}, this engine is {self._shape}"
        if ticket.num_tokens > request.num_prompt_tokens:
            return f"the ticket is of {ticket.num_tokens} tokens, the prompt has {request.num_prompt_tokens}"
        if not is_of_tokens(request):
            return "some of its prompt is embeddings"
        if ticket.digest != digest_of(request, ticket.num_tokens):
            return "the ticket is of other tokens or images, another salt or another adapter"
        return None

    def _usable_tokens(self, ticket: Ticket, request: Request, local: int) -> int:
        """How many tokens of a ticket can be loaded: all, also of a last block that isn't full.

        If the request's prompt goes on after the ticket's, it is as many as make whole blocks. It is none, if what
        the next token reads has slid out of a window of the other engine and isn't among the ``local`` tokens.
        """
        tokens = self._whole(ticket.num_tokens)
        if ticket.num_tokens != request.num_tokens:
            tokens = ticket.num_tokens - ticket.num_tokens % self._grain
        is_held = all(
            max(group.first_needed(tokens), local // group.block_size) >= first
            for group, first in zip(self._groups, ticket.first_places, strict=True)
        )
        return tokens if is_held else 0

    def _whole(self, num_tokens: int) -> int:
        """What is loaded of a whole prompt."""
        return num_tokens - self._has_windows

    # -- taking it -----------------------------------------------------------------------------

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        ticket = self._tickets.get(request.request_id)
        if ticket is None:
            return 0, False
        more = self._usable_tokens(ticket, request, num_computed_tokens) - num_computed_tokens
        if more <= 0:
            return 0, False
        self._asked_from[request.request_id] = num_computed_tokens
        return more, True

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        ticket = self._tickets.pop(request.request_id, None)
        first = self._asked_from.pop(request.request_id, 0)
        if ticket is None:
            return
        if num_external_tokens == 0:
            self._decline(ticket)
            return
        parts = tuple(
            Part.of_tokens(group, table, first, first + num_external_tokens)
            for group, table in zip(self._groups, blocks.get_block_ids(), strict=True)
        )
        self._next.pulls.append(Pull(request.request_id, Source.of(ticket), parts))
        self._pulling.add(request.request_id)

    def _decline(self, ticket: Ticket) -> None:
        self._next.declined.append(Source.of(ticket))

    # -- holding -------------------------------------------------------------------------------

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Request, block_ids: BlockIds
    ) -> tuple[bool, dict[str, Any] | None]:
        request_id = request.request_id
        self._asked_from.pop(request_id, None)
        ticket = self._tickets.pop(request_id, None)
        if ticket is not None:
            self._decline(ticket)
        tokens = request.num_prompt_tokens
        tables = tuple(
            tuple(table[: -(-tokens // group.block_size)])
            for group, table in zip(self._groups, block_ids, strict=True)
        )
        if request_id in self._pulling or not self._is_to_be_held(request, tables):
            return False, None
        self._num_holds += 1
        hold_id, digest = hold_id_of(request_id, self._num_holds), digest_of(request, tokens)
        hold = Hold(request_id, hold_id, digest, tables)
        first_places = tuple(first_place(table) for table in tables)
        ticket = Ticket(self._address, self._shape, hold_id, digest, tokens, first_places)
        self._holding[request_id] = hold.num_blocks
        self._count_held(hold.num_blocks)
        self._next.holds.append(hold)
        return True, ticket.to_params(self._kv_transfer_config.engine_id)

    def _is_to_be_held(self, request: Request, tables: tuple[tuple[int, ...], ...]) -> bool:
        """Whether that is wanted, the request ended well, and all of its prompt is computed and still there."""
        params = request.kv_transfer_params
        if not isinstance(params, dict) or not params.get(WANTED):
            return False
        if not self._kv_transfer_config.is_kv_producer:
            role = self._kv_transfer_config.kv_role
            warn("request %s: its blocks are to be held, but kv_role is %r", request.request_id, role)
            return False
        ended = getattr(getattr(request, "status", None), "name", "")
        if ended in FAILED or request.num_computed_tokens < request.num_prompt_tokens:
            return False
        needed_from = self._whole(request.num_prompt_tokens)
        for number, (group, table) in enumerate(zip(self._groups, tables, strict=True)):
            if group.first_needed(needed_from) < first_place(table):
                said = "request %s: part of its prompt slid out of the window of KV cache group %d; it isn't held"
                warn(said, request.request_id, number)
                return False
        if not is_of_tokens(request):
            warn("request %s: some of its prompt is embeddings; it isn't held", request.request_id)
            return False
        return self._has_room(request.request_id, num_blocks_of(tables))

    def _has_room(self, request_id: str, num_blocks: int) -> bool:
        """Whether so many more blocks may be held."""
        most = self._max_held_blocks
        if most is None or self._held_blocks + num_blocks <= most:
            return True
        said = "request %s: its %d blocks are to be held, but %d are held and max_held_blocks is %d; it isn't held"
        warn(said, request_id, num_blocks, self._held_blocks, most)
        self._stats.add(REFUSED_HOLDS, 1)
        return False

    def reset_cache(self) -> bool:
        """Serve no longer what is held, and take none of the tickets that came before the reset."""
        self._next.revoked += sorted(self._holding)
        for ticket in self._tickets.values():
            self._decline(ticket)
        self._tickets.clear()
        self._asked_from.clear()
        return True

    # -- every step ----------------------------------------------------------------------------

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> P2PMetadata:
        told, self._next = self._next, P2PMetadata()
        return replace(told, is_idle=scheduler_output.total_num_scheduled_tokens == 0)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        self._pulling.difference_update(connector_output.finished_recving or ())
        for request_id in connector_output.finished_sending or ():
            if request_id in self._holding:
                self._count_held(-self._holding.pop(request_id))

    def _count_held(self, more: int) -> None:
        self._held_blocks += more
        self._stats.add(HELD_BLOCKS, self._held_blocks)

    def get_kv_connector_stats(self) -> P2PStats | None:
        return self._stats.take()

    def has_pending_push_work(self) -> bool:
        return bool(self._next or self._pulling or self._holding)

    def check(self) -> None:
        """Recount: a request has a ticket, is pulled or is held."""
        ticketed = set(self._tickets)
        assert not (
            ticketed & self._pulling or ticketed & self._holding.keys() or self._pulling & self._holding.keys()
        ), f"ticketed {sorted(ticketed)}, pulled {sorted(self._pulling)}, held {sorted(self._holding)}"
        held = sum(self._holding.values())
        assert self._held_blocks == held, f"{self._held_blocks} blocks are held, counted again {held}"
        assert held <= (self._max_held_blocks or held), f"{held} blocks are held, at most {self._max_held_blocks}"
        assert set(self._asked_from) <= ticketed, f"asked from {self._asked_from}, ticketed {sorted(ticketed)}"
        assert {hold.request_id for hold in self._next.holds} <= self._holding.keys(), (
            f"{self._next.holds} not held"
        )
        assert {pull.request_id for pull in self._next.pulls} <= self._pulling, f"{self._next.pulls} not pulled"
