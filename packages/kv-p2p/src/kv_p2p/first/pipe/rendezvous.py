"""Connects a producer and a consumer by two pipes: the producer listens, the consumer connects twice to its port.

When somebody else connects, the producer refuses and logs it, and goes on waiting; if no consumer comes in time,
the error names the last one that was refused. The consumer tries again while nobody listens; if its hello is
refused, it fails at once.
"""

import socket
from collections.abc import Callable
from contextlib import suppress
from time import sleep
from typing import Final, NamedTuple
from uuid import uuid4

from kv_api import KVError
from kv_p2p import log, sockets
from kv_p2p.clock import Clock, read_clock
from kv_p2p.first.pipe.hello import WELCOME, Channel, find_fault, find_refusal, make_hello, make_refusal
from kv_p2p.first.pipe.tcp import TcpPipe
from kv_p2p.frames import FrameError, recv_frame, send_frame

HELLO_SECONDS: Final = 5.0
"""How long the other side may take for its first message on a connection."""
HELLO_BYTES: Final = 1 << 16
"""Bytes of that message, at most."""
RETRY_SECONDS: Final = 0.05


class RendezvousError(KVError, ConnectionError):
    """The producer and the consumer were not connected."""


class Pipes(NamedTuple):
    """Two pipes between the same two parties."""

    signal: TcpPipe
    data: TcpPipe

    def close(self) -> None:
        """Close both pipes."""
        self.signal.close()
        self.data.close()


class Listener:
    """A producer's port. Port 0 stands for any free one; ``port`` is the one that was taken."""

    def __init__(self, host: str, port: int) -> None:
        try:
            self._socket = sockets.listen(host, port)
        except OSError as error:
            place = log.place_of(host, port)
            raise RendezvousError(
                f"can't listen at {place}: {error}; a producer listens at port + rank, and no two at one"
            ) from error
        self.port: int = self._socket.getsockname()[1]
        self._place = log.place_of(host, self.port)

    def accept(self, rank: int, seconds: float, clock: Clock = read_clock) -> Pipes:
        """Wait at most ``seconds`` for both connections of one consumer."""
        deadline = clock() + seconds
        found: dict[Channel, TcpPipe] = {}
        callers: dict[Channel, str] = {}
        refused = ""
        try:
            while len(found) < len(Channel):
                self._socket.settimeout(max(deadline - clock(), 0.001))
                try:
                    connection, address = self._socket.accept()
                except TimeoutError:
                    raise RendezvousError(
                        f"no consumer of rank {rank} came to {self._place} within {seconds:g} s{refused}"
                    ) from None
                left = max(deadline - clock(), 0.001)
                fault = _greet(connection, rank, found, callers, min(HELLO_SECONDS, left))
                if fault is not None:
                    caller = log.place_of(*address[:2])
                    refused = f"; {caller} was refused: {fault}"
                    log.warn("a call to %s from %s was refused: %s", self._place, caller, fault)
        except BaseException:
            for pipe in found.values():
                pipe.close()
            raise
        return Pipes(found[Channel.SIGNAL], found[Channel.DATA])

    def close(self) -> None:
        """Stop listening. The pipes stay open."""
        self._socket.close()


def _greet(
    connection: socket.socket,
    rank: int,
    found: dict[Channel, TcpPipe],
    callers: dict[Channel, str],
    seconds: float,
) -> str | None:
    """Read a caller's hello, and accept the connection or refuse it."""
    stream = sockets.Until(connection, seconds)
    try:
        hello = recv_frame(stream, 0, max_header=HELLO_BYTES)
        fault = "it ended without a word" if hello is None else find_fault(hello.header, rank, callers)
        if hello is not None and fault is None:
            send_frame(stream, dict(WELCOME))
            channel = Channel(hello.header["channel"])
            found[channel] = TcpPipe(connection)
            callers[channel] = hello.header["caller"]
            return None
    except OSError as error:
        fault = str(error)
    with suppress(OSError), connection:
        send_frame(sockets.Until(connection, seconds), make_refusal(str(fault)))
    return fault


def connect(host: str, port: int, rank: int, seconds: float, clock: Clock = read_clock) -> Pipes:
    """Connect to a producer; waits at most ``seconds`` until it listens."""
    caller = uuid4().hex
    deadline = clock() + seconds
    opened: list[TcpPipe] = []
    try:
        for channel in Channel:
            hello = make_hello(channel, rank, caller)
            opened.append(_call(host, port, hello, seconds, lambda: deadline - clock()))
    except BaseException:
        for pipe in opened:
            pipe.close()
        raise
    return Pipes(*opened)


def _call(host: str, port: int, hello: dict[str, object], seconds: float, left: Callable[[], float]) -> TcpPipe:
    """Connect; try again while nobody listens."""
    place = log.place_of(host, port)
    while True:
        try:
            connection = sockets.connect(host, port, max(left(), 0.001))
            try:
                return _introduce(connection, place, hello)
            except BaseException:
                connection.close()
                raise
        except RendezvousError:
            raise
        except OSError as error:
            if left() <= RETRY_SECONDS:
                raise RendezvousError(
                    f"no producer of rank {hello['rank']} at {place} within {seconds:g} s: {error}"
                ) from error
        sleep(RETRY_SECONDS)


def _introduce(connection: socket.socket, place: str, hello: dict[str, object]) -> TcpPipe:
    """Send the hello and read the answer. A connection that ends without one is an ``OSError``: try again."""
    stream = sockets.Until(connection, HELLO_SECONDS)
    send_frame(stream, hello)
    try:
        answer = recv_frame(stream, 0, max_header=HELLO_BYTES)
    except FrameError as error:
        raise RendezvousError(f"{place} is no producer's port: {error}") from error
    except TimeoutError as error:
        raise RendezvousError(f"{place} did not answer a hello within {HELLO_SECONDS:g} s") from error
    if answer is None:
        raise ConnectionResetError("the connection ended without an answer")
    refusal = find_refusal(answer.header)
    if refusal is not None:
        raise RendezvousError(f"{place} refused: {refusal}")
    return TcpPipe(connection)
