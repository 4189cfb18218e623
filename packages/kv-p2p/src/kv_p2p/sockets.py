"""Listening and connecting, for both families: TCP over IPv4 or IPv6, as the host is.

Whatever goes wrong is an ``OSError``, also a host that can't be one, and leaves no socket behind.
"""

import socket
from typing import Any

from kv_p2p.clock import Clock, read_clock
from kv_p2p.extra_config import LAST_PORT


def listen(host: str, port: int) -> socket.socket:
    """Listen at a host's address; of several at an IPv4 one, if there is one. Port 0 is any that is free."""
    if not 0 <= port <= LAST_PORT:
        raise OSError(f"ports are 0 to {LAST_PORT}, got {port}")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(str(error)) from error
    family, *_, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return socket.create_server(address, family=family)


def connect(host: str, port: int, seconds: float) -> socket.socket:
    """Connect to the first of a host's addresses that answers. Each may take so long, and so may later calls."""
    try:
        connection = socket.create_connection((host, port), seconds)
    except UnicodeError as error:
        raise OSError(str(error)) from error
    try:
        if connection.getsockname() == connection.getpeername():  # nobody listens: it got that port to call from
            raise ConnectionResetError("the system connected the caller with itself")
        send_at_once(connection)
    except OSError:
        connection.close()
        raise
    return connection


def send_at_once(connection: socket.socket) -> None:
    """Don't wait with a small frame until the other side has taken the one before: it may be waiting for this."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Until:
    """A connection for so many seconds, however often it is read or written meanwhile. It fits `frames.Stream`.

    A socket's own timeout is for one call alone: who sends a byte now and then could keep a thread for ever.
    """

    def __init__(self, connection: socket.socket, seconds: float, clock: Clock = read_clock) -> None:
        self._connection = connection
        self._clock = clock
        self._end = clock() + seconds

    def recv_into(self, buffer: Any) -> int:
        """As the socket does it, if there is time left."""
        self._limit()
        return self._connection.recv_into(buffer)

    def sendall(self, data: Any) -> None:
        """As the socket does it, if there is time left."""
        self._limit()
        self._connection.sendall(data)

    def _limit(self) -> None:
        left = self._end - self._clock()
        if left <= 0:
            raise TimeoutError("timed out")
        self._connection.settimeout(left)
