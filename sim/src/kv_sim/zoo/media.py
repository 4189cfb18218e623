"""Bugs planted in a medium: pins and places that don't come back, or too early, wrong answers, a wrong order."""

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from kv_api import CanonicalKVCaches, OffloadingManager, OffloadKey, ReqContext, TransferResult
from kv_offload_cpu import CPUOffloadingManager, CPUOffloadingWorker, Run
from kv_offload_cpu.copy.engine import CopyEngine
from kv_offload_cpu.policy.lru import LRUPolicy
from kv_offload_cpu.sizing import HostLayout
from kv_sim.offload.host_memory import (
    TimedOffloadingConnector,
    WorldCopyEngine,
    WorldCPUOffloadingSpec,
    WorldMemory,
)


class _Manager(CPUOffloadingManager):
    def check(self) -> None:
        """It recounts nothing, as a manager of somebody else's doesn't."""


class _PlantedSpec(WorldCPUOffloadingSpec):
    manager_class: ClassVar[type[CPUOffloadingManager]]

    def get_manager(self) -> CPUOffloadingManager:
        made = super().get_manager()
        made.__class__ = self.manager_class
        return made


class _KeepsPins(_Manager):
    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        pass


class KeepsPinsSpec(_PlantedSpec):
    """See `PinsNeverReturn`."""

    manager_class = _KeepsPins


class PinsNeverReturn(TimedOffloadingConnector):
    """What was loaded once is never evicted again, and in the end there is room for nothing."""


class _KeepsPlaces(_Manager):
    def on_reset_flushed(self) -> None:
        pass


class KeepsPlacesSpec(_PlantedSpec):
    """See `PlacesStayWithheld`."""

    manager_class = _KeepsPlaces


class PlacesStayWithheld(TimedOffloadingConnector):
    """Places that were in use at a reset are given to nobody any more."""


class _ForgetsJobs(_Manager):
    def reset_cache(self) -> None:
        super().reset_cache()
        self.on_reset_flushed()


class ForgetsJobsSpec(_PlantedSpec):
    """See `PlacesReturnTooEarly`."""

    manager_class = _ForgetsJobs


class PlacesReturnTooEarly(TimedOffloadingConnector):
    """A reset frees all places at once, while jobs from before still read and write them."""


class _SaysTrue(_Manager):
    def lookup_prefix(self, keys: Collection[OffloadKey], req_context: ReqContext) -> Any:
        return OffloadingManager.lookup_prefix(self, keys, req_context)

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> Any:
        return super().lookup(key, req_context).name == "HIT"


class SaysTrueSpec(_PlantedSpec):
    """See `TruthForAResult`."""

    manager_class = _SaysTrue


class TruthForAResult(TimedOffloadingConnector):
    """A lookup answers True or False, which is neither a hit nor a miss to whoever asks."""


class _TellsTwice(CPUOffloadingWorker):
    _told: tuple[TransferResult, ...] = ()

    def get_finished(self) -> list[TransferResult]:
        ended = super().get_finished()
        told, self._told = self._told, tuple(ended)
        return [*told, *ended]


class TellsTwiceSpec(WorldCPUOffloadingSpec):
    """See `JobsToldTwice`."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> CPUOffloadingWorker:
        """Make one that forgets only later what it reported."""
        made = super().get_worker(kv_caches)
        made.__class__ = _TellsTwice
        return made


class JobsToldTwice(TimedOffloadingConnector):
    """A medium's worker reports what ended again when it is asked the next time."""


class _WaitsForAll(WorldCopyEngine):
    def wait(self, job_ids: Collection[int]) -> None:
        super().wait([job_id for job_id, _ in self._jobs.values()])


class WaitsForAllSpec(WorldCPUOffloadingSpec):
    """See `FencesAreForAll`."""

    def make_copy_engine(self, kv_caches: CanonicalKVCaches, layout: HostLayout, memory: Any) -> CopyEngine:
        """Make one that waits for whatever is under way."""
        device = kv_caches.tensors[0].tensor.device
        return _WaitsForAll(device, WorldMemory(device, layout))


class FencesAreForAll(TimedOffloadingConnector):
    """Who waits for a job's blocks waits for all that is under way, loads of others and all."""


class ChunkByChunk(LRUPolicy):
    """See `BeginningsLeaveFirst`."""

    def insert(self, keys: Sequence[OffloadKey], slots: Sequence[int], run: Run) -> None:
        """Each is a request of its own, used after the one before it."""
        for slot in slots:
            super().insert((), [slot], Run())

    def access(self, slots: Sequence[int], run: Run) -> None:
        """The same of what is there."""
        for slot in slots:
            super().access([slot], Run())

    def unpin(self, slots: Sequence[int], run: Run) -> None:
        """The same of what nobody uses any more."""
        for slot in slots:
            super().unpin([slot], Run())


class BeginningsLeaveFirst(TimedOffloadingConnector):
    """Chunks leave by their own last use. A prompt's are used in its order, so it loses its beginning first."""
