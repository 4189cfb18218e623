"""Columns of slots: what is written or read of a span in one go is what one gets slot by slot."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_offload_cpu.chunks.pool import ChunkPool
from kv_offload_cpu.slots.columns import FEW, numbers, pack, put

CAPACITY = 400
MANY = 2 * FEW

spans = st.tuples(st.integers(0, 200), st.integers(1, 100)).map(lambda span: [*range(span[0], span[0] + span[1])])


@st.composite
def slot_lists(draw):
    """Spans, and what is nearly one: some of its slots in another order, left out, or elsewhere."""
    slots = draw(spans)
    match draw(st.sampled_from(["span", "reversed", "swapped", "gap", "elsewhere", "two spans"])):
        case "reversed":
            slots.reverse()
        case "swapped":
            one, other = draw(st.tuples(*[st.integers(0, len(slots) - 1)] * 2))
            slots[one], slots[other] = slots[other], slots[one]
        case "gap":
            del slots[draw(st.integers(0, len(slots) - 1))]
        case "elsewhere":
            slots[draw(st.integers(0, len(slots) - 1))] = draw(st.integers(301, CAPACITY - 1))
        case "two spans":
            slots += [slot for slot in draw(spans) if slot not in slots]
    return slots


@given(slot_lists())
def test_a_column_is_written_and_read_as_slot_by_slot(slots):
    known = numbers(CAPACITY)
    for listed in (slots, [known[slot] for slot in slots]):
        column, expected = [None] * CAPACITY, [None] * CAPACITY
        values = [f"value of {slot}" for slot in slots]
        put(values, listed, column)
        for slot, value in zip(slots, values, strict=True):
            expected[slot] = value
        assert column == expected
        assert array("i", pack(listed)) == array("i", slots)


def test_a_part_of_a_span_is_left_as_it_was():
    column = ["before"] * CAPACITY
    put(["after"] * MANY, [*range(7, 7 + MANY)], column)
    assert column == ["before"] * 7 + ["after"] * MANY + ["before"] * (CAPACITY - 7 - MANY)


def test_numbers_are_the_same_objects_however_many_are_asked_for():
    few, more = numbers(700), numbers(900)
    assert (few, more) == ([*range(700)], [*range(900)])
    assert all(one is other for one, other in zip(few, more, strict=False))
    few.clear()
    assert numbers(700) == [*range(700)]


def test_numbers_that_nobody_asked_for_are_no_span():
    beyond = [*range(10**9, 10**9 + MANY)]
    assert pack(beyond) is beyond
    column = {}
    put(beyond, beyond, column)
    assert column == dict(zip(beyond, beyond, strict=True))


@pytest.mark.parametrize("first", [0, 5])
def test_a_pool_gives_spans_also_of_slots_that_were_left_from_the_end(first):
    pool = ChunkPool(first + MANY)
    keys = [b"%d" % number for number in range(first + MANY)]
    if first:
        pool.enter(keys[:first])
    for new in (keys[first:], [b"new" + key for key in keys[first:]]):
        slots = pool.enter_if_new(new)
        assert slots == [*range(first, first + MANY)]
        assert pack(slots) is not slots
        assert pool.evict(slots[::-1]) == new[::-1]
        pool.check()
