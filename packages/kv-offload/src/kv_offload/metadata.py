"""The messages between the two sides of the connector, in vLLM's form where vLLM has one."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kv_api import GPULoadStoreSpec, KVConnectorMetadata, KVConnectorWorkerMetadata, LoadStoreSpec


@dataclass
class TransferJob:
    """One copy. Of a store the GPU is the source, of a load the target.

    A group's blocks come chunk after chunk: whole chunks, only the first and the last may be parts. Between two
    chunks of a store others may be left out, so a worker counts chunks, not blocks.
    """

    req_id: str
    src_spec: LoadStoreSpec | None
    """None: what was to be loaded is gone, and the load has failed."""
    dst_spec: LoadStoreSpec
    sync: bool = False
    """A load that the step itself needs."""
    is_held: bool = False
    """A store whose blocks are held until its end is reported."""
    is_computed: bool = False
    """A store of what earlier steps computed, which need not wait for this one."""

    @property
    def gpu_spec(self) -> GPULoadStoreSpec:
        """The GPU's end of the copy."""
        spec = self.dst_spec if isinstance(self.dst_spec, GPULoadStoreSpec) else self.src_spec
        assert isinstance(spec, GPULoadStoreSpec), f"no end of {self} is on the GPU"
        return spec


@dataclass
class OffloadingConnectorMetadata(KVConnectorMetadata):
    """Scheduler -> workers: the jobs that begin in this step, by id, and those that others must wait for."""

    load_jobs: dict[int, TransferJob] = field(default_factory=dict)
    store_jobs: dict[int, TransferJob] = field(default_factory=dict)
    jobs_to_flush: set[int] = field(default_factory=set)
    """Jobs whose GPU blocks belong to another request now: fences."""
    jobs_to_end: set[int] = field(default_factory=set)
    """Jobs whose places in the medium may be given to other chunks now."""

    @property
    def has_fences(self) -> bool:
        """Whether the step has to wait for any job."""
        return bool(self.jobs_to_flush or self.jobs_to_end)

    def goes_first(self, job_id: int) -> bool:
        """Whether a job is waited for before the step's forward pass."""
        return job_id in self.jobs_to_flush or job_id in self.jobs_to_end


@dataclass(slots=True)
class DirectionalTransferStats:
    """Copies of one direction that ended: their bytes, their seconds, and the size of each."""

    bytes: int = 0
    time: float = 0.0
    sizes: list[int] = field(default_factory=list)

    def record(self, num_bytes: int, seconds: float) -> None:
        """Count one copy."""
        self.bytes += num_bytes
        self.time += seconds
        self.sizes.append(num_bytes)

    def aggregate(self, other: "DirectionalTransferStats") -> "DirectionalTransferStats":
        """The sum of both."""
        return DirectionalTransferStats(self.bytes + other.bytes, self.time + other.time, self.sizes + other.sizes)


@dataclass(slots=True)
class TransferStats:
    """Copies that ended, by direction."""

    load: DirectionalTransferStats = field(default_factory=DirectionalTransferStats)
    store: DirectionalTransferStats = field(default_factory=DirectionalTransferStats)

    def aggregate(self, other: "TransferStats") -> "TransferStats":
        """The sum of both."""
        return TransferStats(self.load.aggregate(other.load), self.store.aggregate(other.store))


class RankRoom(NamedTuple):
    """What one rank has: bytes of a block there, and room in the medium for so many chunks, if its worker says."""

    bytes_per_block: int
    num_chunks: int | None


@dataclass
class OffloadingWorkerMetadata(KVConnectorWorkerMetadata):
    """Workers -> scheduler: by job, how many workers say so.

    ``completed_jobs`` counts ends of any kind, once a worker; ``failed_jobs`` and ``unended_jobs`` say which of
    them failed, and which of those were only given up; ``late_jobs``, that a copy that was given up has ended.
    ``medium_counts`` has what the medium's workers counted, by metric. ``rooms`` has each rank's room, told once
    by those of a pipeline.
    """

    completed_jobs: dict[int, int] = field(default_factory=dict)
    failed_jobs: dict[int, int] = field(default_factory=dict)
    unended_jobs: dict[int, int] = field(default_factory=dict)
    late_jobs: dict[int, int] = field(default_factory=dict)
    transfer_stats: TransferStats = field(default_factory=TransferStats)
    medium_counts: dict[str, int] = field(default_factory=dict)
    rooms: list[RankRoom] = field(default_factory=list)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "OffloadingWorkerMetadata":
        if not isinstance(other, OffloadingWorkerMetadata):
            raise TypeError(f"worker metadata: expected OffloadingWorkerMetadata, got {type(other).__name__}")
        return OffloadingWorkerMetadata(
            _sum(self.completed_jobs, other.completed_jobs),
            _sum(self.failed_jobs, other.failed_jobs),
            _sum(self.unended_jobs, other.unended_jobs),
            _sum(self.late_jobs, other.late_jobs),
            self.transfer_stats.aggregate(other.transfer_stats),
            _sum(self.medium_counts, other.medium_counts),
            self.rooms + other.rooms,
        )


def _sum(mine: dict[Any, int], theirs: dict[Any, int]) -> dict[Any, int]:
    return {key: mine.get(key, 0) + theirs.get(key, 0) for key in sorted({*mine, *theirs})}
