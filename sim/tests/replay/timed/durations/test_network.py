"""What pulls between servers take, against a model that looks at every nanosecond."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_sim.replay.timed.durations.network import Network, Span
from kv_sim.replay.timed.durations.timing import LinkCosts

COSTS = LinkCosts(ns_per_byte=1.0, ns_per_piece=0.0, block_bytes=9, pieces_per_block=0)
"""A block takes 9 nanoseconds, and a pull of any number one more."""
SERVERS = 3


class SlowNetwork:
    """Which nanoseconds of each side are taken, and by whom."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, int, Span]] = []

    def is_free(self, sender: int, receiver: int, begin: int, end: int) -> bool:
        return not any(
            begin < span.end and span.begin < end
            for side, number, span in self.taken
            if (side, number) in (("sends", sender), ("receives", receiver))
        )

    def give(self, sender: int, receiver: int, duration: int, now: int) -> Span:
        begin = next(t for t in range(now, 10_000) if self.is_free(sender, receiver, t, t + duration))
        span = Span(begin, begin + duration)
        self.taken += [("sends", sender, span), ("receives", receiver, span)]
        return span

    def take_back(self, sender: int, receiver: int, span: Span) -> None:
        self.taken.remove(("sends", sender, span))
        self.taken.remove(("receives", receiver, span))


PULLS = st.tuples(st.integers(0, SERVERS - 1), st.integers(0, SERVERS - 1), st.integers(0, 4), st.integers(0, 30))


@given(st.lists(st.tuples(PULLS, st.booleans()), max_size=20), st.sampled_from([0, 5]))
def test_who_asks_first_is_given_the_earliest_time(
    asked: list[tuple[tuple[int, int, int, int], bool]], latency: int
) -> None:
    network, slow, now = Network(COSTS, latency, SERVERS), SlowNetwork(), 0
    for (sender, receiver, blocks, later), is_taken_back in asked:
        now += later
        span = network.give(sender, receiver, blocks, now)
        assert span == slow.give(sender, receiver, latency + 9 * blocks + 1, now)
        network.check()
        if is_taken_back:
            network.take_back(sender, receiver, span)
            slow.take_back(sender, receiver, span)


def test_both_directions_of_a_server_have_full_bandwidth() -> None:
    network = Network(COSTS, 0, SERVERS)
    assert [network.give(*pull, 1, 0) for pull in ((0, 1), (1, 0))] == [Span(0, 10)] * 2
    assert network.give(0, 2, 1, 0) == Span(10, 20), "behind what it sends already"
    assert network.give(2, 1, 1, 0) == Span(10, 20), "behind what is received there already"


def test_a_gap_is_filled_by_what_fits_into_it() -> None:
    network = Network(COSTS, 0, SERVERS)
    network.give(0, 1, 2, 0)
    assert network.give(0, 2, 1, 0) == Span(19, 29)
    assert network.give(1, 2, 3, 0) == Span(29, 57), "28 don't fit before"
    assert network.give(1, 2, 2, 0) == Span(0, 19)


def test_times_that_overlap_are_noticed() -> None:
    network = Network(COSTS, 0, SERVERS)
    network.give(0, 1, 1, 0)
    network._sends[0].given.append(Span(9, 12))
    with pytest.raises(AssertionError, match=r"Span\(begin=0, end=10\) and Span\(begin=9, end=12\) overlap"):
        network.check()
