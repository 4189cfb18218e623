"""What goes wrong between two workers over TCP: who breaks off, who is silent, who sends something else."""

import socket
from contextlib import suppress
from types import SimpleNamespace

import pytest
from kv_p2p_tcp import PATIENCE, answer, ask, connect, frame_of, wait_for

from kv_p2p.frames import send_frame
from kv_p2p.pulling.tcp.client import CONNECT_SECONDS
from kv_p2p.pulling.ticket import Address

SHORT = 0.2
"""Seconds after which a worker takes the other for dead, in a test in which it is."""


class TestAServerThat:
    @pytest.mark.parametrize("answers", ["nothing", "half a frame", "one frame"])
    def test_stops_in_the_middle(self, worker, raw, small_frames, answers):
        here, sent = worker(2), worker(1)
        before = here.blocks
        here.pull("r", raw.source, *range(4))
        connection, asked = raw.asked()
        assert asked["places"] == [[0, 4]]
        if answers == "half a frame":
            connection.sendall(b"KVp1")
        elif answers == "one frame":
            send_frame(connection, *frame_of(sent, 0, 1, 2))
        connection.close()
        assert (
            here.reason()
            == {
                "nothing": "FrameError: the connection ended with 4 blocks of group 0 to come",
                "half a frame": "FrameError: the connection ended after 4 of 12 bytes of a frame",
                "one frame": "FrameError: the connection ended with 1 blocks of group 0 to come",
            }[answers]
        )
        filled = 3 if answers == "one frame" else 0
        assert here.blocks == [*sent.blocks[:filled], *before[filled:]]

    def test_is_not_there(self, worker, raw):
        here = worker(2)
        source = raw.source
        raw.close()
        here.pull("r", source, 0)
        assert here.reason().startswith("ConnectionRefusedError: ")

    @pytest.mark.parametrize(("host", "reason"), [("x" * 80, "OSError: "), ("nowhere.invalid", "gaierror: ")])
    def test_cannot_be(self, worker, host, reason):
        here = worker(2)
        source = here.source("h", address=Address(host, 80))
        here.wire.decline(source)
        here.pull("r", source, 0)
        assert here.reason().startswith(reason)

    def test_never_answers(self, worker, raw):
        here = worker(2, silence=SHORT)
        before = here.blocks
        here.pull("r", raw.source, 0)
        assert here.reason() == "TimeoutError: timed out"
        assert here.blocks == before

    def test_may_be_silent_for_longer_than_it_may_take_to_connect(self, worker, raw):
        here = worker(2)
        here.pull("r", raw.source, 0)
        raw.asked()
        (under_way,) = here.wire._client._pulls.values()
        assert under_way.socket.gettimeout() == PATIENCE > CONNECT_SECONDS

    @pytest.mark.parametrize("count", [0, -1, 3, True, 1.0, "1", None])
    def test_counts_wrongly(self, worker, raw, count):
        here = worker(2)
        before = here.blocks
        here.pull("r", raw.source, 0, 1)
        connection, _ = raw.asked()
        _, parts = frame_of(here, 5, 6)
        send_frame(connection, {"status": "blocks", "group": 0, "count": count}, parts)
        assert here.reason() == (
            f"FrameError: a frame says that it has {count!r} blocks of group 0; to come are 2 of group 0"
        )
        assert here.blocks == before

    def test_sends_too_few_bytes(self, worker, raw):
        here = worker(2)
        before = here.blocks
        here.pull("r", raw.source, 0, 1)
        connection, _ = raw.asked()
        send_frame(connection, {"status": "blocks", "group": 0, "count": 2}, [bytes(48), bytes(19)])
        assert here.reason() == "ValueError: 2 blocks are [48, 20] bytes, got [48, 19]"
        assert here.blocks == before

    def test_sends_too_many_bytes(self, worker, raw, small_frames):
        here = worker(2)
        here.pull("r", raw.source, *range(8))
        connection, _ = raw.asked()
        with suppress(ConnectionError):  # it hangs up before it has read all
            send_frame(connection, {"status": "blocks", "group": 0, "count": 4}, [bytes(4 * 24), bytes(4 * 10)])
        assert here.reason() == "FrameError: expected at most 102 bytes, the frame has 136"

    def test_speaks_another_language(self, worker, raw):
        here = worker(2)
        here.pull("r", raw.source, 0)
        connection, _ = raw.asked()
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        assert here.reason() == "FrameError: expected a frame, which begins with b'KVp1', got b'HTTP'"

    def test_refuses_after_a_frame(self, worker, raw, small_frames):
        here = worker(2)
        here.pull("r", raw.source, *range(4))
        connection, _ = raw.asked()
        send_frame(connection, *frame_of(here, 0, 1, 2))
        send_frame(connection, {"status": "refused", "reason": "no more"})
        assert here.reason() == "no more"

    def test_is_told_by_whoever_has_got_all(self, worker, raw):
        here = worker(2)
        here.pull("r", raw.source, 0, 3, first=5)
        connection, asked = raw.asked()
        assert asked == {
            "op": "pull", "version": 2, "hold": "h", "digest": "d", "layout": here.layout,
            "places": [[5, 2]], "engine": "engine",
        }  # fmt: skip
        send_frame(connection, *frame_of(here, 5, 6))
        assert answer(connection) == {"op": "done"}
        assert answer(connection) is None
        here.wait_for_pulls()
        assert here.pulled == ["r"]


class TestAClientThat:
    @pytest.fixture
    def there(self, worker):
        there = worker(1)
        there.serve("h", 1, 2)
        return there

    def pulls_well(self, there, here):
        here.pull("r", there.source("h"), 0)
        here.wait_for_pulls()
        assert (here.pulled, here.block(0)) == (["r"], there.block(1))

    def test_is_gone_when_it_is_let_in(self, there, worker, monkeypatch):
        """Some systems say so when something of its socket is set. Whoever serves it will see that, too."""

        def refuse(client):
            raise OSError(22, "Invalid argument")

        here = worker(2)
        monkeypatch.setattr("kv_p2p.pulling.tcp.server.sockets", SimpleNamespace(send_at_once=refuse))
        self.pulls_well(there, here)

    @pytest.mark.parametrize(
        ("data", "said"),
        [
            (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "expected a frame, which begins with b'KVp1', got b'GET '"),
            (b"\x16\x03\x01", "the connection ended after 3 of 12 bytes of a frame"),
            (b"KVp1\0\0\0\2\0\0\0\0[]", "the header of a frame is a JSON object, got list"),
            (b"KVp1\xff\xff\xff\xff\0\0\0\0", "a frame has at most 1048576 bytes of header and 65536 parts; this "
             "one has 4294967295 and 0"),
            (b"KVp1\0\0\0\2\0\0\0\1" + b"\xff" * 8 + b"{}", "expected at most 0 bytes, the frame has 18446744"),
            (b"KVp1\0\1\0\0\0\0\0\0" + b"[" * 65536, "the header of a frame is no JSON: "),
        ],
    )  # fmt: skip
    def test_speaks_another_language(self, there, worker, data, said, caplog):
        with connect(there) as connection:
            with suppress(OSError):  # it may have hung up already
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
            wait_for(lambda: caplog.messages)
        assert caplog.messages[0].startswith(f"a client of {there.wire.server.port} broke off: {said}")
        self.pulls_well(there, worker(2))

    def test_says_nothing_and_goes(self, there, worker, caplog):
        with connect(there):
            pass
        self.pulls_well(there, worker(2))
        assert not caplog.messages

    def test_says_nothing_and_stays(self, worker, caplog):
        there = worker(1, silence=SHORT)
        with connect(there) as connection:
            assert connection.recv(1) == b""
        wait_for(lambda: caplog.messages)
        assert caplog.messages == [f"a client of {there.wire.server.port} broke off: timed out"]

    def test_never_says_that_it_has_got_all(self, worker):
        there = worker(1, silence=5 * SHORT)  # enough to ask
        there.serve("h", 1)
        with connect(there) as connection:
            ask(connection, there, "h")
            assert answer(connection)["count"] == 1
            assert answer(connection) is None
        wait_for(lambda: there.wire.withdraw("h"))
        there.poll()
        assert there.served == []

    def test_breaks_off_while_it_is_sent_to(self, worker, monkeypatch, caplog):
        there = worker(1)
        there.serve("h", *[1, 2] * 10_000)
        monkeypatch.setattr("kv_p2p.pulling.tcp.server.FRAME_BYTES", 1)
        there.pages.reading.shut()
        with connect(there) as connection:
            ask(connection, there, "h", count=20_000)
            there.pages.reading.wait_for_somebody()
        there.pages.reading.open.set()
        wait_for(lambda: there.readers("h") == 0)
        wait_for(lambda: caplog.messages)
        self.pulls_well(there, worker(2))
