"""HITS, where engines serve each other: blocks that are wanted are held, and a valid ticket gets all of them.

Nothing breaks if a connector holds nothing, refuses a ticket or takes only a part: the prompt is computed. So that
it holds and takes is demanded here, in the words of vLLM's routers, wherever it can have no reason not to: the
request that was held ended well and is held still, nobody took or refused its ticket before, and nothing was reset
since. Where the other engine is a stranger, a ticket is of another model and must be refused: who takes it breaks
CONTENT.

A ticket that a request leaves is of blocks that are held: its own, or those of an earlier request that is held.
All of this is demanded only of connectors that claim it (the trait ``holds``), and what follows of all that serve
peers.

After a reset no ticket is taken that came before it. What was held then may not be pulled by a pull that begins
after the step which told the workers of the reset.
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
"""The calls that tell that a request has ended."""


@dataclass
class Issued:
    """A ticket, and the request whose blocks it is for."""

    request: SimRequest
    ticket: dict[str, Any]
    tokens: int
    """Of its prompt."""
    first_tokens: tuple[int, ...]
    """Of each KV cache group: from which token on it is held. What is before has slid out of a window."""
    is_spent: bool = False
    """The ticket was used, or can't be used any more."""


class Tickets:
    """Hears the calls of the scheduler's side, and knows which tickets are live."""

    def __init__(self, config: WorldConfig, referee: Referee, *, is_on: bool, holds: bool = True) -> None:
        self._config = config
        self._referee = referee
        self._is_on = is_on
        self._holds = holds
        """Whether what is wanted has to be held, and taken as a whole."""
        self._issued: dict[str, Issued] = {}
        self._holders: dict[str, SimRequest] = {}
        """By ticket: whose blocks it is for, also after a reset."""
        self._untold: set[str] = set()
        """Tickets of holds of which the workers will be told in the next step."""
        self._stale: set[str] = set()
        """Requests whose ticket came before a reset."""
        self._reset: set[str] = set()
        """Tickets of what was held at a reset."""
        self._before_reset: set[str] = set()
        """Those of them of whose reset the workers were told."""
        self._too_late: set[str] = set()
        """Requests that pull by such a ticket."""
        self._carries: dict[str, str] = {}
        """By request: the name of the ticket that it came with."""
        self._brought: dict[str, Issued] = {}
        """By request: the ticket that it came with and that it neither took nor refused yet."""

    @property
    def bearers(self) -> Collection[str]:
        """Who came with a ticket, whatever became of it."""
        return self._carries.keys()

    @property
    def has_untold(self) -> bool:
        """Whether there is a ticket of a hold that the workers don't know of yet."""
        return bool(self._untold)

    @property
    def has_held(self) -> bool:
        """Whether something is held that a ticket is for."""
        return any(issued.request.is_held for issued in self._issued.values())

    @property
    def has_revoked(self) -> bool:
        """Whether something is held still that was held when the cache was reset."""
        return any(self._holders[name].is_held for name in self._reset)

    def hear(self, name: str, args: tuple[Any, ...], answer: Any, role: Role | None = None) -> None:
        """The scheduler's side of an engine was called, and answered. Its role, if it isn't the first one's."""
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
            first_tokens = [self._first_token(table) for table in tables_told(name, args)]
            self._ends(args[0], answer[1] or {}, first_tokens, role, is_held=answer[0])
        elif name == "reset_cache":  # whatever it says: a MultiConnector's children may differ
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
        """A pull begins: not by a ticket that came before a reset."""
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
        """What ended well was not held when the cache was reset, in a step before the pull began."""
        ended = self._too_late & set(output.finished_recving or ())
        self._too_late -= ended
        for request_id in sorted(ended - output.failed_recving):
            self._referee.fail(
                Invariant.HITS,
                f"request {request_id}: blocks that were held when the cache was reset are pulled in a later step",
            )

    def _spend_what_is_meant(self, request: SimRequest) -> None:
        """A client sent words of its own over those of a ticket: it may be taken all the same, or refused."""
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
        """``computes``: of a whole prompt, how many of the last tokens the step has to compute that loads it."""
        issued = self._brought.get(request.request_id) if self._holds else None
        if issued is None or issued.is_spent or not issued.request.is_held or count is None:
            return
        usable = issued.tokens
        if usable < request.num_tokens:  # only whole blocks of a longer prompt are as they will be
            usable -= usable % self._config.block_size
        else:
            usable = min(self._goes_on_at(usable), usable - computes)
        is_held = self._is_held(usable, issued.first_tokens, local)
        if is_held and count < usable - local:
            self._referee.fail(
                Invariant.HITS,
                f"request {request.request_id}: {count} tokens are found after the first {local}, but its ticket "
                f"is of request {issued.request.request_id}, whose blocks are held, and {usable - local} of its "
                f"{issued.tokens} tokens can be pulled",
            )

    def _first_token(self, table: Sequence[int]) -> int:
        """The token from which on a table has blocks."""
        nulls = [place for place, block in enumerate(table) if block == NULL]
        return (nulls[-1] + 1) * self._config.block_size if nulls else 0

    def _goes_on_at(self, tokens: int) -> int:
        """What is loaded of a whole prompt: its last token is computed anew, from what its own window has."""
        return tokens - any(group.window for group in self._config.groups)

    def _is_held(self, tokens: int, first_tokens: Sequence[int], local: int = 0) -> bool:
        """Whether a hold has all that is read by who goes on after so many tokens, the first ``local`` its own."""
        size = self._config.block_size
        for group, first in zip(self._config.groups, first_tokens, strict=True):
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
        if self._holds and is_wanted and is_there and request.status is Status.FINISHED_STOPPED:
            what = "its prompt is computed"
            if request.num_computed_tokens < tokens:
                what = "was preempted in its last step, which requires_kv_delivery would have had taken again"
            self._referee.fail(
                Invariant.HITS,
                f"request {request.request_id}: its blocks are wanted by another engine, it ended well and "
                f"{what}, but it got no ticket when it ended",
            )

    def _leaves(
        self, request: SimRequest, ticket: dict[str, Any], first_tokens: Sequence[int], *, is_held: bool
    ) -> None:
        """A request leaves a ticket when it ends. If it isn't held itself, the ticket is one of before."""
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
        whose = f"; those of request {holder.request_id}, whose ticket it is, were withdrawn" if holder else ""
        self._referee.fail(
            Invariant.HITS,
            f"request {request.request_id}: it got a ticket when it ended, but its blocks aren't held{whose}",
        )


def tables_told(name: str, args: tuple[Any, ...]) -> Sequence[Sequence[int]]:
    """The block tables that one of these calls comes with."""
    tables: Sequence[Sequence[int]] = args[1] if name == "request_finished_all_groups" else (args[1],)
    return tables


def _name_of(ticket: dict[str, Any]) -> str:
    """What tells a ticket from others, whatever its bearer wants besides."""
    return repr(sorted((key, value) for key, value in ticket.items() if key not in (TICKET, WANTED)))
