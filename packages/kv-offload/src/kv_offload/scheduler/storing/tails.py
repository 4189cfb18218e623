"""Tails: what each group's block holds up to a boundary within it, stored where the engine hands over the state.

**Theory of operation.** A state at the end of a prompt is overwritten by the step that computes the next tokens.
An engine whose hashes are finer than blocks keeps it all the same, where the prompt's last hash ends and where
others were seen to go on. That step first copies the block into another one, which no table has. It hands this one
over beside the states that end chunks (``handed_states``). The tokens up to the boundary are in their groups'
blocks of the request's table, where more are only appended. All of it is stored as one, under the hash at the
boundary; what the blocks hold after it is nobody's.

An offer is taken in the step that makes it or never, and only if the states of all groups are offered, in blocks
that this step writes by that copy alone. ``layout.why_no_tails`` says for which engines none is taken.

A request that ends exactly there, which only an abort brings about, has its states in its tables still: these are
registered just before it is told to have ended. They are held with its other blocks, or, where fences hold,
whoever gets them waits for the store.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kv_api import BlockIds, PartialTails, SchedulerOutput
from kv_offload.scheduler.state.books import Books
from kv_offload.scheduler.state.request_state import RequestState
from kv_offload.scheduler.storing.boundary_store import Source, store_of_ended, store_of_running
from kv_offload.scheduler.storing.handed_states import Offer, most_tokens, offers_of
from kv_offload.shape.naming import tail_key

Tables = Sequence[Sequence[int]]
"""The blocks of each group, by its place in the layout."""

IsThere = Callable[[int, int], bool]
"""(block of an offer, block where the table has the boundary) -> whether the state is in the first."""


class Tails:
    """Plans stores of tails. Keeps nothing of its own that changes."""

    def __init__(self, books: Books) -> None:
        self._books = books
        groups = books.layout.groups
        self._tokens_per_block = books.layout.grain_tokens
        self._state_place = {group.group_id: place for place, group in enumerate(groups) if group.is_handed_over}

    def store(self, output: SchedulerOutput) -> None:
        """Store the tails that a step hands over. By then the block tables are those from this step on."""
        offers_by_request = offers_of(output)
        if not offers_by_request:
            return
        copies: Iterable[Any] = getattr(output, "kv_cache_block_copies", None) or ()
        source_of: Mapping[int, int] = {copy.dst_block_id: copy.src_block_id for copy in copies}

        def is_there(block: int, in_table: int) -> bool:
            return source_of[block] == in_table if block in source_of else block not in self._books.fresh

        for request_id, offers in offers_by_request.items():
            state = self._books.states.get(request_id)
            if state is not None:
                tables = [progress.table for progress in state.progress.groups]
                for boundary, sources in self._taken(state, offers, tables, is_there):
                    stored = store_of_running(self._books, state, boundary, sources)
                    self._note(state, boundary, stored)

    def store_at_end(self, state: RequestState, block_ids: BlockIds, offers: PartialTails) -> bool:
        """Store those of a request that is about to end. Returns whether its blocks must be held for that."""
        if state.loads:
            return False
        tables = [block_ids[group.group_id] for group in self._books.layout.groups]
        is_begun = False
        with self._books.lock():
            for boundary, sources in self._taken(state, offers, tables, _is_same):
                stored = store_of_ended(self._books, state, boundary, sources)
                self._note(state, boundary, stored)
                is_begun |= bool(stored)
        return is_begun and self._books.engine.holds_blocks

    def _taken(
        self, state: RequestState, offers: Iterable[Offer], tables: Tables, is_there: IsThere
    ) -> list[tuple[int, list[Source]]]:
        """The tails that are stored, by boundary, in order."""
        found: dict[int, dict[int, int]] = {}
        for group_id, block, boundary in offers:
            place = self._state_place.get(group_id)
            if place is not None and self._is_wanted(state, boundary):
                index = boundary // self._tokens_per_block
                table = tables[place]
                if block > 0 and index < len(table) and is_there(block, table[index]):
                    found.setdefault(boundary, {})[place] = block
        taken = []
        for boundary, blocks in sorted(found.items()):
            sources = self._sources(state, boundary, blocks, tables)
            if all(source.block for source in sources):
                taken.append((boundary, sources))
        return taken

    def _is_wanted(self, state: RequestState, boundary: int) -> bool:
        """Whether a boundary is within a block, has a hash, and may be stored; a tail that was loaded is there."""
        count, rest = divmod(boundary, self._books.layout.tokens_per_hash)
        return (
            not rest
            and boundary % self._tokens_per_block > 0
            and count <= len(state.request.block_hashes)
            and boundary <= most_tokens(self._books, state)
            and (state.offers_loaded or boundary != state.progress.loaded_tail)
        )

    def _sources(
        self, state: RequestState, boundary: int, states: Mapping[int, int], tables: Tables
    ) -> list[Source]:
        """Each group's block, 0 where it has none, and key."""
        layout, hashes, index = self._books.layout, state.request.block_hashes, boundary // self._tokens_per_block
        sources = []
        for place, group in enumerate(layout.groups):
            block = states.get(place, 0)
            if not group.is_handed_over and index < len(tables[place]):
                block = tables[place][index]
            key = tail_key(layout, group, hashes, boundary)
            state.context.set_offload_key_position(key, boundary)
            sources.append(Source(place, block, key))
        return sources

    def _note(self, state: RequestState, boundary: int, stored: Iterable[Source]) -> None:
        groups = self._books.layout.groups
        for source in stored:
            self._books.events.note_tail(state.request, groups[source.place], boundary, source.key)


def _is_same(block: int, in_table: int) -> bool:
    return block == in_table
