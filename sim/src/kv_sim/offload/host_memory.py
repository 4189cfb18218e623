"""Host memory of the testbed as an offloading medium: kv-offload-cpu's manager and worker over the world's copies.

``WorldCPUOffloadingSpec`` is `CPUOffloadingSpec` with another copy engine and other memory: the pages of a job are
copied when the world says so, and fail, tear, get lost or are reported twice as it likes. A page has the bytes of
a block in all layers, and is said to take a second. ``TimedOffloadingConnector`` is `OffloadingConnector` with a
clock that the world moves, and recounts its medium's books with its own. Nothing else of either is changed.
"""

from collections.abc import Collection
from typing import ClassVar, Protocol

from kv_api import CanonicalKVCaches, Direction, KVCaches
from kv_offload import OffloadingConnector, OffloadingSchedulerSide, OffloadingWorkerSide
from kv_offload_cpu import HostMemory
from kv_offload_cpu.copy.engine import CopyEngine, CopyResult, PageCopies, Urgency
from kv_offload_cpu.sizing import HostLayout
from kv_offload_cpu.spec import CPUOffloadingSpec
from kv_sim.memory.device import Device


class HasHostMemory(Protocol):
    """A device, as far as its host memory goes."""

    def allocate_host(self, slots: int) -> int:
        """Get ``slots`` pages; returns the number of the first."""


class WorldMemory:
    """Pages of a device's host memory: one for each chunk and block in it."""

    def __init__(self, device: HasHostMemory, layout: HostLayout) -> None:
        self.blocks_per_chunk = layout.blocks_per_chunk
        self.first_slot = device.allocate_host(layout.num_chunks * layout.blocks_per_chunk)

    def release(self) -> None:
        """A device keeps its memory."""


class WorldCopyEngine:
    """Jobs as copies of a device. Those of one direction run in order; an expedited one overtakes."""

    def __init__(self, device: Device, memory: WorldMemory) -> None:
        self._memory = memory
        self._page_bytes = device.block_bytes
        self._copies = device.copies.open()
        self._jobs: dict[int, tuple[int, int]] = {}
        """Copy -> job and its pages. Kept when it ends, since its end may be reported again."""

    def submit(
        self, job_id: int, direction: Direction, copies: PageCopies, *, urgency: Urgency = Urgency.ORDINARY
    ) -> None:
        """Begin a copy."""
        slots = self._memory.first_slot + copies.chunks * self._memory.blocks_per_chunk + copies.offsets
        pairs = list(zip(copies.blocks.tolist(), slots.tolist(), strict=True))
        stream = direction.value if urgency is Urgency.ORDINARY else urgency.value
        self._jobs[self._copies.submit(direction, pairs, stream=stream)] = job_id, len(pairs)

    def poll(self) -> list[CopyResult]:
        """What ended."""
        return [self._result(*self._jobs[end.copy_id], success=end.success) for end in self._copies.poll()]

    def _result(self, job_id: int, pages: int, *, success: bool) -> CopyResult:
        return CopyResult(job_id, success, pages * self._page_bytes, float(pages))

    def wait(self, job_ids: Collection[int]) -> None:
        """Let these end now. What the world has lost moves nothing more."""
        self._copies.wait([copy for copy, (job_id, _) in self._jobs.items() if job_id in job_ids])

    def shutdown(self) -> None:
        """Let everything end."""
        self._copies.wait(list(self._jobs))


class WorldCPUOffloadingSpec(CPUOffloadingSpec):
    """Host memory whose copies are the world's."""

    BLOCK_SIZE_ALIGNMENT = 1

    def make_memory(self, layout: HostLayout) -> HostMemory:
        """Made with the engine, which knows the device."""
        return NoMemory()

    def make_copy_engine(self, kv_caches: CanonicalKVCaches, layout: HostLayout, memory: HostMemory) -> CopyEngine:
        """Copies of the device that the KV caches are on."""
        device = kv_caches.tensors[0].tensor.device
        return WorldCopyEngine(device, WorldMemory(device, layout))


class NoMemory:
    """Stands for the memory of a medium that is made with its copy engine."""

    def release(self) -> None:
        """Nothing to do: there is no memory here."""


class RecountedSchedulerSide(OffloadingSchedulerSide):
    """The scheduler's side, whose recount takes in the medium's manager."""

    def check(self) -> None:
        """Recount everything."""
        super().check()
        _recount(self.manager)


class TimedWorkerSide(OffloadingWorkerSide):
    """Takes a step of its worker that nothing happens in for a second, and recounts its medium, too."""

    def register_kv_caches(self, kv_caches: KVCaches) -> None:
        self._device: Device = next(iter(kv_caches.values())).device
        super().register_kv_caches(kv_caches)

    def clock(self) -> float:
        """Steps in which no copy was under way that will ever end."""
        return float(self._device.waited_steps)

    def check(self) -> None:
        """Recount everything."""
        super().check()
        _recount(self.medium_worker)


def _recount(medium: object) -> None:
    """What a medium is made of has a ``check`` if it can recount itself, as that of host memory has."""
    check = getattr(medium, "check", None)
    if check is not None:
        check()


class TimedOffloadingConnector(OffloadingConnector):
    """kv-offload's connector, for which a second is a step in which nothing of its worker's happens."""

    scheduler_class: ClassVar[type[OffloadingSchedulerSide]] = RecountedSchedulerSide
    worker_class = TimedWorkerSide
