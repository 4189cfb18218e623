"""Workers over TCP among others that are slow, hang, are gone, or mean harm: nobody else waits for these."""

import json
import socket
import struct
import threading
from contextlib import contextmanager, suppress

import pytest
from kv_p2p_tcp import PATIENCE, answer, ask, connect, frame_of, wait_for

from kv_p2p import sockets
from kv_p2p.frames import recv_frame, send_frame
from kv_p2p.pulling.tcp import client, server
from kv_p2p.pulling.tcp.lanes import LANE_THREADS
from kv_p2p.pulling.ticket import Address

SHORT = 0.2
"""Seconds after which a worker takes the other for dead, in a test in which it is."""
PAUSE = 0.02
"""Between two bytes of somebody slow."""
TAKEN_AT_ONCE = 1 << 16
FRAME_BYTES = 1 << 26
"""More than the system takes, and than is taken in so short a time."""
LONG = 10_000.0


def reset(connection):
    """End a connection as a process does that was killed with something unread."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def drip(connection, data):
    """Send a byte now and then until the other side has ended."""
    pause = threading.Event()
    with suppress(OSError):
        for byte in data:
            connection.sendall(bytes([byte]))
            pause.wait(PAUSE)


@contextmanager
def meanwhile(run, connection, *arguments):
    """Run it in a thread, at the end of which the connection is over."""
    thread = threading.Thread(target=run, args=(connection, *arguments))
    thread.start()
    yield
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    thread.join(PATIENCE)


def take_slowly(connection, taken):
    """Take a little again and again, and note how much."""
    pause = threading.Event()
    with suppress(OSError):
        while piece := connection.recv(TAKEN_AT_ONCE):
            taken.append(len(piece))
            pause.wait(PAUSE)


def start(header_bytes):
    return struct.pack(">4sII", b"KVp1", header_bytes, 0)


class TestOtherProducersAreReached:
    @pytest.fixture
    def there(self, worker):
        there = worker(1)
        there.serve("h", 1)
        return there

    def pulls_well(self, there, here):
        here.pull("well", there.source("h"), 0)
        here.wait_for(lambda: "well" in here.pulled)
        assert here.block(0) == there.block(1)

    def test_while_one_takes_calls_and_never_answers(self, there, worker, raw):
        here = worker(2, silence=LONG)
        for number in range(3 * server.MOST_READERS):
            here.pull(f"r{number}", raw.source, 1)
        self.pulls_well(there, here)

    def test_while_one_can_not_be_found_or_connected_to(self, there, worker, monkeypatch):
        connect_really, found = sockets.connect, threading.Event()

        def connect_slowly(host, *rest):
            if host == "slow":
                assert found.wait(PATIENCE)
                raise TimeoutError("timed out")
            return connect_really(host, *rest)

        monkeypatch.setattr(sockets, "connect", connect_slowly)
        here = worker(2)
        slow = here.source("h", address=Address("slow", 80))
        for number in range(9):
            here.pull(f"r{number}", slow, 1)
            here.wire.decline(slow)
        self.pulls_well(there, here)
        found.set()
        here.wait_for(lambda: len(here.failed) == 9)

    def test_while_one_is_told_of_declines_that_it_does_not_hear(self, there, worker, raw, monkeypatch):
        monkeypatch.setattr(client, "CONNECT_SECONDS", SHORT)
        here = worker(2)
        for _ in range(client.MOST_DECLINES + 50):
            here.wire.decline(raw.source)
        self.pulls_well(there, here)
        assert here.wire._client._lanes.length(raw.source.address) <= client.MOST_DECLINES

    def test_while_some_send_a_part_of_what_they_were_asked_for(self, there, worker, raw):
        here = worker(2, silence=LONG)
        for number in range(5):
            here.pull(f"r{number}", raw.source, 1)
        for _ in range(4):
            connection, _ = raw.asked()
            connection.sendall(b"KVp1")
        self.pulls_well(there, here)

    def test_memory_is_for_those_whose_answer_has_begun(self, there, worker, raw, monkeypatch):
        monkeypatch.setattr(client, "MOST_RECEIVING", 1)
        here = worker(2, silence=LONG)
        for number in range(4):
            here.pull(f"r{number}", raw.source, 1)
        connections = [raw.asked()[0] for _ in range(4)]
        self.pulls_well(there, here)
        for connection in connections:
            send_frame(connection, *frame_of(here, 5))
            assert answer(connection) == {"op": "done"}
        here.wait_for(lambda: len(here.pulled) == 5)


def test_who_takes_memory_takes_one_of_few_places(worker, raw, monkeypatch):
    monkeypatch.setattr(client, "MOST_RECEIVING", 1)
    here, make, left = worker(2), client.frame_memory, []

    def make_in_its_place(*args):
        left.append(here.wire._client._receiving.acquire(blocking=False))
        return make(*args)

    monkeypatch.setattr(client, "frame_memory", make_in_its_place)
    here.pull("r", raw.source, 1)
    connection, _ = raw.asked()
    send_frame(connection, *frame_of(here, 5))
    here.wait_for(lambda: "r" in here.pulled)
    assert left == [False]


def test_a_wire_that_is_closed_begins_no_decline_that_waits(worker, monkeypatch):
    asked, may_end = [], threading.Event()

    def connect_slowly(host, *rest):
        asked.append(host)
        assert may_end.wait(PATIENCE)
        raise TimeoutError("timed out")

    monkeypatch.setattr(sockets, "connect", connect_slowly)
    here = worker(2)
    slow = here.source("h", address=Address("slow", 80))
    for _ in range(3 * LANE_THREADS):
        here.wire.decline(slow)
    wait_for(lambda: len(asked) == LANE_THREADS)
    closing = threading.Thread(target=here.close)
    closing.start()
    try:
        wait_for(lambda: not here.wire._client._lanes.length(slow.address))
    finally:
        may_end.set()
        closing.join(PATIENCE)
    assert len(asked) == LANE_THREADS


def test_a_wire_can_be_closed_while_a_decline_is_answered_byte_by_byte(worker, raw, monkeypatch):
    monkeypatch.setattr(client, "CONNECT_SECONDS", SHORT)
    here = worker(2)
    here.wire.decline(raw.source)
    connection, _ = raw.asked()
    with meanwhile(drip, connection, start(1 << 20) + b" " * (1 << 20)):
        here.close()


class TestAClientHasNotForEver:
    def test_to_ask(self, worker, monkeypatch, caplog):
        monkeypatch.setattr(server, "ASK_SECONDS", SHORT)
        there = worker(1, silence=LONG)
        with connect(there) as connection, meanwhile(drip, connection, start(1 << 19) + b" " * (1 << 19)):
            wait_for(lambda: caplog.messages)
        assert caplog.messages == [f"a client of {there.wire.server.port} broke off: timed out"]

    def test_to_take_a_frame(self, worker):
        """Each of its parts alone is taken in time."""
        there, taken = worker(1, silence=SHORT), []
        there.pages.gather = lambda blocks, memory: [bytes(FRAME_BYTES >> 13)] * (1 << 13)
        there.serve("h", 1)
        with connect(there) as connection:
            ask(connection, there, "h")
            wait_for(lambda: there.readers("h") == 1)
            with meanwhile(take_slowly, connection, taken):
                wait_for(lambda: there.readers("h") == 0)
                assert sum(taken) < FRAME_BYTES / 2

    def test_to_say_that_it_has_all(self, worker):
        there = worker(1, silence=5 * SHORT)
        there.serve("h", 1)
        with connect(there) as connection:
            ask(connection, there, "h")
            assert answer(connection)["count"] == 1
            drip(connection, start(1000) + b" " * 1000)
        wait_for(lambda: there.readers("h") == 0)

    def test_to_read_what_was_withdrawn(self, worker, monkeypatch):
        """Frame after frame comes in time, and there are very many."""
        monkeypatch.setattr(server, "FRAME_BYTES", 1)
        there, taken = worker(1, silence=SHORT), []
        there.serve("h", *[1, 2] * 100_000)
        with connect(there) as connection:
            ask(connection, there, "h", count=200_000)
            wait_for(lambda: there.readers("h") == 1)
            with meanwhile(take_slowly, connection, taken):
                wait_for(lambda: there.wire.withdraw("h"))
                assert sum(taken) < 200_000 * there.pages.bytes_per_block / 2
        there.poll()
        assert there.served == []


class TestSoManyAtOnce:
    def test_are_heard_and_who_comes_then_waits(self, worker, monkeypatch):
        monkeypatch.setattr(server, "MOST_CLIENTS", 2)
        there, here = worker(1), worker(2, serves=False)
        there.serve("h", 1)
        with connect(there) as one, connect(there) as other:
            for connection in (one, other):
                ask(connection, there, "h")
                assert answer(connection)["count"] == 1
            here.pull("r", there.source("h"), 0)
            here.wire.wait(SHORT)
            here.poll()
            assert (here.pulled, here.failed, len(there.wire.server._clients)) == ([], [], 2)
        here.wait_for_pulls()
        assert here.pulled == ["r"]

    def test_are_heard_and_who_has_not_asked_gives_place(self, worker, monkeypatch):
        monkeypatch.setattr(server, "MOST_CLIENTS", 3)
        monkeypatch.setattr(server, "ASK_SECONDS", LONG)
        there, here = worker(1), worker(2, serves=False)
        for name in "gh":
            there.serve(name, 1)
        with connect(there) as connection:
            ask(connection, there, "g")
            assert answer(connection)["count"] == 1
            silent = [connect(there) for _ in range(9)]
            here.pull("r", there.source("h"), 0)
            here.wait_for_pulls()
            assert here.pulled == ["r"]
            assert [one.recv(1) for one in silent[:7]] == [b""] * 7
            send_frame(connection, {"op": "done"})
            there.wait_for(lambda: sorted(there.served) == ["g", "h"])
        for one in silent:
            reset(one)
        wait_for(lambda: not there.wire.server._silent)

    def test_are_heard_and_who_waits_then_does_not_keep_a_wire_from_being_closed(self, worker, monkeypatch):
        monkeypatch.setattr(server, "MOST_CLIENTS", 1)
        there = worker(1)
        with connect(there), connect(there):
            wait_for(lambda: there.wire.server._clients)
            closing = threading.Thread(target=there.wire.close, daemon=True)
            closing.start()
            closing.join(PATIENCE)
            assert not closing.is_alive()

    def test_are_sent_blocks_and_who_comes_then_waits(self, worker, monkeypatch):
        monkeypatch.setattr(server, "MOST_READERS", 1)
        there, here = worker(1), worker(2)
        for name in ("g", "h"):
            there.serve(name, 1, 2)
        with connect(there) as connection:
            ask(connection, there, "g")
            assert answer(connection)["count"] == 1
            here.pull("r", there.source("h"), 0)
            wait_for(lambda: len(there.wire.server._clients) == 2)
            here.wire.wait(SHORT)
            here.poll()
            assert (here.pulled, here.failed, there.wire.server._readers) == ([], [], 1)
        here.wait_for_pulls()
        assert here.pulled == ["r"]
        wait_for(lambda: not there.wire.server._readers)

    def test_are_sent_blocks_at_a_time_and_each_counts(self, worker):
        there = worker(1)
        for name in ("g", "h"):
            there.serve(name, 1)
        with connect(there) as one, connect(there) as other:
            for number, (connection, name) in enumerate(((one, "g"), (other, "h")), 1):
                ask(connection, there, name)
                assert answer(connection)["count"] == 1
                assert there.wire.server._readers == number
        wait_for(lambda: not there.wire.server._readers)

    def test_are_sent_blocks_and_who_was_refused_is_none_of_them(self, worker, monkeypatch):
        monkeypatch.setattr(server, "MOST_READERS", 1)
        there, here = worker(1), worker(2)
        there.serve("h", 1)
        for _ in range(2):
            with connect(there) as connection:
                ask(connection, there, "h", count=9)
                assert answer(connection)["status"] == "refused"
        here.pull("r", there.source("h"), 0)
        here.wait_for_pulls()
        assert here.pulled == ["r"]

    def test_are_sent_blocks_and_who_has_waited_is_told_so(self, worker, monkeypatch):
        monkeypatch.setattr(server, "MOST_READERS", 0)
        there, here = worker(1, silence=SHORT), worker(2)
        there.serve("h", 1)
        here.pull("r", there.source("h"), 0)
        assert here.reason() == "this worker is sending blocks to 0 others, and none of these pulls has ended"
        assert there.wire.withdraw("h") is True


class TestAConnectionThatIsReset:
    def test_at_any_byte_of_what_is_asked(self, worker):
        there, here = worker(1), worker(2)
        there.serve("h", 1)
        asked = Recorder()
        ask(asked, there, "h")
        for end in range(len(asked.data)):
            connection = connect(there)
            connection.sendall(asked.data[:end])
            reset(connection)
        wait_for(lambda: not there.wire.server._clients)
        here.pull("r", there.source("h"), 0)
        here.wait_for_pulls()
        assert here.pulled == ["r"]

    def test_at_any_byte_of_what_is_answered(self, worker, raw):
        here, sent = worker(2), worker(1)
        before, answered = here.blocks, Recorder()
        send_frame(answered, *frame_of(sent, 3, 4))
        for end in range(len(answered.data)):
            here.pull(f"r{end}", raw.source, 0, 1)
            connection, _ = raw.asked()
            connection.sendall(answered.data[:end])
            reset(connection)
            here.wait_for(lambda end=end: len(here.failed) == end + 1)
        assert (here.blocks, here.pulled, here.wire._client._pulls) == (before, [], {})


class Recorder:
    """Fits what frames are sent to."""

    def __init__(self):
        self.data = b""

    def sendall(self, data):
        self.data += bytes(data)


def test_a_frame_of_garbage_takes_no_more_than_is_asked_of_anybody(worker, caplog):
    there = worker(1)
    text = json.dumps({"op": "x" * server.ASKED_BYTES}).encode()
    with connect(there) as connection:
        with suppress(OSError):
            connection.sendall(start(len(text)) + text)
        with suppress(OSError):
            assert recv_frame(connection, 0) is None
    wait_for(lambda: caplog.messages)
    assert f"a frame has at most {server.ASKED_BYTES} bytes of header" in caplog.text
