"""Which chunks of a window are worth storing: those that somebody who goes on may reach.

Where an engine keeps everything that it computed, nearly all are. Requests that share a part of the tokens go on
where a chunk of a full-attention group ends, or a token before if there is a draft model; one that repeats all of
them, a token before they end. A short window with finer chunks than that never reads some of them. A window that
begins anew (chunked local attention) may read any.

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


def is_reachable(layout: Layout, group: Group, end: int, ends: Ends) -> bool:
    """Whether a lookup could ever need the window's chunk that ends at ``end``."""
    if not group.has_window or group.is_draft or group.restart_tokens:
        return True
    if layout.retention_tokens is not None:
        return _is_retained(layout, group, end, ends)
    sizes = {other.tokens_per_chunk for other in layout.groups if other.reads_all}
    if len(sizes) != 1:
        return True
    (size,) = sizes
    chunks = {other.tokens_per_chunk for other in layout.groups}
    if any(size % chunk and chunk % size for chunk in chunks):
        return True  # then one goes on within chunks, too, where the last chunk of another group ends
    has_drafts = any(other.is_draft for other in layout.groups)
    start = end - group.tokens_per_chunk
    repeats = [last - 1 for last in (ends.prompt, ends.known) if last > start + 1]
    return any(group.first_needed(boundary) < end for boundary in [-(-end // size) * size - has_drafts, *repeats])


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


def _is_retained(layout: Layout, group: Group, end: int, ends: Ends) -> bool:
    """Whether a window's chunk that ends at ``end`` is read from a retained boundary."""
    start = end - group.tokens_per_chunk
    lasts = (ends.prompt, ends.shared)
    boundaries = [replay_boundary(layout, last, limit) for last in lasts for limit in (last - 1, last)]
    if layout.retention_tokens:
        boundaries.append((start // layout.retention_tokens + 1) * layout.retention_tokens)
    return any(start < boundary and group.first_needed(boundary) < end for boundary in boundaries)
