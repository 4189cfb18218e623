"""Holds over TCP: when they begin and end, and when not yet."""

import threading
from dataclasses import replace

import pytest
from kv_p2p_tcp import PATIENCE, answer, ask, connect, wait_for

from kv_p2p.frames import send_frame
from kv_p2p.pulling.tcp import server

SHORT = 0.2
"""Seconds that a test waits because it must."""
NONE = "there is no hold {!r}: it was pulled, it was declined, or its time was over"


def of(worker, hold_id, engine_id):
    """What a ticket of an engine says that was where a worker is."""
    return worker.source(hold_id, address=replace(worker.address, engine_id=engine_id))


def test_it_ends_when_it_was_pulled(worker):
    there, here = worker(1), worker(2)
    there.serve("h", 1, 2)
    here.pull("r", there.source("h"), 1)
    there.wait_for(lambda: there.served)
    here.wait_for_pulls()
    assert here.pulled == ["r"]
    here.pull("s", there.source("h"), 1)
    here.wait_for_pulls(2)
    assert here.failed == [("s", NONE.format("h"))]
    assert there.wire.withdraw("h") is True
    there.poll()
    assert there.served == ["h"]


def test_it_ends_after_its_last_reader(worker):
    there, first, second = worker(1), worker(2), worker(3)
    there.serve("h", 1, 2)
    there.pages.reading.shut()
    second.pull("r", there.source("h"), 0, first=1)
    there.pages.reading.wait_for_somebody()
    with connect(there) as connection:
        ask(connection, there, "h")
        there.pages.reading.wait_for_somebody()
        there.pages.reading.open.set()
        assert answer(connection)["count"] == 1
        second.wait_for_pulls()
        wait_for(lambda: there.readers("h") == 1)
        first.pull("r", there.source("h"), 0)
        assert first.reason() == NONE.format("h")
        there.poll()
        assert there.served == []
        send_frame(connection, {"op": "done"})
        there.wait_for(lambda: there.served == ["h"])
    assert second.block(0) == there.block(2)


@pytest.mark.parametrize("last", [None, {"op": "more"}, {}])
def test_not_when_its_reader_does_not_say_that_it_has_all(worker, last):
    there, here = worker(1), worker(2)
    there.serve("h", 1)
    with connect(there) as connection:
        ask(connection, there, "h")
        assert answer(connection) == {"status": "blocks", "group": 0, "count": 1}
        assert there.readers("h") == 1
        if last is not None:
            send_frame(connection, last)
    wait_for(lambda: there.readers("h") == 0)
    there.poll()
    assert there.served == []
    here.pull("r", there.source("h"), 0)
    here.wait_for_pulls()
    assert here.pulled == ["r"]


def test_it_is_not_withdrawn_while_it_is_read(worker):
    there, here, late = worker(1), worker(2), worker(3)
    there.serve("h", 1)
    there.pages.reading.shut()
    here.pull("r", there.source("h"), 0)
    there.pages.reading.wait_for_somebody()
    assert there.wire.withdraw("h") is False
    late.pull("r", there.source("h"), 0)
    assert late.reason() == NONE.format("h")
    assert there.wire.withdraw("h") is False
    there.pages.reading.open.set()
    there.wait_for(lambda: there.served == ["h"])
    here.wait_for_pulls()
    assert here.pulled == ["r"]


def test_one_that_nobody_reads_is_withdrawn_at_once(worker):
    there, here = worker(1), worker(2)
    there.serve("h", 1)
    assert there.wire.withdraw("h") is True
    here.pull("r", there.source("h"), 0)
    assert here.reason() == NONE.format("h")
    there.poll()
    assert there.served == []


def test_it_ends_when_it_is_declined(worker):
    there, here = worker(1), worker(2, serves=False)
    there.serve("h", 1)
    here.wire.decline(there.source("h"))
    there.wait_for(lambda: there.served == ["h"])


def test_who_declines_is_told(worker):
    there = worker(1)
    there.serve("h", 1)
    for digest in ("h digest", "h digest"):  # the second time there is nothing to decline
        with connect(there) as connection:
            send_frame(connection, {"op": "decline", "hold": "h", "digest": digest})
            assert answer(connection) == {"status": "declined"}
            assert answer(connection) is None
    there.poll()
    assert there.served == ["h"]


def test_who_declines_stays_until_it_is_told(worker, raw):
    worker(2).wire.decline(raw.source)
    connection, asked = raw.asked()
    assert asked == {"op": "decline", "hold": "h", "digest": "d", "engine": "engine"}
    connection.settimeout(SHORT)
    with pytest.raises(TimeoutError):
        connection.recv(1)
    connection.settimeout(PATIENCE)
    send_frame(connection, {"status": "declined"})
    assert connection.recv(1) == b""


def test_not_by_who_does_not_know_its_prompt(worker):
    there = worker(1)
    there.serve("h", 1)
    with connect(there) as connection:
        send_frame(connection, {"op": "decline", "hold": "h", "digest": "d"})
        assert answer(connection) == {"status": "declined"}
    there.poll()
    assert there.served == []


def test_not_while_somebody_reads_it(worker):
    there, here = worker(1), worker(2)
    there.serve("h", 1)
    with connect(there) as reader, connect(there) as connection:
        ask(reader, there, "h")
        assert answer(reader)["count"] == 1
        send_frame(connection, {"op": "decline", "hold": "h", "digest": "h digest"})
        assert answer(connection) == {"status": "declined"}
        there.poll()
        assert there.served == []
    there.wait_for(lambda: there.served == ["h"])  # the reader may be who declined, and had given up
    here.pull("r", there.source("h"), 0)
    assert here.reason() == NONE.format("h")


@pytest.fixture
def patient(worker, monkeypatch):
    """A worker with whom a test has failed before its own patience ends."""
    monkeypatch.setattr(server, "PATIENCE_SECONDS", 10 * PATIENCE)
    return worker(1, silence=20 * PATIENCE, engine_id="engine")


def test_who_asks_before_the_worker_was_told_waits_for_it(worker, patient):
    """The scheduler gives out a ticket, and its workers hear of the hold with their next step."""
    there, here = patient, worker(2)
    there.serve("r.1", 5)
    here.pull("x", there.source("s.2"), 4, 7)
    with connect(there) as connection:
        ask(connection, there, "t.3", count=2)
        connection.settimeout(SHORT)
        with pytest.raises(TimeoutError):
            answer(connection)
        here.poll()
        assert (here.pulled, here.failed) == ([], [])
        there.serve("s.2", 1, 2)
        here.wait_for_pulls()
        with pytest.raises(TimeoutError):
            answer(connection)
        there.serve("t.3", 3, 4)
        connection.settimeout(PATIENCE)
        assert answer(connection) == {"status": "blocks", "group": 0, "count": 2}
    assert (here.pulled, here.failed) == (["x"], [])
    assert [here.block(4), here.block(7)] == [there.block(1), there.block(2)]


@pytest.mark.parametrize(
    ("own", "named"), [("engine", None), ("engine", "engine"), (None, "engine"), (None, None)]
)
def test_whoever_may_be_of_this_engine_waits(worker, monkeypatch, own, named):
    """An engine without a name can't tell others from itself."""
    monkeypatch.setattr(server, "PATIENCE_SECONDS", 10 * PATIENCE)
    there, here = worker(1, silence=20 * PATIENCE, engine_id=own), worker(2)
    here.pull("x", of(there, "r.1", named), 4)
    here.wire.wait(SHORT)
    here.poll()
    assert (here.pulled, here.failed) == ([], [])
    there.serve("r.1", 5)
    here.wait_for_pulls()
    assert here.pulled == ["x"]


def test_nobody_waits_for_what_another_engine_held(worker, patient, monkeypatch):
    """It was here before, or is elsewhere: no hold of it comes."""
    there, here = patient, worker(2)
    client, told = here.wire._client, threading.Event()
    decline = client._decline
    monkeypatch.setattr(client, "_decline", lambda source: (decline(source), told.set()))
    here.wire.decline(of(there, "r.1", "another"))
    assert told.wait(10)
    with connect(there) as connection:
        send_frame(connection, {"op": "decline", "hold": "r.1", "digest": "r.1 digest", "engine": "another"})
        assert answer(connection) == {"status": "declined"}
    here.pull("x", of(there, "r.1", "another"), 4)
    said = (
        "hold 'r.1' is of engine 'another', but this is engine 'engine': the other one has ended, or has another "
        "address"
    )
    assert here.reason() == said
    there.serve("r.1", 5)
    here.pull("y", of(there, "r.1", "another"), 4)  # a framework may name its halves differently
    here.wait_for_pulls(2)
    assert here.pulled == ["y"]


def test_who_declines_it_before_ends_it_when_it_is_there(worker, patient):
    there, here = patient, worker(2)
    with connect(there) as connection:
        send_frame(connection, {"op": "decline", "hold": "r.1", "digest": "r.1 digest"})
        connection.settimeout(SHORT)
        with pytest.raises(TimeoutError):
            answer(connection)
        there.serve("r.1", 1)
        there.wait_for(lambda: there.served == ["r.1"])
    here.pull("x", there.source("r.1"), 0)
    assert here.reason() == NONE.format("r.1")


@pytest.mark.parametrize("hold_id", ["s.1", "r.2", "x.2"])
def test_nobody_waits_for_what_was_there(worker, hold_id):
    there, here = worker(1), worker(2)
    there.serve("r.2", 1)
    assert there.wire.withdraw("r.2") is True
    there.serve("t.3", 1)
    here.pull("x", there.source(hold_id), 0)
    assert here.reason() == NONE.format(hold_id)


@pytest.mark.parametrize(("most", "silence"), [(server.PATIENCE_SECONDS, 2 * SHORT), (SHORT, PATIENCE)])
def test_nor_for_ever_for_what_does_not_come(worker, monkeypatch, most, silence):
    monkeypatch.setattr(server, "PATIENCE_SECONDS", most)
    there, here = worker(1, silence=silence), worker(2)
    here.pull("x", there.source("r.9"), 0)
    assert here.reason() == (
        f"this worker did not learn of hold 'r.9' within {SHORT:g} seconds: its engine hangs, or the hold is of "
        "an earlier engine at this address"
    )
    there.serve("r.9", 1)
    here.pull("y", there.source("r.9"), 0)
    here.wait_for_pulls(2)
    assert here.pulled == ["y"]


def test_who_waits_for_it_does_not_keep_a_wire_from_being_closed(worker, patient, monkeypatch):
    there, here = patient, worker(2)
    asked = []
    monkeypatch.setattr(there.wire._holds, "is_to_come", lambda hold_id: not asked.append(hold_id))
    here.pull("x", there.source("r.1"), 0)
    with connect(there) as connection:
        ask(connection, there, "r.1")
        wait_for(lambda: len(asked) == 2)  # with the lock, which they let go of when they wait
        closing = threading.Thread(target=there.wire.close, daemon=True)
        closing.start()
        wait_for(lambda: not closing.is_alive())
    here.wait_for_pulls()
    assert here.pulled == []
