"""How two sides find each other, and what they say to anybody else."""

import logging
import socket
import struct
from typing import Any

import numpy as np
import pytest
from kv_p2p_background import LIMIT_SECONDS, Background
from kv_p2p_ipv6 import EITHER
from kv_p2p_pipe_pairs import meet
from kv_p2p_tiny_engine import free_port

from kv_p2p.first.pipe import rendezvous
from kv_p2p.first.pipe.hello import Channel, find_fault, find_refusal, make_hello
from kv_p2p.first.pipe.rendezvous import Listener, Pipes, RendezvousError, connect
from kv_p2p.frames import MAGIC, recv_frame, send_frame
from kv_p2p.log import place_of

HOST = "127.0.0.1"
HELLO = make_hello(Channel.SIGNAL, 0, "me")


def test_both_pipes_lead_to_their_like() -> None:
    producer, consumer = meet()
    producer.signal.send_tensor(np.array(1))
    producer.data.send_tensor(np.array(2))
    consumer.data.send_tensor(np.array(3))
    assert int(consumer.data.recv_tensor()) == 2
    assert int(consumer.signal.recv_tensor()) == 1
    assert int(producer.data.recv_tensor()) == 3
    producer.close()
    consumer.close()


def test_the_consumer_may_come_first() -> None:
    port = free_port()
    connecting = Background(connect, HOST, port, 0, LIMIT_SECONDS)
    listener = Listener(HOST, port)
    pipes: list[Pipes] = [listener.accept(0, LIMIT_SECONDS), connecting.result()]
    listener.close()
    for each in pipes:
        each.close()


def test_the_pipe_for_data_may_be_opened_first() -> None:
    listener = Listener(HOST, 0)
    accepting = Background(listener.accept, 0, LIMIT_SECONDS)
    data, signal = (socket.create_connection((HOST, listener.port)) for _ in Channel)
    for connection, channel in ((data, Channel.DATA), (signal, Channel.SIGNAL)):
        send_frame(connection, make_hello(channel, 0, "me"))
        assert recv_frame(connection, 0) is not None
    producer: Pipes = accepting.result()
    listener.close()
    producer.data.send_tensor(np.zeros(3, np.uint8))
    producer.signal.send_tensor(np.zeros(1, np.uint8))
    heard = [recv_frame(connection, 3) for connection in (data, signal)]
    assert [len(frame.parts[0]) for frame in heard if frame is not None] == [3, 1]
    producer.close()
    data.close()
    signal.close()


@pytest.mark.parametrize("host", EITHER)
def test_two_producers(host: str) -> None:
    listener = Listener(host, 0)
    with pytest.raises(RendezvousError) as refused:
        Listener(host, listener.port)
    listener.close()
    assert str(refused.value).startswith(f"can't listen at {place_of(host, listener.port)}: ")
    assert str(refused.value).endswith("; a producer listens at port + rank, and no two at one")


def test_nobody_comes() -> None:
    listener = Listener(HOST, 0)
    with pytest.raises(RendezvousError) as late:
        listener.accept(3, 0.01)
    listener.close()
    assert str(late.value) == f"no consumer of rank 3 came to {HOST}:{listener.port} within 0.01 s"


@pytest.mark.parametrize("host", EITHER)
def test_nobody_is_there(host: str) -> None:
    port = free_port()
    with pytest.raises(RendezvousError) as late:
        connect(host, port, 3, 0.01)
    assert str(late.value).startswith(f"no producer of rank 3 at {place_of(host, port)} within 0.01 s: ")


def ask(port: int, hello: dict[str, Any], host: str = HOST) -> Any:
    """Say something to a producer; its answer."""
    with socket.create_connection((host, port)) as connection:
        send_frame(connection, hello)
        answer = recv_frame(connection, 0)
        assert answer is not None
        return answer.header


def say(port: int, data: bytes) -> None:
    with socket.create_connection((HOST, port)) as connection:
        connection.sendall(data)
        connection.recv(1000)


def test_a_producer_refuses_others_and_waits_on(caplog: pytest.LogCaptureFixture) -> None:
    listener = Listener(HOST, 0)
    accepting = Background(listener.accept, 0, LIMIT_SECONDS)
    with caplog.at_level(logging.WARNING, "kv_p2p"):
        say(listener.port, b"GET / HTTP/1.1\r\n\r\n")
        say(listener.port, WITH_A_BYTE)
        socket.create_connection((HOST, listener.port)).close()
        fault = "a producer waits for a kv_consumer here, and the caller is a 'kv_producer'"
        assert ask(listener.port, HELLO | {"role": "kv_producer"}) == {"refused": fault}
        consumer = connect(HOST, listener.port, 0, LIMIT_SECONDS)
        producer: Pipes = accepting.result()
    listener.close()
    producer.close()
    consumer.close()
    said = [record.getMessage().partition(" was refused: ")[2] for record in caplog.records]
    assert said == [
        "expected a frame, which begins with b'KVp1', got b'GET '",
        "expected at most 0 bytes, the frame has 1",
        "it ended without a word",
        fault,
    ]


@pytest.mark.parametrize("host", EITHER)
def test_who_was_refused_is_named_when_nobody_better_comes(host: str) -> None:
    listener = Listener(host, 0)
    times = iter([0.0, 0.0])
    accepting = Background(lambda: listener.accept(0, 5.0, lambda: next(times, 4.99)))
    fault = "this is the port of rank 0, and the caller has rank 2"
    assert ask(listener.port, HELLO | {"rank": 2}, host) == {"refused": fault}
    with pytest.raises(RendezvousError) as late:
        accepting.result()
    listener.close()
    text = str(late.value)
    place, caller = place_of(host, listener.port), place_of(host, 0)[:-1]
    assert text.startswith(f"no consumer of rank 0 came to {place} within 5 s; {caller}")
    assert text.count(place) == 1, "who called did so from a port of its own"
    assert text.endswith(f" was refused: {fault}")


def test_half_a_consumer_is_let_go() -> None:
    listener = Listener(HOST, 0)
    times = iter([0.0, 0.0])
    accepting = Background(lambda: listener.accept(0, 5.0, lambda: next(times, 4.99)))
    with socket.create_connection((HOST, listener.port), timeout=LIMIT_SECONDS) as first:
        send_frame(first, HELLO)
        assert recv_frame(first, 0) is not None
        with pytest.raises(RendezvousError) as late:
            accepting.result()
        assert str(late.value) == f"no consumer of rank 0 came to {HOST}:{listener.port} within 5 s"
        assert recv_frame(first, 0) is None
    listener.close()


def test_a_second_consumer_is_refused() -> None:
    listener = Listener(HOST, 0)
    accepting = Background(listener.accept, 0, LIMIT_SECONDS)
    with socket.create_connection((HOST, listener.port)) as first:
        send_frame(first, HELLO)
        assert recv_frame(first, 0) is not None
        with pytest.raises(RendezvousError) as refused:
            connect(HOST, listener.port, 0, LIMIT_SECONDS)
        assert str(refused.value) == f"{HOST}:{listener.port} refused: the producer has another consumer"
        with socket.create_connection((HOST, listener.port)) as second:
            send_frame(second, make_hello(Channel.DATA, 0, "me"))
            assert recv_frame(second, 0) is not None
            accepting.result().close()
    listener.close()


WITH_A_BYTE = struct.pack(">4sIIQ2s1s", MAGIC, 2, 1, 1, b"{}", b"x")
"""A frame with bytes, which no hello has and no answer."""


def answer_with(data: bytes | None) -> tuple[Background, int]:
    """A program that isn't ours: it answers each call so, or not at all."""
    server = socket.create_server((HOST, 0))

    def serve() -> None:
        with server:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                if data is None:
                    connection.recv(1000)
                else:
                    connection.sendall(data)

    return Background(serve), server.getsockname()[1]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\n",
            "is no producer's port: expected a frame, which begins with b'KVp1', got b'HTTP'",
        ),
        (b"KV", "is no producer's port: the connection ended after 2 of 12 bytes of a frame"),
        (WITH_A_BYTE, "is no producer's port: expected at most 0 bytes, the frame has 1"),
        (None, "did not answer a hello within 0.01 s"),
    ],
)
def test_a_consumer_at_a_port_of_somebody_elses(
    data: bytes | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if data is None:
        monkeypatch.setattr(rendezvous, "HELLO_SECONDS", 0.01)
    serving, port = answer_with(data)
    with pytest.raises(RendezvousError) as refused:
        connect(HOST, port, 0, LIMIT_SECONDS)
    serving.result()
    assert str(refused.value) == f"{HOST}:{port} {message}"


@pytest.mark.parametrize("hears", [True, False])
def test_who_just_hangs_up_is_called_again(hears: bool) -> None:
    port = free_port()
    with socket.create_server((HOST, port)) as stranger:
        connecting = Background(connect, HOST, port, 0, LIMIT_SECONDS)
        connection, _ = stranger.accept()
        with connection:
            assert not hears or recv_frame(connection, 0) is not None
    listener = Listener(HOST, port)
    listener.accept(0, LIMIT_SECONDS).close()
    listener.close()
    connecting.result().close()


TAKEN = {Channel.SIGNAL: "me"}


@pytest.mark.parametrize(
    ("hello", "taken", "fault"),
    [
        (HELLO, {}, None),
        (make_hello(Channel.DATA, 0, "me"), TAKEN, None),
        ({}, {}, "this is a producer's port, and the first frame is no hello: it has no key"),
        ({"b": 1, "a": 2}, {}, "this is a producer's port, and the first frame is no hello: it has a, b"),
        (
            HELLO | {"kv_p2p_pipe": 2},
            {},
            "the caller speaks version 2 of the protocol, the producer version 1",
        ),
        (HELLO | {"role": None}, {}, "a producer waits for a kv_consumer here, and the caller is a None"),
        (HELLO | {"rank": 1}, {}, "this is the port of rank 0, and the caller has rank 1"),
        (HELLO | {"channel": ["data"]}, {}, "a connection is for one of signal, data, and this one for ['data']"),
        (HELLO | {"caller": 3}, {}, "the caller has no name: 3"),
        (HELLO, {Channel.DATA: "you"}, "the producer has another consumer"),
        (HELLO, TAKEN, "the caller has a signal connection already"),
    ],
)
def test_hellos(hello: dict[str, Any], taken: dict[Channel, str], fault: str | None) -> None:
    assert find_fault(hello, 0, taken) == fault


def test_answers() -> None:
    assert find_refusal({"welcome": 1}) is None
    assert find_refusal({"refused": "no"}) == "no"
    assert find_refusal({"welcome": 2}) == "it answered with welcome"
    assert find_refusal({"b": 1, "a": 2}) == "it answered with a, b"
    assert find_refusal({}) == "it answered with no key"
