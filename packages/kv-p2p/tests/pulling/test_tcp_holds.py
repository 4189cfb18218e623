"""Holds over TCP: when they end, and when not yet."""

import pytest
from kv_p2p_tcp import PATIENCE, answer, ask, connect, wait_for

from kv_p2p.frames import send_frame

SHORT = 0.2
"""Seconds that a test waits because it must."""
NONE = "there is no hold {!r}: it was pulled, it was declined, or its time was over"


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
    for digest in ("digest h", "digest h"):  # the second time there is nothing to decline
        with connect(there) as connection:
            send_frame(connection, {"op": "decline", "hold": "h", "digest": digest})
            assert answer(connection) == {"status": "declined"}
            assert answer(connection) is None
    there.poll()
    assert there.served == ["h"]


def test_who_declines_stays_until_it_is_told(worker, raw):
    worker(2).wire.decline(raw.source)
    connection, asked = raw.asked()
    assert asked == {"op": "decline", "hold": "h", "digest": "d"}
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
        send_frame(connection, {"op": "decline", "hold": "h", "digest": "digest h"})
        assert answer(connection) == {"status": "declined"}
        there.poll()
        assert there.served == []
    wait_for(lambda: there.readers("h") == 0)
    here.pull("r", there.source("h"), 0)
    here.wait_for_pulls()
    assert here.pulled == ["r"]
