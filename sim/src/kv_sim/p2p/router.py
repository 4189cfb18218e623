"""``Router``: what stands between two engines.

It gives each request a ticket of its prompt, or of the beginning of it, if there ever was one. That may be long
gone, or of another salt.

An engine with a prefix cache knows what it holds, so nothing of that would be pulled but the end of a prompt
within a block. Of every other hold it forgets the second half, as if another engine had computed that.
"""

from typing import Any, Final, Protocol, cast

from kv_api import BlockIds, BlockPool, KVCacheConfig, Request, VllmConfig
from kv_p2p import P2PSchedulerSide
from kv_p2p.pulling.groups import Group
from kv_p2p.pulling.metadata import NULL_BLOCK
from kv_p2p.pulling.options import Options
from kv_p2p.pulling.ticket import WANTED

KNOWN_TICKETS: Final = 6
"""How many a router remembers."""
UNWANTED: Final = 4
"""One request of so many leaves no ticket."""
GIVEN_TWICE: Final = 3
"""One request of so many leaves the ticket that it gets for the next one, too."""
HALF_KNOWN: Final = 2
"""Of one hold of so many the engine's own cache keeps the first half alone."""


class Forgets(Protocol):
    """A pool of GPU blocks that can be told to forget what some are of; vLLM's name."""

    def evict_blocks(self, block_ids: set[int]) -> None:
        """Let nobody find these any more."""
        ...


class Router:
    """Knows the tickets of requests that ended, by prompt; each is given to one that comes later, or to two."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], dict[str, Any]] = {}
        self._arrived = 0
        self.learned = 0
        """How many tickets it was told of."""

    def params_for(self, tokens: tuple[int, ...]) -> dict[str, Any]:
        """What a request comes with: the newest ticket of its prompt or the beginning of it, and a wish."""
        self._arrived += 1
        wish = {WANTED: self._arrived % UNWANTED != 0}
        found = [prompt for prompt in self._known if prompt == tokens[: len(prompt)]]
        if not found:
            return wish
        ticket = self._known[found[-1]]
        if self._arrived % GIVEN_TWICE:
            del self._known[found[-1]]
        return {**ticket, **wish}

    def learn(self, tokens: tuple[int, ...], ticket: dict[str, Any]) -> None:
        """A request with this prompt has ended and is held."""
        self.learned += 1
        self._known.pop(tokens, None)
        self._known[tokens] = ticket
        for oldest in list(self._known)[:-KNOWN_TICKETS]:
            del self._known[oldest]


class RoutedSchedulerSide(P2PSchedulerSide):
    """Has a router at its door."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        kv_cache_config: KVCacheConfig | None,
        options: Options,
        groups: tuple[Group, ...],
    ) -> None:
        super().__init__(vllm_config, kv_cache_config, options, groups)
        self._router = Router()

    def bind_gpu_block_pool(self, gpu_block_pool: BlockPool) -> None:
        self._pool = cast(Forgets, gpu_block_pool)

    def on_new_request(self, request: Request) -> None:
        # To the connector it is a client's: there is one before the request arrives.
        request.kv_transfer_params = self._router.params_for(tuple(request.all_token_ids))  # type: ignore[misc]
        super().on_new_request(request)

    def request_finished_all_groups(
        self, request: Request, block_ids: BlockIds
    ) -> tuple[bool, dict[str, Any] | None]:
        hold, ticket = super().request_finished_all_groups(request, block_ids)
        if ticket is not None:
            self._router.learn(tuple(request.all_token_ids[: request.num_prompt_tokens]), ticket)
            if self._router.learned % HALF_KNOWN == 0:
                self._forget_second_half(request.num_prompt_tokens, block_ids)
        return hold, ticket

    def _forget_second_half(self, tokens: int, block_ids: BlockIds) -> None:
        for group, table in zip(self._groups, block_ids, strict=True):
            kept = tokens // group.block_size // 2
            self._pool.evict_blocks({block for block in table[kept:] if block != NULL_BLOCK})
