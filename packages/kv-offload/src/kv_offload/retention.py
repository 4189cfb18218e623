"""Which chunks of a window are worth storing where the engine keeps only some of them.

In vLLM that is ``prefix_cache_retention_interval``.

Everything that is computed could be of use to somebody who shares a part of it. Of a window that is a chunk for
every boundary, and nearly all of these are never asked for. So an engine may keep only what is before the
*retained boundaries*, and what it hands over of states follows the same rule:

* where those go on who repeat the prompt, or begin with all of it. What they find ends with the last chunk that is
  complete within the prompt, in every group, and where a state is;
* the same for a part of the prompt that the engine has seen others share;
* and, if the interval is not 0, every so many tokens.

A chunk is stored if somebody who goes on at a retained boundary reads any of it. What reads all tokens is always
stored: it decides how far anybody gets.
"""

from collections.abc import Sequence

from kv_api import AttentionKind
from kv_offload.layout import Group, Layout


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


def is_retained(layout: Layout, group: Group, end: int, ends: Sequence[int]) -> bool:
    """Whether a window's chunk that ends at ``end`` is read from a retained boundary.

    ``ends``: where the prompt ends, and what others share of it; 0 for nothing.
    """
    start = end - group.tokens_per_chunk
    boundaries = [replay_boundary(layout, last, limit) for last in ends for limit in (last - 1, last)]
    if layout.retention_tokens:
        boundaries.append((start // layout.retention_tokens + 1) * layout.retention_tokens)
    return any(start < boundary and group.first_needed(boundary) < end for boundary in boundaries)
