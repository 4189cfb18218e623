"""Host memory as an offloading medium whose copies take the time that a model of the link gives them.

``ReplayCPUOffloadingSpec`` is `CPUOffloadingSpec` with another copy engine; ``ReplayOffloadingConnector`` is
`OffloadingConnector` with a clock that the replay moves. Manager, policies, worker and connector are otherwise a
server's own.
"""

from collections.abc import Collection
from typing import Any

from kv_api import CanonicalKVCaches, Direction, KVCaches
from kv_offload import OffloadingConnector, OffloadingSchedulerSide, OffloadingWorkerSide
from kv_offload_cpu import HostMemory
from kv_offload_cpu.copy.engine import CopyEngine, CopyResult, PageCopies, Urgency
from kv_offload_cpu.sizing import HostLayout
from kv_offload_cpu.spec import CPUOffloadingSpec
from kv_sim.offload.host_memory import NoMemory, WorldMemory
from kv_sim.replay.timed.durations.timing import SECOND, Clock
from kv_sim.replay.timed.engine.device import HasLink


class LinkCopyEngine:
    """A copy engine whose jobs are entries in the queues of a device's link."""

    def __init__(self, device: HasLink, layout: HostLayout) -> None:
        self._device = device
        self.memory = WorldMemory(device, layout)
        self._port = device.link.open()
        self._mover = device.open_mover()

    def submit(
        self, job_id: int, direction: Direction, copies: PageCopies, *, urgency: Urgency = Urgency.ORDINARY
    ) -> None:
        """Submit a job, which begins after the device's earlier work."""
        clock, memory = self._device.clock, self.memory
        pages = memory.first_slot + copies.chunks * memory.blocks_per_chunk + copies.offsets
        self._port.submit(
            job_id,
            direction,
            len(copies),
            now=clock.now,
            ready=clock.busy_until,
            expedited=urgency is Urgency.EXPEDITED,
            at_end=self._mover(direction, copies.blocks, pages),
        )

    def poll(self) -> list[CopyResult]:
        """The jobs that have ended since the last call."""
        costs = self._device.link.costs
        return [
            CopyResult(
                job.job_id,
                job.success,
                job.blocks * costs[job.direction].block_bytes,
                (job.end - job.begin) / SECOND,
            )
            for job in self._port.poll(self._device.clock.now)
        ]

    def wait(self, job_ids: Collection[int]) -> None:
        """Let the host wait until these jobs have ended."""
        self._device.clock.wait_until(self._port.wait(job_ids))

    def shutdown(self) -> None:
        """Nothing to stop: there are no threads."""


class ReplayCPUOffloadingSpec(CPUOffloadingSpec):
    """Host memory behind a timed link."""

    def make_memory(self, layout: HostLayout) -> HostMemory:
        """None here: the copy engine makes the memory."""
        return NoMemory()

    def make_copy_engine(self, kv_caches: CanonicalKVCaches, layout: HostLayout, memory: HostMemory) -> CopyEngine:
        """Make an engine that copies over the link of the KV caches' device."""
        return LinkCopyEngine(kv_caches.tensors[0].tensor.device, layout)


class ReplaySchedulerSide(OffloadingSchedulerSide):
    """Uses the replay's clock: a lookup takes no time, and a request that is put off waits for the next step."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        self._replay_clock: Clock = vllm_config.replay_clock
        super().__init__(vllm_config, *args, **kwargs)

    def clock(self) -> float:
        """Seconds since the trace began."""
        return self._replay_clock.now / SECOND


class ReplayWorkerSide(OffloadingWorkerSide):
    """Uses the replay's clock."""

    def register_kv_caches(self, kv_caches: KVCaches) -> None:
        self._device: Any = next(iter(kv_caches.values())).device
        super().register_kv_caches(kv_caches)

    def clock(self) -> float:
        """Seconds since the trace began."""
        now: int = self._device.clock.now
        return now / SECOND


class ReplayOffloadingConnector(OffloadingConnector):
    """Its measurements and timeouts are in the replay's seconds."""

    scheduler_class = ReplaySchedulerSide
    worker_class = ReplayWorkerSide
