"""Stores keyed by strings: one in this process, and one at the other end of a pipe.

``LocalStore`` holds tensors. ``StoreServer`` has any store and answers the requests of the ``PipeStore`` at the
other end of its pipe.

A request is two or three messages: the operation (0: get, 1: put, in an array of one number), the key's
characters, and the tensor to put. The answer to a get is the tensor; the answer to a put is None, when it is done.
"""

import threading
from typing import Final

import numpy as np

from kv_api import ConfigError
from kv_api.engine import Tensor
from kv_p2p import log
from kv_p2p.first.lookup_buffer.base import KVStoreBufferBase
from kv_p2p.first.pipe.arrays import TensorError, copy_of
from kv_p2p.first.pipe.base import KVPipeBase, PipeClosedError

GET: Final = 0
PUT: Final = 1


class LocalStore(KVStoreBufferBase):
    """A store of at most ``capacity_bytes`` in this process's memory; the oldest values are dropped to make room.

    A value larger than the capacity isn't kept. Invariant (``check``): ``num_bytes`` is the sum of the values'
    bytes, and within the capacity.
    """

    def __init__(self, capacity_bytes: int) -> None:
        if capacity_bytes < 1:
            raise ConfigError(f"capacity_bytes: expected at least 1, got {capacity_bytes}")
        self._capacity_bytes = capacity_bytes
        self._values: dict[str, Tensor] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self.num_bytes = 0

    def put(self, key: str, value: Tensor | None) -> None:
        copy = None if value is None else copy_of(value, key)
        with self._lock:
            self._require_open()
            self._remove(key)
            if copy is None or copy.nbytes > self._capacity_bytes:
                return
            while self.num_bytes + copy.nbytes > self._capacity_bytes:
                self._remove(next(iter(self._values)))
            self._values[key] = copy
            self.num_bytes += copy.nbytes

    def get(self, key: str) -> Tensor | None:
        with self._lock:
            self._require_open()
            value = self._values.get(key)
        return None if value is None else copy_of(value)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._values.clear()
            self.num_bytes = 0

    def check(self) -> None:
        """Recount."""
        with self._lock:
            total = sum(value.nbytes for value in self._values.values())
            assert self.num_bytes == total, f"{self.num_bytes} bytes counted, {total} held"
            assert total <= self._capacity_bytes, f"{total} bytes held, at most {self._capacity_bytes}"

    def _remove(self, key: str) -> None:
        value = self._values.pop(key, None)
        if value is not None:
            self.num_bytes -= value.nbytes

    def _require_open(self) -> None:
        if self._is_closed:
            raise PipeClosedError("the store was closed")


class PipeStore(KVStoreBufferBase):
    """Uses the store of the ``StoreServer`` at the other end of ``pipe``, which this store closes at its end."""

    def __init__(self, pipe: KVPipeBase) -> None:
        self._pipe = pipe
        self._asking = threading.Lock()

    def put(self, key: str, value: Tensor | None) -> None:
        copy = None if value is None else copy_of(value, key)  # raises before anything is sent
        self._ask(PUT, key, copy)

    def get(self, key: str) -> Tensor | None:
        return self._ask(GET, key)

    def close(self) -> None:
        self._pipe.close()

    def _ask(self, what: int, key: str, *values: Tensor | None) -> Tensor | None:
        with self._asking:
            is_answered = False
            try:
                self._pipe.send_tensor(np.array([what], np.uint8))
                self._pipe.send_tensor(np.frombuffer(key.encode(), np.uint8))
                for value in values:
                    self._pipe.send_tensor(value)
                answer = self._pipe.recv_tensor()
                is_answered = True
            finally:
                if not is_answered:
                    self._pipe.close()
        return answer


class StoreServer:
    """A thread that answers a ``PipeStore`` at the other end of ``pipe`` from ``store``, until either ends."""

    def __init__(self, pipe: KVPipeBase, store: KVStoreBufferBase) -> None:
        self._pipe = pipe
        self._store = store
        self._thread = threading.Thread(target=self._answer_requests, name="kv-p2p store", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the pipe and the thread. The store stays open."""
        self._pipe.close()
        self._thread.join()

    def _answer_requests(self) -> None:
        try:
            while True:
                self._answer_request()
        except PipeClosedError:
            pass
        except (TensorError, UnicodeDecodeError) as error:
            log.warn("a request to a store can't be used: %s", error)
        finally:
            self._pipe.close()

    def _answer_request(self) -> None:
        what, characters = self._pipe.recv_tensor(), self._pipe.recv_tensor()
        if what is None or characters is None or what.tolist() not in ([GET], [PUT]):
            raise TensorError(f"expected [{GET}] or [{PUT}] and a key, got {what!r} and {characters!r}")
        key = characters.tobytes().decode()
        if what[0] == PUT:
            self._store.put(key, self._pipe.recv_tensor())
            self._pipe.send_tensor(None)
        else:
            self._pipe.send_tensor(self._store.get(key))
