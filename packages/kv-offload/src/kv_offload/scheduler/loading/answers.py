"""``Answers``: what a medium says of chunks, for one lookup, asked in as few calls as possible."""

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

from kv_api import LookupResult, OffloadingManager, OffloadKey, ReqContext

Counts = Callable[[LookupResult], bool]
"""A function: whether an answer counts as a hit."""


class Answers:
    """A medium's answers about one group's chunks. Each chunk is looked up once."""

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
