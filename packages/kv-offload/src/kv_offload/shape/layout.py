"""How the tokens of a request are divided into blocks and chunks of each KV cache group.

Positions are tokens from the start of the request. A *boundary* is a number of tokens after which computing may go
on when everything before it that a group still reads is in the GPU's blocks.

Both classes are read many times in each step, so what follows from their fields is worked out once and lies
beside them in slots. (A ``cached_property`` would move all attributes of an object to a dictionary, where reading
one takes longer.)
"""

from dataclasses import dataclass, field

from kv_api import AttentionKind, make_offload_key


@dataclass(frozen=True, slots=True)
class Group:
    """One KV cache group that is offloaded."""

    group_id: int
    """Its place in the engine's block tables, and in keys."""
    kind: AttentionKind
    tokens_per_block: int
    blocks_per_chunk: int
    hashes_per_chunk: int
    window_tokens: int = 0
    """Sliding window: how many tokens attention reads, the computed one among them."""
    restart_tokens: int = 0
    """A window that begins anew every so many tokens (chunked local attention) and reaches no further back; 0: one
    that slides."""
    bytes_per_block: int = 0
    """Of one worker, over all layers of the group."""
    is_handed_over: bool = False
    """Groups of states: the engine hands over each state worth keeping; block tables don't say where a state is.
    """
    is_draft: bool = False
    """Layers of a draft model (EAGLE, MTP): what they keep of a token depends on the token after it."""

    tokens_per_chunk: int = field(init=False, repr=False)
    """Tokens that one chunk holds."""
    reads_all: bool = field(init=False, repr=False)
    """Whether attention reads all tokens before."""
    has_window: bool = field(init=False, repr=False)
    """Whether it reads only the last of them."""
    is_stored_whole: bool = field(init=False, repr=False)
    """Whether all blocks of a chunk are stored, and not just the last: of states only that is ever read."""
    key_suffix: bytes = field(init=False, repr=False)
    """The suffix of the keys of the group's chunks, after the hash."""

    def __post_init__(self) -> None:
        derive = object.__setattr__
        derive(self, "tokens_per_chunk", self.tokens_per_block * self.blocks_per_chunk)
        derive(self, "reads_all", self.kind is AttentionKind.FULL)
        derive(self, "has_window", self.kind is AttentionKind.SLIDING_WINDOW)
        derive(self, "is_stored_whole", self.kind is not AttentionKind.STATE_SPACE or self.blocks_per_chunk == 1)
        derive(self, "key_suffix", make_offload_key(b"", self.group_id))

    def stored_blocks(self, chunk: int) -> range:
        """The blocks, by their index in the request, that are copied when a chunk is stored."""
        end = (chunk + 1) * self.blocks_per_chunk
        return range(chunk * self.blocks_per_chunk if self.is_stored_whole else end - 1, end)

    def first_needed(self, boundary: int) -> int:
        """The first token that is read by whoever goes on at ``boundary``."""
        if self.restart_tokens:
            return boundary // self.restart_tokens * self.restart_tokens
        if self.kind is AttentionKind.SLIDING_WINDOW:
            return max(0, boundary - self.window_tokens + 1)
        if self.kind is AttentionKind.STATE_SPACE:
            return max(0, boundary - 1)
        return 0

    def blocks_to_load(self, local: int, boundary: int) -> range:
        """The blocks that a load must fill so that a request with ``local`` tokens can go on at ``boundary``."""
        size = self.tokens_per_block
        first = max(-(-local // size), self.first_needed(boundary) // size)
        if self.first_needed(boundary) >= boundary:
            return range(0)
        return range(first, max(first, -(-boundary // size)))

    def chunks_needed(self, local: int, boundary: int) -> range:
        """The chunks that must be there so that a request can go on at ``boundary``.

        Those that a load reads. For a draft model also the one with the token at the boundary: if it is there, the
        token before was computed with the same one after it (unless somebody's tokens ended between two chunks).
        """
        chunks = self.chunks_of(self.blocks_to_load(local, boundary))
        if not self.is_draft:
            return chunks
        after = boundary // self.tokens_per_chunk
        return range(chunks.start if chunks else after, after + 1)

    def chunks_of(self, blocks: range) -> range:
        """The chunks that a range of blocks lies in."""
        if not blocks:
            return range(0)
        return range(blocks.start // self.blocks_per_chunk, (blocks.stop - 1) // self.blocks_per_chunk + 1)


@dataclass(frozen=True, slots=True)
class Layout:
    """All groups that are offloaded, in the order in which jobs list them."""

    groups: tuple[Group, ...]
    tokens_per_hash: int
    grain_tokens: int
    """A multiple of every group's block."""
    retention_tokens: int | None = None
    """Windows are worth keeping every so many tokens (``reach``); None: all of them."""
    shares_tokens: bool = False
    """Whether several workers share the tokens of a block."""

    reads_back_only: bool = field(init=False, repr=False)
    """Whether every group reads all previous tokens."""
    reaches_all: bool = field(init=False, repr=False)
    """Whether a lookup may need every chunk: all of them end at the same tokens, where somebody may go on.

    If not, that is found out chunk by chunk (``reach``).
    """
    is_stored_whole: bool = field(init=False, repr=False)
    """Whether chunks of every group are."""
    why_no_tails: str | None = field(init=False, repr=False)
    """Why tails are neither stored nor found; None if they are."""

    def __post_init__(self) -> None:
        derive, groups = object.__setattr__, self.groups
        reads_back = all(group.window_tokens != 1 for group in groups)
        sizes = {group.tokens_per_chunk for group in groups}
        derive(self, "reads_back_only", all(group.reads_all for group in groups))
        derive(self, "reaches_all", len(sizes) == 1 and reads_back and self.retention_tokens is None)
        derive(self, "is_stored_whole", all(group.is_stored_whole for group in groups))
        derive(self, "why_no_tails", self._why_no_tails())

    @property
    def has_tails(self) -> bool:
        """Whether tails are stored and found (``tails``)."""
        return self.why_no_tails is None

    def _why_no_tails(self) -> str | None:
        # A tail is one block of each group and a boundary within all of them, so chunks are blocks of one size,
        # and what anybody needs before the boundary is complete chunks or that block.
        sizes = {group.tokens_per_block for group in self.groups}
        states = [group for group in self.groups if group.kind is AttentionKind.STATE_SPACE]
        if not states or not all(group.is_handed_over for group in states):
            return "the engine hands over no states"
        if any(group.tokens_per_chunk != group.tokens_per_block for group in self.groups):
            return "chunks have several blocks"
        if len(sizes) > 1:
            return f"groups have blocks of {sorted(sizes)} tokens"
        if sizes == {self.tokens_per_hash}:
            return "a block has one hash"
        if any(group.has_window for group in self.groups):
            return "a group has a window, whose blocks before the boundary may be missing"
        if any(group.is_draft for group in self.groups):
            return "a group is of a draft model, which keeps of a token what depends on the token after it"
        if self.shares_tokens:
            return "workers share the tokens of a block"
        return None
