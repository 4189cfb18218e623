"""A world as a wire, where several pull: what ends, what is let go, and what is remembered of both."""

from dataclasses import replace

import pytest

from kv_api import Direction
from kv_p2p.pulling.metadata import Hold, Part, Pull, Source
from kv_p2p.pulling.ticket import Address
from kv_p2p.pulling.wire import Ended
from kv_sim.config import WorldConfig
from kv_sim.memory.copy import Copy
from kv_sim.memory.device import Device
from kv_sim.memory.shadow import Shadow
from kv_sim.p2p import WorldWire
from kv_sim.violation import Invariant, Referee, Violation

HOLD = Hold("r1", "r1.1", "digest", ((3, 4, 5),))
OTHER = Hold("r5", "r5.1", "digest", ((6,),))
THERE = Source(Address("somewhere", 1), "r1.1", "digest")
PULL = Pull("r2", THERE, (Part(1, (7, 8)),))
ANOTHER = Pull("r6", replace(THERE, hold_id="r5.1"), (Part(0, (9,)),))


@pytest.fixture
def wire() -> WorldWire:
    device = Device(0, WorldConfig(num_blocks=12), Shadow(1, Referee()))
    device.shadow.load_rights.update({7: "r2", 8: "r2", 9: "r6"})
    made = WorldWire(device)
    made.serve(HOLD)
    made.serve(OTHER)
    return made


def running(wire: WorldWire) -> list[Copy]:
    return list(wire.device.copies.running.values())


def run(wire: WorldWire) -> Ended:
    """Every copy that there is now ends well."""
    for copy in running(wire):
        wire.device.copies.advance(copy, 2)
    return wire.poll()


def test_a_hold_that_is_to_end_when_it_was_read_is_pulled_by_nobody_else(wire: WorldWire) -> None:
    wire.pull(PULL)
    assert not wire.withdraw("r1.1")
    wire.pull(replace(PULL, request_id="r3"))
    assert wire.poll() == Ended(failed=[("r3", "it was not received")])
    run(wire)
    assert wire.withdraw("r1.1")
    wire.serve(HOLD)  # the same again
    wire.pull(replace(PULL, request_id="r4"))
    assert wire.poll() == Ended()


@pytest.mark.parametrize(("table", "first"), [((3, 4, 5), 2), ((3, 4, 5), 3), ((0, 4, 5), 0), ((3, 0, 0), 1)])
def test_a_ticket_is_good_for_what_is_held_and_no_more(
    wire: WorldWire, table: tuple[int, ...], first: int
) -> None:
    """What slid out of a window is a null block."""
    wire.serve(replace(HOLD, tables=(table,)))
    with pytest.raises(Violation) as raised:
        wire.pull(replace(PULL, parts=(Part(first, (7, 8)),)))
    assert raised.value.invariant is Invariant.PROTOCOL
    assert raised.value.message == (
        f"request r2 pulls 2 blocks of group 0 from place {first} on, by a ticket of request r1, which holds "
        f"{list(table)}"
    )


@pytest.mark.parametrize("sent", [False, True])
def test_who_lets_one_pull_go_goes_on_with_others(wire: WorldWire, sent: bool) -> None:
    """What was lost of it is never found again."""
    wire.pull(PULL)
    wire.pull(ANOTHER)
    if sent:
        assert run(wire) == Ended()
    mine, other = running(wire)
    for copy in (mine, other):
        wire.device.copies.lose(copy)
    assert wire.device.copies.lost() == [mine, other]
    assert wire.give_up("r2")
    assert wire.device.copies.lost() == [other]
    wire.device.copies.find(other)
    assert wire.give_up("r6") is (not sent)
    wire.device.copies.restart(0)
    what = "it was not received" if sent else "it was not sent"
    assert wire.poll().failed == ([("r6", what)] if sent else [])


def test_what_reads_a_hold_that_has_ended_is_never_found_again(wire: WorldWire) -> None:
    wire.pull(PULL)
    wire.pull(ANOTHER)
    mine, other = running(wire)
    for copy in (mine, other):
        wire.device.copies.lose(copy)
    assert wire.withdraw("r1.1")
    assert wire.device.copies.lost() == [other]
    assert [*wire.holds] == ["r5.1"]


def test_it_is_remembered_which_holds_are_over_and_whose_pulls_failed(wire: WorldWire) -> None:
    wire.pull(PULL)
    wire.pull(ANOTHER)
    run(wire)
    assert (wire.over, wire.failed) == (set(), set())
    first, second = running(wire)
    wire.device.copies.advance(first, 2)
    wire.device.copies.fail(second)
    assert wire.poll() == Ended(served=["r1.1"], pulled=["r2"], failed=[("r6", "it was not received")])
    assert (wire.over, wire.failed) == ({"r1.1"}, {"r6"})
    wire.decline(ANOTHER.source)
    wire.poll()
    assert (wire.over, wire.failed) == ({"r1.1", "r5.1"}, {"r6"})
    assert (wire.holds, wire.sent, wire.received) == ({}, {}, {})


def test_what_was_begun_is_forgotten_by_hold_and_by_request_with_what_may_still_move(wire: WorldWire) -> None:
    wire.pull(PULL)
    wire.pull(ANOTHER)
    mine, other = running(wire)
    assert wire.forget(Direction.LOAD, "r2") == []
    assert wire.forget(Direction.STORE, "r2") == [], "it is of a hold"
    assert wire.forget(Direction.STORE, "r1.1") == [mine]
    assert wire.forget(Direction.STORE, "r1.1") == [], "nobody asks twice"
    assert [*wire.begun] == [other.copy_id]
    run(wire)
    mine, other = running(wire)
    assert wire.forget(Direction.STORE, "r5.1") == [], "it was sent"
    assert [*wire.begun] == [mine.copy_id, other.copy_id]
    for copy in (mine, other):
        wire.device.copies.lose(copy)
    assert wire.give_up("r6")
    assert wire.forget(Direction.LOAD, "r6") == [], "it is lost for good"
    assert wire.forget(Direction.LOAD, "r2") == [mine], "it may be found"
    assert wire.begun == {}


def test_that_is_known_although_the_wire_has_forgotten_it(wire: WorldWire) -> None:
    wire.pull(PULL)
    (mine,) = running(wire)
    wire.sent.clear()
    assert wire.forget(Direction.STORE, "r1.1") == [mine]


def test_when_it_is_closed_everything_has_ended(wire: WorldWire) -> None:
    wire.pull(PULL)
    run(wire)
    wire.pull(ANOTHER)
    assert [copy.direction for copy in running(wire)] == [Direction.LOAD, Direction.STORE]
    wire.close()
    assert not wire.device.copies.startable()
