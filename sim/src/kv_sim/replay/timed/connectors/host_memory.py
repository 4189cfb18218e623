"""Host memory as an offloading medium whose copies take the time that a model of the link gives them.

``ReplayCPUOffloadingSpec`` is `CPUOffloadingSpec` with another copy engine; ``ReplayOffloadingConnector`` is
`OffloadingConnector` with a clock that the replay moves. Nothing else of either is changed: manager, policies, the
worker and the connector are those of a server.
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
from kv_sim.replay.timed.engine.device import HasLink
from kv_sim.replay.timed.timing import SECOND, Clock


class LinkCopyEngine:
    """Jobs as entries in the queues of a device's link."""

    def __init__(self, device: HasLink, layout: HostLayout) -> None:
        self._device = device
        self.memory = WorldMemory(device, layout)
        self._port = device.link.open()
        self._mover = device.open_mover()

    def submit(
        self, job_id: int, direction: Direction, copies: PageCopies, *, urgency: Urgency = Urgency.ORDINARY
    ) -> None:
        """Begin a job after what the device was given."""
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
        """What ended."""
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
        """The host waits until these have ended."""
        self._device.clock.wait_until(self._port.wait(job_ids))

    def shutdown(self) -> None:
        """Nothing acts by itself."""


class ReplayCPUOffloadingSpec(CPUOffloadingSpec):
    """Host memory behind a timed link."""

    def make_memory(self, layout: HostLayout) -> HostMemory:
        """Made with the copy engine, if there is any."""
        return NoMemory()

    def make_copy_engine(self, kv_caches: CanonicalKVCaches, layout: HostLayout, memory: HostMemory) -> CopyEngine:
        """Copies over the link of the device that the KV caches are on."""
        return LinkCopyEngine(kv_caches.tensors[0].tensor.device, layout)


class ReplaySchedulerSide(OffloadingSchedulerSide):
    """Its clock is the replay's: a lookup takes no time, but those that are put off wait for steps."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        self._replay_clock: Clock = vllm_config.replay_clock
        super().__init__(vllm_config, *args, **kwargs)

    def clock(self) -> float:
        """Seconds since the trace began."""
        return self._replay_clock.now / SECOND


class ReplayWorkerSide(OffloadingWorkerSide):
    """Its clock is the replay's."""

    def register_kv_caches(self, kv_caches: KVCaches) -> None:
        self._device: Any = next(iter(kv_caches.values())).device
        super().register_kv_caches(kv_caches)

    def clock(self) -> float:
        """Seconds since the trace began."""
        now: int = self._device.clock.now
        return now / SECOND


class ReplayOffloadingConnector(OffloadingConnector):
    """What it measures, and its timeouts, are the replay's seconds."""

    scheduler_class = ReplaySchedulerSide
    worker_class = ReplayWorkerSide
