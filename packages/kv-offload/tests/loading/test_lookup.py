"""Lookups against an obvious model: try every boundary, from the highest down."""

from functools import partial
from itertools import chain

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kv_offload_configs import FULL, STATE, WINDOW
from kv_offload_medium import Known
from kv_offload_work import work_of

from kv_api import LookupResult, ReqContext, make_offload_key
from kv_offload.scheduler.loading.answers import Answers
from kv_offload.scheduler.loading.lookup import Match, find_match
from kv_offload.shape.layout import Group

HIT, MISS, PENDING, RETRY = LookupResult.HIT, LookupResult.MISS, LookupResult.HIT_PENDING, LookupResult.RETRY


def keys_of(group, count):
    return [make_offload_key(b"%08d" % n, group.group_id) for n in range(count)]


def tokens_needed(group, local, boundary):
    """The tokens that a load must bring so that the request can go on at `boundary`."""
    if group.kind is STATE:
        return [boundary - 1]
    first = max(0, boundary - group.window_tokens + 1) if group.kind is WINDOW else 0
    if group.restart_tokens:
        first = boundary - boundary % group.restart_tokens
    return range(max(local, first), boundary)


def chunks_needed(group, local, boundary):
    chunks = {token // group.tokens_per_chunk for token in tokens_needed(group, local, boundary)}
    if group.is_draft:
        chunks.add(boundary // group.tokens_per_chunk)  # where the token after the last one is
    return chunks


def is_possible(group, answers, local, boundary, counts):
    if group.kind is STATE and boundary % group.tokens_per_chunk:
        return False
    needed = chunks_needed(group, local, boundary)
    return all(chunk < len(answers) and answers[chunk] in counts for chunk in needed)


def model(groups, answers, local, limit, may_wait):
    """The highest boundary at which all could go on."""

    def highest(counts):
        fits = (
            b
            for b in range(limit, local, -1)
            if all(is_possible(g, a, local, b, counts) for g, a in zip(groups, answers, strict=True))
        )
        return next(fits, local)

    there, readable = highest({HIT, PENDING, RETRY}), highest({HIT})
    if there == local:
        return Match(there)
    needed = all(is_possible(g, a, local, there, {HIT}) for g, a in zip(groups, answers, strict=True))
    if needed:
        return Match(there)
    return Match(there, waits=True) if may_wait else Match(readable)


@st.composite
def any_group(draw, group_id, per_chunk):
    kind = draw(st.sampled_from([FULL, FULL, WINDOW, STATE]))
    size = draw(st.sampled_from([2, 4]))
    window = draw(st.integers(1, 14)) if kind is WINDOW else 0
    is_draft = kind is not STATE and draw(st.sampled_from([False, False, True]))
    restart = draw(st.sampled_from([0, 3, 6, 8])) if kind is WINDOW else 0
    return Group(group_id, kind, size, per_chunk, 1, window, restart, is_draft=is_draft)


@st.composite
def lookups(draw):
    per_chunk = draw(st.integers(1, 4))
    groups, answers = [], []
    for group_id in range(draw(st.integers(1, 3))):
        group = draw(any_group(group_id, per_chunk))
        groups.append(group)
        states = st.sampled_from([HIT, HIT, HIT, HIT, MISS, PENDING, RETRY])
        answers.append(draw(st.lists(states, max_size=24 // group.tokens_per_chunk)))
    local = 4 * draw(st.integers(0, 4))
    limit = draw(st.integers(local, 26))
    return groups, answers, local, limit, draw(st.booleans())


OF_A_DRAFT = [Group(0, FULL, 2, 1, 1, is_draft=True)]
OF_A_WINDOW = [Group(0, WINDOW, 2, 1, 1, 6)]
OF_A_DRAFT_THAT_BEGINS_ANEW = [Group(0, WINDOW, 2, 1, 1, 6, 4, is_draft=True)]


@given(lookups())
@example((OF_A_DRAFT, [[]], 4, 4, True))  # nothing to load, so what would prove it isn't waited for
@example((OF_A_DRAFT, [[HIT, HIT]], 0, 4, True))  # the chunk after the last would prove it, and isn't there
@example((OF_A_WINDOW, [[HIT, HIT, PENDING, HIT]], 0, 8, False))  # known to be there is not known to be readable
@example((OF_A_DRAFT_THAT_BEGINS_ANEW, [[MISS, MISS]], 0, 4, False))  # where it begins it reads, too
def test_the_highest_boundary_is_found(case):
    groups, answers, local, limit, may_wait = case
    keys = [keys_of(group, len(of_group)) for group, of_group in zip(groups, answers, strict=True)]
    known = {
        key: answer
        for ks, of_group in zip(keys, answers, strict=True)
        for key, answer in zip(ks, of_group, strict=True)
    }
    manager = Known(known)
    asked = [Answers(manager, ReqContext("r"), of_group) for of_group in keys]
    found = find_match(groups, asked, local, limit, may_wait=may_wait)
    assert found._replace(awaited=None) == model(groups, answers, local, limit, may_wait)
    assert found.awaited in awaited(groups, answers, keys, local, found)
    assert len({*manager.asked}) == len(manager.asked), "a chunk was asked for twice"


def awaited(groups, answers, keys, local, found):
    """Whoever waits may wait for any of these."""
    if not found.waits:
        return [None]
    last = []
    for group, of_group, names in zip(groups, answers, keys, strict=True):
        needed = sorted(chunks_needed(group, local, found.boundary))
        gaps = [chunk for chunk in needed if of_group[chunk] is not HIT]
        if gaps and of_group[gaps[-1]] is PENDING:
            last.append(names[gaps[-1]])
    is_asked = any(RETRY in of_group for of_group in answers)
    return [None, *last] if is_asked or not last else last


@given(st.integers(1, 4).flatmap(lambda per_chunk: any_group(0, per_chunk)), st.integers(0, 4))
@example(Group(0, WINDOW, 2, 1, 1, 5, is_draft=True), 0)
@example(Group(0, WINDOW, 2, 1, 1, 1, is_draft=True), 2)  # reads nothing, and wants its proof all the same
def test_which_chunks_a_boundary_needs(group, blocks):
    local = 4 * blocks
    for boundary in range(local + 1, 30):
        assert {*group.chunks_needed(local, boundary)} == chunks_needed(group, local, boundary)


def is_there(answer):
    return answer is not MISS


def is_readable(answer):
    return answer is HIT


WITH_A_GAP = [
    [gap if chunk == place else HIT for chunk in range(5)] for place in range(5) for gap in (PENDING, MISS)
]
PARTS = [range(start, stop) for start in range(5) for stop in range(start, 6)]


@given(st.sampled_from(WITH_A_GAP), st.lists(st.tuples(st.sampled_from(PARTS), st.booleans()), max_size=8))
def test_the_last_gap_is_found_however_often_it_was_looked_for(answers, history):
    keys = keys_of(Group(0, WINDOW, 4, 1, 1, 9), 5)
    asked = Answers(Known(dict(zip(keys, answers, strict=True))), ReqContext("r"), keys)
    for chunks, may_be_pending in history:
        counts = is_there if may_be_pending else is_readable
        gaps = [chunk for chunk in chunks if not counts(answers[chunk])]
        assert asked.last_gap(chunks, counts) == max(gaps, default=None)


def test_what_was_refused_is_missing():
    group = Group(0, FULL, 4, 1, 1)
    keys = keys_of(group, 4)
    for chunk, key in enumerate(keys):
        manager = Known(dict.fromkeys(keys, HIT))
        asked = Answers(manager, ReqContext("r"), keys, refused={key})
        assert find_match([group], [asked], 0, 15, may_wait=True) == Match(4 * chunk)
        assert manager.asked == keys[:chunk]


def test_what_reads_everything_is_asked_first():
    groups = Group(0, STATE, 4, 1, 1), Group(1, WINDOW, 4, 1, 1, 8), Group(2, FULL, 4, 1, 1)
    keys = [keys_of(group, 4) for group in groups]
    manager = Known({})
    asked = [Answers(manager, ReqContext("r"), of_group) for of_group in keys]
    assert find_match(groups, asked, 0, 16, may_wait=True) == Match(0)
    assert manager.asked == keys[2][:1]


def test_after_one_that_is_not_readable_few_are_asked_for_at_once():
    group = Group(0, FULL, 4, 1, 1)
    keys = keys_of(group, 16)
    for local, waiting, known, refused, asked_for in (
        (0, (), {}, (), [16]),
        (0, (2,), {}, (), [16, 1, 2, 4, 6]),
        (0, (0,), {0: PENDING}, (), [1, 2, 4, 8]),
        (0, (2, 4), {}, (), [16, 1, 2, 1, 2, 4, 4]),
        (0, (), {}, (12, 14), [12]),
        (0, (2,), {}, (12,), [12, 1, 2, 4, 2]),
        (12, (), {}, (), [13]),
        (12, (5,), {}, (), [13, 1, 2, 4, 3]),
    ):
        manager = Known({key: PENDING if chunk in waiting else HIT for chunk, key in enumerate(keys)})
        counts, ask = [], manager.lookup_prefix
        manager.lookup_prefix = lambda keys, context, counts=counts, ask=ask: (
            counts.append(len(keys)) or ask(keys, context)
        )
        asked = Answers(manager, ReqContext("r"), keys, {keys[chunk] for chunk in refused}, known)
        boundary = 4 * min(refused, default=16)
        found = Match(boundary, bool(waiting), awaited=keys[waiting[-1]] if waiting else None)
        assert find_match([group], [asked], local, 64, may_wait=True) == found
        assert counts == asked_for


def test_nothing_is_awaited_while_a_tier_is_asked():
    """Not even what comes after it: the tier may go on only when it is asked again."""
    group = Group(0, FULL, 4, 1, 1)
    keys = keys_of(group, 4)
    for answers, last in (([PENDING, HIT, PENDING], 2), ([RETRY, HIT, PENDING], None), ([PENDING, RETRY], None)):
        asked = Answers(Known(dict(zip(keys, answers, strict=False))), ReqContext("r"), keys)
        found = Match(4 * len(answers), waits=True, awaited=None if last is None else keys[last])
        assert find_match([group], [asked], 0, 15, may_wait=True) == found
    known = [Known({keys[0]: answer}) for answer in (PENDING, RETRY)]
    of_two = [Answers(manager, ReqContext("r"), keys[:1]) for manager in known]
    assert find_match([group, group], of_two, 0, 15, may_wait=True) == Match(4, waits=True)


def test_a_block_that_a_request_has_a_part_of_is_not_loaded():
    """What it has may end within a block; whoever computes the rest of that has the block."""
    for kind, window in ((FULL, 0), (WINDOW, 9)):
        group = Group(0, kind, 4, 2, 2, window)
        blocks = [[*group.blocks_to_load(local, 10)] for local in (0, 1, 4, 5, 8, 9, 10)]
        assert blocks == [[0, 1, 2], [1, 2], [1, 2], [2], [2], [], []]


def test_a_window_that_begins_anew_needs_nothing_there():
    group = Group(0, WINDOW, 4, 1, 1, 8, restart_tokens=8)
    assert [group.first_needed(boundary) for boundary in (0, 7, 8, 9, 16)] == [0, 0, 8, 8, 16]
    assert [[*group.blocks_to_load(0, boundary)] for boundary in (7, 8, 9, 15)] == [[0, 1], [], [2], [2, 3]]
    for stored, highest in (((), 8), ((2,), 12), ((2, 3), 15), ((3,), 8)):
        keys = keys_of(group, 4)
        asked = Answers(Known({keys[chunk]: HIT for chunk in stored}), ReqContext("r"), keys)
        assert find_match([group], [asked], 0, 15, may_wait=True) == Match(highest)
    crooked = Group(0, WINDOW, 4, 1, 1, 6, restart_tokens=6)
    asked = Answers(Known({}), ReqContext("r"), keys_of(crooked, 4))
    assert find_match([crooked], [asked], 0, 11, may_wait=True) == Match(6)


def every_other(chunks, first):
    return [HIT if chunk % 2 == first else MISS for chunk in range(chunks)]


@pytest.mark.parametrize("kinds", [(WINDOW, STATE), (STATE, STATE), (WINDOW, WINDOW)])
@pytest.mark.parametrize("stored", [HIT, PENDING])
@pytest.mark.parametrize("may_wait", [True, False])
def test_groups_that_go_down_in_turns_cost_a_chunk_the_same_however_many_there_are(kinds, stored, may_wait):
    """What reads all tokens, and a long window, are there; of two others each has only what the other lacks."""
    work = {}
    for chunks in (100, 800):
        groups = [Group(0, FULL, 4, 1, 1), Group(1, WINDOW, 4, 1, 1, window_tokens=2 * chunks + 1)]
        groups += [Group(group_id, kind, 4, 1, 1, 5) for group_id, kind in enumerate(kinds, 2)]
        answers = [[stored] * chunks, [stored] * chunks, every_other(chunks, 0), every_other(chunks, 1)]
        keys = [keys_of(group, chunks) for group in groups]
        known = dict(zip(chain(*keys), chain(*answers), strict=True))
        asked = [Answers(Known(known), ReqContext("r"), of_group) for of_group in keys]
        found = []
        find = partial(find_match, groups, asked, 0, 4 * chunks, may_wait=may_wait)
        work[chunks] = work_of(lambda: found.append(find()))  # noqa: B023
        assert found == [Match(0)]
    assert work[800] < 9 * work[100]
