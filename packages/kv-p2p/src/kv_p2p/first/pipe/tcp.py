"""``TcpPipe``: a pipe over one TCP connection, a frame for each tensor.

After an error the position in the stream is unknown, so any error closes the pipe. The socket itself is closed
only when no thread is in a call on it, so that another connection can't get its number meanwhile; ``shutdown``
makes those threads return.
"""

import socket
import threading
from contextlib import suppress
from typing import Final

from kv_api.engine import Tensor
from kv_p2p import sockets
from kv_p2p.first.pipe.base import KVPipeBase, PipeClosedError
from kv_p2p.first.pipe.tensors import decode, encode
from kv_p2p.frames import recv_frame, send_frame
from kv_p2p.log import place_of

TENSOR_BYTES_MAX: Final = 1 << 38
"""The most bytes of a message that a receiver accepts: far more than any tensor has, and far less than the random
bytes of another program would announce."""


class TcpPipe(KVPipeBase):
    """One end, over a connected socket, which the pipe closes at its end."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        sockets.send_at_once(connection)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._place = place_of(*connection.getpeername()[:2])
        self._connection = connection
        self._sending = threading.Lock()
        self._receiving = threading.Lock()
        self._is_closed = threading.Event()

    def send_tensor(self, tensor: Tensor | None) -> None:
        header, parts = encode(tensor)
        with self._sending:
            self._require_open()
            try:
                send_frame(self._connection, header, parts)
                return
            except OSError as error:
                problem = error
        raise self._broken(problem)

    def recv_tensor(self) -> Tensor | None:
        with self._receiving:
            self._require_open()
            problem: OSError | None = None
            try:
                frame = recv_frame(self._connection, TENSOR_BYTES_MAX)
                if frame is not None:
                    return decode(*frame)
            except OSError as error:
                problem = error
        raise self._broken(problem)

    def close(self) -> None:
        self._is_closed.set()
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        with self._sending, self._receiving:
            self._connection.close()

    def _require_open(self) -> None:
        if self._is_closed.is_set():
            raise self._closed_here()

    def _broken(self, problem: OSError | None) -> PipeClosedError:
        """Close the pipe; returns the error with the reason: closed here, broken, or closed at the other end."""
        if self._is_closed.is_set():
            return self._closed_here()
        self.close()
        error = PipeClosedError(f"the pipe to {self._place} was closed at the other end")
        if problem is not None:
            error = PipeClosedError(f"the pipe to {self._place} broke: {problem}")
            error.__cause__ = problem
        return error

    def _closed_here(self) -> PipeClosedError:
        return PipeClosedError(f"the pipe to {self._place} was closed here")
