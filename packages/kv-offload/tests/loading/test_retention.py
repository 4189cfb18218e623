"""What of a window is stored: at a retained boundary everybody finds what he would find if all were stored."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kv_offload_calls import arrive
from kv_offload_configs import FULL, STATE, WINDOW, Request, kv_cache_config, step
from kv_offload_reach import is_reachable

from kv_api import ReqContext
from kv_offload.scheduler.loading.answers import Answers
from kv_offload.scheduler.loading.lookup import find_match
from kv_offload.shape.layout import Group, Layout
from kv_offload.shape.reach import Ends, reachable

from .test_lookup import HIT, Known, keys_of


@st.composite
def layouts(draw, intervals=(0, 4, 8)):
    per_chunk = draw(st.integers(1, 3))
    kinds = draw(st.lists(st.sampled_from([FULL, WINDOW, WINDOW]), min_size=1, max_size=4))
    kinds += [STATE] * draw(st.integers(0, 1))
    groups = []
    for group_id, kind in enumerate(kinds):
        size = draw(st.sampled_from([2, 4, 6]))
        window = draw(st.integers(1, 20)) if kind is WINDOW else 0
        is_draft = kind is not STATE and draw(st.integers(0, 5)) == 0
        restart = draw(st.sampled_from([0, 0, 6, 16])) if kind is WINDOW and not is_draft else 0
        groups.append(Group(group_id, kind, size, per_chunk, 1, window, restart, is_draft=is_draft))
    interval = draw(st.sampled_from(intervals))
    return Layout(tuple(groups), 2, 4, interval and interval * per_chunk)


def found(layout, stored, shared, limit):
    """How far somebody gets who shares `shared` tokens, when these chunks are stored, by group."""
    keys = [keys_of(group, shared // group.tokens_per_chunk) for group in layout.groups]
    known = {
        of_group[chunk]: HIT
        for of_group, chunks in zip(keys, stored, strict=True)
        for chunk in chunks
        if chunk < len(of_group)
    }
    answers = [Answers(Known(known), ReqContext("r"), of_group) for of_group in keys]
    return find_match(layout.groups, answers, 0, limit, may_wait=False).boundary


def stored_of(layout, prompt, junction):
    """What a prompt has, and what of it is stored; by group."""
    everything = [range(prompt // group.tokens_per_chunk) for group in layout.groups]
    ends = Ends(prompt, prompt, junction)
    stored = [
        [*reachable(layout, group, chunks, ends)] for group, chunks in zip(layout.groups, everything, strict=True)
    ]
    return everything, stored


NARROW = (Group(0, FULL, 2, 1, 1, is_draft=True), Group(1, WINDOW, 4, 1, 1, 1), Group(2, WINDOW, 2, 1, 1, 2))
ANEW = (Group(0, FULL, 2, 1, 1), Group(1, WINDOW, 4, 1, 1, 20, 6), Group(2, WINDOW, 2, 1, 1, 2))

ONE_TOKEN = (Group(0, FULL, 2, 1, 1), Group(1, WINDOW, 2, 1, 1, 1), Group(2, WINDOW, 4, 1, 1, 1))

EVEN = (Group(0, FULL, 2, 1, 1), Group(1, WINDOW, 2, 1, 1, 4))
LAST_TWO = (Group(0, FULL, 2, 1, 1), Group(1, WINDOW, 2, 1, 1, 3))
FINER = (Group(0, FULL, 8, 1, 1), Group(1, WINDOW, 2, 1, 1, 3))

MID_CHUNK = (Group(0, FULL, 2, 1, 1), Group(1, WINDOW, 4, 3, 3, 20, 16), Group(2, WINDOW, 2, 1, 1, 2))

WITH_STATES = (Group(0, FULL, 6, 1, 3), Group(1, WINDOW, 2, 1, 1, 2), Group(2, STATE, 4, 1, 2))

COARSE = (Group(0, FULL, 8, 1, 1), Group(1, FULL, 2, 1, 1, is_draft=True), Group(2, WINDOW, 2, 1, 1, 3))

AFTER_A_DRAFT = (Group(0, FULL, 2, 1, 1, is_draft=True), Group(1, WINDOW, 2, 1, 1, 3))


@given(layouts(), st.integers(1, 120), st.integers(0, 120))
@example(Layout(AFTER_A_DRAFT, 2, 2, 0), 5, 0)  # goes on a token before the last complete chunk ends
@example(Layout(NARROW, 2, 4, 0), 2, 0)  # a window of the token itself reads nothing of what came before
@example(Layout(ANEW, 2, 4, 0), 7, 0)  # nor does one that begins anew
@example(Layout(WITH_STATES, 2, 12, 0), 23, 0)  # goes on where a state is
@example(Layout(WITH_STATES, 2, 12, 0), 12, 0)  # and who has more than all of it, right after it
@example(Layout(COARSE, 2, 8, 0), 14, 0)  # before the last complete chunk of another group
@example(Layout(MID_CHUNK, 2, 4, 0), 22, 0)  # where one begins anew, its chunk need not be complete
def test_who_repeats_a_prompt_or_shares_what_others_did(layout, prompt, junction):
    junction = min(junction, prompt)
    everything, stored = stored_of(layout, prompt, junction)
    for tokens, limit in ((prompt, prompt - 1), (prompt, prompt + 9), (junction, junction)):
        assert found(layout, stored, tokens, limit) == found(layout, everything, tokens, limit)


BESIDE_A_DRAFT = (
    Group(0, FULL, 4, 1, 1),
    Group(1, WINDOW, 4, 1, 1, 14, is_draft=True),
    Group(2, WINDOW, 2, 1, 1, 3),
)
WITHIN_CHUNKS = (
    Group(0, FULL, 6, 1, 1, is_draft=True),
    Group(1, WINDOW, 4, 1, 1, 7),
    Group(2, WINDOW, 2, 1, 1, 2),
)
OF_A_DRAFT = (Group(0, FULL, 18, 1, 9), Group(1, WINDOW, 6, 1, 3, 1, is_draft=True), Group(2, WINDOW, 6, 1, 3, 13))
IN_TURN = (Group(0, FULL, 6, 1, 3), Group(1, WINDOW, 4, 1, 2, 3))
OF_ANOTHER = (Group(0, FULL, 4, 1, 2), Group(1, WINDOW, 6, 1, 3, 20), Group(2, WINDOW, 2, 1, 1, 2))
WINDOWS_ALONE = (Group(0, WINDOW, 2, 1, 1, 3), Group(1, WINDOW, 4, 1, 2, 3))


@given(layouts((None,)), st.integers(1, 120), st.integers(0, 120))
@example(Layout(BESIDE_A_DRAFT, 2, 4, None), 13, 0)  # goes on a token before full attention's last chunk ends
@example(Layout(WITHIN_CHUNKS, 2, 12, None), 6, 0)  # goes on where another window's last chunk ends
@example(Layout(OF_A_DRAFT, 2, 18, None), 19, 0)  # goes on a token before the draft model's chunk ends
@example(Layout(IN_TURN, 2, 12, None), 17, 8)  # goes on in the middle of a window's chunk
@example(Layout(OF_ANOTHER, 2, 12, None), 17, 10)  # goes on where the chunk of another window begins
@example(Layout(WINDOWS_ALONE, 2, 4, None), 17, 10)  # goes on anywhere: no group reads all, and says where
def test_without_retention_who_shares_any_part_finds_it(layout, prompt, shared):
    layout = replace(layout, groups=tuple(group for group in layout.groups if group.kind is not STATE))
    shared = min(shared, prompt)
    everything, stored = stored_of(layout, prompt, prompt)
    for tokens, limit in ((prompt, prompt - 1), (shared, shared + 9)):
        assert found(layout, stored, tokens, limit) == found(layout, everything, tokens, limit)


@given(layouts((4, 8)), st.integers(40, 120), st.integers(30, 120))
def test_who_shares_any_part_finds_the_last_interval(layout, prompt, shared):
    shared = min(shared, prompt)
    everything, stored = stored_of(layout, prompt, 0)
    best = found(layout, everything, shared, shared) // layout.retention_tokens * layout.retention_tokens
    if found(layout, everything, shared, best) == best:  # a state may end elsewhere
        assert found(layout, stored, shared, best) == best


rising = st.lists(st.integers(0, 60), max_size=30, unique=True).map(sorted)


@example(Layout(ONE_TOKEN, 2, 4), (0, 0, 0), [0], 1)
@example(Layout(ONE_TOKEN, 2, 4), (7, 9, 0), range(5), 1)
@example(Layout(EVEN, 2, 2, 0), (8, 0, 0), range(4), 1)  # goes on a token before all of its window is complete
@example(Layout(LAST_TWO, 2, 2, 4), (0, 0, 0), range(8, 12), 1)  # what is looked at begins some intervals on
@example(Layout(FINER, 2, 8, None), (0, 0, 0), range(8, 12), 1)
@example(Layout((Group(0, FULL, 16, 1, 1), Group(1, WINDOW, 4, 1, 1, 30)), 4, 16), (0, 0, 0), range(4, 5), 1)
@given(
    layouts((None, 0, 4, 8, 6)),
    st.tuples(st.integers(0, 120), st.integers(0, 120), st.integers(0, 120)),
    st.one_of(rising, st.builds(range, st.integers(0, 30), st.integers(0, 60))),
    st.sampled_from([1, 2]),
)
def test_which_are_reached_is_the_same_for_all_at_once_as_for_each(layout, lasts, chunks, finer):
    """Also where a window's chunks are much finer than what decides where others go on."""
    groups = [
        replace(group, tokens_per_block=(finer if group.has_window else 8 * group.tokens_per_block))
        for group in layout.groups
    ]
    ends = Ends(*lasts)
    for each in (layout, replace(layout, groups=tuple(groups))):
        for group in each.groups:
            size = group.tokens_per_chunk
            expected = [chunk for chunk in chunks if is_reachable(each, group, (chunk + 1) * size, ends)]
            assert [*reachable(each, group, chunks, ends)] == expected


@given(layouts(), st.integers(1, 120))
def test_less_is_stored(layout, prompt):
    """At most what two boundaries and one in each interval need."""
    boundaries = 2 + (prompt // layout.retention_tokens if layout.retention_tokens else 0)
    for group in layout.groups:
        if group.has_window and not group.is_draft and not group.restart_tokens:
            size = group.tokens_per_chunk
            ends = Ends(prompt, prompt)
            chunks = reachable(layout, group, range(prompt // size), ends)
            assert len(chunks) <= boundaries * (group.window_tokens // size + 2)


@given(layouts(), st.integers(1, 60))
@example(Layout((Group(0, FULL, 4, 1, 1), Group(1, WINDOW, 4, 1, 1, 1)), 2, 4, 4), 20)
@example(Layout((Group(0, FULL, 8, 1, 1), Group(1, WINDOW, 4, 1, 1, 2)), 2, 8, 8), 20)
def test_where_all_is_reached_every_chunk_is(layout, prompt):
    alike = tuple(replace(group, tokens_per_block=4) for group in layout.groups)
    for groups, retention in product((layout.groups, alike), (layout.retention_tokens, None)):
        each = Layout(groups, 2, 4, retention)
        if each.reaches_all:
            everything, stored = stored_of(each, prompt, 0)
            assert stored == [[*chunks] for chunks in everything]


@pytest.mark.parametrize(("shared", "blocks"), [(16, [13, 14, 19, 20]), (0, [19, 20]), (40, [19, 20])])
def test_a_request_stores_the_end_of_its_prompts_window(make, manager, shared, blocks):
    connector = make(hold_blocks="never", retention=0, cache=kv_cache_config(((FULL, 4, 0), (WINDOW, 4, 5))))
    a = arrive(connector, Request("a", range(40)))
    table = [*range(1, 11)], [*range(11, 21)]
    a.shared_prefix_boundary = shared
    connector.get_num_new_matched_tokens(a, 0)
    (job,) = connector.build_connector_meta(step(new=[("a", table)], counts={"a": 40})).store_jobs.values()
    assert job.gpu_spec.group_sizes == (10, len(blocks))
    assert job.gpu_spec.block_ids.tolist()[10:] == blocks


def test_what_others_share_counts_as_far_as_it_may_be_stored(make):
    connector = make(hold_blocks="never", retention=0, cache=kv_cache_config(((FULL, 16, 0), (WINDOW, 4, 13))))
    a = arrive(connector, Request("a", range(40), params={"max_offload_tokens": 24}))
    a.shared_prefix_boundary = 32
    connector.get_num_new_matched_tokens(a, 0)
    tables = [1, 2, 3], [*range(11, 21)]
    (job,) = connector.build_connector_meta(step(new=[("a", tables)], counts={"a": 40})).store_jobs.values()
    assert job.gpu_spec.block_ids.tolist() == [1, 12, 13, 14]


NOWHERE = Ends(0, 0)


def test_a_draft_model_lets_others_go_on_a_token_before_its_chunks():
    for is_draft, reached in ((False, [16]), (True, [12, 16])):
        groups = Group(0, FULL, 16, 1, 4, is_draft=is_draft), Group(1, WINDOW, 4, 1, 1, 5)
        chunks = reachable(Layout(groups, 4, 16), groups[1], range(4), NOWHERE)
        assert [4 * chunk + 4 for chunk in chunks] == reached


@pytest.mark.parametrize(
    ("size", "other_size", "ends", "reached"),
    [
        (16, 4, NOWHERE, [16, 32]),
        (16, 4, Ends(8, 0), [4, 8, 16, 32]),  # who repeats 8 tokens goes on after 7, and reads from 3 on
        (16, 4, Ends(0, 9), [8, 16, 32]),
        (16, 4, Ends(10, 10), [8, 12, 16, 32]),
        (16, 4, Ends(9, 24), [8, 16, 20, 24, 32]),
        (4, 8, NOWHERE, [4, 8, 12, 16, 20, 24, 28, 32]),
        (8, 16, NOWHERE, [8, 16, 24, 32]),  # chunks of one are a multiple of the other's
        (8, 12, NOWHERE, [4, 8, 12, 16, 20, 24, 28, 32]),  # goes on within chunks
    ],
)
def test_what_nobody_can_reach_is_left_out(size, other_size, ends, reached):
    groups = Group(0, FULL, size, 1, 1), Group(1, WINDOW, other_size, 1, 1, 30), Group(2, WINDOW, 4, 1, 1, 5)
    layout = Layout(groups, 4, 48)
    assert [4 * chunk + 4 for chunk in reachable(layout, groups[2], range(8), ends)] == reached
