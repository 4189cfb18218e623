"""How two sides that look for each other end: when time is up, and with whoever breaks off or says nothing."""

import socket
import struct
import threading
from contextlib import suppress

import pytest
from kv_p2p_background import LIMIT_SECONDS, Background
from kv_p2p_tiny_engine import free_port

from kv_p2p.first.pipe import rendezvous
from kv_p2p.first.pipe.hello import WELCOME, make_refusal
from kv_p2p.first.pipe.rendezvous import Listener, RendezvousError, connect
from kv_p2p.frames import recv_frame, send_frame

HOST = "127.0.0.1"


def test_no_time_is_left_when_a_producer_begins_to_wait() -> None:
    listener, times = Listener(HOST, 0), iter([0.0])
    with pytest.raises(RendezvousError) as late:
        listener.accept(0, 5.0, lambda: next(times, 6.0))
    listener.close()
    assert str(late.value) == f"no consumer of rank 0 came to {HOST}:{listener.port} within 5 s"


def test_no_time_is_left_when_a_consumer_begins_to_call() -> None:
    port, times = free_port(), iter([0.0])
    with pytest.raises(RendezvousError, match=f"^no producer of rank 0 at {HOST}:{port} within 5 s: "):
        connect(HOST, port, 0, 5.0, lambda: next(times, 6.0))


@pytest.mark.parametrize(("now", "left"), [(1.5, 3.5), (5.5, 0.001)])
def test_a_call_may_take_what_is_left(monkeypatch: pytest.MonkeyPatch, now: float, left: float) -> None:
    given, times = [], iter([0.0, now])

    def connect_never(host: str, port: int, seconds: float) -> None:
        given.append((host, port, seconds))
        raise TimeoutError("timed out")

    monkeypatch.setattr(rendezvous.sockets, "connect", connect_never)
    with pytest.raises(RendezvousError, match=r"within 5 s: timed out$"):
        connect(HOST, 80, 0, 5.0, lambda: next(times, 6.0))
    assert given == [(HOST, 80, left)]


def test_a_consumer_calls_again_after_a_while_as_long_as_a_while_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now, given, slept = 0.0, [], []

    def connect_never(host: str, port: int, seconds: float) -> None:
        given.append(seconds)
        assert len(given) < 9, "it goes on for ever"
        raise ConnectionRefusedError("refused")

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        slept.append(seconds)

    monkeypatch.setattr(rendezvous.sockets, "connect", connect_never)
    monkeypatch.setattr(rendezvous, "sleep", sleep)
    monkeypatch.setattr(rendezvous, "RETRY_SECONDS", 0.25)
    with pytest.raises(RendezvousError, match=r"within 1 s: refused$"):
        connect(HOST, 80, 0, 1.0, lambda: now)
    assert (given, slept) == ([1.0, 0.75, 0.5, 0.25], [0.25, 0.25, 0.25])


@pytest.mark.parametrize(("hello_seconds", "seconds"), [(0.05, 100 * LIMIT_SECONDS), (100 * LIMIT_SECONDS, 0.05)])
def test_who_says_nothing_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, hello_seconds: float, seconds: float
) -> None:
    monkeypatch.setattr(rendezvous, "HELLO_SECONDS", hello_seconds)
    listener = Listener(HOST, 0)
    begin = 1000 * LIMIT_SECONDS
    times = iter([begin, begin])
    with socket.create_connection((HOST, listener.port), LIMIT_SECONDS) as silent:
        accepting = Background(listener.accept, 0, seconds, lambda: next(times, begin + seconds))
        answer = recv_frame(silent, 0)
        assert answer is not None and answer.header == make_refusal("timed out")
        with pytest.raises(RendezvousError, match=r"was refused: timed out$"):
            accepting.result()
    listener.close()


def test_who_says_a_byte_now_and_then_is_not_waited_for_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "HELLO_SECONDS", 0.1)
    listener, pause = Listener(HOST, 0), threading.Event()
    accepting = Background(listener.accept, 0, LIMIT_SECONDS)
    with socket.create_connection((HOST, listener.port), LIMIT_SECONDS) as slow:
        hello = b"KVp1" + struct.pack(">II", 60_000, 0) + b" " * 60_000
        with suppress(OSError):  # it has hung up
            for at in range(500):
                slow.sendall(hello[at : at + 1])
                pause.wait(0.01)
        assert at < 499
    consumer = connect(HOST, listener.port, 0, LIMIT_SECONDS)
    accepting.result().close()
    consumer.close()
    listener.close()


def test_who_announces_a_long_word_is_not_heard() -> None:
    listener = Listener(HOST, 0)
    accepting = Background(listener.accept, 0, LIMIT_SECONDS)
    with socket.create_connection((HOST, listener.port), LIMIT_SECONDS) as talker:
        talker.sendall(b"KVp1" + struct.pack(">II", 65_537, 0))
        answer = recv_frame(talker, 0)
        assert answer is not None
        said = "a frame has at most 65536 bytes of header and 65536 parts; this one has 65537 and 0"
        assert answer.header == make_refusal(said)
    consumer = connect(HOST, listener.port, 0, LIMIT_SECONDS)
    accepting.result().close()
    consumer.close()
    listener.close()


def test_who_breaks_off_before_it_is_answered_ends_nobodys_waiting() -> None:
    listener = Listener(HOST, 0)
    gone = socket.create_connection((HOST, listener.port))
    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    gone.close()
    accepting = Background(listener.accept, 0, LIMIT_SECONDS)
    consumer = connect(HOST, listener.port, 0, LIMIT_SECONDS)
    accepting.result().close()
    consumer.close()
    listener.close()


def test_a_consumer_whose_second_call_is_refused_lets_go_of_the_first() -> None:
    with socket.create_server((HOST, 0)) as server:
        server.settimeout(LIMIT_SECONDS)
        connecting = Background(connect, HOST, server.getsockname()[1], 0, LIMIT_SECONDS)
        answers = []
        for answer in (dict(WELCOME), make_refusal("no")):
            answers.append(server.accept()[0])
            answers[-1].settimeout(LIMIT_SECONDS)
            assert recv_frame(answers[-1], 0) is not None
            send_frame(answers[-1], answer)
        with pytest.raises(RendezvousError, match=r"refused: no$"):
            connecting.result()
        for connection in answers:
            with connection:
                assert recv_frame(connection, 0) is None
