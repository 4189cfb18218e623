"""HITS, if engines serve each other: wanted blocks are held, and a valid ticket gets all of them.

No other invariant breaks if a connector holds nothing, refuses a ticket or pulls only a part: the prompt is
computed. So holding and pulling are demanded here, by the keys of vLLM's routers, whenever there is no reason not
to: the held request ended well and is still held, no request took or refused its ticket before, and nothing was
reset since. If the other engine is a stranger, a ticket is of another model and must be refused: a connector that
takes it breaks CONTENT.

A request's ticket must be for held blocks: its own, or those of an earlier request that is still held. All of this
is demanded only of connectors that claim the trait ``holds``; the following is demanded of all that serve peers.

After a reset no earlier ticket is taken. Blocks that were held at the reset must not be pulled by a pull that
begins after the step in which the workers learned of the reset.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kv_api import CacheHitSource, KVConnectorOutput
from kv_sim.config import NULL, Role, WorldConfig
from kv_sim.engine.request import SimRequest, Status
from kv_sim.subject import TICKET, WANTED
from kv_sim.violation import Invariant, Referee

ENDS: Final = ("request_finished", "request_finished_all_groups")
"""The calls for a request that has ended."""
TELLS_OF_TICKETS: Final = frozenset(
    {
        *("on_new_request", "get_num_new_matched_tokens", "update_state_after_alloc", *ENDS),
        *("get_external_cache_hit_sources", "build_connector_meta", "update_connector_output", "reset_cache"),
    }
)
"""The methods of the scheduler's side that `Tickets.hear` listens to."""


@dataclass
class Issued:
    """A ticket, and the request that left it."""

    request: SimRequest
    ticket: dict[str, Any]
    tokens: int
    """Tokens of its prompt."""
    first_tokens: tuple[int, ...]
    """For each KV cache group, the first held token. Earlier ones have left a window."""
    is_spent: bool = False
    """The ticket was used, or can't be used any more."""


class Tickets:
    """Follows the calls to the scheduler's sides, and knows which tickets are live."""

    def __init__(self, config: WorldConfig, referee: Referee, *, is_on: bool, holds: bool = True) -> None:
        self._config = config
        self._referee = referee
        self._is_on = is_on
        self._holds = holds
        """Whether wanted prompts must be held, and pulled whole."""
        self._issued: dict[str, Issued] = {}
        self._holders: dict[str, SimRequest] = {}
        """Ticket -> the request whose blocks it is for, also after a reset."""
        self._untold: set[str] = set()
        """Tickets of holds that the workers will learn of in the next step."""
        self._stale: set[str] = set()
        """Requests that arrived with a ticket before a reset."""
        self._reset: set[str] = set()
        """Tickets of holds at a reset."""
        self._before_reset: set[str] = set()
        """Those of them whose reset the workers have learned of."""
        self._too_late: set[str] = set()
        """Requests that pull with such a ticket."""
        self._carries: dict[str, str] = {}
        """Request -> the name of its ticket."""
        self._brought: dict[str, Issued] = {}
        """Request -> its ticket, until it takes or refuses the ticket."""

    @property
    def bearers(self) -> Collection[str]:
        """Requests that arrived with a ticket, used or not."""
        return self._carries.keys()

    @property
    def has_untold(self) -> bool:
        """Whether there is a ticket of a hold that the workers don't know of yet."""
        return bool(self._untold)

    @property
    def has_held(self) -> bool:
        """Whether there is a ticket whose blocks are held."""
        return any(issued.request.is_held for issued in self._issued.values())

    @property
    def has_revoked(self) -> bool:
        """Whether a hold from before a reset still exists."""
        return any(self._holders[name].is_held for name in self._reset)

    def hear(self, name: str, args: tuple[Any, ...], answer: Any, role: Role | None = None) -> None:
        """The scheduler's side of an engine was called. ``role``: the engine's, if it isn't the first one's."""
        if not self._is_on:
            return
        role = role or self._config.role
        if name == "on_new_request":
            self._arrives(args[0], role)
        elif name == "get_num_new_matched_tokens":
            self._check_match(args[0], args[1], answer[0], computes=int(not answer[1]))
        elif name == "update_state_after_alloc":
            self._spend(args[0].request_id)
        elif name in ENDS:
            self._spend(args[0].request_id)
            tables = enumerate(tables_told(name, args))
            first_tokens = [_first_token(table, self._config.tokens_of(group)) for group, table in tables]
            self._ends(args[0], answer[1] or {}, first_tokens, role, is_held=answer[0])
        elif name == "reset_cache":  # whatever it returns: a MultiConnector's children may differ
            self._reset.update(name for name, issued in self._issued.items() if issued.request.is_held)
            self._stale.update(self._carries)
            self._issued.clear()
            self._brought.clear()
        elif name == "get_external_cache_hit_sources":
            self._check_pull(args[0].request_id, args[1], answer)
        elif name == "build_connector_meta":
            self._before_reset |= self._reset
            self._untold.clear()
        elif name == "update_connector_output":
            self._check_pulled(args[0])

    def _arrives(self, request: SimRequest, role: Role) -> None:
        params = request.words
        self._stale.discard(request.request_id)
        self._too_late.discard(request.request_id)
        self._carries.pop(request.request_id, None)
        if not params.get(TICKET):
            return
        self._carries[request.request_id] = _name_of(params)
        issued = self._issued.get(_name_of(params))
        if issued is None:
            self._spend_what_is_meant(request)
            return
        if role == "kv_producer" or self._config.stranger != "none" or not self._is_of(issued, request):
            issued.is_spent = True  # it will be refused
        else:
            self._brought[request.request_id] = issued

    def _check_pull(self, request_id: str, tokens: int, sources: Any) -> None:
        """A pull begins; its ticket must not be from before a reset."""
        if not any(getattr(source, "value", source) == CacheHitSource.P2P for source in dict(sources)):
            return
        if request_id in self._stale:
            self._referee.fail(
                Invariant.HITS,
                f"request {request_id}: {tokens} tokens are pulled by a ticket from before the last reset",
            )
        elif self._carries.get(request_id) in self._before_reset:
            self._too_late.add(request_id)

    def _check_pulled(self, output: KVConnectorOutput) -> None:
        """A successful pull must not be of blocks that were held at a reset whose step came before the pull."""
        ended = self._too_late & set(output.finished_recving or ())
        self._too_late -= ended
        for request_id in sorted(ended - output.failed_recving):
            self._referee.fail(
                Invariant.HITS,
                f"request {request_id}: blocks that were held when the cache was reset are pulled in a later step",
            )

    def _spend_what_is_meant(self, request: SimRequest) -> None:
        """A client has overridden keys of its ticket: the connector may take or refuse it."""
        sent = request.spec.kv_transfer_params
        if not isinstance(sent, dict):
            return
        kept = [(word, value) for word, value in request.words.items() if word not in (TICKET, WANTED, *sent)]
        for issued in self._issued.values() if kept else ():
            if all(issued.ticket.get(word) == value for word, value in kept):
                issued.is_spent = True

    def _is_of(self, issued: Issued, request: SimRequest) -> bool:
        """Whether the prompt begins with that of the ticket, salt and adapter included."""
        last = issued.tokens - 1
        return last < request.num_prompt_tokens and issued.request.hashes[last] == request.hashes[last]

    def _spend(self, request_id: str) -> None:
        issued = self._brought.pop(request_id, None)
        if issued is not None:
            issued.is_spent = True

    def _check_match(self, request: SimRequest, local: int, count: int | None, *, computes: int) -> None:
        """``computes``: how many of a whole prompt's last tokens the loading step must compute."""
        issued = self._brought.get(request.request_id) if self._holds else None
        if issued is None or issued.is_spent or not issued.request.is_held or count is None:
            return
        usable = issued.tokens
        if usable < request.num_tokens:  # of a longer prompt only full blocks have their final contents
            usable -= usable % self._config.block_size
        else:
            usable = min(self._goes_on_at(usable), usable - computes)
        is_held = self._is_held(usable, issued.first_tokens, local)
        if is_held and count < usable - local:
            self._referee.fail(
                Invariant.HITS,
                f"request {request.request_id}: get_num_new_matched_tokens(…, {local}) found {count} tokens, but "
                f"its ticket is for the blocks of request {issued.request.request_id}, which are still held, and "
                f"{usable - local} of its {issued.tokens} tokens can be pulled",
            )

    def _goes_on_at(self, tokens: int) -> int:
        """How many tokens of a whole prompt are loaded: its last token is computed again, from its own window."""
        return tokens - any(group.window for group in self._config.groups)

    def _is_held(self, tokens: int, first_tokens: Sequence[int], local: int = 0) -> bool:
        """Whether a hold has all blocks that are read after ``tokens`` tokens; ``local`` are on the GPU."""
        for number, (group, first) in enumerate(zip(self._config.groups, first_tokens, strict=True)):
            size = self._config.tokens_of(number)
            needed = max(0, tokens - group.window + 1) if group.window else 0
            if max(needed // size * size, local) < first:
                return False
        return True

    def _ends(
        self,
        request: SimRequest,
        ticket: dict[str, Any],
        first_tokens: Sequence[int],
        role: Role,
        *,
        is_held: bool,
    ) -> None:
        if ticket.get(TICKET):
            self._leaves(request, ticket, first_tokens, is_held=is_held)
            return
        is_wanted = request.words.get(WANTED) is True and role != "kv_consumer"
        tokens = request.num_prompt_tokens
        is_there = self._is_held(self._goes_on_at(tokens), first_tokens)
        if self._holds and is_wanted and is_there and request.status is Status.FINISHED_LENGTH_CAPPED:
            what = "its prompt is computed"
            if request.num_computed_tokens < tokens:
                what = (
                    "was preempted in its last step, which is repeated for a connector that requires_kv_delivery"
                )
            self._referee.fail(
                Invariant.HITS,
                f"request {request.request_id}: it came with {WANTED}, ended well and {what}, but "
                "the connector neither held its blocks nor left a ticket when it ended",
            )

    def _leaves(
        self, request: SimRequest, ticket: dict[str, Any], first_tokens: Sequence[int], *, is_held: bool
    ) -> None:
        """A request leaves a ticket when it ends. If it isn't held itself, the ticket is an earlier one."""
        name = _name_of(ticket)
        if is_held:
            self._issued[name] = Issued(request, ticket, request.num_prompt_tokens, tuple(first_tokens))
            self._holders[name] = request
            self._untold.add(name)
            return
        if not self._holds:  # its blocks may be kept elsewhere by now
            return
        holder = self._holders.get(name)
        if holder is not None and holder.is_held and name not in self._reset:
            return
        whose = f"; the ticket is of request {holder.request_id}, whose hold was withdrawn" if holder else ""
        self._referee.fail(
            Invariant.HITS,
            f"request {request.request_id}: it got a ticket when it ended, but its blocks aren't held{whose}",
        )


def _first_token(table: Sequence[int], block_size: int) -> int:
    """The first token for which a table has a block."""
    nulls = [place for place, block in enumerate(table) if block == NULL]
    return (nulls[-1] + 1) * block_size if nulls else 0


def tables_told(name: str, args: tuple[Any, ...]) -> Sequence[Sequence[int]]:
    """The block tables in the arguments of one of these calls."""
    tables: Sequence[Sequence[int]] = args[1] if name == "request_finished_all_groups" else (args[1],)
    return tables


def _name_of(ticket: dict[str, Any]) -> str:
    """A ticket's identity, whatever else its request wants."""
    return repr(sorted((key, value) for key, value in ticket.items() if key not in (TICKET, WANTED)))
