"""What of a request is stored: its chunks' keys, its blocks as far as they are known, and how far it has come.

State of ``GroupProgress``, for one group of one request: ``keys`` grow with the request's block hashes. ``table``
has the GPU block of each of its blocks; 0 where it has none, or no longer: what slid out of a window is kept until
somebody else gets the block, since it holds its bytes until then. Chunks before ``cursor`` have been offered to
the medium, or never will be: they had no blocks when they were complete. ``loaded`` came out of the medium in this
life of the request.

An *offer* is a chunk that is complete and may be stored. Offers come in the order of tokens, so that a part that
fits is a prefix.
"""

from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from kv_api import AttentionKind, OffloadKey, ReqContext, Request, get_offload_group_idx, make_offload_key
from kv_offload.layout import Group, Layout


class Horizon(NamedTuple):
    """How much of a request may be stored now."""

    tokens: int
    settled: int
    """The same for a draft model: it computes the last token once more when the one after it is known."""
    prompt: int
    """Tokens of the prompt."""


class Offer(NamedTuple):
    """A chunk to store, and where its bytes are."""

    end_token: int
    place: int
    """Of its group among those of the layout."""
    chunk: int
    key: OffloadKey
    blocks: tuple[int, ...]
    first_block: int
    """Index of ``blocks[0]`` in the request."""


@dataclass(slots=True)
class GroupProgress:
    """One group of one request."""

    group: Group
    keys: list[OffloadKey] = field(default_factory=list)
    table: list[int] = field(default_factory=list)
    cursor: int = 0
    loaded: range = range(0)
    _index_of: dict[int, int] = field(default_factory=dict)
    """Where in ``table`` a block is, in groups where blocks may be lost one by one."""

    def set_table(self, blocks: Sequence[int]) -> None:
        """These are all of its blocks."""
        self.table = []
        self._index_of.clear()
        self.append(blocks)

    def append(self, blocks: Sequence[int]) -> None:
        """It got these blocks more."""
        if self.group.kind is not AttentionKind.FULL:
            self._index_of.update((block, index) for index, block in enumerate(blocks, len(self.table)) if block)
        self.table += blocks

    def vacate(self, blocks: Set[int]) -> None:
        """Somebody else got these. Also what was offered is watched: it may be offered again after a reset."""
        for block in self._index_of.keys() & blocks:
            self.table[self._index_of.pop(block)] = 0

    def check(self) -> None:
        """Recount."""
        group_id, keys = self.group.group_id, self.keys
        assert self.cursor <= len(keys), f"group {group_id}: cursor {self.cursor} of {len(keys)} keys"
        assert self.loaded.stop <= len(keys), f"group {group_id}: loaded {self.loaded} of {len(keys)} keys"
        assert all(get_offload_group_idx(key) == group_id for key in keys), f"group {group_id} has keys of others"
        if self.group.kind is not AttentionKind.FULL:
            found = {block: index for index, block in enumerate(self.table) if block}
            assert found == self._index_of, f"group {group_id}: blocks at {found}, known at {self._index_of}"

    def chunk_limit(self, horizon: Horizon) -> int:
        """Chunks that end within the horizon and have keys and blocks."""
        tokens = horizon.settled if self.group.is_draft else horizon.tokens
        return min(
            tokens // self.group.tokens_per_chunk, len(self.keys), len(self.table) // self.group.blocks_per_chunk
        )

    def blocks_of(self, chunk: int) -> range:
        """The blocks, by index, that must be there for a chunk to be stored."""
        size = self.group.blocks_per_chunk
        last_only = self.group.kind is AttentionKind.STATE_SPACE
        return range((chunk + 1) * size - 1 if last_only else chunk * size, (chunk + 1) * size)


class Progress:
    """All groups of one request."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.groups = tuple(GroupProgress(group) for group in layout.groups)
        self.next_end = 0
        """Before so many tokens are known there is nothing to offer: what makes most steps cost nothing."""

    def extend_keys(self, request: Request, context: ReqContext) -> None:
        """Name the chunks that are covered by block hashes now."""
        hashes = request.block_hashes
        for progress in self.groups:
            group, keys = progress.group, progress.keys
            step = group.hashes_per_chunk
            for end in range((len(keys) + 1) * step, len(hashes) + 1, step):
                key = make_offload_key(hashes[end - 1], group.group_id)
                keys.append(key)
                context.set_offload_key_position(key, len(keys) * group.tokens_per_chunk)

    # -- blocks --------------------------------------------------------------------------------

    def begin(self, tables: Sequence[Sequence[int]]) -> None:
        """The request runs with these whole tables, by group id."""
        for progress in self.groups:
            progress.set_table(tables[progress.group.group_id])

    def append(self, tables: Sequence[Sequence[int]]) -> None:
        """The request got these blocks more."""
        for progress in self.groups:
            progress.append(tables[progress.group.group_id])

    def end(self, tables: Sequence[Sequence[int]]) -> None:
        """The request ends with these tables. What they lack of what is known is still intact."""
        for progress in self.groups:
            known, told = progress.table, list(tables[progress.group.group_id])
            told += known[len(told) :]
            progress.set_table([new or old for new, old in zip(told, known + [0] * len(told), strict=False)])

    def lose_blocks(self) -> None:
        """The request has no blocks any more. It begins at its first token when it gets some."""
        for progress in self.groups:
            progress.set_table(())
            progress.cursor = 0
        self.next_end = 0

    def vacate(self, blocks: Set[int]) -> None:
        """Others got ``blocks``: of ours, only what slid out of a window can be among them."""
        for progress in self.groups:
            progress.vacate(blocks)

    def first_token_in(self, blocks: Collection[int]) -> int | None:
        """The first token that lies in any of ``blocks``."""
        found = [
            index * progress.group.tokens_per_block
            for progress in self.groups
            for index, block in enumerate(progress.table)
            if block in blocks
        ]
        return min(found, default=None)

    # -- offers --------------------------------------------------------------------------------

    def offers(self, horizon: Horizon, *, with_loaded: bool) -> list[Offer]:
        """What is complete within the horizon and was not offered, in the order of tokens."""
        found: list[Offer] = []
        for place, progress in enumerate(self.groups):
            for chunk in range(progress.cursor, progress.chunk_limit(horizon)):
                if chunk in progress.loaded and not with_loaded:
                    continue
                indices = progress.blocks_of(chunk)
                blocks = tuple(progress.table[indices.start : indices.stop])
                end = (chunk + 1) * progress.group.tokens_per_chunk
                ends = (horizon.prompt, horizon.tokens)
                if 0 in blocks or not is_reachable(self._layout, progress.group, end, ends):
                    continue
                found.append(Offer(end, place, chunk, progress.keys[chunk], blocks, indices.start))
        found.sort(key=lambda offer: (offer.end_token, offer.place))
        return found

    def pass_over(self, horizon: Horizon, left: Iterable[Offer]) -> None:
        """Everything within the horizon has been dealt with, but for the offers that are ``left``."""
        cursors = [max(progress.cursor, progress.chunk_limit(horizon)) for progress in self.groups]
        for offer in left:
            cursors[offer.place] = min(cursors[offer.place], offer.chunk)
        for progress, cursor in zip(self.groups, cursors, strict=True):
            progress.cursor = max(progress.cursor, cursor)
        self.next_end = min(
            ((progress.cursor + 1) * progress.group.tokens_per_chunk for progress in self.groups), default=0
        )

    def rewind(self) -> None:
        """Offer everything again: what was loaded or stored can't be relied on."""
        for progress in self.groups:
            progress.cursor = 0
            progress.loaded = range(0)
        self.next_end = 0

    def stop_at(self, limit: int, known: int) -> None:
        """``limit`` tokens may be stored at all. If they have been, look again when twice as many are known."""
        if limit < self.next_end:
            self.next_end = max(self.next_end, 2 * known)

    def check(self) -> None:
        """Recount."""
        for progress in self.groups:
            progress.check()


def is_reachable(layout: Layout, group: Group, end: int, ends: Sequence[int]) -> bool:
    """Whether a lookup could ever need the window's chunk that ends at ``end``.

    Requests that share a part of the tokens go on where a chunk of a full-attention group ends; one that repeats
    all of them, a token before one of ``ends``. Where a window's chunks are finer than that, and it is short, some
    lie out of its reach.
    """
    if group.kind is not AttentionKind.SLIDING_WINDOW or group.is_draft:
        return True
    sizes = {other.tokens_per_chunk for other in layout.groups if other.kind is AttentionKind.FULL}
    if len(sizes) != 1:
        return True
    (size,) = sizes
    boundaries = [-(-end // size) * size, *(last - 1 for last in ends if last > end - group.tokens_per_chunk + 1)]
    return any(group.first_needed(boundary) < end for boundary in boundaries)
