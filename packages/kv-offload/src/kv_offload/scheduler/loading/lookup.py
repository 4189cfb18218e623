"""How far a request can be loaded: a rule for each kind of group, and the boundary on which all of them agree.

A rule takes a limit and answers with the highest boundary up to it at which its group could go on. A lower limit
never gets a higher answer. So all groups are asked in turn, each with the lowest answer so far as its limit, until
a round changes nothing: on that boundary all agree. A group that reads all tokens is asked only once, since it can
go on from any earlier boundary as well. The others may lower the limit by a chunk in each round, so answers are
remembered, and no chunk is asked for twice.

Chunks that are not readable yet (a store is under way, or a tier is still being asked) are first taken for hits.
If the boundary then needs one of them, waiting would pay, and the caller is told so; if it may not wait, they are
taken for misses.

Where there may be tails, one beyond that boundary is taken instead, by the same rule (``tail_lookup``).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from kv_api import AttentionKind, LookupResult, OffloadingManager, OffloadKey, ReqContext
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


Counts = Callable[[LookupResult], bool]
"""A function: whether an answer counts as a hit."""


class Answers:
    """A medium's answers about one group's chunks, for one lookup. Each chunk is looked up once."""

    def __init__(
        self,
        manager: OffloadingManager,
        context: ReqContext,
        keys: Sequence[OffloadKey],
        refused: Collection[OffloadKey] = (),
        known: Mapping[int, LookupResult] = MappingProxyType({}),
    ) -> None:
        """``known``: what it said of some chunks already, other than that they are there."""
        self._manager = manager
        self._context = context
        self._refused = refused
        self.keys = keys
        self._hits = range(0)
        """The first chunks that were found, one after the other: most often all there are."""
        self._known = dict(known)
        self._sound: dict[Counts, range] = {}
        """By what counted as a hit: the chunks that ``last_gap`` last found to have no gap."""

    def of(self, chunk: int) -> LookupResult:
        """The medium's answer about one chunk."""
        if chunk in self._hits:
            return LookupResult.HIT
        if chunk >= len(self.keys):
            return LookupResult.MISS  # the request doesn't fill it
        known = self._known.get(chunk)
        if known is None:
            key = self.keys[chunk]
            known = LookupResult.MISS if key in self._refused else self._manager.lookup(key, self._context)
            self._known[chunk] = known
        return known

    def ask_prefix(self, first: int, stop: int) -> None:
        """Ask for chunks in order, in few calls, up to the first that is missing.

        After a chunk that isn't readable yet the next call asks for one chunk, the one after it for two, and so
        on: its neighbours are probably not readable either, and a medium may look at all keys that it is given.
        """
        stop = min(stop, len(self.keys))
        at_once = stop - first
        if first in self._known:
            first, at_once = first + 1, 1
        while first < stop:
            end = min(stop, first + at_once)
            if self._refused:
                end = next((i for i in range(first, end) if self.keys[i] in self._refused), end)
            if end == first:
                return
            hits, rest = self._manager.lookup_prefix(self.keys[first:end], self._context)
            self._note_hits(range(first, first + hits))
            first += hits
            at_once *= 2
            if first < end:
                self._known[first] = rest
                if rest is LookupResult.MISS:
                    return
                first += 1
                at_once = 1

    def _note_hits(self, chunks: range) -> None:
        if self._hits:
            self._known.update(dict.fromkeys(chunks, LookupResult.HIT))
        else:
            self._hits = chunks

    @property
    def has_retries(self) -> bool:
        """Whether the medium could not yet say of some chunk whether it is there."""
        return LookupResult.RETRY in self._known.values()

    def first_gap(self, chunks: range, counts: Counts) -> int | None:
        """The first of some chunks whose answer doesn't count. A hit always counts."""
        start = self._hits.stop if chunks.start in self._hits else chunks.start
        return next((chunk for chunk in range(start, chunks.stop) if not counts(self.of(chunk))), None)

    def last_gap(self, chunks: range, counts: Counts) -> int | None:
        """The last of some chunks whose answer doesn't count. Callers come down, so what was sound is skipped."""
        sound = self._sound.get(counts, range(0))
        chunk = chunks.stop - 1
        while chunk >= chunks.start:
            if chunk in sound:
                chunk = sound.start
            elif not counts(self.of(chunk)):
                return chunk
            chunk -= 1
        self._sound[counts] = chunks
        return None


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
