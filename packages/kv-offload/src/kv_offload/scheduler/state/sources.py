"""Where the tokens of a load come from."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from kv_api import CacheHitSource, OffloadKey

Supplied = tuple[int, int, CacheHitSource]
"""First token, end, and where they come from."""


class Supply(NamedTuple):
    """The tokens that one group's chunks, one after the other, bring to a load from ``first_token`` on."""

    first_token: int
    tokens_per_chunk: int
    first_chunk: int
    keys: Sequence[OffloadKey]

    def by_source(self, source_of: Callable[[OffloadKey], str]) -> Iterator[Supplied]:
        """The tokens of each source; of chunks in a row that have the same one, together."""
        size, chunk = self.tokens_per_chunk, self.first_chunk
        for source, same in groupby(map(source_of, self.keys)):
            stop = chunk + sum(1 for _ in same)
            yield max(self.first_token, chunk * size), stop * size, CacheHitSource(source)
            chunk = stop


def count_sources(span: range, supplied: Iterable[Supplied]) -> dict[CacheHitSource, int]:
    """Count the tokens of ``span`` by source; what is ``supplied`` may overlap.

    Where several groups load a token, the farthest source counts; where none needs to, it is unspecified.
    """
    changes = [(span.stop, 0, CacheHitSource.EXTERNAL_UNSPECIFIED)]
    for start, stop, source in supplied:
        first, end = max(start, span.start), min(stop, span.stop)
        if first < end:
            changes += ((first, 1, source), (end, -1, source))
    changes.sort(key=lambda change: change[0])
    counts: Counter[CacheHitSource] = Counter()
    here: Counter[CacheHitSource] = Counter()
    token = span.start
    for place, change, source in changes:
        if place > token:
            farthest = CacheHitSource.outermost(+here) if +here else CacheHitSource.EXTERNAL_UNSPECIFIED
            counts[farthest] += place - token
            token = place
        here[source] += change
    return dict(counts)
