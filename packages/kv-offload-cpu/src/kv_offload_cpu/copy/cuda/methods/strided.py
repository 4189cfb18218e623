"""A whole job in a few calls of the driver, each of many rectangles: ``cuMemcpy3DBatchAsync``.

A copy of the driver has its price whatever its size, which small pages can't pay; but one copy may be of many rows
at one distance. So where layers are equally large and follow each other, all of a page is one copy, and what was
said of batches holds: the device's copy engines do it, and no multiprocessor. Where layers lie in no order it is
as many copies as a batch has.
"""

from collections.abc import Iterator
from typing import Protocol

from kv_api import Direction
from kv_offload_cpu.copy.cuda.engine import Stream
from kv_offload_cpu.copy.cuda.methods.batch import CALL_COPIES, SOURCE_ORDER, calls_of, growing, portions
from kv_offload_cpu.copy.engine import Numbers, PageCopies
from kv_offload_cpu.copy.ranges.descriptors import CopyPlan
from kv_offload_cpu.copy.ranges.rectangles import RectanglePlan, Rectangles


class StridedBatch:
    """Rectangles as the driver takes them: by target and source. It is given some at a time."""

    def __init__(self, found: Rectangles, direction: Direction) -> None:
        self.order = SOURCE_ORDER[direction]
        sides = ((found.device, found.device_pitches), (found.host, found.host_pitches))
        source, target = sides if direction is Direction.STORE else sides[::-1]
        self.columns: tuple[Numbers, ...] = (*target, *source, found.widths, found.heights)
        """Addresses and distances of targets, those of sources, widths, heights."""
        self._ends = found.sizes.cumsum()

    def __len__(self) -> int:
        return len(self._ends)

    def calls(self, most: Iterator[int]) -> Iterator[tuple[int, int]]:
        """All of them cut into calls, each of as many as ``most`` says."""
        return calls_of(self._ends, 0, len(self), most)


class StridedDriver(Protocol):
    """What copies of rectangles ask of a device."""

    @property
    def most_pitch(self) -> int:
        """The largest distance between two rows."""

    def copy_strided(self, stream: Stream, batch: StridedBatch, begin: int, end: int) -> None:
        """Give ``stream`` some copies of a batch, at least one, in one call."""


class OneStridedBatch:
    """A job in calls of the driver, each of many rectangles: the first run while the host prepares the next."""

    stages = ()

    def __init__(
        self, driver: StridedDriver, stream: Stream, plan: CopyPlan, call_copies: int = CALL_COPIES
    ) -> None:
        self.streams = (stream,)
        self._call_copies = call_copies
        self._driver = driver
        self._plan = RectanglePlan(plan, driver.most_pitch)

    def prepare(self, direction: Direction, copies: PageCopies) -> tuple[Direction, PageCopies]:
        return direction, copies

    def give(self, prepared: tuple[Direction, PageCopies]) -> None:
        direction, copies = prepared
        most = growing(self._call_copies)
        for part in portions(copies, self._plan.count(copies)):
            batch = StridedBatch(self._plan.rectangles(part), direction)
            for call in batch.calls(most):
                self._driver.copy_strided(self.streams[0], batch, *call)

    def take_back(self, prepared: tuple[Direction, PageCopies]) -> None:
        """The arrays are of this job alone."""
