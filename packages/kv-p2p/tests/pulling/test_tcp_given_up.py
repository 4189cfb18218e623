"""Pulls over TCP that are given up: when that is possible, and what it leaves."""

import threading
from contextlib import suppress

import pytest
from kv_p2p_tcp import PATIENCE, answer, frame_of, wait_for

from kv_p2p import sockets
from kv_p2p.frames import send_frame


def test_while_it_receives(worker, raw, small_frames):
    here, sent = worker(2), worker(1)
    before = here.blocks
    here.pull("r", raw.source, *range(6))
    connection, _ = raw.asked()
    send_frame(connection, *frame_of(sent, 0, 1, 2))
    wait_for(lambda: here.block(2) == sent.block(2))
    wait_for(lambda: here.wire.give_up("r"))
    assert not here.wire._client._pulls
    with suppress(ConnectionError):  # it may have hung up already
        send_frame(connection, *frame_of(sent, 3, 4, 5))
    here.close()
    here.poll()
    assert here.blocks == [*sent.blocks[:3], *before[3:]]
    assert (here.pulled, here.failed) == ([], [])


def test_while_it_writes(worker, raw):
    here, sent = worker(2), worker(1)
    here.pages.writing.shut()
    here.pull("r", raw.source, 0)
    connection, _ = raw.asked()
    send_frame(connection, *frame_of(sent, 0))
    here.pages.writing.wait_for_somebody()
    for _ in range(2):
        assert here.wire.give_up("r") is False
    here.pages.writing.open.set()
    assert answer(connection) == {"op": "done"}
    here.wait_for_pulls()
    assert (here.pulled, here.block(0)) == (["r"], sent.block(0))


def test_after_it_has_written_a_frame(worker, raw, small_frames):
    here, sent = worker(2), worker(1)
    here.pages.writing.shut()
    here.pull("r", raw.source, *range(4))
    connection, _ = raw.asked()
    send_frame(connection, *frame_of(sent, 0, 1, 2))
    here.pages.writing.wait_for_somebody()
    assert here.wire.give_up("r") is False
    here.pages.writing.open.set()
    wait_for(lambda: here.wire.give_up("r"))
    assert answer(connection) is None
    here.close()
    here.poll()
    assert (here.pulled, here.failed) == ([], [])


def test_between_receiving_and_writing(worker, raw, monkeypatch):
    """What has arrived by then is thrown away."""
    here, sent = worker(2), worker(1)
    before, received, go_on = here.blocks, threading.Event(), threading.Event()

    def held_up(header, group, most):
        received.set()
        assert go_on.wait(PATIENCE)
        return header["count"]

    monkeypatch.setattr("kv_p2p.pulling.tcp.client._count_of", held_up)
    here.pull("r", raw.source, 0)
    connection, _ = raw.asked()
    send_frame(connection, *frame_of(sent, 0))
    assert received.wait(PATIENCE)
    assert here.wire.give_up("r") is True
    go_on.set()
    here.close()
    here.poll()
    assert (here.blocks, here.pulled, here.failed) == (before, [], [])


def test_before_its_turn_has_come(worker, raw, monkeypatch):
    monkeypatch.setattr("kv_p2p.pulling.tcp.lanes.LANE_THREADS", 1)
    here, sent = worker(2), worker(1)
    before = here.blocks
    for name in ("r", "s", "t"):
        here.pull(name, raw.source, "rst".index(name))
    connection, _ = raw.asked()
    assert here.wire.give_up("s") is True
    send_frame(connection, *frame_of(sent, 0))
    third, _ = raw.asked()  # the second has never come
    send_frame(third, *frame_of(sent, 0))
    here.wait_for_pulls(2)
    assert (here.pulled, here.failed) == (["r", "t"], [])
    assert here.blocks[:3] == [sent.block(0), before[1], sent.block(0)]


def test_the_same_request_may_pull_again(worker, raw):
    here, sent = worker(2), worker(1)
    here.pull("r", raw.source, 0)
    first, _ = raw.asked()
    assert here.wire.give_up("r") is True
    here.pull("r", raw.source, 1)
    second, _ = raw.asked()
    assert answer(first) is None
    send_frame(second, *frame_of(sent, 4))
    here.wait_for_pulls()
    assert (here.pulled, here.failed, here.block(1)) == (["r"], [], sent.block(4))


@pytest.mark.parametrize("succeeds", [True, False])
def test_when_it_has_just_ended(worker, succeeds):
    there, here = worker(1), worker(2)
    if succeeds:
        there.serve("h", 1)
    there.serve("g", 2)
    here.pull("r", there.source("h"), 0)
    here.pull("s", there.source("g"), 1)
    here.pull("t", there.source("gone"), 1)
    wait_for(lambda: not here.wire._client._pulls)
    assert here.wire.give_up("r") is True
    here.wait_for_pulls(2)
    assert (here.pulled, [name for name, _ in here.failed]) == (["s"], ["t"])


def test_of_what_nobody_knows(worker):
    assert worker(2).wire.give_up("r") is True


def test_while_it_connects(worker, raw, monkeypatch):
    """Then nothing is asked, so nobody's hold is read."""
    here, connect = worker(2), sockets.connect
    given_up = []

    def connect_late(*arguments):
        connection = connect(*arguments)
        given_up.append(here.wire.give_up("r"))
        return connection

    monkeypatch.setattr(sockets, "connect", connect_late)
    here.pull("r", raw.source, 0)
    assert answer(raw.accept()) is None
    assert given_up == [True]
    here.close()
    here.poll()
    assert (here.pulled, here.failed) == ([], [])
