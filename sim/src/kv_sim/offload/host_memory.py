"""Host memory of the testbed as an offloading medium: kv-offload-cpu's manager and worker over the world's copies.

``WorldCPUOffloadingSpec`` is `CPUOffloadingSpec` with another copy engine and other memory: the pages of a job are
copied when the world says so, and fail, tear, get lost or are reported twice as it likes. A page has the bytes of
a block in all layers, and is said to take a second. ``TimedOffloadingConnector`` is `OffloadingConnector` with a
clock that the world moves, and its ``check`` also recounts its medium. Nothing else of either is changed.
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
    """The part of a device that host memory needs."""

    def allocate_host(self, slots: int) -> int:
        """Get ``slots`` pages; returns the number of the first."""


class WorldMemory:
    """Pages of a device's host memory: one for each chunk and block in it."""

    def __init__(self, device: HasHostMemory, layout: HostLayout) -> None:
        self.blocks_per_chunk = layout.blocks_per_chunk
        self.first_slot = device.allocate_host(layout.num_chunks * layout.blocks_per_chunk)

    def release(self) -> None:
        """Nothing to free: the device keeps its memory."""


class WorldCopyEngine:
    """A copy engine whose jobs are copies of a device.

    Those of one direction run in order; expedited ones overtake.
    """

    def __init__(self, device: Device, memory: WorldMemory) -> None:
        self._memory = memory
        self._page_bytes = device.block_bytes
        self._copies = device.copies.open()
        self._jobs: dict[int, tuple[int, int]] = {}
        """Copy -> its job and number of pages. Kept after its end, since the end may be reported again."""

    def submit(
        self, job_id: int, direction: Direction, copies: PageCopies, *, urgency: Urgency = Urgency.ORDINARY
    ) -> None:
        """Begin a copy."""
        slots = self._memory.first_slot + copies.chunks * self._memory.blocks_per_chunk + copies.offsets
        pairs = list(zip(copies.blocks.tolist(), slots.tolist(), strict=True))
        stream = direction.value if urgency is Urgency.ORDINARY else urgency.value
        self._jobs[self._copies.submit(direction, pairs, stream=stream)] = job_id, len(pairs)

    def poll(self) -> list[CopyResult]:
        """The jobs whose end was reported since the last call."""
        return [self._result(*self._jobs[end.copy_id], success=end.success) for end in self._copies.poll()]

    def _result(self, job_id: int, pages: int, *, success: bool) -> CopyResult:
        return CopyResult(job_id, success, pages * self._page_bytes, float(pages))

    def wait(self, job_ids: Collection[int]) -> None:
        """Let these jobs end now. A copy that the world has lost moves nothing more."""
        self._copies.wait([copy for copy, (job_id, _) in self._jobs.items() if job_id in job_ids])

    def shutdown(self) -> None:
        """Let all jobs end."""
        self._copies.wait(list(self._jobs))


class WorldCPUOffloadingSpec(CPUOffloadingSpec):
    """Host memory whose copies are the world's."""

    BLOCK_SIZE_ALIGNMENT = 1

    def make_memory(self, layout: HostLayout) -> HostMemory:
        """None here: the copy engine makes the memory, since it knows the device."""
        return NoMemory()

    def make_copy_engine(self, kv_caches: CanonicalKVCaches, layout: HostLayout, memory: HostMemory) -> CopyEngine:
        """Copies of the device that the KV caches are on."""
        device = kv_caches.tensors[0].tensor.device
        return WorldCopyEngine(device, WorldMemory(device, layout))


class NoMemory:
    """A placeholder for memory that is made with the copy engine."""

    def release(self) -> None:
        """Nothing to do: there is no memory here."""


class RecountedSchedulerSide(OffloadingSchedulerSide):
    """The scheduler's side, whose recount takes in the medium's manager."""

    def check(self) -> None:
        """Recount everything."""
        super().check()
        _recount(self.manager)


class TimedWorkerSide(OffloadingWorkerSide):
    """A worker side for which each step without a running copy is a second; ``check`` also recounts its medium."""

    def register_kv_caches(self, kv_caches: KVCaches) -> None:
        self._device: Device = next(iter(kv_caches.values())).device
        super().register_kv_caches(kv_caches)

    def clock(self) -> float:
        """Steps in which no copy was under way, except lost ones."""
        return float(self._device.waited_steps)

    def check(self) -> None:
        """Recount everything."""
        super().check()
        _recount(self.medium_worker)


def _recount(medium: object) -> None:
    """Call ``check`` of a medium's part, if it has one."""
    check = getattr(medium, "check", None)
    if check is not None:
        check()


class TimedOffloadingConnector(OffloadingConnector):
    """kv-offload's connector, for which a second is a step in which nothing of its worker's happens."""

    scheduler_class: ClassVar[type[OffloadingSchedulerSide]] = RecountedSchedulerSide
    worker_class = TimedWorkerSide
