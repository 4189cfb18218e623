"""Files of the testbed as an offloading medium: kv-offload-file over the world's copies.

``FileOffloadingSpecInMemory`` is `FileOffloadingSpec` with slots in memory; ``WorldFileOffloadingSpec`` is one
with the world's copies between GPU and bays, and with only a few bays. It has no threads: a chunk is read or
written when its engine is polled.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from errno import EIO
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from kv_api import CanonicalKVCaches, Direction, OffloadingConfig
from kv_offload_cpu import HostMemory
from kv_offload_cpu.copy.engine import CopyEngine, CopyResult
from kv_offload_cpu.sizing import HostLayout
from kv_offload_file import FileOffloadingSpec
from kv_offload_file.engine import FileCopyEngine, Slots
from kv_offload_file.home import Home
from kv_offload_file.label import Label
from kv_offload_file.restore import Found
from kv_offload_file.sharing.neighbourhood import Neighbours, OwnListing
from kv_offload_file.sharing.place import slot_of_neighbour
from kv_offload_file.slot_file import DamagedError
from kv_sim.memory.content import Words
from kv_sim.memory.device import Device
from kv_sim.offload.host_memory import NoMemory, WorldCopyEngine, WorldMemory

_BAYS = 6
"""Few, so that bays are reused often, and large jobs, stores as well as loads, go through them in parts."""


_EPOCHS: Final = count(2)


class WorldHome:
    """The home of an engine, in memory: without a lock, and with an epoch in which all begin."""

    epoch = 1

    def renew(self) -> None:
        """Begin another epoch, which no other home has."""
        self.epoch = next(_EPOCHS)

    def close(self) -> None:
        """Nothing to do: there is no lock."""


class WorldSlots:
    """Slots that are read into a device's host memory and written from it."""

    def __init__(self, device: Device, memory: WorldMemory) -> None:
        self._device = device
        self._memory = memory
        self.held: dict[int, tuple[Label, Words]] = {}

    def write(self, slot: int, label: Label, bay: int) -> None:
        """Fill a slot from a bay. A bay whose contents a restart has lost can't be written."""
        if not self._lost.isdisjoint(self._pages_of(bay)):
            self._device.shadow.ranks_that_failed.add(self._device.rank)
            raise OSError(EIO, f"a restart lost what was in bay {bay}")
        self.held[slot] = label, self._device.host[self._pages_of(bay)].copy()

    def read(self, slot: int, label: Label, bay: int) -> None:
        """Fill a bay from a slot, if the slot has the label's chunk."""
        self._fill(bay, label, self, slot)

    def _fill(self, bay: int, label: Label, of: "WorldSlots", slot: int) -> None:
        held = of.held.get(slot)
        if held is None or held[0][:2] != label[:2]:
            raise DamagedError(f"slot {slot} holds {held and held[0]}, not {label}")
        pages = self._pages_of(bay)
        self._device.host[pages] = held[1]
        self._lost.difference_update(pages)

    def close(self) -> None:
        """Forget everything."""
        self.held.clear()

    @property
    def _lost(self) -> set[int]:
        """The pages of host memory whose contents a restart has lost."""
        return self._device.copies.lost_slots

    def _pages_of(self, bay: int) -> range:
        """Where in host memory a bay is."""
        size = self._memory.blocks_per_chunk
        begin = self._memory.first_slot + bay * size
        return range(begin, begin + size)


class _ByEngine(dict[int, WorldSlots]):
    """For one rank of engines that share a folder: each engine's slots, by the engine's number."""


_SHARED: Final[WeakValueDictionary[tuple[Path, int], _ByEngine]] = WeakValueDictionary()
"""The slots by folder and rank, as long as an engine uses them."""


class WorldSharedSlots(WorldSlots):
    """The slots of a worker whose engine is among those that read each other's, ``by_engine``."""

    def __init__(self, device: Device, memory: WorldMemory, by_engine: Mapping[int, WorldSlots]) -> None:
        super().__init__(device, memory)
        self._by_engine = by_engine

    def read(self, slot: int, label: Label, bay: int) -> None:
        """Fill a bay with what is in a place, here or at another engine."""
        found = slot_of_neighbour(slot)
        if found is None:
            super().read(slot, label, bay)
            return
        self._fill(bay, label, self._by_engine[found.engine], found.slot)


class Later:
    """Stands for threads: executes the next function when it is told to."""

    def __init__(self) -> None:
        self.tasks: deque[Callable[[], None]] = deque()

    def submit(self, fn: Callable[..., None], /, *args: object) -> None:
        """Keep a function, to be called by ``do_next``."""
        self.tasks.append(partial(fn, *args))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Drop the functions that were not called yet."""
        self.tasks.clear()

    def do_next(self) -> None:
        """Call the next function, if there is one."""
        if self.tasks:
            self.tasks.popleft()()


class WorldFileCopyEngine(FileCopyEngine):
    """A copy engine that reads and writes one chunk of each direction per poll, and all awaited ones."""

    def __init__(self, inner: CopyEngine, slots: Slots, num_bays: int, num_blocks: Sequence[int]) -> None:
        self._threads = {direction: Later() for direction in Direction}
        super().__init__(inner, slots, num_bays, num_blocks, self._threads.__getitem__)

    def poll(self) -> list[CopyResult]:
        self.wait_for_threads()
        return super().poll()

    def wait_for_threads(self) -> None:
        for threads in self._threads.values():
            threads.do_next()


class FileOffloadingSpecInMemory(FileOffloadingSpec):
    """Files in memory: empty at the start, and gone with the process."""

    slots: Slots
    """This worker's slots. They are made with its copy engine, which knows the device."""

    def open_home(self) -> Home:
        """A home in memory."""
        return WorldHome()

    def find(self, epoch: int) -> Found:
        """An empty index; stores are counted from 1."""
        return Found([], 1)

    def open_neighbourhood(self) -> tuple[OwnListing, Neighbours]:
        """Listings as files in the world's folder, which are read at each look."""
        from kv_offload_file.sharing.neighbours import ListedNeighbours  # has locks, as not all systems have
        from kv_offload_file.sharing.own_listing import FileListing

        assert self.engine is not None, "this engine shares with nobody"
        self.folder.mkdir(parents=True, exist_ok=True)
        neighbours = ListedNeighbours(self.folder.parent, self.engine, count().__next__)
        return FileListing(self.folder, self.num_chunks), neighbours

    def make_memory(self, layout: HostLayout) -> HostMemory:
        """Made with the copy engine."""
        return NoMemory()

    def make_slots(self, memory: HostMemory) -> Slots:
        """The slots in memory, which the copy engine was made with."""
        return self.slots


class WorldFileOffloadingSpec(FileOffloadingSpecInMemory):
    """Files of as many bytes as a world's host memory has."""

    SLOT_ALIGNMENT = 1
    ROW_BYTES = 0
    LISTED_BYTES = 0

    def __init__(self, config: OffloadingConfig) -> None:
        chunk_bytes = config.worker_kv_bytes_per_block * config.cache.blocks_per_chunk
        own = {
            "file_dir": "nowhere",
            "file_bytes_to_use": config.extra_config["cpu_bytes_to_use"],
            "file_staging_bytes": _BAYS * chunk_bytes,
        }
        if config.extra_config.get("file_shared"):
            own["file_engine"] = _number_of(config.engine_id)
        super().__init__(replace(config, extra_config={**own, **config.extra_config}))

    @property
    def most_in_flight(self) -> int:
        """Any number of stores: chunks that are offered at rest and have room must be stored."""
        return self.num_chunks

    def make_copy_engine(self, kv_caches: CanonicalKVCaches, layout: HostLayout, memory: HostMemory) -> CopyEngine:
        """Copies of the device that the KV caches are on."""
        device = kv_caches.tensors[0].tensor.device
        bays = WorldMemory(device, layout)
        self.slots = self._slots_of(device, bays)
        return WorldCopyEngine(device, bays)

    def _slots_of(self, device: Device, bays: WorldMemory) -> WorldSlots:
        if self.engine is None:
            return WorldSlots(device, bays)
        by_engine = _SHARED.setdefault((self.folder.parent, self.config.parallel.rank), _ByEngine())
        by_engine[self.engine] = WorldSharedSlots(device, bays, by_engine)
        return by_engine[self.engine]

    def make_engine(self, inner: CopyEngine, slots: Slots, num_blocks: list[int]) -> FileCopyEngine:
        """An engine without threads."""
        return WorldFileCopyEngine(inner, slots, self.num_bays, num_blocks)


def _number_of(engine_id: str | None) -> int:
    """This engine's number in its world, from its id: the first has the world's name, others add a number."""
    _, _, number = (engine_id or "").rpartition("-")
    return int(number) if number.isdigit() else 0
