"""Files as an offloading medium whose reads and writes take the time that a model of a disk gives them.

``ReplayFileOffloadingSpec`` is `FileOffloadingSpec` with slots in memory, or slots without bytes, and copies to
and from its bays over the timed link. The copy engine between them is a server's: it cuts jobs into batches, and
continues them when it is polled. In place of its threads there is a disk: the task of a thread is an entry in the
disk's queue, and is executed when the engine learns that it has ended. Servers that share files share those of
their machine.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

from kv_api import CanonicalKVCaches, Direction, OffloadingConfig
from kv_offload_cpu import HostMemory
from kv_offload_cpu.copy.engine import CopyEngine, CopyResult, PageCopies, Urgency
from kv_offload_cpu.sizing import HostLayout
from kv_offload_file.engine import FileCopyEngine, Slots
from kv_offload_file.sharing.neighbourhood import Neighbours, OwnListing
from kv_offload_file.staging import LEAST_BAYS
from kv_sim.offload.files import FileOffloadingSpecInMemory
from kv_sim.replay.timed.connectors.host_memory import LinkCopyEngine
from kv_sim.replay.timed.durations.timing import SECOND
from kv_sim.replay.timed.engine.device import HasLink
from kv_sim.replay.timed.engine.neighbours import FOLDERS, SharedFolder

STAGING: str = "file_staging_bytes"
SHARED: str = "file_shared"
NUMBER: str = "file_engine"


class Disk:
    """A disk as one engine uses it, with one queue of reads and one of writes.

    A task is executed when the engine learns that its time is over.
    """

    def __init__(self, device: HasLink, blocks_per_chunk: int) -> None:
        self._device = device
        self._blocks_per_chunk = blocks_per_chunk
        self._port = device.disk.open()
        self._tasks = 0
        self._at_end: dict[int, Callable[[], None]] = {}

    def begin(self, direction: Direction, chunks: int, at_end: Callable[[], None]) -> None:
        """Begin to read or write ``chunks`` chunks; ``at_end`` is called at their end."""
        now = self._device.clock.now
        self._at_end[self._tasks] = at_end
        self._port.submit(self._tasks, direction, chunks * self._blocks_per_chunk, now=now, ready=now)
        self._tasks += 1

    def hear(self) -> None:
        """Execute the tasks whose time is over."""
        for job in self._port.poll(self._device.clock.now):
            self._at_end.pop(job.job_id)()

    def wait(self) -> None:
        """Let the host wait until a task ends."""
        self._device.clock.wait_until(self._port.wait_any())
        self.hear()


class DiskThreads:
    """Replaces the threads of one direction."""

    def __init__(self, disk: Disk, direction: Direction) -> None:
        self._disk = disk
        self._direction = direction

    def submit(self, fn: Callable[..., None], /, *args: object) -> None:
        """Read or write the chunks of a batch, which one of the arguments gives as a range."""
        chunks = args[-1]
        assert isinstance(chunks, range), f"{args} has no range of chunks"
        self._disk.begin(self._direction, len(chunks), partial(fn, *args))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing to stop: there are no threads."""


class DiskCopyEngine(FileCopyEngine):
    """A copy engine that first executes the disk's finished tasks whenever it is called."""

    def __init__(
        self,
        inner: CopyEngine,
        slots: Slots,
        num_bays: int,
        num_blocks: Sequence[int],
        device: HasLink,
        disk: Disk,
    ) -> None:
        self._disk = disk
        super().__init__(
            inner,
            slots,
            num_bays,
            num_blocks,
            partial(DiskThreads, disk),
            lambda: device.clock.now / SECOND,
        )

    def submit(
        self, job_id: int, direction: Direction, copies: PageCopies, *, urgency: Urgency = Urgency.ORDINARY
    ) -> None:
        self._disk.hear()
        super().submit(job_id, direction, copies, urgency=urgency)

    def poll(self) -> list[CopyResult]:
        self._disk.hear()
        return super().poll()

    def wait(self, job_ids: Collection[int]) -> None:
        self._disk.hear()
        super().wait(job_ids)

    def let_go(self, job_ids: Collection[int]) -> list[int]:
        self._disk.hear()
        return super().let_go(job_ids)

    def wait_for_threads(self) -> None:
        self._disk.wait()


class ReplayFileOffloadingSpec(FileOffloadingSpecInMemory):
    """Files on a timed disk.

    A trace's blocks are larger than a server's. If staging memory has no room for four of them, it is enlarged to
    four.
    """

    def __init__(self, config: OffloadingConfig) -> None:
        staging = config.extra_config.get(STAGING)
        chunk_bytes = config.worker_kv_bytes_per_block * config.cache.blocks_per_chunk
        least = LEAST_BAYS * self.slot_bytes_for(chunk_bytes)
        if isinstance(staging, int) and 0 < staging < least:
            config = replace(config, extra_config={**config.extra_config, STAGING: least})
        super().__init__(config)

    def make_copy_engine(self, kv_caches: CanonicalKVCaches, layout: HostLayout, memory: HostMemory) -> CopyEngine:
        """Copies over the link of the device that the KV caches are on."""
        self._device = kv_caches.tensors[0].tensor.device
        inner = LinkCopyEngine(self._device, layout)
        if self.engine is None:
            self.slots = self._device.open_slots(inner.memory)
        else:
            self.slots = self._device.open_shared_slots(inner.memory, self._shared.slots, self.engine)
        return inner

    def open_neighbourhood(self) -> tuple[OwnListing, Neighbours]:
        """The shared folder of the machine."""
        assert self.engine is not None, "this engine shares files with no other"
        home = self._shared.open(self.engine)
        return home, home

    @property
    def _shared(self) -> SharedFolder:
        folder: SharedFolder = self.config.extra_config[FOLDERS][self.folder.parent]
        return folder

    def make_engine(self, inner: CopyEngine, slots: Slots, num_blocks: list[int]) -> FileCopyEngine:
        """Make the copy engine, with a disk in place of threads."""
        disk = Disk(self._device, self.blocks_per_chunk)
        return DiskCopyEngine(inner, slots, self.num_bays, num_blocks, self._device, disk)
