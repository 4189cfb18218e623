"""``SimpleBuffer``: the lookup buffer over two pipes. Both sides have one; its first call says which side it is.

The producer keeps copies of its entries, and its thread answers requests. A request is a number on the signal
pipe (the seconds that the consumer will wait; below 0: without limit), then tokens and roi on the data pipe. The
answer is five tensors on the data pipe, or five times None if no entry matches. None on the signal pipe says that
the consumer closes its buffer.

What always holds:

* A request that no entry matches waits, as in vLLM, until a matching entry is inserted, or for ``wait_seconds``.
* ``buffer_size_thresh`` stops the producer: ``insert`` returns only when the table is within it again
  (``EntryTable``). While the producer is stopped, a request that no entry matches is answered with None at once:
  its entry can't be inserted then, and producer and consumer would wait for each other.
* An entry that is inserted after its request was answered with None is dropped before the producer is stopped.
* An entry's bytes count until it is taken out of the table, and not while they are sent.
* When the buffer ends, for whatever reason, the thread ends and both pipes are closed. Every call that waits, and
  every later one, raises a ``PipeClosedError`` with the reason. A consumer that stops in the middle of a request
  ends its buffer.
"""

import threading
from contextlib import suppress
from enum import Enum
from typing import Final

import numpy as np

from kv_api import WrongSideError
from kv_api.engine import Tensor
from kv_p2p import log
from kv_p2p.first.lookup_buffer.base import KVLookupBufferBase
from kv_p2p.first.lookup_buffer.table import Entry, EntryTable, Tokens
from kv_p2p.first.pipe.arrays import TensorError, copy_of, truths, whole_numbers
from kv_p2p.first.pipe.base import KVPipeBase, PipeClosedError

NOTHING: Final = (None,) * 5


class Side(Enum):
    """What a buffer is used for."""

    PRODUCER = "insert"
    CONSUMER = "drop_select"


class SimpleBuffer(KVLookupBufferBase):
    """A lookup buffer over ``signal_pipe`` and ``data_pipe``, which it closes at its end."""

    def __init__(
        self,
        signal_pipe: KVPipeBase,
        data_pipe: KVPipeBase,
        buffer_size_thresh: float,
        *,
        wait_seconds: float | None = None,
    ) -> None:
        self._signal_pipe = signal_pipe
        self._data_pipe = data_pipe
        self._wait_seconds = -1.0 if wait_seconds is None else wait_seconds
        self._table = EntryTable(buffer_size_thresh)
        self._changed = threading.Condition()
        self._asking = threading.Lock()
        self._side: Side | None = None
        self._thread: threading.Thread | None = None
        self._ended: str | None = None

    # -- the producer --------------------------------------------------------------------------

    def insert(
        self,
        input_tokens: Tensor,
        roi: Tensor | None,
        key: Tensor | None,
        value: Tensor | None,
        hidden: Tensor | None,
    ) -> None:
        tokens = _tokens_that_count(input_tokens, roi)
        given = {"input_tokens": input_tokens, "roi": roi, "key": key, "value": value, "hidden": hidden}
        tensors = tuple(None if tensor is None else copy_of(tensor, what) for what, tensor in given.items())
        entry = Entry(tokens, tensors, sum(tensor.nbytes for tensor in tensors if tensor is not None))
        self.start_answering()
        with self._changed:
            self._require_open()
            self._table.add(entry)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._table.is_over)  # the table is empty when the buffer has ended
            self._require_open()

    def start_answering(self) -> None:
        """Become the producer's side, whose thread answers requests; the first ``insert`` calls this, too."""
        with self._changed:
            self._take_side(Side.PRODUCER)
            if self._thread is None:
                self._thread = threading.Thread(target=self._answer_requests, name="kv-p2p buffer", daemon=True)
                self._thread.start()

    def _answer_requests(self) -> None:
        reason = "the thread that answers requests failed"
        try:
            while self._answer_request():
                pass
            reason = "the consumer has closed its buffer"
        except PipeClosedError as error:
            reason = str(error)
        except TensorError as error:
            reason = f"the consumer's request can't be used: {error}"
            log.warn("%s", reason)
        finally:
            self._end(reason)

    def _answer_request(self) -> bool:
        signal = self._signal_pipe.recv_tensor()
        if signal is None:
            return False
        wait_seconds = float(signal[0])
        tokens, roi = self._data_pipe.recv_tensor(), self._data_pipe.recv_tensor()
        entry = self._take(None if tokens is None else _tokens_that_count(tokens, roi), wait_seconds)
        for tensor in NOTHING if entry is None else entry.tensors:
            self._data_pipe.send_tensor(tensor)
        return True

    def _take(self, asked: Tokens | None, wait_seconds: float) -> Entry | None:
        """Wait for a matching entry. None: there is none, and the producer is stopped, or the time is over."""
        found: Entry | None = None

        def is_decided() -> bool:
            nonlocal found
            found = self._table.take(asked)
            return found is not None or self._table.is_over or self._ended is not None

        with self._changed:
            self._table.ask(asked)
            self._changed.wait_for(is_decided, None if wait_seconds < 0 else wait_seconds)
            self._require_open()  # else the consumer would take the end for the answer None
            if found is None and self._table.is_over:
                log.warn(
                    "a request for %s was answered with nothing: %d entries of %d bytes wait to be taken, "
                    "so the producer stands still",
                    "anything" if asked is None else f"{len(asked)} tokens",
                    len(self._table),
                    self._table.num_bytes,
                )
            if found is None:
                self._table.give_up(asked)
            self._changed.notify_all()
        return found

    # -- the consumer --------------------------------------------------------------------------

    def drop_select(self, input_tokens: Tensor | None, roi: Tensor | None) -> list[Tensor | None]:
        asked = None if input_tokens is None else _tokens_that_count(input_tokens, roi)
        if asked == ():
            raise TensorError("drop_select: no token counts, so nothing can match; None asks for anything")
        with self._asking:
            with self._changed:
                self._take_side(Side.CONSUMER)
            is_answered = False
            try:
                answer = self._ask(asked)
                is_answered = True
                return answer
            except PipeClosedError as error:
                self._end(str(error))
                raise self._ended_error() from error
            finally:
                if not is_answered:
                    self._end("a request was broken off, so nobody knows where in the pipe the next answer begins")

    def _ask(self, asked: Tokens | None) -> list[Tensor | None]:
        self._signal_pipe.send_tensor(np.array([self._wait_seconds]))
        self._data_pipe.send_tensor(None if asked is None else np.array(asked, np.int64))
        self._data_pipe.send_tensor(None if asked is None else np.ones(len(asked), bool))
        return [self._data_pipe.recv_tensor() for _ in NOTHING]

    # -- both ----------------------------------------------------------------------------------

    def close(self) -> None:
        if self._side is not Side.PRODUCER and self._asking.acquire(blocking=False):
            try:
                self._say_farewell()
            finally:
                self._asking.release()
        self._end("it was closed here")
        if self._thread is not None:
            self._thread.join()

    def check(self) -> None:
        """Recount."""
        with self._changed:
            self._table.check()
            assert self._ended is None or not self._table, f"ended, and {len(self._table)} entries are left"
            assert self._thread is None or self._side is Side.PRODUCER, f"{self._side} has a thread"

    def _say_farewell(self) -> None:
        """Tell the producer that the buffer is closed. No request is under way, so the signal pipe has room."""
        if self._ended is None:
            with suppress(PipeClosedError):
                self._signal_pipe.send_tensor(None)

    def _end(self, reason: str) -> None:
        """End the buffer. The first reason counts."""
        with self._changed:
            if self._ended is None:
                self._ended = reason
            self._table.clear()
            self._changed.notify_all()
        self._signal_pipe.close()
        self._data_pipe.close()

    def _take_side(self, side: Side) -> None:
        self._require_open()
        if self._side not in (None, side):
            assert self._side is not None
            raise WrongSideError(
                f"{side.value} was called on a lookup buffer whose {self._side.value} was called before: "
                "one side inserts, the other selects"
            )
        self._side = side

    def _require_open(self) -> None:
        if self._ended is not None:
            raise self._ended_error()

    def _ended_error(self) -> PipeClosedError:
        return PipeClosedError(f"the lookup buffer has ended: {self._ended}")


def _tokens_that_count(input_tokens: Tensor, roi: Tensor | None) -> Tokens:
    tokens = whole_numbers(input_tokens, "input_tokens")
    if roi is None:
        return tokens
    mask = truths(roi, "roi")
    if len(mask) != len(tokens):
        raise TensorError(f"roi: expected a mask over {len(tokens)} tokens, got one over {len(mask)}")
    return tuple(token for token, counts in zip(tokens, mask, strict=True) if counts)
