"""How far a request is stored: the keys of its chunks, its known blocks, and which chunks were offered.

State of ``GroupProgress``, for one group of one request: ``keys`` grow with the request's block hashes, as far as
they are needed. ``table`` is the request's block table, with 0 for blocks that it doesn't have, or no longer has.
A block that has left a window stays in the table until another request gets it, since its bytes are there until
then. Chunks before ``cursor`` have been offered to the medium, or never will be: they had no blocks when they were
complete. Chunks in ``loaded`` came out of the medium in this life of the request.

A request *offers* the chunks that are complete and may be stored. Most often these are all chunks of a
group from the cursor on, so they are a range, and nothing is done chunk by chunk.

A long prompt is computed in many steps. It offers chunks when they are an eighth of those that it offered before,
and the last ones when it is complete: so there are few offers and jobs, however long it is. If a request loses its
blocks, chunks that it has not offered are computed again. If blocks may be lost one by one (windows, states),
chunks are offered at once.
"""

import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from kv_api import OffloadKey, ReqContext, Request, get_offload_group_idx
from kv_offload.scheduler.state.block_index import BlockIndex
from kv_offload.shape.layout import Group, Layout
from kv_offload.shape.naming import names
from kv_offload.shape.reach import Ends, reachable

PATIENCE: Final = 8
"""A prompt makes its next offer when that is at least the ``PATIENCE``-th part of what it offered before."""


@dataclass(slots=True)
class GroupProgress:
    """One group of one request."""

    group: Group
    keys: list[OffloadKey] = field(default_factory=list)
    table: list[int] = field(default_factory=list)
    cursor: int = 0
    loaded: range = range(0)
    block_index: BlockIndex | None = None
    """The index of this ``table`` and others; None if no block is lost by itself, or the request has ended."""

    def set_table(self, blocks: Sequence[int]) -> None:
        """These are all of its blocks."""
        if self.block_index is not None:
            self.block_index.remove(self.table)
        self.table = []
        self.append(blocks)

    def append(self, blocks: Sequence[int]) -> None:
        """The request got these additional blocks."""
        self.table += blocks
        if self.block_index is not None and blocks:
            self.block_index.add(self.table, len(self.table) - len(blocks))

    def leave_index(self) -> None:
        """From now on its table stays as it is, even if other requests get the blocks."""
        if self.block_index is not None:
            self.block_index.remove(self.table)
            self.block_index = None

    def check(self) -> None:
        """Recount."""
        group_id, keys = self.group.group_id, self.keys
        assert self.cursor <= len(keys), f"group {group_id}: cursor {self.cursor} of {len(keys)} keys"
        assert self.loaded.stop <= len(keys), f"group {group_id}: loaded {self.loaded} of {len(keys)} keys"
        assert all(get_offload_group_idx(key) == group_id for key in keys), f"group {group_id} has keys of others"

    def extend_keys(self, hashes: Sequence[bytes], tokens: int) -> None:
        """Make keys for the chunks within ``tokens`` that block hashes cover now, from each chunk's last hash."""
        group, known = self.group, len(self.keys)
        size = group.hashes_per_chunk
        stop = min(len(hashes) // size, tokens // group.tokens_per_chunk)
        if stop == known + 1:  # as in most steps of decoding
            self.keys.append(hashes[stop * size - 1] + group.key_suffix)  # type: ignore[arg-type]
        elif stop > known:
            self.keys += names(hashes[(known + 1) * size - 1 : stop * size : size], group.key_suffix)

    def offers(self, stop: int, ends: Ends | None, layout: Layout, *, with_loaded: bool) -> Sequence[int]:
        """The chunks before ``stop`` that were not offered and may be stored; ``ends``: see `Progress.offers`."""
        group, first = self.group, self.cursor
        if first >= stop or group.is_handed_over:
            return ()
        chunks: Sequence[int] = range(first, stop)
        if first < self.loaded.stop and not with_loaded:
            before, after = range(first, min(stop, self.loaded.start)), range(self.loaded.stop, stop)
            chunks = [*before, *after] if before else after
        if group.reads_all:
            return chunks
        if 0 in self.table[first * group.blocks_per_chunk : stop * group.blocks_per_chunk]:
            is_there = self._are_there(range(first, stop))
            chunks = [chunk for chunk in chunks if is_there[chunk - first]]
        if group.has_window and ends is not None:
            chunks = reachable(layout, group, chunks, ends)
        if chunks and chunks[-1] - chunks[0] == len(chunks) - 1:
            return range(chunks[0], chunks[-1] + 1)  # which callers handle in one go
        return chunks

    def _are_there(self, chunks: range) -> list[bool]:
        """For each of these chunks, whether it has all blocks that its store copies."""
        size = self.group.blocks_per_chunk
        start, stop = chunks.start * size, chunks.stop * size
        columns = [self.table[start + index : stop : size] for index in self.group.stored_blocks(0)]
        return [*map(all, zip(*columns, strict=True))]

    def blocks_of(self, chunk: int) -> list[int]:
        """The blocks that are copied when a chunk is stored."""
        blocks = self.group.stored_blocks(chunk)
        return self.table[blocks.start : blocks.stop]


class Progress:
    """All groups of one request."""

    def __init__(self, layout: Layout, context: ReqContext, block_index: BlockIndex | None = None) -> None:
        """``block_index`` learns which blocks other requests get, if requests may lose single blocks."""
        self._layout = layout
        self.groups = tuple(
            GroupProgress(group, block_index=None if group.reads_all else block_index) for group in layout.groups
        )
        for progress in self.groups:
            context.derive_offload_key_positions(progress.keys, progress.group.tokens_per_chunk)
        self.loaded_tail = 0
        """The boundary of the tail that the last load ended with; 0: it had none."""
        self.next_end = 0
        """How many tokens must be known before there is something to offer; so most steps cost only a comparison.
        ``sys.maxsize``: nothing, unless something changes."""

    def extend_keys(self, request: Request, tokens: int = sys.maxsize) -> None:
        """Make keys for the chunks within ``tokens`` that block hashes cover now.

        For a long prompt without hits it is better to do this step by step: it takes no longer, and new keys are
        still in the CPU's caches when they are looked up.
        """
        hashes = request.block_hashes
        for progress in self.groups:
            progress.extend_keys(hashes, tokens)

    # -- blocks --------------------------------------------------------------------------------

    def begin(self, tables: Sequence[Sequence[int]]) -> None:
        """The request runs with these whole tables, by group id. Its prompt may be longer than it was."""
        for progress in self.groups:
            progress.set_table(tables[progress.group.group_id])
        self.next_end = 0

    def append(self, tables: Sequence[Sequence[int]]) -> None:
        """The request got these blocks more."""
        for progress in self.groups:
            progress.append(tables[progress.group.group_id])

    def end(self, tables: Sequence[Sequence[int]]) -> None:
        """The request ends with these tables. Known blocks that they lack are still intact."""
        for progress in self.groups:
            known, told = progress.table, list(tables[progress.group.group_id])
            told += known[len(told) :]
            if 0 in told:
                told = [new or old for new, old in zip(told, known + [0] * len(told), strict=False)]
            progress.set_table(told)

    @property
    def has_blocks(self) -> bool:
        """Whether the request has blocks, as while it runs."""
        return any(progress.table for progress in self.groups)

    def lose_blocks(self) -> None:
        """The request has no blocks any more. With new ones it begins at its first token."""
        for progress in self.groups:
            progress.set_table(())
            progress.cursor = 0
        self.next_end = 0

    def leave_index(self) -> None:
        """The request has ended: its tables stay as they are while others get its blocks."""
        for progress in self.groups:
            progress.leave_index()

    def first_token_in(self, blocks: Set[int]) -> int | None:
        """The first token in any of ``blocks``."""
        found = [
            index * progress.group.tokens_per_block
            for progress in self.groups
            if not blocks.isdisjoint(progress.table)  # most requests have none of them
            for index, block in enumerate(progress.table)
            if block in blocks
        ]
        return min(found, default=None)

    # -- offers --------------------------------------------------------------------------------

    def has_more(self, tokens: int) -> bool:
        """Whether any chunk that was not offered ends within ``tokens``."""
        return any(tokens // progress.group.tokens_per_chunk > progress.cursor for progress in self.groups)

    def stops(self, tokens: int, settled: int) -> list[int]:
        """By group, how many chunks may be stored: they have keys and blocks, and end within ``tokens``.

        For a draft model they end within ``settled`` tokens.
        """
        found = []
        for progress in self.groups:
            group = progress.group
            ended = (settled if group.is_draft else tokens) // group.tokens_per_chunk
            found.append(min(ended, len(progress.keys), len(progress.table) // group.blocks_per_chunk))
        return found

    def offers(self, stops: Sequence[int], ends: Ends | None, *, with_loaded: bool) -> list[Sequence[int]]:
        """By group, the chunks before ``stops`` that weren't offered; in windows only those that ``ends`` need."""
        found = []
        for place, progress in enumerate(self.groups):
            found.append(progress.offers(stops[place], ends, self._layout, with_loaded=with_loaded))
        return found

    def pass_over(
        self, stops: Sequence[int], left: Mapping[int, int], limit: int, known: int, prompt: int
    ) -> None:
        """Chunks before ``stops`` have been dealt with; in a group that is in ``left``, those before that chunk.

        ``limit`` is how many tokens may be stored at all: beyond them, nothing more is offered. Where blocks may
        be lost one by one, they must be known all the same; there, look again when twice as many tokens are known.
        Chunks that end within the first ``prompt`` tokens wait until enough of them can be offered together.
        """
        next_end = sys.maxsize
        for place, progress in enumerate(self.groups):
            stop = left[place] if place in left else stops[place]
            if stop > progress.cursor:
                progress.cursor = stop
            size = progress.group.tokens_per_chunk
            end = (progress.cursor + 1) * size
            if end < prompt and not left and self._layout.reads_back_only:
                offered = progress.cursor - progress.loaded.stop
                end = max(end, min(progress.cursor + offered // PATIENCE, min(prompt, limit) // size) * size)
            if end < next_end:
                next_end = end
        if next_end > limit:
            next_end = sys.maxsize if self._layout.reads_back_only else max(next_end, 2 * known)
        self.next_end = next_end

    def rewind(self) -> None:
        """Offer everything again: earlier loads and stores can't be relied on."""
        for progress in self.groups:
            progress.cursor = 0
            progress.loaded = range(0)
        self.loaded_tail = self.next_end = 0

    def check(self) -> None:
        """Recount."""
        for progress in self.groups:
            progress.check()
