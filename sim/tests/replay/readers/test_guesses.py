"""What is guessed of a trace by its first records, and what is assumed where it has no ids."""

from collections import Counter

import pytest

from kv_sim.replay.readers.guess import agreement, guess_block_tokens, guess_unit, written_as_number
from kv_sim.replay.readers.record import Moment, Record
from kv_sim.replay.readers.requests.naming import Evidence, as_numbers
from kv_sim.replay.readers.requests.sharing import Sharer, Sharing, parse_sharing


def test_times_since_1970_tell_their_unit():
    def records(*times):
        return [Record(time, 1, 1, []) for time in times]

    seconds = (999_999_999, 1_000_000_000, 3_999_999_999, 4_000_000_000)
    for usual, small in [(1.0, "s"), (1e-3, "s"), (1e-6, None), (1e-9, None)]:
        for unit, scale in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)):
            found = [guess_unit(records(time * scale, 2 * time * scale, None), usual) for time in seconds]
            guessed = small if unit == "s" else unit
            assert found == [None, guessed, guessed, None]
        assert guess_unit(records(1_790_000_000.5, 1_790_000_001), usual) == "s", "no clock counts half of them"
        assert guess_unit(records(None), usual) is None and guess_unit(records(5, 1e18), usual) is None
    assert guess_unit(records(Moment(1_790_000_000)), 1e-3) is None, "a date has no unit"
    assert guess_unit(records(500_000 * 10**9), 1e-3) is None, "nanoseconds since the machine was started"


@pytest.mark.parametrize(
    ("times", "written"),
    [
        ((20260131235959, 20260201000001), 20260131235959),
        ((20260131235959.0, None), 20260131235959),
        ((20260131235959, 20260131235960), None),
        ((20001231235959,), None),
        ((20970101000000,), None),
        ((20260230000000,), None),
        ((Moment(20260131235959),), None),
        ((1769853600,), None),
        ((None,), None),
    ],
)
def test_dates_may_be_written_as_numbers(times, written):
    assert written_as_number([Record(time, 1, 1, []) for time in times]) == written


def test_blocks_have_the_size_that_most_requests_agree_with():
    def records(size, *tokens, odd=0):
        fitting = [Record(0, count, 1, [0] * -(-count // size)) for count in tokens]
        return fitting + [Record(0, 10_000, 1, [1])] * odd

    sizes = (512, 256, 128, 64, 32, 16, 1024, 2048, 4096, 8)
    for size in sizes:
        for usual in (None, 512, 24):
            assert guess_block_tokens(records(size, 9 * size, 41 * size - 1, 100 * size), usual) == size
        # Few blocks, and no request that gives the size away: the first usual one that fits.
        assert guess_block_tokens(records(size, 2 * size + 1, size + 1), None) == size
    # No usual size: that of the request with the most blocks, as long as the others agree.
    assert guess_block_tokens(records(24, 24 * 40, 24 * 11 - 5), 512) == 24
    assert guess_block_tokens([Record(0, 225, 1, [0] * 20), Record(0, 11, 1, [0])], None) == 11
    for usual in (None, 512):
        assert guess_block_tokens(records(64, 64 * 40, odd=1), usual) == usual
    assert guess_block_tokens([Record(0, 0, 1, [1]), Record(0, 7, 1, [])], 96) == 96
    assert guess_block_tokens([Record(0, 0, 1, [1]), Record(0, 9, 1, []), *records(64, 64 * 40)], None) == 64
    assert guess_block_tokens([*records(64, 64 * 40), *[Record(0, 9000, 1, [])] * 3], None) == 64, "no ids, no say"
    # One of twenty may be wrong, not two.
    assert [guess_block_tokens(records(64, *[64 * 9] * (20 - odd), odd=odd), 512) for odd in (1, 2)] == [64, 512]
    assert [guess_block_tokens(records(24, *[24 * 40] * (20 - odd), odd=odd), 512) for odd in (1, 2)] == [24, 512]


def test_without_ids_every_size_agrees():
    assert agreement([], 16) == agreement([Record(0, 9, 1, [])], 16) == 1


def test_ids_are_looked_at_until_there_are_enough():
    for limit, conflict in [(3, None), (4, "id 2 comes after 1 and after 9 (there)")]:
        evidence = Evidence(limit)
        evidence.add([1, 2, 3], None, "here")
        evidence.add([9, 2], None, "there")
        assert evidence.conflict == conflict
    evidence.add([2], None, "later")
    assert evidence.conflict == conflict, "the first one stands"
    for one, shown in [("a" * 22, repr("a" * 22)), ("a" * 23, "'" + "a" * 20 + "...")]:
        evidence = Evidence()
        evidence.add([1, one], None, "here")
        evidence.add([one], None, "there")
        assert evidence.conflict == f"id {shown} comes after 1 and after the beginning of a prompt (there)"


def test_an_id_has_a_number_of_its_own_whatever_is_beside_it():
    ids = (-2, -1, 0, 1, 2**61 - 2, 2**61 - 1, 2**61, "", "0", "1", "session 1")
    alone = {one: as_numbers([one])[0] for one in ids}
    for one in ids:
        for other in ids:
            assert list(as_numbers([one, other])) == [alone[one], alone[other]]
    assert len({hash(number) for number in alone.values()}) == len(ids)
    assert [one for one in ids if alone[one] == one] == [0, 1, 2**61 - 2]


def test_a_popular_prefix_is_drawn_as_often_as_assumed():
    sharer = Sharer(Sharing(prefixes=4, tokens=130, skew=2.0, share=0.75), seed=3, block_tokens=64)
    drawn = [sharer.ids_for(200) for _ in range(4000)]
    assert {len(ids) for ids in drawn} == {4}
    firsts = Counter(ids[0].rsplit(" ", 1)[0] for ids in drawn if ids[0].startswith("prefix"))
    weights = [1, 1 / 4, 1 / 9, 1 / 16]
    expected = {f"prefix {rank}": 3000 * weight / sum(weights) for rank, weight in enumerate(weights)}
    assert firsts == pytest.approx(expected, rel=0.2)
    for number, ids in enumerate(drawn, 1):
        common = 2 if ids[0].startswith("prefix") else 0
        assert ids[common:] == [f"own {number} {place}" for place in range(common, 4)]
        assert ids[:common] == [f"{ids[0][:-2]} {place}" for place in range(common)]
    assert sharer.ids_for(63)[0].endswith(" 0") and len(sharer.ids_for(64)) == 1 and sharer.ids_for(0) == []
    assert Sharer(Sharing(1, 64, 0.0, 1.0), 0, 64).ids_for(63) == ["own 1 0"]


def test_a_seed_assumes_the_same_on_every_machine():
    sharer = Sharer(Sharing(), seed=5, block_tokens=64)
    firsts = [sharer.ids_for(64)[0].removesuffix(" 0") for _ in range(8)]
    assert firsts == ["prefix 25", "prefix 74", "prefix 66", "prefix 5", "own 5", "own 6", "prefix 1", "prefix 10"]


@pytest.mark.parametrize(
    ("text", "sharing"),
    [
        ("none", Sharing(1, 0, 0.0, 0.0)),
        ("zipf", Sharing(100, 1024, 1.0, 0.8)),
        ("zipf:prefixes=1,tokens=0,skew=0,share=1", Sharing(1, 0, 0.0, 1.0)),
        ("zipf:share=0.5,skew=1.5", Sharing(100, 1024, 1.5, 0.5)),
    ],
)
def test_an_assumption_is_understood(text, sharing):
    assert parse_sharing(text) == sharing
