"""``KVPipeBase``: a FIFO of tensors, or None, between two parties. Each holds one end and may send and receive.

What holds for every pipe:

* What one end sends, the other receives in the same order, bit for bit: type, shape, values. None stays None.
* A tensor is copied before ``send_tensor`` returns: whoever sent it may write to it, and nobody sees that.
* ``close`` wakes whoever waits at either end, and may be called again. Later calls raise ``PipeClosedError``, at
  the other end when it notices. What was sent and not received by then may be lost.
* One thread may send while another receives; two that do the same wait for each other.
* A tensor that can't be sent is refused (``TensorError``) before anything of it has left.
"""

from abc import ABC, abstractmethod

from kv_api import KVError
from kv_api.engine import Tensor


class PipeClosedError(KVError, ConnectionError):
    """There is nothing to send to, or to receive from, any more."""


class KVPipeBase(ABC):
    """One end of a pipe."""

    @abstractmethod
    def send_tensor(self, tensor: Tensor | None) -> None:
        """Append a tensor, or None. Waits while the pipe is full, if it ever is."""

    @abstractmethod
    def recv_tensor(self) -> Tensor | None:
        """Take the oldest one that the other end sent. Waits for it."""

    @abstractmethod
    def close(self) -> None:
        """End the pipe for both."""
