"""Listening and connecting, for both families: TCP over IPv4 or IPv6, whichever the host has.

Every failure is an ``OSError``, also for a text that can't be a host, and leaves no socket open.
"""

import socket
from typing import Any

from kv_p2p.clock import Clock, read_clock
from kv_p2p.extra_config import LAST_PORT


def listen(host: str, port: int) -> socket.socket:
    """Listen at a host's address; if it has several, at an IPv4 one if possible. Port 0: any free port."""
    if not 0 <= port <= LAST_PORT:
        raise OSError(f"ports are 0 to {LAST_PORT}, got {port}")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(str(error)) from error
    family, *_, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return socket.create_server(address, family=family)


def connect(host: str, port: int, seconds: float) -> socket.socket:
    """Connect to the first of a host's addresses that answers.

    ``seconds`` limits the time for each address, and for each later call of the socket.
    """
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
    """Send small frames at once, before the other side has acknowledged earlier ones: it may wait for this one."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Until:
    """A connection with a limit of seconds for all its reads and writes together. It fits `frames.Stream`.

    A socket's own timeout is for one call: a peer that sends a byte now and then could keep a thread for ever.
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
