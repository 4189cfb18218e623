"""Where the tokens of a load come from, against a look at every token."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_api import CacheHitSource
from kv_offload.scheduler.state.sources import Supply, count_sources

HOST, DISK, UNKNOWN = CacheHitSource.HOST, CacheHitSource.DISK, CacheHitSource.EXTERNAL_UNSPECIFIED


@pytest.mark.parametrize(
    ("supplied", "counts"),
    [
        ([(0, 12, HOST)], {HOST: 8}),
        ([(4, 8, HOST), (8, 12, DISK)], {HOST: 4, DISK: 4}),
        ([(4, 12, HOST), (6, 8, DISK)], {HOST: 6, DISK: 2}),
        ([(10, 40, HOST)], {UNKNOWN: 6, HOST: 2}),
        ([], {UNKNOWN: 8}),
    ],
)
def test_sources_add_up(supplied, counts):
    assert count_sources(range(4, 12), supplied) == counts


def model(span, supplied):
    """Token by token."""
    counts = Counter()
    for token in span:
        sources = [source for first, end, source in supplied if first <= token < end]
        counts[CacheHitSource.outermost(sources) if sources else UNKNOWN] += 1
    return counts


places = st.integers(0, 20)


@given(places, places, st.lists(st.tuples(places, places, st.sampled_from([*CacheHitSource])), max_size=6))
def test_every_token_counts_once(first, length, supplied):
    span = range(first, first + length)
    assert count_sources(span, supplied) == model(span, supplied)


@given(st.lists(st.sampled_from([HOST, DISK]), max_size=8), places, st.integers(1, 4), st.integers(0, 3))
def test_chunks_in_a_row_supply_their_tokens_together(sources, start, size, first):
    keys = [b"%d" % place for place in range(len(sources))]
    supplied = [*Supply(start, size, first, keys).by_source(lambda key: sources[int(key)].value)]
    chunks = [(place * size, (place + 1) * size, source) for place, source in enumerate(sources, first)]
    each = [(max(start, token), end, source) for token, end, source in chunks]
    assert count_sources(range(50), supplied) == model(range(50), each)
    assert len(supplied) == sum(a is not b for a, b in zip(sources, [None, *sources], strict=False))
