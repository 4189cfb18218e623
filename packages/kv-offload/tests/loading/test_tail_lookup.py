"""Lookups with tails against an obvious model: try every boundary, from the highest down."""

from hypothesis import given
from hypothesis import strategies as st
from kv_offload_configs import FULL, STATE
from kv_offload_medium import Known

from kv_api import LookupResult, ReqContext, make_offload_key
from kv_offload.scheduler.loading.answers import Answers
from kv_offload.scheduler.loading.lookup import Match, find_match
from kv_offload.scheduler.loading.tail_lookup import TailAnswers
from kv_offload.shape.layout import Group, Layout

HIT, MISS, PENDING, RETRY = LookupResult.HIT, LookupResult.MISS, LookupResult.HIT_PENDING, LookupResult.RETRY
PER_HASH = 2
HASHES = [b"%08d" % end for end in range(2, 33, 2)]


def layout_of(kinds, size):
    groups = [
        Group(group_id, kind, size, 1, size // PER_HASH, is_handed_over=kind is STATE)
        for group_id, kind in enumerate(kinds)
    ]
    return Layout(tuple(groups), PER_HASH, size)


def key_at(group_id, end):
    return make_offload_key(HASHES[end // PER_HASH - 1], group_id)


def is_possible(layout, known, local, boundary, counts):
    """Whether every group has what it reads: complete blocks after `local`, and the last one as far as it goes."""
    size = layout.grain_tokens
    for group in layout.groups:
        ends = [*range(local + size, boundary, size), boundary] if group.kind is FULL else [boundary]
        if any(known.get(key_at(group.group_id, end), MISS) not in counts for end in ends):
            return False
    return True


def searched(layout, known, local, limit, tail_limit, counts):
    """Every boundary that is looked at, the highest first; the last is what the request has."""
    size = layout.grain_tokens
    whole = next(
        b
        for b in range(limit // size * size, local - 1, -size)
        if b == local or is_possible(layout, known, local, b, counts)
    )
    reach = max(whole, tail_limit // size * size)
    while reach > whole and any(
        known.get(key_at(group.group_id, end), MISS) not in counts
        for group in layout.groups
        if group.kind is FULL
        for end in range(local + size, reach + 1, size)
    ):
        reach -= size
    for start in (reach, whole):
        last = min(start + size - 1, tail_limit)
        yield from (b for b in range(last, max(start, whole), -1) if b % PER_HASH == 0)
    yield whole


def model(layout, known, local, limit, tail_limit, may_wait):
    def highest(counts):
        for boundary in searched(layout, known, local, limit, tail_limit, counts):
            if boundary == local or is_possible(layout, known, local, boundary, counts):
                return Match(boundary, is_tail=boundary % layout.grain_tokens > 0)

    there = highest({HIT, PENDING, RETRY})
    if there.boundary == local or is_possible(layout, known, local, there.boundary, {HIT}):
        return there
    return there._replace(waits=True) if may_wait else highest({HIT})


@st.composite
def lookups(draw):
    size = draw(st.sampled_from([4, 8]))
    layout = layout_of(
        draw(st.sampled_from([[FULL, STATE], [STATE], [STATE, FULL, STATE], [FULL, FULL, STATE]])), size
    )
    known = {}
    for group in layout.groups:
        mostly = HIT if group.kind is FULL else draw(st.sampled_from([HIT, MISS]))
        for end in range(2, 33, 2):
            answer = draw(st.sampled_from([mostly, mostly, mostly, mostly, HIT, MISS, PENDING, RETRY]))
            if answer is not MISS:
                known[key_at(group.group_id, end)] = answer
    local = size * draw(st.integers(0, 2))
    limit = draw(st.integers(local, 32))
    tail_limit = draw(st.integers(0, limit))
    return layout, known, local, limit, tail_limit, draw(st.booleans())


def find(layout, manager, local, limit, tail_limit, may_wait, refused=()):
    size = layout.grain_tokens
    keys = [[key_at(group.group_id, end) for end in range(size, 33, size)] for group in layout.groups]
    asked = [Answers(manager, ReqContext("r"), of_group, refused) for of_group in keys]
    tails = TailAnswers(manager, ReqContext("r"), layout, HASHES, tail_limit, refused)
    return find_match(layout.groups, asked, local, limit, may_wait=may_wait, tails=tails)


@given(lookups())
def test_the_highest_boundary_is_found(case):
    layout, known, *rest = case
    manager = Known(known)
    found = find(layout, manager, *rest)
    assert found._replace(awaited=None) == model(layout, known, *rest)
    assert found.awaited is None or (found.waits and not found.is_tail and known[found.awaited] is PENDING)
    assert len({*manager.asked}) == len(manager.asked), "a key was asked for twice"


BOTH = layout_of([FULL, STATE], 8)


def keys_at(*ends):
    return {key_at(group, end): HIT for group, end in ends}


def test_a_tail_needs_no_state_before_it():
    known = keys_at((0, 8), (0, 16), (0, 20), (1, 20))
    assert find(BOTH, Known(known), 0, 30, 30, may_wait=True) == Match(20, is_tail=True)
    del known[key_at(0, 8)]
    assert find(BOTH, Known(known), 0, 30, 30, may_wait=True) == Match(0)
    assert find(BOTH, Known(known), 8, 30, 30, may_wait=True) == Match(20, is_tail=True)


def test_it_is_looked_for_after_the_complete_chunks_too():
    known = keys_at((0, 8), (0, 16), (1, 8), (0, 12), (1, 12))
    assert find(BOTH, Known(known), 0, 30, 30, may_wait=True) == Match(12, is_tail=True)


def test_of_two_tails_the_farther_one_is_taken():
    """One ends in the block with which the complete chunks end, the other in the block after the agreed ones."""
    known = keys_at((0, 8), (0, 16), (1, 8), *((group, end) for group in (0, 1) for end in (12, 20)))
    assert find(BOTH, Known(known), 0, 30, 30, may_wait=True) == Match(20, is_tail=True)


def test_complete_chunks_may_lie_beyond_the_last_tail():
    known = keys_at(*((group, end) for group in (0, 1) for end in range(2, 33, 2)))
    for tail_limit, boundary in ((12, 24), (24, 24), (25, 24), (26, 26), (30, 30)):
        match = Match(boundary, is_tail=boundary > 24)
        assert find(BOTH, Known(known), 0, 30, tail_limit, may_wait=True) == match


def test_what_is_there_beyond_the_last_tail_does_not_hide_it():
    known = keys_at((1, 12), *((0, end) for end in (8, 12, 16, 24, 32)))
    assert find(BOTH, Known(known), 0, 30, 14, may_wait=True) == Match(12, is_tail=True)
    alone = layout_of([STATE], 8)
    assert find(alone, Known(keys_at((0, 12))), 0, 30, 14, may_wait=True) == Match(12, is_tail=True)


def test_one_group_is_not_enough():
    known = keys_at((0, 8), (1, 8), (0, 12))
    assert find(BOTH, Known(known), 0, 30, 30, may_wait=True) == Match(8)
    known |= keys_at((1, 12))
    assert find(BOTH, Known(known), 0, 30, 30, may_wait=True) == Match(12, is_tail=True)
    assert find(BOTH, Known(known), 0, 30, 30, True, refused={key_at(0, 12)}) == Match(8)


def test_who_waits_for_a_tail_waits_for_no_chunk_alone():
    """Also if the chunk that goes on behind it is on its way as well."""
    known = keys_at((0, 8), (1, 8)) | dict.fromkeys([key_at(0, 12), key_at(1, 12), key_at(0, 16)], PENDING)
    assert find(BOTH, Known(known), 0, 30, 30, may_wait=True) == Match(12, waits=True, is_tail=True)


def test_only_one_that_is_not_there_yet_is_left_to_who_stores_it():
    """Storing what the medium has by now takes nothing away."""
    for answer, known in ((HIT, HIT), (PENDING, MISS), (RETRY, RETRY)):
        manager = Known({key_at(1, 12): answer})
        tails = TailAnswers(manager, ReqContext("r"), BOTH, HASHES, 30, is_being_stored=lambda key: True)
        assert tails.of(BOTH.groups[1], 12) is known
        assert TailAnswers(manager, ReqContext("r"), BOTH, HASHES, 30).of(BOTH.groups[1], 12) is answer


def test_states_are_asked_for_first():
    manager = Known(keys_at((0, 12)))
    assert not TailAnswers(manager, ReqContext("r"), BOTH, HASHES, 30).has(12, lambda answer: answer is HIT)
    assert manager.asked == [key_at(1, 12)]


def test_what_the_request_has_may_end_within_a_block():
    """No engine says so; then there is no block that a tail could be in."""
    known = keys_at((0, 8), (0, 12), (1, 12))
    assert find(BOTH, Known(known), 2, 30, 30, may_wait=True).boundary == 2


def test_the_medium_learns_where_a_tail_ends():
    context = ReqContext("r")
    tails = TailAnswers(Known({}), context, BOTH, HASHES[:5], 30)
    assert tails.limit == 10
    assert tails.highest(8, lambda answer: True) == 10
    assert context.get_offload_key_position(key_at(1, 10)) == 10
