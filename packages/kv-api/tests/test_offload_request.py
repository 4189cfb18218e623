"""What a medium knows of a request: keys of chunks, tier filters, and where in the request a key is."""

import inspect
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kv_api
from kv_api import Locality, Medium, TierFilter, TierMatcher


@given(st.binary(max_size=40), st.integers(0, 2**32 - 1))
def test_keys_take_hash_and_group_apart_again(block_hash: bytes, group: int) -> None:
    key = kv_api.make_offload_key(block_hash, group)
    assert kv_api.get_offload_block_hash(key) == block_hash
    assert kv_api.get_offload_group_idx(key) == group


def test_a_key_ends_with_its_group_in_four_bytes_the_highest_first() -> None:
    assert kv_api.make_offload_key(b"hash", 0x0102) == b"hash\x00\x00\x01\x02"


@given(st.lists(st.tuples(st.binary(min_size=4, max_size=4), st.integers(0, 3))))
def test_keys_are_different_when_hash_or_group_is(pairs: list[tuple[bytes, int]]) -> None:
    assert len({kv_api.make_offload_key(*pair) for pair in pairs}) == len(set(pairs))


@pytest.mark.parametrize(
    ("matcher", "medium", "locality", "allowed"),
    [
        (TierMatcher(), Medium.CPU, Locality.LOCAL, True),
        (TierMatcher(Medium.CPU), Medium.CPU, None, True),
        (TierMatcher(Medium.CPU), Medium.STORAGE, None, False),
        (TierMatcher(Medium.CPU), None, Locality.REMOTE, True),
        (TierMatcher(Medium.STORAGE, Locality.LOCAL), Medium.STORAGE, Locality.REMOTE, False),
        (TierMatcher(None, Locality.LOCAL), Medium.STORAGE, Locality.LOCAL, True),
        (TierMatcher(Medium.CPU, Locality.LOCAL), Medium.CPU, None, True),
        (TierMatcher(Medium.CPU, Locality.LOCAL), None, Locality.REMOTE, False),
    ],
)
def test_a_tier_is_allowed_if_a_matcher_matches_it(
    matcher: TierMatcher, medium: Any, locality: Any, allowed: bool
) -> None:
    assert matcher.matches(medium, locality) is allowed
    assert TierFilter((matcher,)).allows(medium, locality) is allowed
    assert TierFilter().allows(medium, locality) is False
    assert TierFilter.ALL.allows(medium, locality) is True


def test_a_request_context_keeps_state_by_type_and_positions_by_key() -> None:
    context = kv_api.ReqContext("r")
    key = kv_api.make_offload_key(b"h", 0)
    assert context.get_state(int) is None
    assert context.get_offload_key_position(key) is None
    context.set_state(7)
    context.set_state("text")
    context.set_offload_key_position(key, 64)
    assert (context.get_state(int), context.get_state(str)) == (7, "text")
    context.set_state(8)
    assert context.get_state(int) == 8
    assert context.get_offload_key_position(key) == 64
    assert kv_api.ReqContext("r").get_state(int) is None


def test_a_request_context_is_made_and_printed_without_what_it_keeps() -> None:
    made = [*inspect.signature(kv_api.ReqContext).parameters]
    assert made == ["req_id", "kv_transfer_params", "kv_hints", "load_tier_filter"]
    context = kv_api.ReqContext("r")
    before = repr(context)
    context.set_state(7)
    context.set_offload_key_position(kv_api.make_offload_key(b"h", 0), 64)
    context.derive_offload_key_positions([kv_api.make_offload_key(b"i", 0)], 16)
    assert repr(context) == before


def test_how_positions_are_derived_makes_no_other_request() -> None:
    context = kv_api.ReqContext("r")
    context.derive_offload_key_positions([kv_api.make_offload_key(b"h", 0)], 16)
    assert context == kv_api.ReqContext("r")
    assert context != kv_api.ReqContext("s")


def test_positions_of_chunks_in_a_row_are_derived() -> None:
    context = kv_api.ReqContext("r")
    first, second = ([kv_api.make_offload_key(b"h%d" % number, group) for number in range(4)] for group in (0, 1))
    growing = first[:2]
    context.set_offload_key_position(first[1], 7)
    context.derive_offload_key_positions(growing, 16)
    context.derive_offload_key_positions(second, 32)
    assert [context.get_offload_key_position(key) for key in first] == [16, 7, None, None]  # what was set stays
    assert [context.get_offload_key_position(key) for key in second] == [32, 64, 96, 128]
    growing += first[2:]
    assert [context.get_offload_key_position(key) for key in first] == [16, 7, 48, 64]
    context.set_offload_key_position(first[2], 9)
    assert context.get_offload_key_position(first[2]) == 9


@pytest.mark.parametrize("has_others", [False, True])
def test_positions_of_many_chunks_are_found_from_wherever_one_asks(has_others: bool) -> None:
    keys = [kv_api.make_offload_key(b"%d" % number, 0) for number in range(5000)]
    others = [kv_api.make_offload_key(b"%d" % number, 1) for number in range(5000)]
    for places in (range(5000), range(4999, -1, -1), range(0, 5000, 1023), range(0, 5000, 1025), (4000, 3999, 7)):
        context = kv_api.ReqContext("r")
        context.set_offload_key_position(keys[3999], 5)
        context.derive_offload_key_positions(keys, 16)
        if has_others:
            context.derive_offload_key_positions(others, 32)
        for place in places:
            assert context.get_offload_key_position(keys[place]) == (5 if place == 3999 else 16 * (place + 1))
            assert context.get_offload_key_position(others[place]) == (32 * (place + 1) if has_others else None)
        assert context.get_offload_key_position(kv_api.make_offload_key(b"no such", 0)) is None
    context, growing = kv_api.ReqContext("r"), keys[:2000]
    context.derive_offload_key_positions(growing, 16)
    if has_others:
        context.derive_offload_key_positions(others, 32)
    for place, count in ((1999, 2000), (3, 4000), (2000, 4000), (3999, 4000), (0, 5000), (4998, 5000)):
        growing += keys[len(growing) : count]
        assert context.get_offload_key_position(keys[place]) == 16 * (place + 1)


@pytest.mark.parametrize("step", [3, 900, 5000])
def test_no_position_is_noted_while_a_request_grows(step: int) -> None:
    context, growing = kv_api.ReqContext("r"), list[kv_api.OffloadKey]()
    context.derive_offload_key_positions(growing, 16)
    for known in range(0, min(50_000, 300 * step), step):
        growing += [kv_api.make_offload_key(b"%d" % number, 0) for number in range(known, known + step)]
        for place in (known - 1, known)[not known :]:
            assert context.get_offload_key_position(growing[place]) == 16 * (place + 1)
    assert context.get_offload_key_position(growing[known + 2]) == 16 * (known + 3)
    assert context._key_positions == {}


class Searched(list[kv_api.OffloadKey]):
    """Counts searches."""

    searches = 0

    def index(self, *arguments: Any) -> int:
        self.searches += 1
        return super().index(*arguments)


@pytest.mark.parametrize("step", [1, 2, 128])
def test_that_a_request_goes_on_where_it_was_is_seen_without_a_search(step: int) -> None:
    context, growing = kv_api.ReqContext("r"), Searched()
    context.derive_offload_key_positions(growing, 16)
    for known in range(0, 20 * step, step):
        growing += [kv_api.make_offload_key(b"%d" % number, 0) for number in range(known, known + step)]
        if known:
            assert context.is_offload_key_before(growing[known], growing[known - 1]) is False
            assert growing.searches == (step > 1)
    assert context.get_offload_key_position(growing[known + step // 2]) == 16 * (known + step // 2 + 1)
    assert context._key_positions == {}


def test_of_a_request_that_nobody_knows_no_key_is_before_another() -> None:
    key, other = (kv_api.make_offload_key(b"%d" % number, 0) for number in range(2))
    assert kv_api.ReqContext("r").is_offload_key_before(key, other) is False


@pytest.mark.parametrize("end_of_second", [None, 0, 5, 90])
@pytest.mark.parametrize("has_others", [False, True])
def test_which_key_is_before_another_follows_from_their_positions(
    has_others: bool, end_of_second: int | None
) -> None:
    """Whatever was asked before the request grew."""
    keys = [kv_api.make_offload_key(b"%d" % number, 0) for number in range(4)]
    pairs = [*product(keys, keys)]
    for before, asked, now, (key, other) in product(range(1, 5), [None, *pairs], range(1, 5), pairs):
        context, growing = kv_api.ReqContext("r"), keys[:before]
        context.derive_offload_key_positions(growing, 16)
        if has_others:
            context.derive_offload_key_positions([kv_api.make_offload_key(b"0", 1)], 48)
        if asked is not None:
            context.is_offload_key_before(*asked)
        growing += keys[before:now]
        ends = {key: 16 * (place + 1) for place, key in enumerate(growing)}
        if end_of_second is not None:
            context.set_offload_key_position(keys[1], end_of_second)
            ends[keys[1]] = end_of_second
        expected = key in ends and other in ends and ends[key] < ends[other]
        assert context.is_offload_key_before(key, other) is expected, (before, asked, now, key, other)


class Keys(list[kv_api.OffloadKey]):
    """Counts what is read of them in bulk."""

    read = 0

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        self.read += len(found) if isinstance(place, slice) else 0
        return found


def test_keys_of_several_groups_are_noted_once_as_they_come() -> None:
    context, growing = kv_api.ReqContext("r"), Keys()
    others = Keys(kv_api.make_offload_key(b"%d" % number, 1) for number in range(3))
    context.derive_offload_key_positions(growing, 16)
    context.derive_offload_key_positions(others, 32)
    assert context._key_positions == {}
    for count in (2, 3, 7):
        growing += [kv_api.make_offload_key(b"%d" % number, 0) for number in range(len(growing), count)]
        expected = dict(zip([*growing, *others], [*range(16, 16 * count + 1, 16), 32, 64, 96], strict=True))
        assert context.get_offload_key_position(growing[-1]) == 16 * count
        assert context.get_offload_key_position(kv_api.make_offload_key(b"no such", 0)) is None
        assert context._key_positions == expected
    assert (growing.read, others.read) == (7, 3)
