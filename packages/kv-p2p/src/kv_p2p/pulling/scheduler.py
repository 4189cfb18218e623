"""The scheduler's half: which prompts are held, which tickets are taken.

Of a request it knows one thing at a time: a ticket that came with it and that nobody has taken yet; that its
blocks are being pulled; or that its blocks are held. A ticket is taken at the first allocation, and only then: who
is preempted after that, or whose pull failed, computes its prompt like anybody else.
"""

from dataclasses import replace
from typing import Any, Final

from kv_api import (
    CacheHitSource,
    ConfigError,
    KVCacheBlocks,
    KVCacheConfig,
    KVConnectorOutput,
    Request,
    SchedulerOutput,
    SchedulerSide,
    VllmConfig,
)
from kv_p2p.log import warn
from kv_p2p.pulling.metadata import Hold, P2PMetadata, Pull, Source
from kv_p2p.pulling.options import Options
from kv_p2p.pulling.stats import HELD_BLOCKS, REFUSED_TICKETS, P2PStats
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


class P2PSchedulerSide(SchedulerSide):
    """Decides what is held, and what is pulled."""

    _cache_hit_source = CacheHitSource.P2P

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None, options: Options) -> None:
        super().__init__(vllm_config, kv_cache_config)
        _refuse_several_groups(kv_cache_config)
        parallel = vllm_config.parallel_config
        self._shape = Shape(
            vllm_config.cache_config.block_size,
            parallel.tensor_parallel_size,
            parallel.pipeline_parallel_size,
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
        self._num_holds = 0
        self._next = P2PMetadata()
        self._stats = P2PStats()

    # -- who has a ticket ----------------------------------------------------------------------

    def on_new_request(self, request: Request) -> None:
        params = request.kv_transfer_params
        if not params or not params.get(TICKET):
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
            return f"the ticket is of {ticket.shape}, this engine is {self._shape}"
        if ticket.num_tokens > request.num_prompt_tokens:
            return f"the ticket is of {ticket.num_tokens} tokens, the prompt has {request.num_prompt_tokens}"
        if not is_of_tokens(request):
            return "some of its prompt is embeddings"
        if ticket.digest != digest_of(request, ticket.num_tokens):
            return "the ticket is of other tokens or images, another salt or another adapter"
        return None

    def _usable_tokens(self, ticket: Ticket, request: Request) -> int:
        """All, the last block as far as it goes; but whole blocks of a prompt that only begins with them."""
        if ticket.num_tokens == request.num_tokens:
            return ticket.num_tokens
        return ticket.num_tokens - ticket.num_tokens % self._shape.block_size

    # -- taking it -----------------------------------------------------------------------------

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        ticket = self._tickets.get(request.request_id)
        if ticket is None:
            return 0, False
        more = self._usable_tokens(ticket, request) - num_computed_tokens
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
        (table,) = blocks.get_block_ids()
        size = self._shape.block_size
        begin, end = first // size, -(-(first + num_external_tokens) // size)
        self._next.pulls.append(Pull(request.request_id, _source(ticket), begin, tuple(table[begin:end])))
        self._pulling.add(request.request_id)

    def _decline(self, ticket: Ticket) -> None:
        self._next.declined.append(_source(ticket))

    # -- holding -------------------------------------------------------------------------------

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        request_id = request.request_id
        self._asked_from.pop(request_id, None)
        ticket = self._tickets.pop(request_id, None)
        if ticket is not None:
            self._decline(ticket)
        tokens = request.num_prompt_tokens
        blocks = tuple(block_ids[: -(-tokens // self._shape.block_size)])
        if request_id in self._pulling or not self._is_to_be_held(request, blocks):
            return False, None
        self._num_holds += 1
        hold_id, digest = f"{request_id}.{self._num_holds}", digest_of(request, tokens)
        ticket = Ticket(self._address, self._shape, hold_id, digest, tokens)
        self._holding[request_id] = len(blocks)
        self._count_held(len(blocks))
        self._next.holds.append(Hold(request_id, hold_id, digest, blocks))
        return True, ticket.to_params(self._kv_transfer_config.engine_id)

    def _is_to_be_held(self, request: Request, blocks: tuple[int, ...]) -> bool:
        """It is wanted, it ended well, and all of its prompt is computed and still there."""
        params = request.kv_transfer_params
        if not params or not params.get(WANTED):
            return False
        if not self._kv_transfer_config.is_kv_producer:
            role = self._kv_transfer_config.kv_role
            warn("request %s: its blocks are to be held, but kv_role is %r", request.request_id, role)
            return False
        ended = getattr(getattr(request, "status", None), "name", "")
        if ended in FAILED or request.num_computed_tokens < request.num_prompt_tokens:
            return False
        if NULL_BLOCK in blocks:
            warn("request %s: part of its prompt slid out of a window; it isn't held", request.request_id)
            return False
        if not is_of_tokens(request):
            warn("request %s: some of its prompt is embeddings; it isn't held", request.request_id)
            return False
        return True

    def reset_cache(self) -> bool:
        """What is held is served no longer, and tickets of others are older than the reset: none is taken."""
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
        if self._stats.is_empty():
            return None
        stats, self._stats = self._stats, P2PStats()
        return stats

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
        assert set(self._asked_from) <= ticketed, f"asked from {self._asked_from}, ticketed {sorted(ticketed)}"
        assert {hold.request_id for hold in self._next.holds} <= self._holding.keys(), (
            f"{self._next.holds} not held"
        )
        assert {pull.request_id for pull in self._next.pulls} <= self._pulling, f"{self._next.pulls} not pulled"


NULL_BLOCK: Final = 0
"""Stands in a table where a block was that nobody needs any more."""

FAILED: Final = ("FINISHED_ABORTED", "FINISHED_ERROR")
"""Ends, by vLLM's names, after which nobody asks for the blocks."""


def _source(ticket: Ticket) -> Source:
    return Source(ticket.address, ticket.hold_id, ticket.digest)


def _refuse_several_groups(kv_cache_config: KVCacheConfig | None) -> None:
    groups = len(kv_cache_config.kv_cache_groups) if kv_cache_config is not None else 1
    if groups != 1:
        raise ConfigError(f"P2PConnector: this model has {groups} KV cache groups; it works with 1 only")
