"""Wires between servers of a replay: what is heard of what, and when."""

import pytest

from kv_p2p.pulling.metadata import Hold, Part, Pull, Source
from kv_p2p.pulling.options import Options
from kv_p2p.pulling.ticket import Address
from kv_p2p.pulling.wire import Ended
from kv_sim.replay.timed.durations.network import Network
from kv_sim.replay.timed.durations.timing import Clock, LinkCosts
from kv_sim.replay.timed.durations.wires import GONE, TimedWire, Wires

COSTS = LinkCosts(ns_per_byte=1.0, ns_per_piece=0.0, block_bytes=9, pieces_per_block=0)
LATENCY = 5
"""A pull of two blocks takes 5 + 18 + 1 nanoseconds."""
SECOND = 1_000_000_000


@pytest.fixture
def sender() -> TimedWire:
    return patient(Wires(Network(COSTS, LATENCY, 2)).open(Clock()))


@pytest.fixture
def receiver(sender: TimedWire) -> TimedWire:
    return patient(sender._wires.open(Clock()))


def patient(wire: TimedWire) -> TimedWire:
    wire.set_patience(Options(hold_seconds=2.0, pull_seconds=1.0))
    return wire


def hold(name: str) -> Hold:
    return Hold(name, f"{name}.1", "digest", ((7, 8),))


def pull(name: str, blocks: tuple[int, ...] = (1, 2)) -> Pull:
    return Pull(name, source(name), (Part(0, blocks),))


def source(name: str) -> Source:
    return Source(Address("host", 1), f"{name}.1", "digest")


def at(moment: int, *wires: TimedWire) -> list[Ended]:
    """What each hears of then."""
    found = []
    for wire in wires:
        wire._clock.now = moment
        found.append(wire.poll())
        wire.check()
    return found


def test_a_pull_is_heard_of_at_both_ends_when_it_has_ended(sender: TimedWire, receiver: TimedWire) -> None:
    logged = []
    receiver.log = lambda pulling, now: logged.append((pulling.pull.request_id, pulling.span, now))
    assert (sender.is_idle, sender.awaits_others, receiver.is_idle) == (True, False, True)
    sender.serve(hold("a"))
    assert (sender.next_end(), sender.awaits_others, sender.is_idle) == (2 * SECOND, True, False)
    receiver._clock.now = 100
    receiver.pull(pull("a"))
    assert (receiver.next_end(), sender.next_end(), receiver.awaits_others) == (124, 124, False)
    assert at(123, sender, receiver) == [Ended(), Ended()]
    assert at(130, sender, receiver) == [Ended(served=["a.1"]), Ended(pulled=["a"], pulled_bytes=18)]
    assert (sender.is_idle, receiver.is_idle, sender.awaits_others) == (True, True, False)
    [(name, span, now)] = logged
    assert (name, span.begin, span.end, now) == ("a", 100, 124, 130)
    traffic = receiver.traffic
    assert (traffic.jobs, traffic.blocks, traffic.busy_ns, sender.traffic.jobs) == (1, 2, 24, 0)


def test_who_pulls_before_the_hold_is_served_waits_for_that(sender: TimedWire, receiver: TimedWire) -> None:
    receiver.pull(pull("a"))
    assert (receiver.next_end(), receiver.awaits_others, receiver.is_idle) == (SECOND, True, False)
    sender._clock.now = 40
    sender.serve(hold("a"))
    assert (receiver.next_end(), sender.next_end(), receiver.awaits_others) == (64, 64, True), "it begins at 40"
    receiver._clock.now = 40
    assert not receiver.awaits_others


def test_what_is_declined_is_served_no_longer_also_if_it_was_not_served_yet(
    sender: TimedWire, receiver: TimedWire
) -> None:
    sender.serve(hold("a"))
    receiver.decline(source("a"))
    receiver.decline(source("b"))
    assert at(0, sender) == [Ended(served=["a.1"])]
    sender.serve(hold("b"))
    assert at(0, sender) == [Ended(served=["b.1"])]
    receiver.pull(pull("b"))
    assert at(0, receiver) == [Ended(failed=[("b", GONE)])]
    assert sender.is_idle and receiver.is_idle


def test_what_is_being_read_is_not_withdrawn_and_what_moves_not_given_up(
    sender: TimedWire, receiver: TimedWire
) -> None:
    sender.serve(hold("a"))
    receiver.pull(pull("a"))
    assert (sender.withdraw("a.1"), receiver.give_up("a")) == (False, False)
    assert at(24, sender, receiver) == [Ended(served=["a.1"]), Ended(pulled=["a"], pulled_bytes=18)]


def test_what_is_withdrawn_before_it_is_read_fails_the_pull(sender: TimedWire, receiver: TimedWire) -> None:
    for name in ("a", "b"):
        sender.serve(hold(name))
        receiver.pull(pull(name))
    assert sender.withdraw("b.1"), "it would be read from 24 to 48"
    assert at(0, receiver) == [Ended(failed=[("b", GONE)])]
    sender.serve(hold("c"))
    receiver.pull(pull("c"))
    assert at(48, sender, receiver) == [
        Ended(served=["a.1", "c.1"]),
        Ended(pulled=["a", "c"], pulled_bytes=36),
    ], "its time was free again"


@pytest.mark.parametrize("is_served", [True, False])
def test_a_pull_that_has_not_begun_is_given_up_without_a_word(
    sender: TimedWire, receiver: TimedWire, is_served: bool
) -> None:
    sender.serve(hold("a"))
    receiver.pull(pull("a"))
    if is_served:
        sender.serve(hold("b"))
    receiver.pull(pull("b"))
    assert receiver.give_up("b")
    receiver.decline(source("b"))  # as a worker does
    if not is_served:
        sender.serve(hold("b"))
    heard = at(100, sender, receiver)
    assert heard == [Ended(served=["b.1", "a.1"]), Ended(pulled=["a"], pulled_bytes=18)]
    assert sender.is_idle and receiver.is_idle


def test_a_pull_of_no_blocks_takes_its_latency(sender: TimedWire, receiver: TimedWire) -> None:
    sender.serve(hold("a"))
    receiver.pull(pull("a", ()))
    assert receiver.next_end() == LATENCY + 1


def test_what_was_given_up_before_it_began_is_read_by_nobody(sender: TimedWire, receiver: TimedWire) -> None:
    for name in ("a", "b"):
        sender.serve(hold(name))
        receiver.pull(pull(name))
    assert receiver.awaits_others, "the second begins at 24, if it isn't withdrawn before"
    assert receiver.give_up("b")
    at(30, sender, receiver)
    assert sender.withdraw("b.1")


def test_whatever_begins_or_is_heard_of_is_activity(sender: TimedWire, receiver: TimedWire) -> None:
    def counted() -> tuple[int, int]:
        return sender.activity, receiver.activity

    seen = [counted()]
    for act in (
        lambda: sender.serve(hold("a")),
        lambda: receiver.pull(pull("a")),
        lambda: at(24, sender),
        lambda: at(24, receiver),
        lambda: receiver.decline(source("b")),
    ):
        act()
        seen.append(counted())
    assert seen == [(0, 0), (1, 0), (1, 1), (2, 1), (2, 2), (2, 3)]
    at(25, sender, receiver)
    assert counted() == seen[-1], "nothing was heard of"
    sender.serve(hold("c"))
    assert sender.withdraw("c.1")
    assert counted() == (4, 3), "its blocks are free again"


def test_a_pull_of_which_nothing_will_be_heard_is_noticed(sender: TimedWire, receiver: TimedWire) -> None:
    receiver.pull(pull("a"))
    sender._wires.waiting.clear()
    with pytest.raises(AssertionError, match="neither waits nor has news"):
        receiver.check()
