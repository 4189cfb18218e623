"""``Router``: what stands between two engines, where a connector serves others; vLLM's words.

There is one engine, which pulls from itself. A request that is to be held for another engine says so, and leaves
a ticket when it ends; one that comes later brings that along. A router is **fair** if each ticket goes once, to a
request for exactly the prompt that it is of, and if no more is wanted than can be held beside the longest request:
then it may be trusted, and nobody needs a time after which a hold ends. One that isn't, for a connector that
claims to withstand it (the trait ``tickets``), gives a ticket also to who only begins with its prompt, to two,
whatever their salt, and long after.

An engine with a prefix cache knows what it holds, so nothing of that would be pulled but the end of a prompt
within a block. Of every other hold it forgets the second half, as if another engine had computed that.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from kv_sim.config import NULL
from kv_sim.engine.engine import Engine
from kv_sim.engine.request import RequestSpec, SimRequest
from kv_sim.history.arrivals import MOST_BLOCKS
from kv_sim.subject import WANTED

KNOWN_TICKETS: Final = 6
"""How many a router remembers."""
UNWANTED: Final = 4
"""One request of so many leaves no ticket."""
GIVEN_TWICE: Final = 3
"""One request of so many leaves the ticket that it gets for the next one, too, if the router isn't fair."""
SPARE: Final = 3
"""Blocks that nobody counts: the null block, one to copy from, one in which the next token goes."""
HALF_KNOWN: Final = 2
"""Of one hold of so many the engine's own cache keeps the first half alone."""


@dataclass(frozen=True)
class Known:
    """A ticket, and whose blocks it is for."""

    number: int
    ticket: dict[str, Any]
    request: SimRequest


class Router:
    """Knows the tickets of requests that ended, by prompt; each is given to one that comes later, or to two."""

    def __init__(self, engine: Engine, *, is_fair: bool, comes_again: bool = True) -> None:
        self._engine = engine
        self._comes_again = comes_again
        """Whether somebody comes at the end also for what somebody had a ticket of, who took nothing."""
        self._is_fair = is_fair
        self._known: dict[tuple[Any, ...], Known] = {}
        self._left: dict[int, Known] = {}
        """All that are left, by number, until somebody comes for them at the end."""
        self._claims: dict[str, Known] = {}
        """By request that comes at the end: what it comes for."""
        self._wanted: list[SimRequest] = []
        """Who is wanted, and hasn't ended or is held, if the router is fair."""
        self._arrived = 0
        self.learned = 0
        """How many tickets it was told of."""

    def params_for(self, request: SimRequest) -> dict[str, Any]:
        """What a request comes with: the newest ticket of its prompt or the beginning of it, and a wish."""
        claimed = self._claims.pop(request.request_id, None)
        if claimed is not None:
            return {**claimed.ticket, WANTED: False}
        self._arrived += 1
        wanted = self._arrived % UNWANTED != 0
        found = self._newest(request)
        if found is None:
            return {WANTED: wanted and (not self._is_fair or self._has_room_for(request))}
        known = self._known[found]
        if self._is_fair or self._arrived % GIVEN_TWICE:
            del self._known[found]
        if not self._comes_again:
            self._left.pop(known.number, None)
        # To vLLM's routers a request is one or the other: it is computed for another engine, or goes on from one.
        return {**known.ticket, WANTED: wanted and not self._is_fair}

    def _newest(self, request: SimRequest) -> tuple[Any, ...] | None:
        """By what the ticket is known that a request gets."""
        key = self._key_of(request)
        if self._is_fair:
            return key if key in self._known else None
        return next((prompt for prompt in reversed(self._known) if prompt == key[: len(prompt)]), None)

    def _has_room_for(self, request: SimRequest) -> bool:
        """Whether the engine can hold one more until somebody comes for it, which is counted then; no session."""
        if request.spec.turns is not None:
            return False
        config = self._engine.config
        longest = min(config.longest_request, MOST_BLOCKS * config.block_size)
        self._wanted = [one for one in self._wanted if one.is_held or not one.status.is_finished]
        tokens = [longest, *(one.spec.total_tokens for one in [*self._wanted, request])]
        drafts = 2 * config.spec_tokens
        blocks = sum(-(-(count + drafts) // config.block_size) for count in tokens) * len(config.groups)
        if blocks + SPARE >= config.num_blocks:
            return False
        self._wanted.append(request)
        return True

    def _key_of(self, request: SimRequest) -> tuple[Any, ...]:
        """What a router compares: all that the KV rests on, or the tokens alone."""
        tokens = tuple(request.all_token_ids[: request.num_prompt_tokens])
        return (request.spec.salt, request.spec.adapter, *tokens) if self._is_fair else tokens

    def learn(self, request: SimRequest, ticket: dict[str, Any], tables: Sequence[Sequence[int]]) -> None:
        """A request with these blocks has ended and left a ticket."""
        self.learned += 1
        key = self._key_of(request)
        self._known.pop(key, None)
        self._known[key] = self._left[self.learned] = Known(self.learned, ticket, request)
        for oldest in list(self._known)[:-KNOWN_TICKETS]:
            del self._known[oldest]
        if self.learned % HALF_KNOWN == 0:
            kept = request.num_prompt_tokens // self._engine.config.block_size // 2
            pool = self._engine.scheduler.blocks.block_pool
            pool.evict_blocks({block for table in tables for block in table[kept:] if block != NULL})

    def last_claim(self) -> RequestSpec | None:
        """One that comes for what is held when all else has ended. None: nothing is for which nobody has come."""
        for number, known in list(self._left.items()):
            del self._left[number]
            if known.request.is_held:
                name = f"last-{number}"
                self._claims[name] = known
                return replace(known.request.spec, request_id=name, output_tokens=1, max_tokens=1, turns=None)
        return None
