"""A whole job in one call of the driver: its batched copy, ``cuMemcpyBatchAsync``.

The driver keeps a batch as a whole in the order of its stream, and the copies within one in none. When it may read
the sources is ours to say:

- A store reads GPU blocks that the model has written, or will have written when the stream gets there: in the
  stream's order. To read any earlier would be to read what was there before.
- A load reads chunks that are resident. Nobody writes them from the job's submission to its end, so the driver may
  read them whenever it likes, which lets it fetch ahead.

The third choice, to have read all when the call returns, would make the submission wait for the copies.
"""

from enum import Enum
from typing import NamedTuple, Protocol

from kv_offload_cpu.copy.addresses import Moves, moves
from kv_offload_cpu.copy.cuda import Stream
from kv_offload_cpu.copy.descriptors import Ranges
from kv_offload_cpu.copy.engine import Direction


class SourceOrder(Enum):
    """When the sources of a batch may be read."""

    STREAM = "stream"
    """When its turn comes in the stream."""
    ANY = "any"
    """From the call on, until the batch has ended."""


SOURCE_ORDER = {Direction.STORE: SourceOrder.STREAM, Direction.LOAD: SourceOrder.ANY}
"""For copies between GPU blocks and chunks."""


class BatchDriver(Protocol):
    """What a batched copy asks of a device."""

    def copy_batch(self, stream: Stream, found: Moves, order: SourceOrder) -> None:
        """Give ``stream`` copies, at least one, in one call."""


class Batch(NamedTuple):
    """A job as the driver takes it."""

    moves: Moves
    order: SourceOrder


class OneBatch:
    """One call for each job."""

    def __init__(self, driver: BatchDriver, stream: Stream) -> None:
        self.streams = (stream,)
        self._driver = driver

    def prepare(self, direction: Direction, ranges: Ranges) -> Batch:
        return Batch(moves(ranges, direction), SOURCE_ORDER[direction])

    def give(self, prepared: Batch) -> None:
        if len(prepared.moves.sizes):
            self._driver.copy_batch(self.streams[0], *prepared)

    def take_back(self, prepared: Batch) -> None:
        """The arrays are of this job alone."""
