"""Which chunks of a sliding window are worth storing: those that a later request may read.

If all boundaries count, nearly all chunks are. A request that shares a part of the tokens continues where a chunk
of a full-attention group ends, or a token earlier with a draft model; one that repeats all tokens continues a
token before their end. With a short window and finer chunks, some chunks are never read. Chunked local attention
may read any chunk.

But chunks of a window for every boundary are many, and nearly all are never loaded. So an engine may keep
only the blocks before *retained boundaries* (vLLM's ``prefix_cache_retention_interval``; the states that it
hands over follow the same rule):

* where a request continues that repeats the prompt, or begins with all of it: its hit ends with the last chunk
  that is complete within the prompt, in every group, and at a state;
* the same for a part of the prompt that the engine has seen others share;
* and, if the interval is not 0, every ``interval`` tokens.

Then a chunk is stored if a request that continues at a retained boundary reads any of it. Chunks of full attention
are always stored, since they decide how far any hit reaches.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kv_api import AttentionKind
from kv_offload.shape.layout import Group, Layout


class Ends(NamedTuple):
    """Where other requests may stop having the same tokens as a request, within the tokens that may be stored."""

    prompt: int
    known: int
    """All known tokens."""
    shared: int = 0
    """A part of the prompt that the engine has seen others share; 0: none."""


def reachable(layout: Layout, group: Group, chunks: Sequence[int], ends: Ends) -> Sequence[int]:
    """The chunks of a window, of these in rising order, that a lookup could ever need.

    The chunks that a boundary needs are consecutive, so the work grows with boundaries, not with chunks.
    """
    if not chunks or not group.has_window or group.is_draft or group.restart_tokens:
        return chunks
    if layout.retention_tokens is not None:
        spans = _retained(layout, group, chunks, ends)
    else:
        size = _distance(layout)
        # A request that continues at a chunk's end reads the chunk, unless the window has only the computed token.
        if size is None or (group.tokens_per_chunk % size == 0 and group.window_tokens > 1):
            return chunks
        spans = _met(layout, group, chunks, ends, size)
    first, stop = chunks[0], chunks[-1] + 1
    needed = {chunk for span in spans for chunk in range(max(first, span.start), min(stop, span.stop))}
    return [chunk for chunk in chunks if chunk in needed]


def _distance(layout: Layout) -> int | None:
    """The distance of the boundaries where requests that share a part continue; None: it isn't constant."""
    sizes = {group.tokens_per_chunk for group in layout.groups if group.reads_all}
    if len(sizes) != 1:
        return None
    (size,) = sizes
    chunks = {group.tokens_per_chunk for group in layout.groups}
    # Otherwise a request may also continue within a chunk, where another group's chunk ends.
    return None if any(size % chunk and chunk % size for chunk in chunks) else size


def _met(layout: Layout, group: Group, chunks: Sequence[int], ends: Ends, size: int) -> Iterator[range]:
    """The chunks needed at each boundary, ``size`` tokens apart, and a token before the end of all tokens."""
    of_chunk, has_drafts = group.tokens_per_chunk, any(other.is_draft for other in layout.groups)
    for start in range(chunks[0] * of_chunk // size * size, (chunks[-1] + 1) * of_chunk, size):
        end = start + size
        first = max(start, group.first_needed(end - has_drafts))
        yield range(first // of_chunk, end // of_chunk)
    for last in (ends.prompt, ends.known):
        yield _needed(group, last - 1)


def _retained(layout: Layout, group: Group, chunks: Sequence[int], ends: Ends) -> Iterator[range]:
    """The chunks needed at retained boundaries."""
    for last in (ends.prompt, ends.shared):
        for limit in (last - 1, last):
            yield _needed(group, replay_boundary(layout, last, limit))
    if not (distance := layout.retention_tokens):
        return
    of_chunk = group.tokens_per_chunk
    for start in range(chunks[0] * of_chunk // distance * distance, (chunks[-1] + 1) * of_chunk, distance):
        first = max(-(-start // of_chunk), group.first_needed(start + distance) // of_chunk)
        yield range(first, -(-(start + distance) // of_chunk))


def _needed(group: Group, boundary: int) -> range:
    """The chunks that a request which continues at a boundary reads, or parts of them."""
    return range(group.first_needed(boundary) // group.tokens_per_chunk, -(-boundary // group.tokens_per_chunk))


def replay_boundary(layout: Layout, tokens: int, limit: int) -> int:
    """The highest boundary up to ``limit`` that a lookup finds when all of the first ``tokens`` is stored."""
    boundary = limit
    while boundary > 0:
        agreed = boundary
        for group in layout.groups:
            agreed = _reached(group, tokens, agreed)
        if agreed == boundary:
            break
        boundary = agreed
    return max(0, boundary)


def _reached(group: Group, tokens: int, limit: int) -> int:
    """The same with one group: ``lookup``'s rules, if only incomplete chunks are missing."""
    complete = tokens // group.tokens_per_chunk * group.tokens_per_chunk
    if group.kind is AttentionKind.STATE_SPACE:
        return min(limit, complete) // group.tokens_per_chunk * group.tokens_per_chunk
    if group.is_draft:
        return min(limit, complete - 1)
    if limit <= complete:
        return limit
    first = group.first_needed(limit)
    if first >= limit:
        return limit  # it reads no earlier tokens
    return max(complete, first) if group.restart_tokens else complete
