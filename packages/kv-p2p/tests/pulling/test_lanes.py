"""Lanes: each place has its own, of which none holds up the others, and what is done is forgotten."""

import threading

import pytest
from kv_p2p_tcp import PATIENCE, Gate, wait_for

from kv_p2p.pulling.tcp.lanes import LANE_THREADS, Lanes
from kv_p2p.pulling.ticket import Address

HERE, THERE = Address("here", 1), Address("there", 1)


@pytest.fixture
def gate():
    """Whoever is at a place that hangs stands here."""
    gate = Gate()
    gate.shut()
    return gate


def fill(lanes, gate, place):
    """As many as may be at a place hang there."""
    for _ in range(LANE_THREADS):
        lanes.add(place, gate.pass_through)
    for _ in range(LANE_THREADS):
        gate.wait_for_somebody()


@pytest.fixture
def lanes(gate):
    """After the test all of their threads have ended."""
    before = {*threading.enumerate()}
    lanes = Lanes("lanes")
    yield lanes
    gate.open.set()
    lanes.stop()
    lanes.join()
    lanes.check()
    assert {*threading.enumerate()} <= before


def test_a_place_that_hangs_holds_up_nobody_else(lanes, gate):
    for _ in range(20 * LANE_THREADS):
        lanes.add(THERE, gate.pass_through)
    for _ in range(LANE_THREADS):
        gate.wait_for_somebody()
    done = threading.Event()
    lanes.add(HERE, done.set)
    assert done.wait(PATIENCE)
    assert lanes.length(THERE) == 19 * LANE_THREADS


def test_so_many_are_at_a_place_at_once(lanes, gate):
    for _ in range(LANE_THREADS + 1):
        lanes.add(HERE, gate.pass_through)
    for _ in range(LANE_THREADS):
        gate.wait_for_somebody()
    assert lanes.length(HERE) == 1
    lanes.check()
    gate.open.set()
    gate.wait_for_somebody()


def test_no_more_are_at_a_place_after_one_has_left(lanes, gate):
    alone = Gate()
    alone.shut()
    lanes.add(HERE, alone.pass_through)
    alone.wait_for_somebody()
    for _ in range(LANE_THREADS - 1):
        lanes.add(HERE, gate.pass_through)
        gate.wait_for_somebody()
    lane = lanes._lanes[HERE]
    alone.open.set()
    wait_for(lambda: lane.turns == LANE_THREADS - 1)
    for _ in range(LANE_THREADS):
        lanes.add(HERE, gate.pass_through)
    gate.wait_for_somebody()
    assert lanes.length(HERE) == LANE_THREADS - 1


def test_a_place_that_always_has_more_to_do_lets_others_have_their_turn(gate, monkeypatch):
    monkeypatch.setattr("kv_p2p.pulling.tcp.lanes.MOST_THREADS", 1)
    lanes, order = Lanes("lanes"), []
    lanes.add(HERE, gate.pass_through)
    gate.wait_for_somebody()
    numbers = [*range(2 * LANE_THREADS)]
    for number in numbers:
        lanes.add(HERE, lambda number=number: order.append(number))
    lanes.add(THERE, lambda: order.append("there"))
    gate.open.set()
    wait_for(lambda: len(order) == len(numbers) + 1)
    assert order.index("there") < LANE_THREADS
    assert [one for one in order if one != "there"] == numbers
    lanes.stop()
    lanes.join()


def test_what_is_done_is_forgotten_also_where_it_failed(lanes):
    def fail():
        raise ValueError

    for number in range(50):
        lanes.add(Address("peer", number), fail if number % 2 else int)
    wait_for(lambda: not lanes._lanes)


class OneAfterAnother:
    """A pool that runs what it has when it is told to."""

    def __init__(self, *how):
        self.turns = []

    def submit(self, *turn):
        self.turns.append(turn)

    def run_all(self):
        while self.turns:
            run, *arguments = self.turns.pop(0)
            run(*arguments)


def test_a_lane_is_forgotten_also_if_another_turn_took_its_last_task(monkeypatch):
    """Each turn that sees a task queues up again for it, and one of them takes it."""
    monkeypatch.setattr("kv_p2p.pulling.tcp.lanes.ThreadPoolExecutor", OneAfterAnother)
    lanes, done = Lanes("lanes"), []
    for number in range(LANE_THREADS + 1):
        lanes.add(HERE, lambda number=number: done.append(number))
    lanes._threads.run_all()
    assert done == [*range(LANE_THREADS + 1)]
    assert not lanes._lanes


def test_what_has_not_begun_when_they_stop_never_begins(lanes, gate):
    begun = []
    fill(lanes, gate, HERE)
    lanes.add(HERE, lambda: begun.append("waited"))
    lanes.stop()
    lanes.add(HERE, lambda: begun.append("came later"))
    gate.open.set()
    lanes.join()
    assert (begun, lanes.length(HERE)) == ([], 0)


def test_what_has_not_begun_while_they_stop_never_begins(lanes, gate, monkeypatch):
    begun = []
    fill(lanes, gate, HERE)
    lanes.add(HERE, lambda: begun.append("waited"))
    lane, shut_down = lanes._lanes[HERE], lanes._threads.shutdown

    def shut_down_late(**how):
        gate.open.set()
        wait_for(lambda: begun or not lane.turns)
        shut_down(**how)

    monkeypatch.setattr(lanes._threads, "shutdown", shut_down_late)
    lanes.stop()
    assert begun == []


def test_what_waits_for_a_thread_when_they_stop_never_begins(gate, monkeypatch):
    monkeypatch.setattr("kv_p2p.pulling.tcp.lanes.MOST_THREADS", 1)
    lanes, begun = Lanes("lanes"), []
    lanes.add(HERE, gate.pass_through)
    gate.wait_for_somebody()
    lanes.add(THERE, lambda: begun.append("there"))
    lanes.stop()
    gate.open.set()
    lanes.join()
    assert begun == []


@pytest.mark.parametrize("turns", [0, LANE_THREADS + 1])
def test_a_recount_sees_a_lane_without_a_turn_or_with_too_many(lanes, gate, turns):
    lanes.add(HERE, gate.pass_through)
    gate.wait_for_somebody()
    lane = lanes._lanes[HERE]
    lane.turns = turns
    with pytest.raises(AssertionError, match=f"has {turns} turns"):
        lanes.check()
    lane.turns = 1
