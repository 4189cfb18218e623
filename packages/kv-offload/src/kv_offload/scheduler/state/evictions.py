"""Stores at the last moment: chunks of freed GPU blocks, just before the engine's pool reuses the blocks.

**Theory of operation.** A chunk that is stored as soon as it is computed is in the medium and on the GPU at the
same time: so a medium adds nothing until it is larger than the GPU's prefix cache. With ``store_when: evicted`` a
chunk is stored when its request has freed its blocks, and the first of them is among the next that the pool will
reuse. Then the two caches hold different chunks, and chunks that stay on the GPU anyway are never copied.

A request that ends, or is preempted, *leaves* its chunks here, by block. If another request gets a block as a
fresh one, the chunk is lost. If the engine can't find a block by its hash, its chunk isn't stored: it is
incomplete, or wrong. If a request hits a block, it only reads it, and later leaves its chunk again. The first
eighth of the pool's queue of free blocks is searched, and again when half of that has been reused. Chunks found
there are offered to the medium, and removed here.

The copy begins after the step, and a request that gets a block meanwhile waits for the copy (a fence). The medium
sees another request each time, since the one that computed the chunks prepares no stores any more. Chunks that
find no room are lost, and so are chunks of blocks beyond that eighth if the engine reuses these in one step.

**Invariant** (``check``): a chunk is left only for blocks that it lies in.
"""

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple, Protocol

from kv_api import BlockPool, ConfigError, ReqContext
from kv_offload.options import look_ahead
from kv_offload.scheduler.state.progress import Progress
from kv_offload.scheduler.state.request_state import RequestState
from kv_offload.shape.layout import Layout

NO_REQUEST: Any = None
"""Replaces the engine's request in left state: that object may have all images of a prompt, so it is kept only if
events need its tokens."""


class FreeBlocks(Protocol):
    """The engine's queue of free blocks, in the order in which it reuses them."""

    def iter_blocks_after(self, cursor: None) -> Iterable[Any]: ...


class Left(NamedTuple):
    """A chunk that a request left on the GPU."""

    state: RequestState
    place: int
    """The index of its group in the layout."""
    chunk: int


class Evictions:
    """Chunks that were left, by each of their blocks, until they are offered or lost."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._free: FreeBlocks | None = None
        self._look_ahead = look_ahead(0)
        self._left: dict[int, Left] = {}
        self._ahead = 0
        """How many of the searched blocks have not been reused."""
        self._number = 0
        """Of the last request by which left chunks were stored."""

    def bind(self, pool: BlockPool) -> None:
        """Take the engine's pool."""
        free = getattr(pool, "free_block_queue", None)
        if not hasattr(free, "iter_blocks_after"):
            raise ConfigError(
                "kv_connector_extra_config.store_when: got 'evicted', but the engine's "
                f"{type(pool).__name__} doesn't say which blocks it evicts next; choose 'computed'"
            )
        self._free = free
        self._look_ahead = look_ahead(pool.num_gpu_blocks)

    def leave(self, state: RequestState, batches: Iterable[Sequence[Sequence[int]]]) -> None:
        """A request leaves chunks, in batches by group; ``state`` is `detached` from the request."""
        for batch in batches:
            for place, chunks in enumerate(batch):
                progress = state.progress.groups[place]
                for chunk in chunks:
                    left = Left(state, place, chunk)
                    self._left.update(dict.fromkeys(progress.blocks_of(chunk), left))

    def vacate(self, fresh: Set[int]) -> None:
        """Other requests have got these blocks."""
        self._ahead -= len(fresh)
        for block in self._left.keys() & fresh:
            del self._left[block]

    def forget(self, states: Iterable[RequestState] | None = None) -> None:
        """Forget the chunks that these requests left; None: all chunks."""
        if states is None:
            self._left.clear()
        else:
            gone = {id(state) for state in states}
            self._left = {block: left for block, left in self._left.items() if id(left.state) not in gone}

    @property
    def owners(self) -> list[RequestState]:
        """The requests that left chunks."""
        return [*{id(left.state): left.state for left in self._left.values()}.values()]

    def take_due(self) -> list[tuple[RequestState, list[Sequence[int]]]]:
        """Remove and return the chunks to store now, by group, each with the request that stores them."""
        if not self._left or self._ahead > self._look_ahead // 2:
            return []
        chunks: dict[RequestState, list[set[int]]] = {}
        for left in self._coming_up():
            if left.state not in chunks:
                chunks[left.state] = [set() for _ in self._layout.groups]
            chunks[left.state][left.place].add(left.chunk)
        first, self._number = self._number + 1, self._number + len(chunks)
        return [
            (_offering(state, number), [*map(sorted, by_place)])
            for number, (state, by_place) in enumerate(chunks.items(), first)
        ]

    def _coming_up(self) -> Iterator[Left]:
        """Remove the chunks with a block among the next to be reused, and yield those that are whole."""
        if self._free is None:
            raise ConfigError(
                "kv_connector_extra_config.store_when: got 'evicted', but the engine has bound no block pool "
                "(bind_gpu_block_pool)"
            )
        looked_at = [*islice(self._free.iter_blocks_after(None), self._look_ahead)]
        self._ahead = len(looked_at)
        for block in looked_at:
            left = self._left.get(block.block_id)
            if left is None:
                continue
            its = left.state.progress.groups[left.place].blocks_of(left.chunk)
            is_whole = all(self._left.get(other) == left for other in its)
            for other in its:
                if self._left.get(other) == left:  # otherwise another request has left it since
                    del self._left[other]
            # An engine reuses a request's last blocks first: so if this one has a hash, all of the chunk have.
            if is_whole and block.block_hash is not None:
                yield left

    def check(self) -> None:
        """Recount."""
        for block, left in self._left.items():
            its = left.state.progress.groups[left.place].blocks_of(left.chunk)
            assert block in its, f"block {block} is left as one of chunk {left.chunk}, which lies in {its}"


def detached(state: RequestState, layout: Layout) -> RequestState:
    """The state of a request that leaves chunks, without the request: it may go on, with another table."""
    progress = Progress(layout, ReqContext(""))
    for left, known in zip(progress.groups, state.progress.groups, strict=True):
        left.keys, left.table = known.keys, known.table
    return replace(state, progress=progress)


def _offering(left: RequestState, number: int) -> RequestState:
    """The request that stores what another one left.

    It has an id of its own, since a medium may know requests by their ids: a request that was preempted may have
    left chunks twice, and its earlier ones may still be on their way to another tier.
    """
    context = replace(left.context, req_id=f"{left.context.req_id}, left {number}")
    for of_group in left.progress.groups:
        context.derive_offload_key_positions(of_group.keys, of_group.group.tokens_per_chunk)
    return replace(left, context=context, loads=set(), stores=set())
