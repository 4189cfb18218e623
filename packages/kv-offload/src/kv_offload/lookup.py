"""How far a request can be loaded: a rule for each kind of group, and the boundary on which all of them agree.

A rule takes a limit and answers with the highest boundary up to it at which its group could go on. It only ever
goes down as the limit does, so asking all groups again and again with the lowest answer comes to an end: there all
agree.

Chunks that are not readable yet (a store is under way, or a tier is still being asked) are first taken for hits.
If the boundary then needs one of them, waiting would pay, and the caller is told so; if it may not wait, they are
taken for misses.
"""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from kv_api import AttentionKind, LookupResult, OffloadingManager, OffloadKey, ReqContext
from kv_offload.layout import Group


class Match(NamedTuple):
    """What a lookup came to."""

    boundary: int
    """Tokens after which the request could go on; what it has itself if nothing can be loaded."""
    waits: bool = False
    """The boundary needs chunks that aren't readable yet."""


class Answers:
    """What a medium says of one group's chunks, for one lookup. Each chunk is asked for once."""

    def __init__(
        self,
        manager: OffloadingManager,
        context: ReqContext,
        keys: Sequence[OffloadKey],
        refused: Collection[OffloadKey] = (),
    ) -> None:
        self._manager = manager
        self._context = context
        self._refused = refused
        self.keys = keys
        self._known: dict[int, LookupResult] = {}

    def of(self, chunk: int) -> LookupResult:
        """What is known of one chunk."""
        if chunk >= len(self.keys):
            return LookupResult.MISS  # the request doesn't fill it
        known = self._known.get(chunk)
        if known is None:
            key = self.keys[chunk]
            known = LookupResult.MISS if key in self._refused else self._manager.lookup(key, self._context)
            self._known[chunk] = known
        return known

    def ask_prefix(self, first: int, stop: int) -> None:
        """Ask for chunks in order, in as few calls as possible, up to the first that is missing."""
        stop = min(stop, len(self.keys))
        while first < stop:
            end = stop
            if self._refused:
                end = next((i for i in range(first, stop) if self.keys[i] in self._refused), stop)
            if end > first:
                hits, rest = self._manager.lookup_prefix(self.keys[first:end], self._context)
                for chunk in range(first, first + hits):
                    self._known[chunk] = LookupResult.HIT
                first += hits
                if first < end:
                    self._known[first] = rest
                    first += 1
                    if rest is not LookupResult.MISS:
                        continue
            return


Counts = Callable[[LookupResult], bool]
"""Whether an answer counts as a hit."""


def _is_there(answer: LookupResult) -> bool:
    return answer is not LookupResult.MISS


def _is_readable(answer: LookupResult) -> bool:
    return answer is LookupResult.HIT


def _full(group: Group, answers: Answers, local: int, limit: int, counts: Counts) -> int:
    """Every chunk from the request's own tokens on."""
    first = local // group.tokens_per_chunk
    for chunk in range(first, max(first, group.chunks_needed(local, limit).stop)):
        if not counts(answers.of(chunk)):
            return max(local, _before(group, chunk))
    return limit


def _before(group: Group, chunk: int) -> int:
    """The highest boundary that doesn't need a chunk."""
    return chunk * group.tokens_per_chunk - group.is_draft


def _sliding_window(group: Group, answers: Answers, local: int, limit: int, counts: Counts) -> int:
    """The chunks that the window before the boundary reaches, as far as they aren't the request's own."""
    boundary = limit
    while boundary > local:
        needed = group.chunks_needed(local, boundary)
        start = group.first_needed(boundary)
        gap = next((chunk for chunk in reversed(needed) if not counts(answers.of(chunk))), None)
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
    AttentionKind.FULL: _full,
    AttentionKind.SLIDING_WINDOW: _sliding_window,
    AttentionKind.STATE_SPACE: _state_space,
}


def find_match(
    groups: Sequence[Group], answers: Sequence[Answers], local: int, limit: int, may_wait: bool
) -> Match:
    """How far a request with ``local`` tokens of its own can be loaded, at most to ``limit``."""
    # What reads everything comes first: it takes few calls, and what it doesn't find nobody else has to look for.
    asked = sorted(zip(groups, answers, strict=True), key=lambda pair: pair[0].kind is not AttentionKind.FULL)
    for group, of_group in asked:
        if group.kind is AttentionKind.FULL:
            of_group.ask_prefix(local // group.tokens_per_chunk, group.chunks_needed(local, limit).stop)
    boundary = _agree(asked, local, limit, _is_there)
    if all(
        _is_readable(of_group.of(chunk))
        for group, of_group in asked
        for chunk in (group.chunks_needed(local, boundary) if boundary > local else ())
    ):
        return Match(boundary)
    if may_wait:
        return Match(boundary, waits=True)
    return Match(_agree(asked, local, limit, _is_readable))


def _agree(asked: Sequence[tuple[Group, Answers]], local: int, limit: int, counts: Counts) -> int:
    boundary = max(limit, local)
    while boundary > local:
        agreed = boundary
        for group, of_group in asked:
            agreed = RULES[group.kind](group, of_group, local, agreed, counts)
        if agreed == boundary:
            break
        boundary = agreed
    return boundary
