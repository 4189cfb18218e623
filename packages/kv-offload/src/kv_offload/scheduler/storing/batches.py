"""From chunks that are offered to what a store copies.

A *batch* is what one job can name: offers, group after group. A job says where in its request the first block of a
group lies, and then only how many there are. So a chunk of which just the last block is stored (a state, of
several blocks) has a batch of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from kv_api import GPULoadStoreSpec, KVError, OffloadKey
from kv_offload.scheduler.state.progress import Progress
from kv_offload.scheduler.state.request_state import RequestState
from kv_offload.shape.layout import Layout

Batch = list[Sequence[int]]
"""Chunks by group, in the order of the layout."""


class Progressed(NamedTuple):
    """How far a request has come when a plan of it has been carried out."""

    stops: list[int]
    """By group, how many chunks have been dealt with then."""
    limit: int
    """Tokens that may be stored at all."""
    known: int
    prompt: int
    """Tokens of the prompt."""


@dataclass(slots=True, eq=False)
class Plan:
    """The chunks that are offered for one request, and the medium's answer."""

    state: RequestState
    batches: list[Batch]
    then: Progressed | None
    """None: it was left, and nobody goes on from there."""
    is_final: bool
    """The request has ended."""
    left: dict[int, int] = field(default_factory=dict)
    """By place of the group, the first chunk for which there was no room."""
    is_begun: bool = False
    """Whether any of it is stored."""


def in_batches(layout: Layout, offers: Batch) -> list[Batch]:
    """Split offers; what has a batch of its own comes last, in the order of tokens."""
    if layout.is_stored_whole:
        return [offers] if any(offers) else []
    whole = [chunks if group.is_stored_whole else () for group, chunks in zip(layout.groups, offers, strict=True)]
    alone: list[Batch] = [
        [(chunk,) if other == place else () for other in range(len(offers))]
        for place, chunk in in_token_order(layout, offers)
        if not layout.groups[place].is_stored_whole
    ]
    return [whole, *alone] if any(whole) else alone


def in_token_order(layout: Layout, offers: Batch) -> list[tuple[int, int]]:
    """(group's place, chunk), the chunk that ends first before all others."""
    sizes = [group.tokens_per_chunk for group in layout.groups]
    places = [(place, chunk) for place, chunks in enumerate(offers) for chunk in chunks]
    return sorted(places, key=lambda pair: ((pair[1] + 1) * sizes[pair[0]], pair[0]))


def beginning(layout: Layout, batch: Batch, count: int) -> Batch:
    """The first ``count`` chunks in the order of tokens, of any group: a prefix of the request."""
    if sum(map(bool, batch)) == 1:
        return [chunks[:count] for chunks in batch]
    counts = [0] * len(batch)
    for place, _ in in_token_order(layout, batch)[:count]:
        counts[place] += 1
    return [chunks[:number] for chunks, number in zip(batch, counts, strict=True)]


def keys_of(progress: Progress, batch: Batch) -> list[OffloadKey]:
    """The keys, as a job lists them."""
    found: list[OffloadKey] = []
    for place, chunks in enumerate(batch):
        keys = progress.groups[place].keys
        its = keys[chunks.start : chunks.stop] if isinstance(chunks, range) else [keys[chunk] for chunk in chunks]
        found = found + its if found else its
    return found


def chosen(progress: Progress, batch: Batch, wanted: Sequence[OffloadKey]) -> Batch:
    """The chunks of a batch that a medium wants, in its order within each group."""
    if len(batch) == 1 and isinstance(batch[0], range):
        last = batch[0][-len(wanted) :]
        if wanted == progress.groups[0].keys[last.start : last.stop]:  # the medium has those before them
            return [last]
    place_of = {
        group.keys[chunk]: (place, chunk)
        for place, (group, chunks) in enumerate(zip(progress.groups, batch, strict=True))
        for chunk in chunks
    }
    places = [place_of[key] for key in wanted]
    if places != sorted(places, key=lambda pair: pair[0]):
        groups = [progress.groups[place].group.group_id for place, _ in places]
        raise KVError(
            f"prepare_store: keys_to_store mixes chunks of groups {groups}; expected all chunks of one group "
            "before those of the next"
        )
    found: list[list[int]] = [[] for _ in batch]
    for place, chunk in places:
        found[place].append(chunk)
    return list(found)


class BatchBlocks(NamedTuple):
    """The blocks of a batch, from which a store reads."""

    blocks: list[int]
    gpu_spec: GPULoadStoreSpec
    """The same, as a job names them."""
    end_token: int
    """Where the last chunk ends."""


def blocks_of(progress: Progress, batch: Batch) -> BatchBlocks:
    """Look up the blocks of a batch in the tables of its request."""
    blocks: list[int] = []
    sizes, firsts, end_token = [], [], 0
    for place, chunks in enumerate(batch):
        of_group = progress.groups[place]
        group = of_group.group
        if isinstance(chunks, range):  # what has a batch of its own is none
            first, stop = chunks.start * group.blocks_per_chunk, chunks.stop
            its = of_group.table[first : stop * group.blocks_per_chunk]
        elif chunks:
            first, stop = group.stored_blocks(chunks[0]).start, max(chunks) + 1
            its = [*chain.from_iterable(map(of_group.blocks_of, chunks))]
        else:
            first, stop, its = 0, 0, []
        blocks = blocks + its if blocks else its
        sizes.append(len(its))
        firsts.append(first if chunks else 0)
        if chunks and stop * group.tokens_per_chunk > end_token:
            end_token = stop * group.tokens_per_chunk
    return BatchBlocks(blocks, GPULoadStoreSpec(blocks, sizes, firsts), end_token)
