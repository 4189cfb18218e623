"""``LocalPipe``: a pipe within one process, between threads.

The two ends share two queues and one condition. Invariants (``check``): no queue is longer than the capacity;
each end refers to the other one.
"""

import threading
from collections import deque

from kv_api import ConfigError
from kv_api.engine import Tensor
from kv_p2p.first.pipe.arrays import copy_of
from kv_p2p.first.pipe.base import KVPipeBase, PipeClosedError


class LocalPipe(KVPipeBase):
    """One end. ``LocalPipe.pair`` makes both."""

    def __init__(self, changed: threading.Condition, capacity: int | None) -> None:
        self._changed = changed
        self._capacity = capacity
        self._inbox: deque[Tensor | None] = deque()
        self._other = self
        self._is_closed = False

    @classmethod
    def pair(cls, capacity: int | None = None) -> tuple["LocalPipe", "LocalPipe"]:
        """Two connected ends. At most ``capacity`` tensors, if it is given, wait in each direction."""
        if capacity is not None and capacity < 1:
            raise ConfigError(
                f"capacity: expected at least 1, or None for a pipe that is never full, got {capacity}"
            )
        changed = threading.Condition()
        one, other = cls(changed, capacity), cls(changed, capacity)
        one._other, other._other = other, one
        return one, other

    def send_tensor(self, tensor: Tensor | None) -> None:
        """Append a copy."""
        copy = None if tensor is None else copy_of(tensor)
        with self._changed:
            self._changed.wait_for(lambda: self._ended() or not self._other._is_full())
            if self._ended():
                raise self._closed_error()
            self._other._inbox.append(copy)
            self._changed.notify_all()

    def recv_tensor(self) -> Tensor | None:
        """Take the oldest tensor. Those that were sent can be taken even after the other end has closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended() or self._inbox)
            if self._is_closed or not self._inbox:
                raise self._closed_error()
            self._changed.notify_all()
            return self._inbox.popleft()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def check(self) -> None:
        """Recount."""
        with self._changed:
            assert self._other._other is self, "the ends are not each other's"
            for inbox in (self._inbox, self._other._inbox):
                full = self._capacity is not None and len(inbox) > self._capacity
                assert not full, f"{len(inbox)} under way, at most {self._capacity}"

    def _ended(self) -> bool:
        return self._is_closed or self._other._is_closed

    def _is_full(self) -> bool:
        return self._capacity is not None and len(self._inbox) >= self._capacity

    def _closed_error(self) -> PipeClosedError:
        return PipeClosedError(f"the pipe was closed {'here' if self._is_closed else 'at the other end'}")
