"""``KVPipeBase``: a FIFO of tensors, or None, between two parties. Each holds one end and may send and receive.

What holds for every pipe:

* The other end receives what one end sent, in the same order and bit for bit: type, shape, values. None stays
  None.
* A tensor is copied before ``send_tensor`` returns, so the sender may write to it afterwards.
* ``close`` wakes the threads that wait at either end, and may be called again. Later calls raise
  ``PipeClosedError``, at the other end as soon as it notices. Tensors that were not received by then may be lost.
* One thread may send while another one receives; two that send, or two that receive, take turns.
* A tensor that can't be sent raises a ``TensorError`` before any part of it is sent.
"""

from abc import ABC, abstractmethod

from kv_api import KVError
from kv_api.engine import Tensor


class PipeClosedError(KVError, ConnectionError):
    """The pipe, or the buffer over it, was closed or broke."""


class KVPipeBase(ABC):
    """One end of a pipe."""

    @abstractmethod
    def send_tensor(self, tensor: Tensor | None) -> None:
        """Append a tensor, or None. Waits while the pipe is full, if it ever is."""

    @abstractmethod
    def recv_tensor(self) -> Tensor | None:
        """Take the oldest tensor that the other end sent, or None if it sent that. Waits for it."""

    @abstractmethod
    def close(self) -> None:
        """End the pipe for both ends."""
