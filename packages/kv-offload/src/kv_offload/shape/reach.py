"""Which chunks of a sliding window are worth storing: those that a later request may read.

Where an engine keeps everything that it computed, nearly all are. Requests that share a part of the tokens go on
where a chunk of a full-attention group ends, or a token before if there is a draft model. A request that repeats
all of them goes on a token before they end. A short window with finer chunks than that never reads some of them. A
window that begins anew (chunked local attention) may read any.

But of a window a chunk for every boundary is a lot, and nearly all are never asked for. So an engine may keep only
what is before the *retained boundaries* (vLLM's ``prefix_cache_retention_interval``), and what it hands over of
states follows the same rule:

* where those go on who repeat the prompt, or begin with all of it. What they find ends with the last chunk that is
  complete within the prompt, in every group, and where a state is;
* the same for a part of the prompt that the engine has seen others share;
* and, if the interval is not 0, every so many tokens.

Then a chunk is stored if somebody who goes on at a retained boundary reads any of it. What reads all tokens is
always stored: it decides how far anybody gets.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kv_api import AttentionKind
from kv_offload.shape.layout import Group, Layout


class Ends(NamedTuple):
    """Where others may stop to have the same tokens as a request; of what may be stored of it."""

    prompt: int
    known: int
    """All its tokens."""
    shared: int = 0
    """A part of the prompt that the engine has seen others share; 0: none."""


def reachable(layout: Layout, group: Group, chunks: Sequence[int], ends: Ends) -> Sequence[int]:
    """Those of some chunks of a window, which rise, that a lookup could ever need.

    Which a boundary needs follow each other, so what there is to do grows with boundaries and not with chunks.
    """
    if not chunks or not group.has_window or group.is_draft or group.restart_tokens:
        return chunks
    if layout.retention_tokens is not None:
        spans = _retained(layout, group, chunks, ends)
    else:
        size = _distance(layout)
        # Who goes on where a chunk ends reads of it, but for a window of one token: that is the computed one.
        if size is None or (group.tokens_per_chunk % size == 0 and group.window_tokens > 1):
            return chunks
        spans = _met(layout, group, chunks, ends, size)
    first, stop = chunks[0], chunks[-1] + 1
    needed = {chunk for span in spans for chunk in range(max(first, span.start), min(stop, span.stop))}
    return [chunk for chunk in chunks if chunk in needed]


def _distance(layout: Layout) -> int | None:
    """How far apart the boundaries are where requests go on that share a part; None: there are others between."""
    sizes = {group.tokens_per_chunk for group in layout.groups if group.reads_all}
    if len(sizes) != 1:
        return None
    (size,) = sizes
    chunks = {group.tokens_per_chunk for group in layout.groups}
    # Else one goes on within chunks, too, where the last chunk of another group ends.
    return None if any(size % chunk and chunk % size for chunk in chunks) else size


def _met(layout: Layout, group: Group, chunks: Sequence[int], ends: Ends, size: int) -> Iterator[range]:
    """What those need who go on where chunks that read all end, so far apart; or a token before all tokens do."""
    of_chunk, has_drafts = group.tokens_per_chunk, any(other.is_draft for other in layout.groups)
    for start in range(chunks[0] * of_chunk // size * size, (chunks[-1] + 1) * of_chunk, size):
        end = start + size
        first = max(start, group.first_needed(end - has_drafts))
        yield range(first // of_chunk, end // of_chunk)
    for last in (ends.prompt, ends.known):
        yield _needed(group, last - 1)


def _retained(layout: Layout, group: Group, chunks: Sequence[int], ends: Ends) -> Iterator[range]:
    """What is read from retained boundaries."""
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
    """The chunks of which somebody who goes on at a boundary reads anything."""
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
    """The same with one group: ``lookup``'s rules, where nothing is missing but what isn't complete."""
    complete = tokens // group.tokens_per_chunk * group.tokens_per_chunk
    if group.kind is AttentionKind.STATE_SPACE:
        return min(limit, complete) // group.tokens_per_chunk * group.tokens_per_chunk
    if group.is_draft:
        return min(limit, complete - 1)
    if limit <= complete:
        return limit
    first = group.first_needed(limit)
    if first >= limit:
        return limit  # it reads nothing of what came before
    return max(complete, first) if group.restart_tokens else complete
