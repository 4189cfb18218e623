"""How two workers over TCP begin and end: a pull that is given up, a wire that is closed, a port that is taken."""

import errno
import os
import socket
import struct
import threading
from contextlib import suppress
from time import monotonic

import numpy as np
import pytest
from kv_p2p_background import Background
from kv_p2p_carrier import LocalCarrier
from kv_p2p_engine import kv_cache_config, vllm_config
from kv_p2p_tcp import HOST, PATIENCE, answer, ask, connect, frame_of, wait_for

from kv_api import ConfigError
from kv_p2p.frames import send_frame
from kv_p2p.pulling.options import Options
from kv_p2p.pulling.pages import CachePages, WorkerPages
from kv_p2p.pulling.tcp.client import CONNECT_SECONDS
from kv_p2p.pulling.tcp.wire import TcpWire
from kv_p2p.pulling.ticket import Address

SHORT = 0.2
"""Seconds that a test waits because it must."""
LONG = 10_000.0
PAUSE = 0.05


class TestClosing:
    def test_while_blocks_are_sent(self, worker, monkeypatch, caplog):
        """To somebody who does not take them."""
        monkeypatch.setattr("kv_p2p.pulling.tcp.server.FRAME_BYTES", 1)
        there = worker(1, silence=LONG)
        there.serve("h", *[1, 2] * 50_000)
        with connect(there) as connection:
            ask(connection, there, "h", count=100_000)
            for _ in range(10):
                there.pages.reading.wait_for_somebody()
            there.close()
        assert there.readers("h") == 0
        assert not caplog.messages

    def test_while_nobody_says_anything(self, worker, raw, caplog):
        here = worker(2, silence=LONG)
        before = here.blocks
        for number in range(6):  # more than there are threads
            here.pull(f"r{number}", raw.source, number)
        here.wire.decline(raw.source)
        connections = [raw.asked()[0] for _ in range(4)]
        with connect(here), connect(here):
            here.close()
        assert not caplog.messages
        for connection in connections:
            assert answer(connection) is None
        raw.listener.setblocking(False)
        with pytest.raises(BlockingIOError):  # what has not begun never begins
            raw.listener.accept()
        here.poll()
        assert (here.pulled, here.failed, here.blocks) == ([], [], before)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("kv-p2p")]

    def test_while_a_frame_is_on_its_way(self, worker, raw):
        here = worker(2, silence=LONG)
        before = here.blocks
        here.pull("r", raw.source, 0)
        connection, _ = raw.asked()
        connection.sendall(b"KVp1\0\0\0\2")
        here.close()
        assert here.blocks == before

    def test_while_it_writes_the_last_of_somebody_who_has_broken_off(self, worker, raw):
        here, sent = worker(2, silence=LONG), worker(1)
        here.pages.writing.shut()
        here.pull("r", raw.source, 0)
        connection, _ = raw.asked()
        send_frame(connection, *frame_of(sent, 0))
        here.pages.writing.wait_for_somebody()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        closing = threading.Thread(target=here.wire.close)
        closing.start()
        wait_for(lambda: not here.wire._client._pulls)
        here.pages.writing.open.set()
        closing.join(PATIENCE)
        here.poll()
        assert (here.pulled, here.failed) == ([], [])

    @pytest.mark.parametrize(("silence", "seconds"), [(LONG, CONNECT_SECONDS), (SHORT, SHORT)])
    def test_waits_no_longer_than_others_may_take_to_answer_at_all(self, worker, monkeypatch, silence, seconds):
        asked = []

        def connect_never(host, port, seconds):
            asked.append((host, port, seconds))
            raise TimeoutError("timed out")

        monkeypatch.setattr("kv_p2p.sockets.connect", connect_never)
        here = worker(2, rank=1, silence=silence)
        here.pull("r", here.source("h", address=Address("there", 80)), 0)
        assert here.reason() == "TimeoutError: timed out"
        assert asked == [("there", 81, seconds)]

    @pytest.mark.parametrize(("silence", "seconds"), [(LONG, SHORT), (SHORT, LONG)])
    def test_while_nobody_answers_a_decline(self, worker, raw, monkeypatch, silence, seconds):
        monkeypatch.setattr("kv_p2p.pulling.tcp.client.CONNECT_SECONDS", seconds)
        here = worker(2, silence=silence)
        here.wire.decline(raw.source)
        raw.asked()
        here.close()

    def test_whoever_is_connected_meanwhile_is_not_heard(self, worker, monkeypatch):
        accept, accepted, go_on = socket.socket.accept, threading.Event(), threading.Event()

        def accept_slowly(listener):
            found = accept(listener)
            accepted.set()
            assert go_on.wait(PATIENCE)
            return found

        monkeypatch.setattr(socket.socket, "accept", accept_slowly)
        there = worker(1)
        there.serve("h", 1)
        with connect(there) as connection:
            ask(connection, there, "h")
            assert accepted.wait(PATIENCE)
            closing = threading.Thread(target=there.wire.close)
            closing.start()
            wait_for(there.wire.server._closed.is_set)
            go_on.set()
            closing.join(PATIENCE)
            with suppress(ConnectionResetError):  # what it asked was not read
                assert answer(connection) is None

    def test_the_thread_of_a_conversation_is_forgotten(self, worker):
        there = worker(1)
        server = there.wire.server
        for _ in range(4):
            with connect(there) as connection:
                connection.shutdown(socket.SHUT_WR)
                assert answer(connection) is None
            wait_for(lambda: sum(thread.is_alive() for thread in server._threads) == 1)
        assert len(server._threads) == 2  # the one that accepts, and the last one's

    def test_a_process_that_ends_waits_for_no_thread_of_a_server(self, worker):
        there = worker(1)
        name = f"kv-p2p server {there.wire.server.port}"

        def threads():
            return [thread for thread in threading.enumerate() if thread.name == name]

        with connect(there):
            wait_for(lambda: len(threads()) == 2)
            assert all(thread.daemon for thread in threads())

    def test_again(self, worker):
        here = worker(2)
        for _ in range(3):
            here.close()
        with pytest.raises(ConnectionRefusedError):
            connect(here)


class TestListening:
    def test_where_somebody_listens_already(self, worker):
        port = worker(1).wire.server.port
        before = {*threading.enumerate()}
        with pytest.raises(ConfigError) as raised:
            worker(2, rank=1, port=port - 1)
        said = f"kv_connector_extra_config: can't listen at host '127.0.0.1', port {port}: "
        assert str(raised.value).startswith(said)
        assert os.strerror(errno.EADDRINUSE) in str(raised.value)
        end = "; the address is listen_host (or host), the port is port (or kv_port) plus the worker's rank"
        assert str(raised.value).endswith(end)
        assert {*threading.enumerate()} == before

    @pytest.mark.parametrize("host", ["x" * 80, "ä" * 80, "a\0b", "nowhere.invalid"])
    def test_where_nobody_can(self, host):
        pages = WorkerPages([CachePages({"layer": np.zeros((2, 3))}, 2)])
        with pytest.raises(ConfigError) as raised:
            TcpWire(pages, 0, Options(host, 0, 1.0, 1.0))
        said = f"kv_connector_extra_config: can't listen at host {host!r}, port 0: "
        assert str(raised.value).startswith(said)

    def test_what_was_begun_ends(self, monkeypatch):
        pages, carrier = WorkerPages([CachePages({"layer": np.zeros((2, 3))}, 2)]), LocalCarrier()
        listeners, create = [], socket.create_server

        def listen(*args, **kwargs):
            listeners.append(create(*args, **kwargs))
            return listeners[0]

        def refuse(thread):
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(socket, "create_server", listen)
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            TcpWire(pages, 0, Options(HOST, 0, 1.0, 1.0), carrier)
        assert [listener.fileno() for listener in listeners] == [-1]
        assert carrier.is_closed

    def test_elsewhere_than_at_the_address_that_others_know(self):
        pages = WorkerPages([CachePages({"layer": np.zeros((2, 3))}, 2)])
        wire = TcpWire(pages, 0, Options("reached.invalid", 0, 1.0, 1.0, HOST))
        socket.create_connection((HOST, wire.server.port), PATIENCE).close()
        Background(wire.close).result()

    def test_it_goes_on_when_nobody_could_connect_for_a_while(self, worker, monkeypatch, caplog):
        """Such as when too many files were open."""
        accept, failures = (
            socket.socket.accept,
            [OSError(errno.EMFILE, "too many"), ConnectionError("gone")],
        )
        monkeypatch.setattr("kv_p2p.pulling.tcp.server.PAUSE_SECONDS", PAUSE)
        began = monotonic()

        def accept_or_not(listener):
            if failures:
                raise failures.pop(0)
            return accept(listener)

        monkeypatch.setattr(socket.socket, "accept", accept_or_not)
        there, here = worker(1), worker(2, serves=False)
        there.serve("h", 1)
        here.pull("r", there.source("h"), 0)
        here.wait_for_pulls()
        assert here.pulled == ["r"]
        assert monotonic() - began >= 2 * PAUSE
        port = there.wire.server.port
        assert caplog.messages == [
            f"accepting connections at {port} failed: [Errno {errno.EMFILE}] too many",
            f"accepting connections at {port} failed: gone",
        ]

    def test_it_goes_on_when_nobody_came_for_a_while(self, worker, monkeypatch, caplog):
        """A call of accept ends by itself now and then, to see whether it is over."""
        accept, late = socket.socket.accept, threading.Event()

        def accept_later(listener):
            if not late.is_set():
                late.set()
                raise TimeoutError
            return accept(listener)

        monkeypatch.setattr(socket.socket, "accept", accept_later)
        there = worker(1)
        assert late.wait(PATIENCE)
        assert there.wire.server._listener.gettimeout(), "it has a time to end at"
        with connect(there) as connection:
            ask(connection, there, "h")
            assert answer(connection)["status"] == "refused"
        assert not caplog.messages


class TestOfWorker:
    caches = {"layer": np.zeros((16, 3))}  # noqa: RUF012 - nobody changes them
    options = Options(HOST, 0, 1.0, 1.0)

    def test_only_a_producer_listens(self):
        for role, serves in (("kv_producer", True), ("kv_both", True), ("kv_consumer", False)):
            wire = TcpWire.of_worker(self.caches, self.options, vllm_config(role), kv_cache_config())
            assert (wire.server is not None) is serves
            Background(wire.close).result()

    def test_its_rank(self):
        config = vllm_config("kv_consumer", rank=2, tp=4)
        wire = TcpWire.of_worker(self.caches, self.options, config, kv_cache_config())
        assert wire._client._rank == 2
        Background(wire.close).result()

    def test_it_needs_to_know_how_many_blocks_there_are(self):
        with pytest.raises(ConfigError) as raised:
            TcpWire.of_worker(self.caches, self.options, vllm_config(), None)
        said = "P2PConnector was created without a kv_cache_config; its workers need one"
        assert str(raised.value) == said
        with pytest.raises(ConfigError, match="should be the number of blocks, 17"):
            TcpWire.of_worker(self.caches, self.options, vllm_config(), kv_cache_config(17))


def test_what_ends_while_ends_are_taken_is_news_for_the_next_wait(worker, monkeypatch):
    wire = worker(1).wire
    taken = wire._holds.take_served

    def take_served():
        served = taken()
        wire._news.set()
        return served

    monkeypatch.setattr(wire._holds, "take_served", take_served)
    wire.poll()
    assert wire._news.is_set()
