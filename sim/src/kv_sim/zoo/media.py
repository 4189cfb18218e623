"""Bugs planted in a medium: leaked pins and slots, slots freed too early, wrong answers, a wrong order."""

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from kv_api import (
    CanonicalKVCaches,
    OffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    StoreOffer,
    TransferResult,
)
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
        """A manager without ``check``, like one from another package."""


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
    """A load's pins are never removed, so loaded chunks are never evicted and the medium fills up."""


class _StoresInPart(_Manager):
    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        for count in range(len(keys), 0, -1):
            answer = super().prepare_store([*keys][:count], req_context)
            if answer is not None:
                return answer
        return super().prepare_store(keys, req_context)

    def prepare_stores(self, stores: Sequence[StoreOffer]) -> list[PrepareStoreOutput]:
        return OffloadingManager.prepare_stores(self, stores)


class StoresInPartSpec(_PlantedSpec):
    """See `StoresInPart`."""

    manager_class = _StoresInPart


class StoresInPart(TimedOffloadingConnector):
    """Without room for all new chunks of an offer the medium stores as many as fit."""


class _KeepsPlaces(_Manager):
    def on_reset_flushed(self) -> None:
        pass


class KeepsPlacesSpec(_PlantedSpec):
    """See `PlacesStayWithheld`."""

    manager_class = _KeepsPlaces


class PlacesStayWithheld(TimedOffloadingConnector):
    """Slots that were in use at a reset are never freed."""


class _ForgetsJobs(_Manager):
    def reset_cache(self) -> None:
        super().reset_cache()
        self.on_reset_flushed()


class ForgetsJobsSpec(_PlantedSpec):
    """See `PlacesReturnTooEarly`."""

    manager_class = _ForgetsJobs


class PlacesReturnTooEarly(TimedOffloadingConnector):
    """A reset frees all slots at once, although earlier jobs still read and write them."""


class _SaysTrue(_Manager):
    def lookup_prefix(self, keys: Collection[OffloadKey], req_context: ReqContext) -> Any:
        return OffloadingManager.lookup_prefix(self, keys, req_context)

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> Any:
        return super().lookup(key, req_context).name == "HIT"


class SaysTrueSpec(_PlantedSpec):
    """See `TruthForAResult`."""

    manager_class = _SaysTrue


class TruthForAResult(TimedOffloadingConnector):
    """``lookup`` returns True or False, not a ``LookupResult``, so the connector sees neither hit nor miss."""


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
    """A medium's worker reports ended jobs a second time at the next poll."""


class _WaitsForNobody(WorldCopyEngine):
    def wait(self, job_ids: Collection[int]) -> None:
        pass


class WaitsForNobodySpec(WorldCPUOffloadingSpec):
    """See `FencesAreForNobody`."""

    def make_copy_engine(self, kv_caches: CanonicalKVCaches, layout: HostLayout, memory: Any) -> CopyEngine:
        """Make one that doesn't wait."""
        device = kv_caches.tensors[0].tensor.device
        return _WaitsForNobody(device, WorldMemory(device, layout))


class FencesAreForNobody(TimedOffloadingConnector):
    """A worker that is told to wait for jobs returns while they still run."""


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
    """Waiting for one job waits for all jobs under way, loads of other requests included."""


class ChunkByChunk(LRUPolicy):
    """See `BeginningsLeaveFirst`."""

    def insert(self, keys: Sequence[OffloadKey], slots: Sequence[int], run: Run) -> None:
        """Touch each key separately, one after the other."""
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
    """LRU by chunk, not by request. A prompt's chunks are used in order, so its beginning is evicted first."""
