"""The device of a replay: a clock, a link and a disk, and memory only where contents are checked.

The device gets a step when the worker's hooks reach the forward pass, and is busy with it for as long as the
timing model says. A device without memory has the same methods as the testbed's, and they do nothing.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol, cast

import numpy as np

from kv_api import Direction
from kv_offload_cpu.copy.engine import Numbers
from kv_offload_file.engine import Slots
from kv_offload_file.label import Label
from kv_offload_file.sharing.place import MOST_ENGINES, slot_of_neighbour
from kv_offload_file.slot_file import GoneError
from kv_sim.config import WorldConfig
from kv_sim.memory.copy import Copy
from kv_sim.memory.device import Device
from kv_sim.memory.kv_cache import KVCache
from kv_sim.memory.launched import LaunchedStep
from kv_sim.memory.settled import Offer
from kv_sim.memory.shadow import Shadow
from kv_sim.offload.files import WorldSharedSlots, WorldSlots
from kv_sim.offload.host_memory import WorldMemory
from kv_sim.replay.timed.durations.link import Link
from kv_sim.replay.timed.durations.timing import Clock

AtEnd = Callable[[], bool] | None
Mover = Callable[[Direction, Numbers, Numbers], AtEnd]
"""(direction, GPU blocks, pages of host memory) -> a function that moves them at the job's end, or None."""


class HasLink(Protocol):
    """The part of a device that a copy engine uses."""

    clock: Clock
    link: Link
    disk: Link
    """The link from host memory to a disk and back."""

    def allocate_host(self, slots: int) -> int:
        """Get ``slots`` pages of host memory; returns the number of the first."""

    def open_mover(self) -> Mover:
        """Make the function that moves pages between GPU and host memory."""

    def open_slots(self, bays: WorldMemory) -> Slots:
        """Slots of a file that are read into ``bays`` and written from them."""

    def open_shared_slots(self, bays: WorldMemory, by_engine: dict[int, WorldSlots], number: int) -> Slots:
        """Slots of engine ``number``, which can also read the slots of other engines."""


class _NoSlots:
    """Slots without bytes."""

    def write(self, slot: int, label: Label, bay: int) -> None:
        pass

    def read(self, slot: int, label: Label, bay: int) -> None:
        pass

    def close(self) -> None:
        pass


class _NoSharedSlots(_NoSlots):
    """Slots without bytes, of a server with neighbours. Reading a slot that could not be borrowed fails."""

    def read(self, slot: int, label: Label, bay: int) -> None:
        found = slot_of_neighbour(slot)
        if found is not None and found.engine >= MOST_ENGINES:
            raise GoneError(f"{label} went before it could be borrowed")


class _NoCopies:
    """Stands for the testbed's own copies: there are none."""

    def __init__(self) -> None:
        self.running: dict[int, Copy] = {}
        self.waited: list[Copy] = []

    def check(self) -> None:
        """Nothing to recount."""


class EmptyDevice:
    """A device without memory. It is a ``RankDevice``, so an engine can use it in place of a ``Device``."""

    def __init__(
        self, rank: int, config: WorldConfig, shadow: Shadow, clock: Clock, link: Link, disk: Link
    ) -> None:
        self.rank = rank
        self.shadow = shadow
        self.clock = clock
        self.link = link
        self.disk = disk
        self.forward_ns = 0
        self.queue: deque[LaunchedStep] = deque()
        self.copies = _NoCopies()
        self.waited_steps = 0
        self._pages = np.zeros((config.num_blocks, 1), np.uint8).view(KVCache)
        self._pages._device, self._pages.layer = cast(Device, self), 0

    def kv_cache(self, layer: int) -> KVCache:
        """An array with a row for each block, which knows its device."""
        return self._pages

    def sleep(self) -> None:
        """There are no bytes."""

    def wake(self) -> None:
        """There are no bytes."""

    def begin_step(self, new_blocks: Iterable[int], handed: Iterable[Offer]) -> None:
        """Nothing to check: no copy can be late."""
        self.waited_steps += 1

    def take_over(self, blocks: Iterable[int]) -> None:
        """Nothing to check: no copy can be lost."""

    def read_loaded(self, step: LaunchedStep, blocks: Collection[int], group: int, layer: int) -> None:
        """There are no bytes."""

    def prepare(self, step: LaunchedStep) -> None:
        """There are no bytes."""

    def launch(self, step: LaunchedStep) -> None:
        """The forward pass begins."""
        self.queue.append(step)
        self.clock.busy_until = self.clock.now + self.forward_ns

    def retire(self) -> None:
        """The forward pass has ended."""
        self.queue.popleft()

    def zero(self, blocks: list[int], step: int) -> None:
        """There are no bytes."""

    def copy_blocks(self, copies: Sequence[tuple[int, int]], step: int) -> None:
        """There are no bytes."""

    def poison(self, blocks: Iterable[int]) -> None:
        """There are no bytes."""

    def allocate_host(self, slots: int) -> int:
        """There are no bytes."""
        return 0

    def open_mover(self) -> Mover:
        """There are no bytes."""
        return lambda direction, blocks, pages: None

    def open_slots(self, bays: WorldMemory) -> Slots:
        """There are no bytes."""
        return _NoSlots()

    def open_shared_slots(self, bays: WorldMemory, by_engine: dict[int, WorldSlots], number: int) -> Slots:
        """There are no bytes."""
        return _NoSharedSlots()


class TimedDevice(Device):
    """The testbed's device with its rights and checks; a copy moves its bytes when the link says that it ended."""

    def __init__(
        self, rank: int, config: WorldConfig, shadow: Shadow, clock: Clock, link: Link, disk: Link
    ) -> None:
        super().__init__(rank, config, shadow)
        self.clock = clock
        self.link = link
        self.disk = disk
        self.forward_ns = 0

    def launch(self, step: LaunchedStep) -> None:
        super().launch(step)
        self.clock.busy_until = self.clock.now + self.forward_ns

    def retire(self) -> LaunchedStep:
        """End the forward pass, after moving the bytes of all copies that ended before it."""
        self.link.advance(self.clock.busy_until)
        return super().retire()

    def open_slots(self, bays: WorldMemory) -> Slots:
        """Slots that hold what was in a bay when it was written."""
        return WorldSlots(self, bays)

    def open_shared_slots(self, bays: WorldMemory, by_engine: dict[int, WorldSlots], number: int) -> Slots:
        """The same, as one engine's slots among those of all engines."""
        by_engine[number] = WorldSharedSlots(self, bays, by_engine)
        return by_engine[number]

    def open_mover(self) -> Mover:
        """Make the function that begins a job's copies; they move when the job ends."""
        queue, engine = self.copies.open(), self.copies

        def begin(direction: Direction, blocks: Numbers, pages: Numbers) -> AtEnd:
            pairs = list(zip(blocks.tolist(), pages.tolist(), strict=True))
            copy_id = queue.submit(direction, pairs)

            def at_end() -> bool:
                copy = engine.running[copy_id]
                engine.advance(copy, len(copy.pairs))
                [result] = queue.poll()
                return result.success

            return at_end

        return begin
