"""HITS, at every match: what a connector finds was computed since the last successful reset.

For a cache of one engine alone this is fully known (``Trait.KEEPS``). For a subject that only claims that a reset
works (``Trait.RESET``), only this is known: blocks from before a reset must not be found until they are computed
again. The engine updates this as its requests go on, and ``guard`` calls the checks. ``hits`` checks what must be
found.

A hit can be loaded, too: in a cache of one engine alone a load fails only if a copy has failed.

If engines share a store, each may find what any of them computed since its own last reset. A reset of another
engine doesn't forbid hits here, but chunks may be gone then.
"""

from collections.abc import Collection, Iterable, Sequence

from kv_api import Request
from kv_sim.engine.request import SimRequest
from kv_sim.memory.copy import State
from kv_sim.memory.device import Device
from kv_sim.violation import Invariant, Referee


class Served:
    """The tokens that a match may find, and those that it must find."""

    def __init__(
        self,
        referee: Referee,
        block_size: int,
        *,
        is_on: bool,
        forgets: bool = False,
        hashes_per_block: int = 1,
        ends_within: bool = False,
        proof_tokens: int = 0,
    ) -> None:
        self._referee = referee
        self._block_size = block_size
        self._is_on = is_on
        self._watches = is_on or forgets
        self._hashes_per_block = hashes_per_block
        """How many each request has."""
        self._ends_within = ends_within
        """Whether a hit may end within a block, at any of its hashes."""
        self._proof_tokens = proof_tokens
        """How many tokens after a hit must have been computed, too: a block of the draft model's, whose KV of a
        token depends on the next token."""
        self._watches_parts = ends_within or proof_tokens % block_size > 0
        self._computed: set[bytes] = set()
        """Blocks that were computed, or lay in a running request's table, since the last reset."""
        self._forgotten: set[bytes] = set()
        """Such blocks from before a reset."""
        self._unfair: set[int] = set()
        """Requests that ran during a reset: their earlier stores are gone."""
        self.shares_with: list[Served] = []
        """The same of other engines with the same store."""
        self.strangers: list[Served] = []
        """The same of strangers in the store, whose chunks must not be found."""
        self._own: set[bytes] = set()
        """With a shared store: blocks that were computed here since the last reset."""
        self._seen: dict[int, SimRequest] = {}
        """With a shared store: all requests that were scheduled."""
        self.resets = 0
        self.found: dict[str, int] = {}
        """Request id -> tokens of its last hit, including those on the GPU."""

    def compute(self, request: SimRequest) -> None:
        """A step of the request was scheduled."""
        if self._has_others:
            self._seen[id(request)] = request
        elif not self._watches:
            return
        hashes = [*request.hashes_up_to(request.num_computed_tokens)]
        if self._watches_parts:
            hashes += request.fine_hashes_up_to(request.num_computed_tokens)
        self._computed.update(hashes)
        if self._has_others:
            self._own.update(hashes)
        for other in self.shares_with:
            other._computed.update(hashes)

    @property
    def _has_others(self) -> bool:
        return bool(self.shares_with or self.strangers)

    def reset(self, requests: Iterable[SimRequest]) -> None:
        """The connector reported a successful reset. Blocks of running requests may be stored again."""
        self._forgotten |= self._computed
        self._computed.clear()
        self._own.clear()
        self.resets += 1
        for request in requests:
            self._unfair.add(id(request))
            if not request.status.is_finished:
                self.compute(request)
        for other in self.shares_with:
            other._lose_all(self)

    def _lose_all(self, forgets: "Served") -> None:
        """Another engine was reset: this one's chunks may be gone. Its running requests may be stored again."""
        self._unfair.update(self._seen)
        for request in self._seen.values():
            if not request.status.is_finished:
                forgets._computed.update(request.hashes_up_to(request.num_computed_tokens))
                if self._watches_parts:
                    forgets._computed.update(request.fine_hashes_up_to(request.num_computed_tokens))

    def is_of_others(self, request: SimRequest, start: int, end: int) -> bool:
        """Whether a block between these tokens was computed at another engine of the same store, not here."""
        return any(name not in self._own for name in self._blocks(request, start, end))

    def is_of_strangers(self, request: SimRequest, start: int) -> bool:
        """Whether only a stranger has computed the first full block from this token on."""
        first = self._blocks(request, start, min(start + self._block_size, request.num_tokens))
        return any(name in other._own for name in first if name not in self._computed for other in self.strangers)

    def _blocks(self, request: SimRequest, start: int, end: int) -> Sequence[bytes]:
        return request.hashes_up_to(end)[start // self._block_size :]

    def check_match(self, request: SimRequest | Request, local: int, count: int) -> None:
        """Check that what a match found exists."""
        if not self._watches:
            return
        self.found[request.request_id] = local + count
        hashes = request.block_hashes[self._hashes_per_block - 1 :: self._hashes_per_block]
        if isinstance(request, SimRequest):  # an engine of another package asks with a request of its own
            hashes = request.hashes_up_to(local + count)
        for index in range(local // self._block_size, (local + count) // self._block_size):
            if not self._may_find(hashes[index]):
                since = f" since reset {self.resets}" if self.resets else ""
                is_strange = any(hashes[index] in other._own for other in self.strangers)
                who = "; an engine with incompatible KV has" if is_strange else ""
                self._referee.fail(
                    Invariant.HITS,
                    f"{_match_of(request, local, count)}, but no request with the same prefix, salt, adapter and "
                    f"images has computed block {index} of its tokens{since}{who}",
                )
                return
        if self._ends_within and self._is_on:
            self._check_end(request, local, count)
        if count and self._proof_tokens and self._is_on:
            self._check_proof(request, local, count)

    def _may_find(self, block_hash: bytes) -> bool:
        """Whether a block was computed since the last reset; if unknown, whether it isn't from before one."""
        return block_hash in self._computed or not (self._is_on or block_hash in self._forgotten)

    def _check_proof(self, request: SimRequest | Request, local: int, count: int) -> None:
        """Check that the draft model's block after a hit was computed, too, with the same tokens."""
        where = _match_of(request, local, count)
        end = local + count + self._proof_tokens
        last = end * self._hashes_per_block // self._block_size - 1
        hashes = _hashes_of(request)
        if last >= len(hashes) or hashes[last] not in self._computed:
            self._referee.fail(
                Invariant.HITS,
                f"{where}, but no request has computed this prompt's tokens up to {end}: a draft model's KV of a "
                "token depends on the next token, so a hit must end before the last block that was stored",
            )

    def _check_end(self, request: SimRequest | Request, local: int, count: int) -> None:
        """A hit that ends within a block must end at a hash, up to which a request has computed."""
        end = local + count
        if not count or not end % self._block_size:
            return
        number, rest = divmod(end * self._hashes_per_block, self._block_size)
        where = _match_of(request, local, count)
        if rest:
            self._referee.fail(Invariant.HITS, f"{where}, but no hash ends there, so no state was stored")
        elif _hashes_of(request)[number - 1] not in self._computed:
            self._referee.fail(Invariant.HITS, f"{where}, but no request has computed so far")

    def check_failures(self, failed: Collection[str], blocks: Collection[int], devices: Sequence[Device]) -> None:
        """Check that a failed load had a reason: a hit can be loaded as long as copies succeed."""
        if not (failed or blocks) or not self.hits_must_load() or any(map(_has_trouble, devices)):
            return
        what = [f"request {request_id}" for request_id in sorted(failed)] or [f"blocks {sorted(blocks)}"]
        self._referee.fail(
            Invariant.HITS,
            f"the load of {', '.join(what)} failed, although no copy has failed: the connector reported a hit "
            "that it can't load",
        )

    def hits_must_load(self) -> bool:
        """Whether what is found here is still there when it is loaded: no other engine can have removed it."""
        return self._is_on and not self._has_others

    def is_fair(self, request: SimRequest) -> bool:
        """Whether the request ran to its end without a preemption or a reset."""
        ran = request.status.ran_to_its_end and not request.num_preemptions
        return ran and id(request) not in self._unfair


def _hashes_of(request: SimRequest | Request) -> Sequence[bytes]:
    """The hashes of its known tokens; of our own requests those that no connector can change."""
    return request.known_block_hashes if isinstance(request, SimRequest) else request.block_hashes


def _match_of(request: SimRequest | Request, local: int, count: int) -> str:
    return f"request {request.request_id}: get_num_new_matched_tokens(…, {local}) found {count} tokens"


def _has_trouble(device: Device) -> bool:
    """Whether a copy of a rank ever failed or was lost."""
    copies = device.copies
    is_lost = any(copy.state is State.LOST or copy.was_lost for copy in copies.running.values())
    return bool(copies.restarts) or is_lost or any(c.state is State.FAILED or c.was_lost for c in copies.ended)
