"""``Consumer``: the half of the scheduler's side that pulls from other engines. It decides which tickets are used.

A request either has an unused ticket, or its blocks are being pulled, or neither. A ticket is used at the
request's first allocation, and only then: if the request is preempted later, or its pull fails, its prompt is
computed. A ticket that can't be used any more is *declined*, so that the other engine frees the blocks now, and
not at the end of their time.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Any, Final

from kv_api import KVCacheBlocks, Request
from kv_api.engine import TransferConfig
from kv_p2p.extra_config import EXTRA
from kv_p2p.log import warn
from kv_p2p.pulling.groups import tokens_to_load, whole_blocks
from kv_p2p.pulling.metadata import Part, Pull, Source
from kv_p2p.pulling.model import Model
from kv_p2p.pulling.stats import REFUSED_TICKETS, P2PStats
from kv_p2p.pulling.ticket import TICKET, BadTicketError, Shape, Ticket, digest_of, is_of_tokens, read_ticket

_MOST_OF_A_SHAPE: Final = 500
"""The most characters of a ticket's shape that are logged."""


def _said_of(model: Model | None) -> str:
    return "a model that it doesn't name" if model is None else f"model {model}"


def _stands_for_one_that_went(request: Request) -> bool:
    """Whether an engine's front end made it up, to be ended at once.

    vLLM does so when a client with a ticket has gone, or its request was turned away. The prompt is not the
    client's, and is never computed: the ticket is declined when the request ends, and that is all.
    """
    return getattr(request, "abort_immediately", False) is True


class Consumer:
    """Tickets and pulls, by request, and the pulls and declines that the next metadata takes to the workers."""

    def __init__(self, transfer: TransferConfig, shape: Shape, stats: P2PStats) -> None:
        self._transfer = transfer
        self._shape = shape
        self._stats = stats
        self._tickets: dict[str, Ticket] = {}
        """The unused tickets, by request."""
        self._asked_from: dict[str, int] = {}
        """For each request with a ticket, how many tokens the engine had when it last asked."""
        self._pulling: set[str] = set()
        self._pulls: list[Pull] = []
        self._declined: list[Source] = []

    @property
    def ticketed(self) -> AbstractSet[str]:
        """The requests that have an unused ticket."""
        return self._tickets.keys()

    @property
    def pulling(self) -> AbstractSet[str]:
        """The requests whose blocks are being pulled."""
        return self._pulling

    # -- a request comes, and may have a ticket ----------------------------------------------------

    def begin_request(self, request: Request) -> None:
        """Keep the ticket that came with a request, if it is valid for this engine and this prompt."""
        params: Any = request.kv_transfer_params  # from a client: vLLM passes on whatever was sent
        if not params or (isinstance(params, dict) and not params.get(TICKET)):
            return
        ticket: Ticket | None = None
        stands_in = _stands_for_one_that_went(request)
        try:
            ticket = read_ticket(params)
            reason = None if stands_in else self._reason_against(ticket, request)
        except BadTicketError as error:
            if stands_in:
                return
            reason = str(error)
        if ticket is not None and reason is None:
            self._tickets[request.request_id] = ticket
            return
        warn("request %s: %s; its prompt is computed here", request.request_id, reason)
        self._stats.add(REFUSED_TICKETS, 1)
        if ticket is not None:
            self._decline(ticket)

    def _reason_against(self, ticket: Ticket, request: Request) -> str | None:
        """Why a ticket can't be used; None if it can."""
        if not self._transfer.is_kv_consumer:
            return f"it came with a ticket, but kv_role is {self._transfer.kv_role!r}"
        if ticket.shape.model != self._shape.model:
            theirs, ours = _said_of(ticket.shape.model), _said_of(self._shape.model)
            advice = f"if that is the same one, give both engines one {EXTRA}.model_name"
            return f"the ticket is of {theirs}, this engine is of {ours}; {advice}"
        if ticket.shape != self._shape:
            return f"the ticket is of {ticket.shape!s:.{_MOST_OF_A_SHAPE}}, this engine is {self._shape}"
        if ticket.num_tokens > request.num_prompt_tokens:
            return f"the ticket is of {ticket.num_tokens} tokens, the prompt has {request.num_prompt_tokens}"
        if not is_of_tokens(request):
            return "some of its prompt is embeddings"
        if ticket.digest != digest_of(request, ticket.num_tokens):
            return "the ticket is of other tokens or images, another salt or another adapter"
        return None

    # -- it is matched, and gets blocks --------------------------------------------------------------

    def match(self, request: Request, num_computed_tokens: int) -> int:
        """How many tokens can be pulled with the request's ticket, beyond those that the engine has."""
        ticket = self._tickets.get(request.request_id)
        if ticket is None:
            return 0
        more = self._usable_tokens(ticket, request, num_computed_tokens) - num_computed_tokens
        if more <= 0:
            return 0
        self._asked_from[request.request_id] = num_computed_tokens
        return more

    def _usable_tokens(self, ticket: Ticket, request: Request, local: int) -> int:
        """How many tokens of a ticket can be loaded.

        It is 0 if the next token reads blocks that slid out of a window at the other engine and aren't among the
        ``local`` tokens.
        """
        tokens = self._tokens_to_load(ticket, request)
        is_held = all(
            max(group.first_needed(tokens), local // group.block_size) >= first
            for group, first in zip(self._shape.groups, ticket.first_places, strict=True)
        )
        return tokens if is_held else 0

    def _tokens_to_load(self, ticket: Ticket, request: Request) -> int:
        """For a whole prompt all tokens, a partly filled last block included; for a longer prompt whole blocks."""
        is_whole = ticket.num_tokens == request.num_tokens
        return (tokens_to_load if is_whole else whole_blocks)(self._shape.groups, ticket.num_tokens)

    def begin_pull(self, request: Request, blocks: KVCacheBlocks, num_tokens: int) -> None:
        """A request got blocks. If it has a ticket, pull this many tokens into them; if 0, decline the ticket."""
        ticket = self._tickets.pop(request.request_id, None)
        first = self._asked_from.pop(request.request_id, 0)
        if ticket is None:
            return
        if num_tokens == 0:
            self._decline(ticket)
            return
        parts = tuple(
            Part.of_tokens(group, table, first, first + num_tokens)
            for group, table in zip(self._shape.groups, blocks.get_block_ids(), strict=True)
        )
        self._pulls.append(Pull(request.request_id, Source.of(ticket), parts))
        self._pulling.add(request.request_id)

    def _decline(self, ticket: Ticket) -> None:
        self._declined.append(Source.of(ticket))

    # -- it ends ---------------------------------------------------------------------------------------

    def end_pulls(self, request_ids: Iterable[str]) -> None:
        """The pulls of these requests have ended on all workers, well or not."""
        self._pulling.difference_update(request_ids)

    def end_request(self, request_id: str) -> None:
        """A request has ended: decline its unused ticket. If it is being pulled, the pull goes on."""
        self._asked_from.pop(request_id, None)
        ticket = self._tickets.pop(request_id, None)
        if ticket is not None:
            self._decline(ticket)

    def drop_tickets(self) -> None:
        """Decline all tickets that have come so far."""
        for ticket in self._tickets.values():
            self._decline(ticket)
        self._tickets.clear()
        self._asked_from.clear()

    # -- what the workers are told -----------------------------------------------------------------

    def is_busy(self) -> bool:
        """Whether a pull is in flight, or the workers are to be told something."""
        return bool(self._pulling or self._pulls or self._declined)

    def take_told(self) -> tuple[list[Pull], list[Source]]:
        """The pulls that began, and the holds that were declined, since the last call."""
        told = self._pulls, self._declined
        self._pulls, self._declined = [], []
        return told

    def check(self) -> None:
        """Recount: every request that was matched has a ticket, and every pull to be told is in flight."""
        assert self._asked_from.keys() <= self._tickets.keys(), (
            f"asked from {self._asked_from}, ticketed {sorted(self._tickets)}"
        )
        assert {pull.request_id for pull in self._pulls} <= self._pulling, f"{self._pulls} not pulled"
