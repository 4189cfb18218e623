"""How far a request can be loaded: a rule for each kind of group, and the boundary on which all of them agree.

A rule takes a limit and answers with the highest boundary up to it at which its group could go on. A lower limit
never gets a higher answer. So all groups are asked in turn, each with the lowest answer so far as its limit, until
a round changes nothing: on that boundary all agree. A group that reads all tokens is asked only once, since it can
go on from any earlier boundary as well. The others may lower the limit by a chunk in each round; no chunk is asked
for twice, since ``answers`` are remembered.

Chunks that are not readable yet (a store is under way, or a tier is still being asked) are first taken for hits.
If the boundary then needs one of them, waiting would pay, and the caller is told so; if it may not wait, they are
taken for misses.

Where there may be tails, one beyond that boundary is taken instead, by the same rule (``tail_lookup``).
"""

from collections.abc import Sequence
from typing import NamedTuple

from kv_api import AttentionKind, LookupResult, OffloadKey
from kv_offload.scheduler.loading.answers import Answers, Counts
from kv_offload.scheduler.loading.tail_lookup import TailAnswers
from kv_offload.shape.layout import Group


class Match(NamedTuple):
    """The result of a lookup."""

    boundary: int
    """Tokens after which the request could go on; what it has itself if nothing can be loaded."""
    waits: bool = False
    """The boundary needs chunks that aren't readable yet."""
    is_tail: bool = False
    """The boundary is within a block, at the end of a tail."""
    awaited: OffloadKey | None = None
    """One of the complete chunks that aren't readable yet: probably the last to become readable."""


def _is_there(answer: LookupResult) -> bool:
    return answer is not LookupResult.MISS


def _is_readable(answer: LookupResult) -> bool:
    return answer is LookupResult.HIT


def _full(group: Group, answers: Answers, local: int, limit: int, counts: Counts) -> int:
    """Every chunk from the request's own tokens on."""
    chunks = range(local // group.tokens_per_chunk, group.chunks_needed(local, limit).stop)
    gap = answers.first_gap(chunks, counts)
    return limit if gap is None else max(local, _before(group, gap))


def _before(group: Group, chunk: int) -> int:
    """The highest boundary that doesn't need a chunk."""
    return chunk * group.tokens_per_chunk - group.is_draft


def _sliding_window(group: Group, answers: Answers, local: int, limit: int, counts: Counts) -> int:
    """The chunks that the window before the boundary reaches, as far as they aren't the request's own."""
    boundary = limit
    while boundary > local:
        needed = group.chunks_needed(local, boundary)
        start = group.first_needed(boundary)
        gap = answers.last_gap(needed, counts)
        if gap is None:
            return boundary
        boundary = _before(group, gap)
        if group.restart_tokens and not group.is_draft:
            boundary = max(boundary, start)  # where it begins anew nothing is read
    return local


def _state_space(group: Group, answers: Answers, local: int, limit: int, counts: Counts) -> int:
    """The one chunk that ends at the boundary."""
    size = group.tokens_per_chunk
    for chunks in range(limit // size, local // size, -1):
        if counts(answers.of(chunks - 1)):
            return chunks * size
    return local


RULES = {
    AttentionKind.SLIDING_WINDOW: _sliding_window,
    AttentionKind.STATE_SPACE: _state_space,
}


def find_match(
    groups: Sequence[Group],
    answers: Sequence[Answers],
    local: int,
    limit: int,
    *,
    may_wait: bool,
    tails: TailAnswers | None = None,
) -> Match:
    """How far a request with ``local`` tokens of its own can be loaded, at most to ``limit``."""
    asked = [*zip(groups, answers, strict=True)]
    for group, of_group in asked:
        if group.reads_all:
            of_group.ask_prefix(local // group.tokens_per_chunk, group.chunks_needed(local, limit).stop)
    found = _find(asked, local, limit, _is_there, tails)
    if _has_all_of(found, asked, local, tails):
        return found
    if may_wait:
        return found._replace(waits=True, awaited=_last_under_way(found, asked, local))
    return _find(asked, local, limit, _is_readable, tails)


Asked = Sequence[tuple[Group, Answers]]


def _find(asked: Asked, local: int, limit: int, counts: Counts, tails: TailAnswers | None) -> Match:
    boundary = _agree(asked, local, limit, counts)
    tail = _find_tail(asked, local, boundary, counts, tails) if tails is not None else None
    return Match(boundary) if tail is None else Match(tail, is_tail=True)


def _find_tail(asked: Asked, local: int, boundary: int, counts: Counts, tails: TailAnswers) -> int | None:
    """The end of a tail beyond the boundary that complete chunks make possible."""
    size = tails.tokens_per_block
    if boundary % size:
        return None
    reach = max(boundary, tails.limit // size * size)
    for group, of_group in asked:
        if group.reads_all:
            gap = of_group.first_gap(range(local // size, reach // size), counts)
            reach = reach if gap is None else gap * size
    for start in dict.fromkeys((reach, boundary)):
        tail = tails.highest(start, counts)
        if tail is not None:
            return tail
    return None


def _has_all_of(found: Match, asked: Asked, local: int, tails: TailAnswers | None) -> bool:
    """Whether all that a load needs is readable now."""
    boundary = found.boundary
    if found.is_tail and tails is not None:
        if not tails.has(boundary, _is_readable):
            return False
        boundary -= boundary % tails.tokens_per_block
        asked = [(group, of_group) for group, of_group in asked if group.reads_all]
    return boundary <= local or all(
        of_group.first_gap(group.chunks_needed(local, boundary), _is_readable) is None for group, of_group in asked
    )


def _last_under_way(found: Match, asked: Asked, local: int) -> OffloadKey | None:
    """The last chunk that a load needs and that is on its way: chunks of one prompt mostly come in its order.

    None where a tier is still being asked. It may wait for the next question before it goes on.
    """
    if found.is_tail or any(of_group.has_retries for _, of_group in asked):
        return None
    for group, of_group in asked:
        chunk = of_group.last_gap(group.chunks_needed(local, found.boundary), _is_readable)
        if chunk is not None and of_group.of(chunk) is LookupResult.HIT_PENDING:
            return of_group.keys[chunk]
    return None


def _agree(asked: Asked, local: int, limit: int, counts: Counts) -> int:
    # What reads everything comes first: it takes few calls, and what it doesn't find nobody else has to look for.
    boundary = max(limit, local)
    for group, of_group in asked:
        if group.reads_all and boundary > local:
            boundary = _full(group, of_group, local, boundary, counts)
    others = [(RULES[group.kind], group, of_group) for group, of_group in asked if not group.reads_all]
    while boundary > local:
        agreed = boundary
        for rule, group, of_group in others:
            agreed = rule(group, of_group, local, agreed, counts)
        if agreed == boundary:
            break
        boundary = agreed
    return boundary
