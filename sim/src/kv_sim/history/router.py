"""``Router``: sends requests from one engine to the other with tickets, in vLLM's ``kv_transfer_params``.

A request whose blocks shall be held for another engine says so, and returns a ticket when it ends. The router puts
this ticket into a later request at another engine. If there is only one engine, it pulls from itself.

A router is **fair** if it gives each ticket to only one request, for exactly the ticket's prompt, and if it asks
for no more holds than fit beside the longest request. With such a router no hold needs a time limit. It asks the
producer for a single token, as vLLM's routers do. A router that isn't fair, for connectors with the trait
``tickets``, also gives a ticket to requests that only begin with its prompt, to two requests, to requests with
another salt, and long after the ticket was made.

Between two engines a fair router matches requests by id. To vLLM's routers both halves are one request, with one
``X-Request-Id``, to which each engine adds a hyphen and eight hex digits; some connectors match the halves by it.
So a request that continues ``r3`` is called ``r3-00000001``, and no other request gets that ticket.

Some connectors return no tickets. For them the router names each transfer and sends the name with both halves, and
with the second half also the first engine's address, as the router of vLLM's MooncakeConnector does.

A client may send its own keys, which override the router's (``clients``).

A single engine with a prefix cache finds its held prompts itself, so only a partly filled last block would be
pulled. Therefore its cache forgets the second half of every other hold, as if another engine had computed it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from kv_sim.config import NULL
from kv_sim.engine.engine import Engine
from kv_sim.engine.request import SimRequest
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.history.arrivals import MOST_BLOCKS
from kv_sim.history.clients import over
from kv_sim.subject import TICKET, WANTED

TRANSFER: Final = "transfer_id"
"""The key of a transfer's name in both halves, if the router makes the tickets."""
KNOWN_TICKETS: Final = 6
"""How many tickets a router remembers."""
UNWANTED: Final = 4
"""One request in this many isn't held."""
GIVEN_TWICE: Final = 3
"""One request in this many doesn't use up its ticket, if the router isn't fair, so the next one gets it, too."""
SPARE: Final = 3
"""Uncounted blocks: the null block, one to copy from, and one for the next token."""
DIGITS: Final = 8
"""Hex digits that an engine of vLLM's adds to a name, after a hyphen."""
CLAIM_NUMBERS: Final = 1 << 31
"""Names of requests that claim holds at the end have numbers from this one on."""
FORGOTTEN: Final = 2
"""One hold in this many loses its second half in the prefix cache of a single engine."""


@dataclass(frozen=True)
class Known:
    """A ticket, and the request that left it."""

    number: int
    ticket: dict[str, Any]
    request: SimRequest
    engine: Engine
    """The engine that holds the blocks."""


class Router:
    """Keeps the tickets of requests that ended, by prompt, and gives each to one later request, or to two."""

    def __init__(self, engines: Sequence[Engine], *, is_fair: bool, claims_used: bool = True) -> None:
        self.engines = engines
        for engine in engines:
            engine.params_for = partial(self.params_for, engine)
        self._claims_used = claims_used
        """Whether holds are also claimed at the end if a request has used their ticket, perhaps without a pull."""
        self._is_fair = is_fair
        self._matches_by_name = is_fair and len(engines) > 1
        self._known: dict[tuple[Any, ...], Known] = {}
        self._left: dict[int, Known] = {}
        """Tickets to claim at the end, by number."""
        self._claims: dict[str, Known] = {}
        """Id of a request that claims a hold at the end -> its ticket."""
        self._wanted: list[tuple[Engine, SimRequest]] = []
        """Of a fair router: requests that are held when they end, and their engines, until the hold ends."""
        self._arrived = 0
        self.learned = 0
        """How many tickets requests have left."""

    def params_for(self, engine: Engine, request: SimRequest) -> Any:
        """The ``kv_transfer_params`` of a request that arrives: the router's, overridden by its client's."""
        sent = request.spec.kv_transfer_params
        if sent is not None and not isinstance(sent, dict):
            self._arrived += 1
            return sent
        return over(self._params(engine, request), sent, is_fair=self._is_fair)

    def _params(self, engine: Engine, request: SimRequest) -> dict[str, Any]:
        """The router's parameters: the newest ticket for the prompt or its beginning, or a wish to hold it."""
        claimed = self._claims.pop(request.request_id, None)
        if claimed is not None:
            return {**claimed.ticket, WANTED: False}
        self._arrived += 1
        found = self._newest(engine, self._key_of(request))
        if found is not None and self._matches_by_name and not _continues(self._known[found], request.spec):
            found = None
        if found is None:
            wanted = self.is_wanted(engine, request)
            return {WANTED: wanted, **self._transfer_name(engine, wanted=wanted)}
        known = self._known[found]
        if self._is_fair or self._arrived % GIVEN_TWICE:
            del self._known[found]
        if not self._claims_used and request.spec.kv_transfer_params is None:
            self._left.pop(known.number, None)
        # With vLLM's routers a request either prefills for another engine or continues another's prompt.
        return {**known.ticket, WANTED: not self._is_fair and self.is_wanted(engine, request)}

    def is_wanted(self, engine: Engine, request: SimRequest) -> bool:
        """Whether a request that has just arrived is to be held for another engine when it ends."""
        if self._arrived % UNWANTED == 0:
            return False
        return not self._is_fair or self._reserve(engine, request)

    def _transfer_name(self, engine: Engine, *, wanted: bool) -> dict[str, Any]:
        """The name of a transfer for a request that is to be held, if connectors leave no tickets."""
        return {TRANSFER: f"transfer-{self._arrived}"} if wanted and not engine.leaves_tickets else {}

    def ticket_of(self, engine: Engine, request: SimRequest, answer: tuple[bool, Any]) -> dict[str, Any]:
        """The ticket of a request that has ended: the connector's, or one of the router's own; empty: none."""
        is_held, ticket = answer
        params = request.words
        if engine.leaves_tickets or not (is_held and params.get(WANTED) and TRANSFER in params):
            return ticket or {}
        return {TICKET: True, TRANSFER: params[TRANSFER], **engine.address()}

    @property
    def words(self) -> set[str]:
        """The keys of all known tickets."""
        return set().union(*(known.ticket for known in self._known.values()))

    def named(self, engine: Engine, spec: RequestSpec) -> RequestSpec:
        """The request to send to an engine, named after the request that it continues, if it will get a ticket."""
        found = self._newest(engine, self._key(spec, spec.prompt)) if self._matches_by_name else None
        return spec if found is None else replace(spec, request_id=_name_after(self._known[found]))

    def _newest(self, engine: Engine, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The key in ``_known`` of the newest ticket for a request with this prompt; None: there is none."""
        if self._is_fair:
            return key if key in self._known and self._may_pull(engine, self._known[key]) else None
        known = (prompt for prompt, one in reversed(self._known.items()) if self._may_pull(engine, one))
        return next((prompt for prompt in known if prompt == key[: len(prompt)]), None)

    def _may_pull(self, engine: Engine, known: Known) -> bool:
        """Whether a request may bring this ticket to an engine: of two, only to the one without the hold."""
        if len(self.engines) == 1:
            return True
        return known.engine is not engine and (not self._is_fair or engine.config.role != "kv_producer")

    def _reserve(self, engine: Engine, request: SimRequest) -> bool:
        """Count one more request that an engine is to hold until its blocks are pulled.

        False: it can't be held. It wouldn't fit beside the other holds and the longest request; or it is a
        session; or the engine is only a consumer; or, with two engines, it samples more than one token.
        """
        config = engine.config
        if request.spec.turns is not None or config.role == "kv_consumer":
            return False
        if len(self.engines) > 1 and request.spec.max_tokens > 1:
            return False
        longest = min(config.longest_request, MOST_BLOCKS * config.block_size)
        self._wanted = [(at, one) for at, one in self._wanted if one.is_held or not one.status.is_finished]
        here = [one for at, one in self._wanted if at is engine]
        tokens = [longest, *(one.spec.total_tokens for one in [*here, request])]
        drafts = 2 * config.spec_tokens
        blocks = sum(-(-(count + drafts) // config.block_size) for count in tokens) * config.blocks_per_span
        if blocks + SPARE >= config.num_blocks:
            return False
        self._wanted.append((engine, request))
        return True

    def _key_of(self, request: SimRequest) -> tuple[Any, ...]:
        return self._key(request.spec, tuple(request.all_token_ids[: request.num_prompt_tokens]))

    def _key(self, spec: RequestSpec, tokens: tuple[int, ...]) -> tuple[Any, ...]:
        """The key by which prompts are compared: all that their KV depends on, or just tokens if it isn't fair."""
        return (spec.salt, spec.adapter, spec.seen, *tokens) if self._is_fair else tokens

    def newest_for(self, engine: Engine) -> RequestSpec | None:
        """The latest request held at the other engine; usually the next request here has its prompt."""
        if len(self.engines) == 1:
            return None
        there = (one for one in reversed(self._known.values()) if one.request.is_held)
        return next((one.request.spec for one in there if self._may_pull(engine, one)), None)

    def learn(
        self, engine: Engine, request: SimRequest, ticket: dict[str, Any], tables: Sequence[Sequence[int]]
    ) -> None:
        """Remember the ticket of a request that has ended; ``tables`` are its blocks."""
        self.learned += 1
        key = self._key_of(request)
        self._known.pop(key, None)
        self._known[key] = self._left[self.learned] = Known(self.learned, ticket, request, engine)
        for oldest in list(self._known)[:-KNOWN_TICKETS]:
            del self._known[oldest]
        if len(self.engines) == 1 and self.learned % FORGOTTEN == 0:
            kept = request.num_prompt_tokens // engine.config.block_size // 2
            pool = engine.scheduler.blocks.block_pool
            pool.evict_blocks({block for table in tables for block in table[kept:] if block != NULL})

    def last_claim(self) -> tuple[Engine, RequestSpec] | None:
        """A request to claim a hold when all other requests have ended, and its engine; None: no hold is left."""
        for number, known in list(self._left.items()):
            del self._left[number]
            engine = next((engine for engine in self.engines if self._may_pull(engine, known)), None)
            if known.request.is_held and engine is not None:
                name = _name_after(known, CLAIM_NUMBERS) if self._matches_by_name else f"last-{number}"
                self._claims[name] = known
                return engine, _claim_of(known.request.spec, name)
        return None


def _claim_of(spec: RequestSpec, name: str) -> RequestSpec:
    """A request with exactly the prompt of a held one, which pulls it."""
    own_of = (spec.own_of or spec.request_id) if spec.own_tokens else None
    return replace(
        spec, request_id=name, output_tokens=1, max_tokens=1, turns=None, own_of=own_of, kv_transfer_params=None
    )


def _name_after(known: Known, more: int = 0) -> str:
    """The name of a request that continues a held one."""
    return f"{known.request.request_id}-{known.number + more:0{DIGITS}x}"


def _continues(known: Known, spec: RequestSpec) -> bool:
    return spec.request_id[: -1 - DIGITS] == known.request.request_id
