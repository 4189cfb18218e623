"""Where the tokens of a load come from."""

from collections.abc import Sequence
from itertools import pairwise

from kv_api import CacheHitSource


def count_sources(span: range, supplied: Sequence[tuple[int, int, CacheHitSource]]) -> dict[CacheHitSource, int]:
    """Count the tokens of ``span`` by source; ``supplied`` has (first token, end, source), and may overlap.

    Where several groups load a token, the farthest source counts; where none needs to, it is unspecified.
    """
    cuts = sorted(
        {span.start, span.stop, *(cut for start, end, _ in supplied for cut in (start, end) if cut in span)}
    )
    counts: dict[CacheHitSource, int] = {}
    for first, end in pairwise(cuts):
        sources = [source for start, stop, source in supplied if start <= first and end <= stop]
        source = CacheHitSource.outermost(sources) if sources else CacheHitSource.EXTERNAL_UNSPECIFIED
        counts[source] = counts.get(source, 0) + end - first
    return counts
