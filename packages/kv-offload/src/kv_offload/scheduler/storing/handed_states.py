"""States that the engine hands over: which of them are stored, and what keeps their bytes until they are.

**Theory of operation.** A block of tokens stays in its request's table. A state doesn't: an engine that reuses
states keeps one only where somebody may go on from it, and says so in the step that computes it, as
``kv_connector_block_state.boundary_state_offloads``: of each request, (group, block, tokens before the boundary).
The next step may already take the block out of the table. So a table doesn't say which state is in which block,
and an *offer* is taken in the step that makes it, or never. Nothing is offered again for lack of room, and nothing
is left to store when the request ends.

An offer is taken if it ends a chunk of a group that is offloaded, within what may be stored of the request, and if
its block is where the table of the request has that boundary. The last is more than a check of the engine: an
offer may be of a step before, and somebody may have got the block in this one. All groups that have a boundary are
stored as one, since a lookup needs all of them. One within a block is no state alone: see ``tails``.

**What keeps the bytes.** The copy comes after the step that makes the offer, and whoever gets the block writes it
in a later step. Where fences hold (see ``describe``), the store is watched from the beginning, and the new owner
waits for it. Where they don't, holding the blocks of ended requests is no help, since the request lets go of this
one while it runs. So the block is *pinned* until the store has ended: by a reference in the engine's own pool.
"""

from collections.abc import Iterable, Mapping, Sequence

from kv_api import OffloadKey, SchedulerOutput
from kv_offload.scheduler.state.books import Books
from kv_offload.scheduler.state.request_state import RequestState
from kv_offload.scheduler.storing.boundary_store import Source, store_of_running

Offer = tuple[int, int, int]
"""Group id, block, and the tokens that the state in it has seen."""

Taken = dict[int, int]
"""The block of each group, by the group's place in the layout."""


def offers_of(output: SchedulerOutput) -> Mapping[str, Sequence[Offer]]:
    """The states that the engine hands over in a step, by request."""
    block_state = getattr(output, "kv_connector_block_state", None)
    return getattr(block_state, "boundary_state_offloads", None) or {}


def most_tokens(books: Books, state: RequestState) -> int:
    """How many tokens of a request may be stored."""
    request, wish = state.request, state.max_offload_tokens
    limit = request.num_prompt_tokens if books.engine.options.offload_prompt_only else request.num_tokens
    return limit if wish is None else min(limit, wish)


class HandedStates:
    """Plans stores of what is handed over. Keeps nothing of its own that changes."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._place_of = {
            group.group_id: place for place, group in enumerate(books.layout.groups) if group.is_handed_over
        }

    def store(self, output: SchedulerOutput) -> None:
        """Store what a step hands over. By then the block tables are those from this step on."""
        for request_id, offers in offers_of(output).items():
            state = self._books.states.get(request_id)
            if state is not None:
                state.progress.extend_keys(state.request)
                for boundary, taken in self._taken(state, offers):
                    self._begin(state, boundary, taken)

    def _taken(self, state: RequestState, offers: Iterable[Offer]) -> list[tuple[int, Taken]]:
        """The offers that are stored, by boundary, in order."""
        limit = most_tokens(self._books, state)
        found: dict[int, Taken] = {}
        for group_id, block, boundary in offers:
            place = self._place_of.get(group_id)
            if place is not None and boundary <= limit and self._is_there(state, place, block, boundary):
                found.setdefault(boundary, {})[place] = block
        return sorted(found.items())

    def _is_there(self, state: RequestState, place: int, block: int, boundary: int) -> bool:
        """Whether an offer ends a chunk that is to be stored, and nobody else got its block."""
        progress = state.progress.groups[place]
        chunk, rest = divmod(boundary, progress.group.tokens_per_chunk)
        index = boundary // progress.group.tokens_per_block - 1
        return (
            not rest
            and 0 < chunk <= len(progress.keys)
            and (state.offers_loaded or chunk - 1 not in progress.loaded)
            and block > 0
            and progress.table[index : index + 1] == [block]
        )

    def _begin(self, state: RequestState, boundary: int, taken: Taken) -> None:
        """Begin a job for the states of a boundary, if the medium wants them and has room."""
        sources = [Source(place, taken[place], self._key(state, place, boundary)) for place in sorted(taken)]
        store_of_running(self._books, state, boundary, sources)

    def _key(self, state: RequestState, place: int, boundary: int) -> OffloadKey:
        progress = state.progress.groups[place]
        return progress.keys[boundary // progress.group.tokens_per_chunk - 1]
