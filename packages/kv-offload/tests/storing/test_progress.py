"""What of a group is offered, against an obvious model: chunk by chunk, whether it may be stored."""

import sys

from hypothesis import given
from hypothesis import strategies as st
from kv_offload_configs import FULL, STATE, WINDOW
from kv_offload_reach import is_reachable

from kv_api import OffloadKey, ReqContext
from kv_offload.scheduler.state.progress import GroupProgress, Progress
from kv_offload.shape.layout import Group, Layout
from kv_offload.shape.reach import Ends


@st.composite
def groups_under_way(draw):
    """A layout, how far one of its groups has come, and how far it may go."""
    per_chunk, kind = draw(st.integers(1, 3)), draw(st.sampled_from([FULL, WINDOW, STATE]))
    window = draw(st.integers(1, 9)) if kind is WINDOW else 0
    group = Group(1, kind, 4, per_chunk, per_chunk, window)
    others = draw(st.sampled_from([(), (4,), (8,)]))
    groups = (*(Group(0, FULL, size, per_chunk, per_chunk) for size in others), group)
    interval = draw(st.sampled_from([None, None, 0, 8]))
    layout = Layout(groups, 4, 8, interval and interval * per_chunk)
    chunks = draw(st.integers(0, 7))
    blocks = st.just(9) if kind is FULL else st.sampled_from([9, 9, 9, 0])
    table = draw(st.lists(blocks, min_size=chunks * per_chunk, max_size=chunks * per_chunk + 1))
    loaded = range(*sorted(draw(st.tuples(st.integers(0, chunks), st.integers(0, chunks)))))
    progress = GroupProgress(group, table=table, cursor=draw(st.integers(0, chunks)), loaded=loaded)
    return layout, progress, draw(st.integers(0, chunks))


@given(groups_under_way(), st.builds(Ends, *[st.integers(0, 90)] * 3), st.booleans())
def test_what_is_offered(case, ends, with_loaded):
    layout, progress, stop = case
    group = progress.group
    expected = [
        chunk
        for chunk in range(progress.cursor, stop)
        if (with_loaded or chunk not in progress.loaded)
        and all(progress.table[block] for block in group.stored_blocks(chunk))
        and is_reachable(layout, group, (chunk + 1) * group.tokens_per_chunk, ends)
    ]
    assert [*progress.offers(stop, ends, layout, with_loaded=with_loaded)] == expected


@given(
    st.lists(st.tuples(st.sampled_from([4, 8, 16]), st.integers(0, 4)), min_size=1, max_size=3), st.integers(0, 70)
)
def test_there_is_more_where_a_chunk_of_any_group_was_not_offered(sizes_and_cursors, tokens):
    groups = [Group(number, FULL, size, 1, 1) for number, (size, _) in enumerate(sizes_and_cursors)]
    progress = Progress(Layout(tuple(groups), 4, 16), ReqContext("r"))
    for of_group, (_, cursor) in zip(progress.groups, sizes_and_cursors, strict=True):
        of_group.cursor = cursor
    ends = [(cursor + 1) * size for size, cursor in sizes_and_cursors]
    assert progress.has_more(tokens) is any(end <= tokens for end in ends)
    progress.pass_over([0] * len(groups), {}, max(ends), 0, 0)
    assert progress.next_end == min(ends)


def test_a_prompt_waits_for_an_eighth_of_what_it_offered():
    progress = Progress(Layout((Group(0, FULL, 4, 1, 1),), 4, 4), ReqContext("r"))
    for chunks, more in ((7, 1), (15, 1), (16, 2), (23, 2), (24, 3)):
        progress.pass_over([chunks], {}, 1000, 4 * chunks, 1000)
        assert progress.next_end == 4 * (chunks + more)
    progress.groups[0].loaded = range(1)  # which it did not offer
    progress.pass_over([24], {}, 1000, 96, 1000)
    assert progress.next_end == 4 * (24 + 2)


def test_who_may_store_nothing_more_is_looked_at_again_only_where_blocks_may_be_lost_one_by_one():
    full, window = Group(0, FULL, 4, 1, 1), Group(1, WINDOW, 4, 1, 1, 9)
    for groups, known, again in (((full,), 24, sys.maxsize), ((full, window), 24, 48), ((full, window), 3, 12)):
        progress = Progress(Layout(groups, 4, 4), ReqContext("r"))
        progress.pass_over([2] * len(groups), {}, 8, known, 8)
        assert progress.next_end == again


def test_a_chunk_may_be_stored_that_has_ended_and_has_a_key_and_all_of_its_blocks():
    progress = Progress(Layout((Group(0, FULL, 4, 2, 2),), 4, 8), ReqContext("r"))
    of_group = progress.groups[0]
    for tokens, keys, blocks, stop in ((24, 3, 6, 3), (23, 3, 6, 2), (24, 2, 6, 2), (24, 3, 5, 2), (24, 3, 0, 0)):
        of_group.keys, of_group.table = [OffloadKey(b"a key")] * keys, [9] * blocks
        assert progress.stops(tokens, tokens) == [stop]


def test_chunks_that_lost_blocks_are_not_offered_wherever_one_begins_to_look():
    group, layout = Group(1, WINDOW, 4, 2, 2, 9), Layout((Group(0, FULL, 8, 1, 2),), 4, 8)
    for cursor, offered in ((0, [0, 3, 4]), (1, [3, 4]), (2, [3, 4]), (3, [3, 4]), (4, [4])):
        progress = GroupProgress(group, table=[9, 9, 9, 0, 0, 9, 9, 9, 9, 9, 0], cursor=cursor)
        assert [*progress.offers(5, None, layout, with_loaded=False)] == offered


def test_the_first_token_in_some_blocks_may_be_of_any_group():
    progress = Progress(Layout((Group(0, FULL, 4, 1, 1), Group(1, WINDOW, 8, 1, 2, 9)), 4, 8), ReqContext("r"))
    progress.begin([[1, 2, 3], [0, 5]])
    for blocks, first in (({3}, 8), ({2, 3}, 4), ({3, 5}, 8), ({5}, 8), ({4}, None)):
        assert progress.first_token_in(blocks) == first
    progress.begin([[1, 2, 3], [4, 5]])
    assert progress.first_token_in({3, 4}) == 0


def test_who_lost_its_blocks_begins_at_its_first_token():
    progress = Progress(Layout((Group(0, FULL, 4, 1, 1),), 4, 4), ReqContext("r"))
    progress.begin([[1, 2]])
    progress.pass_over([2], {}, 99, 8, 8)
    assert (progress.has_more(8), progress.next_end) == (False, 12)
    progress.lose_blocks()
    assert (progress.has_blocks, progress.has_more(8), progress.next_end) == (False, True, 0)
