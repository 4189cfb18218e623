"""Where a request can go on within a block: at the boundary of a tail that a medium has.

A *tail* is what a block of each group holds up to a boundary within it, a multiple of the tokens of a hash; the
state groups' have the state there. It is stored under the hash at the boundary, a chunk by itself for each group,
and found only if every group's is. What lies before its block has to be there as complete chunks, where a group
reads it; the states before are not needed.

A tail is looked for in two blocks, each from its end. One is the block with which the groups that read all tokens
end: there another request's prompt ended, or left this one. The other is the block after the complete chunks on
which all groups agree.

A tail that this engine is storing counts as missing. Its bytes are on the GPU, where whoever asks now has found
them already. But the engine only tells of the whole blocks that it found, so a wait for the store would look worth
it.
"""

from collections.abc import Callable, Collection, Sequence

from kv_api import AttentionKind, LookupResult, OffloadingManager, OffloadKey, ReqContext
from kv_offload.shape.layout import Group, Layout
from kv_offload.shape.naming import tail_key


class TailAnswers:
    """A medium's answers about the tails of one request, for one lookup. Each is looked up once."""

    def __init__(
        self,
        manager: OffloadingManager,
        context: ReqContext,
        layout: Layout,
        hashes: Sequence[bytes],
        limit: int,
        refused: Collection[OffloadKey] = (),
        is_being_stored: Callable[[OffloadKey], bool] = lambda key: False,
    ) -> None:
        self._manager = manager
        self._context = context
        self._layout = layout
        self._hashes = hashes
        self._refused = refused
        self._is_being_stored = is_being_stored
        self.tokens_per_block = layout.grain_tokens
        self.limit = min(limit, len(hashes) * layout.tokens_per_hash)
        """Tokens after which the request may go on at most."""
        self._known: dict[tuple[int, int], LookupResult] = {}
        # Of states there are the fewest, so what is missing is found out with the fewest calls.
        self._asked = sorted(layout.groups, key=lambda group: group.kind is not AttentionKind.STATE_SPACE)

    def of(self, group: Group, boundary: int) -> LookupResult:
        """The medium's answer about the tail of one group."""
        known = self._known.get((group.group_id, boundary))
        if known is None:
            key = tail_key(self._layout, group, self._hashes, boundary)
            self._context.set_offload_key_position(key, boundary)
            known = LookupResult.MISS if key in self._refused else self._manager.lookup(key, self._context)
            if known is LookupResult.HIT_PENDING and self._is_being_stored(key):
                known = LookupResult.MISS
            self._known[group.group_id, boundary] = known
        return known

    def has(self, boundary: int, counts: Callable[[LookupResult], bool]) -> bool:
        """Whether every group's tail at a boundary counts as there."""
        return all(counts(self.of(group, boundary)) for group in self._asked)

    def highest(self, start: int, counts: Callable[[LookupResult], bool]) -> int | None:
        """The highest boundary of a tail in the block that begins at ``start``."""
        per_hash = self._layout.tokens_per_hash
        last = min(start + self.tokens_per_block - 1, self.limit) // per_hash * per_hash
        boundaries = range(last, start, -per_hash)
        return next((boundary for boundary in boundaries if self.has(boundary, counts)), None)
