"""What holds for every pipe, for each sort of them; and what only one of them can do."""

import socket
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_p2p_background import LIMIT_SECONDS, Background, wait_until
from kv_p2p_pipe_pairs import SORTS, make_pair, tcp_sockets

from kv_api import ConfigError
from kv_p2p.first.pipe.arrays import TensorError
from kv_p2p.first.pipe.base import KVPipeBase, PipeClosedError
from kv_p2p.first.pipe.local import LocalPipe
from kv_p2p.first.pipe.tcp import TcpPipe
from kv_p2p.frames import MAGIC, send_frame

Pair = tuple[KVPipeBase, KVPipeBase]


@pytest.fixture(params=SORTS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    pair = make_pair(request.param)
    yield pair
    for pipe in pair:
        pipe.close()
        if isinstance(pipe, LocalPipe):
            pipe.check()


def test_in_order_and_both_ways(pair: Pair) -> None:
    one, other = pair
    sent = [np.arange(3), None, np.zeros((0, 2)), np.array(7.5), None]

    def answer() -> None:
        for _ in sent:
            tensor = other.recv_tensor()
            other.send_tensor(None if tensor is None else np.asarray(tensor * 2))

    answering = Background(answer)
    for tensor in sent:
        one.send_tensor(tensor)
        came = one.recv_tensor()
        assert (came is None) == (tensor is None)
        if tensor is not None:
            np.testing.assert_array_equal(came, tensor * 2)
            assert came.shape == tensor.shape
    answering.result()


@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=12), sort=st.sampled_from(SORTS))
def test_what_is_sent_is_what_comes(sizes: list[int], sort: str) -> None:
    one, other = make_pair(sort)
    sent = [np.random.default_rng(size).integers(0, 256, size, np.uint8) for size in sizes]

    def send() -> None:
        for tensor in sent:
            one.send_tensor(tensor)

    sending = Background(send)
    for tensor in sent:
        np.testing.assert_array_equal(other.recv_tensor(), tensor)
    sending.result()
    one.close()
    other.close()


def test_what_is_written_to_after_it_was_sent_has_left_as_it_was(pair: Pair) -> None:
    array = np.arange(4)
    pair[0].send_tensor(array)
    array[:] = 0
    assert pair[1].recv_tensor().tolist() == [0, 1, 2, 3]


def test_what_cant_be_sent_is_refused_and_nothing_of_it_leaves(pair: Pair) -> None:
    with pytest.raises(TensorError, match="an array of object can't be sent"):
        pair[0].send_tensor(np.array([None]))
    pair[0].send_tensor(np.array([1]))
    assert pair[1].recv_tensor().tolist() == [1]


def test_who_has_closed_its_end_receives_nothing_of_what_was_sent(pair: Pair) -> None:
    pair[0].send_tensor(np.array([1]))
    pair[1].close()
    with pytest.raises(PipeClosedError, match=r"was closed here$"):
        pair[1].recv_tensor()


def test_a_connection_sends_at_once_waits_for_ever_and_notices_that_a_machine_is_gone() -> None:
    connection, other = tcp_sockets()
    connection.settimeout(LIMIT_SECONDS)
    pipe = TcpPipe(connection)
    assert connection.gettimeout() is None
    assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    pipe.close()
    other.close()


@pytest.mark.parametrize("which", ["its own end", "the other end"])
def test_closing_wakes_who_receives(pair: Pair, which: str) -> None:
    receiving = Background(pair[0].recv_tensor)
    wait_until(lambda: is_waiting(pair[0]))
    pair[which == "the other end"].close()
    where = "at the other end" if which == "the other end" else "here"
    with pytest.raises(PipeClosedError, match=rf"was closed {where}$"):
        receiving.result()
    with pytest.raises(PipeClosedError):
        pair[0].recv_tensor()


def is_waiting(pipe: Any) -> bool:
    """Whether a thread is within ``recv_tensor``."""
    if isinstance(pipe, LocalPipe):
        return bool(pipe._changed._waiters)  # type: ignore[attr-defined]
    return bool(pipe._receiving.locked())


@pytest.mark.parametrize("which", ["its own end", "the other end"])
@pytest.mark.parametrize("sort", ["local of one", "tcp"])
def test_closing_wakes_who_sends(sort: str, which: str) -> None:
    pair = make_pair(sort)

    def send() -> None:
        while True:
            pair[0].send_tensor(np.zeros(1 << 22, np.uint8))

    sending = Background(send)
    if isinstance(pair[0], LocalPipe):
        wait_until(lambda: is_waiting(pair[0]))
    pair[which == "the other end"].close()
    with pytest.raises(PipeClosedError):
        sending.result()
    for pipe in pair:
        pipe.close()


def test_closing_twice_and_using_it_then(pair: Pair) -> None:
    one, other = pair
    one.close()
    one.close()
    with pytest.raises(PipeClosedError, match=r"was closed here$"):
        one.send_tensor(None)
    with pytest.raises(PipeClosedError, match=r"was closed here$"):
        one.recv_tensor()
    with pytest.raises(PipeClosedError, match=r"was closed at the other end$"):
        other.recv_tensor()


def test_a_connection_is_closed_when_nobody_is_in_a_call_on_it() -> None:
    """Or its number could be another one's while a thread still waits for bytes of this."""
    one, other = (TcpPipe(connection) for connection in tcp_sockets())
    connection, closed = one._connection, []

    def close() -> None:
        closed.append((one._sending.locked(), one._receiving.locked()))
        connection.close()

    one._connection = SimpleNamespace(shutdown=connection.shutdown, close=close)  # type: ignore[assignment]
    one.close()
    other.close()
    assert closed == [(True, True)]


# -- local ---------------------------------------------------------------------------------------


def test_a_full_pipe_waits_until_something_is_taken() -> None:
    one, other = LocalPipe.pair(2)
    for number in (0, 1):
        one.send_tensor(np.array(number))
    sending = Background(one.send_tensor, np.array(2))
    wait_until(lambda: is_waiting(one))
    one.check()
    assert sending.is_running
    assert [int(other.recv_tensor()) for _ in range(3)] == [0, 1, 2]
    sending.result()


def test_what_was_sent_before_the_other_end_closed_still_comes() -> None:
    one, other = LocalPipe.pair()
    one.send_tensor(np.array(1))
    one.close()
    assert int(other.recv_tensor()) == 1
    with pytest.raises(PipeClosedError) as ended:
        other.recv_tensor()
    assert str(ended.value) == "the pipe was closed at the other end"
    with pytest.raises(PipeClosedError) as ended:
        other.send_tensor(None)
    assert str(ended.value) == "the pipe was closed at the other end"


def test_a_pipe_that_is_always_full() -> None:
    with pytest.raises(ConfigError) as refused:
        LocalPipe.pair(0)
    assert str(refused.value) == "capacity: expected at least 1, or None for a pipe that is never full, got 0"


# -- TCP -----------------------------------------------------------------------------------------


def received_after(data: bytes) -> tuple[str, str]:
    """What a pipe says when these bytes come and then the end; and which place it names."""
    raw, connected = tcp_sockets()
    pipe = TcpPipe(connected)
    with raw:
        place = "{}:{}".format(*raw.getsockname())
        raw.sendall(data)
        raw.shutdown(socket.SHUT_WR)
        with pytest.raises(PipeClosedError) as broken:
            pipe.recv_tensor()
        with pytest.raises(PipeClosedError, match=r"was closed here"):
            pipe.send_tensor(None)
        assert isinstance(broken.value.__cause__, OSError) == ("broke" in str(broken.value))
    return str(broken.value), place


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the pipe to {} was closed at the other end"),
        (b"KVp", "the pipe to {} broke: the connection ended after 3 of 12 bytes of a frame"),
        (
            struct.pack(">4sIIQ2s", MAGIC, 2, 1, 5, b"{}") + b"abc",
            "the pipe to {} broke: the connection ended after 3 of 5 bytes of a frame",
        ),
        (
            b"GET / HTTP/1.1\r\n\r\n",
            "the pipe to {} broke: expected a frame, which begins with b'KVp1', got b'GET '",
        ),
        (
            struct.pack(">4sIIQ2s", MAGIC, 2, 1, 1 << 39, b"{}"),
            f"the pipe to {{}} broke: expected at most {1 << 38} bytes, the frame has {1 << 39}",
        ),
    ],
)
def test_a_connection_that_breaks_says_how_and_is_closed(data: bytes, message: str) -> None:
    said, place = received_after(data)
    assert said == message.format(place)


def test_a_frame_that_holds_no_tensor_does_not_break_the_pipe() -> None:
    raw, connected = tcp_sockets()
    pipe = TcpPipe(connected)
    with raw:
        send_frame(raw, {"library": "numpy", "dtype": "<f4", "shape": [2]}, [b"1234567"])
        send_frame(raw, {"library": None})
        with pytest.raises(TensorError) as refused:
            pipe.recv_tensor()
        assert str(refused.value) == "a tensor of shape (2,) has 8 bytes, and 7 came"
        assert pipe.recv_tensor() is None
    pipe.close()


def test_many_threads_may_send() -> None:
    one, other = make_pair("tcp")
    sending = [
        Background(lambda number=number: [one.send_tensor(np.full(50_000, number)) for _ in range(5)])
        for number in range(4)
    ]
    seen = []
    for _ in range(20):
        tensor = other.recv_tensor()
        assert tensor.min() == tensor.max()
        seen.append(int(tensor[0]))
    assert sorted(seen) == sorted(list(range(4)) * 5)
    for each in sending:
        each.result()
    one.close()
    other.close()
