"""Pairs of ``SimpleBuffer``, and small entries for them."""

from typing import Any

import numpy as np
from kv_p2p_pipe_pairs import meet

from kv_p2p.first.lookup_buffer.simple import SimpleBuffer
from kv_p2p.first.pipe.local import LocalPipe
from kv_p2p.first.pipe.rendezvous import Pipes

NOTHING = [None] * 5
Buffers = tuple[SimpleBuffer, SimpleBuffer]


def make(sort: str, threshold: float = 1e9, **options: Any) -> Buffers:
    """A producer's buffer and its consumer's."""
    if sort == "tcp":
        producer, consumer = meet()
    else:
        capacity = 1 if sort == "local of one" else None
        signals, data = LocalPipe.pair(capacity), LocalPipe.pair(capacity)
        producer, consumer = Pipes(signals[0], data[0]), Pipes(signals[1], data[1])  # type: ignore[arg-type]
    return SimpleBuffer(*producer, threshold), SimpleBuffer(*consumer, threshold, **options)


def end(pair: Buffers) -> None:
    for buffer in pair:
        buffer.check()
        buffer.close()
        buffer.check()
        assert buffer._thread is None or not buffer._thread.is_alive()


def tokens(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def insert(buffer: SimpleBuffer, *numbers: int, num_bytes: int = 0) -> None:
    """An entry whose key says which tokens it is for."""
    asked = tokens(*numbers)
    buffer.insert(asked, None, asked * 10, np.zeros(num_bytes, np.uint8), None)


def select(buffer: SimpleBuffer, *numbers: int) -> Any:
    """The key of what was selected."""
    came = buffer.drop_select(tokens(*numbers) if numbers else None, None)[2]
    return None if came is None else came.tolist()


def is_searching(producer: SimpleBuffer) -> bool:
    """Whether the thread that answers waits for an entry."""
    return bool(producer._changed._waiters)  # type: ignore[attr-defined]
