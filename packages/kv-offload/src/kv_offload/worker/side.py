"""The worker's side: it gives the medium's worker the jobs of each step, in an order that is safe.

* A store whose bytes this step computes is submitted in ``wait_for_save``, when the forward pass has been given to
  the device, so the copy comes after it. What earlier steps computed is stored from ``handle_preemptions`` on.
* ``handle_preemptions`` waits for jobs whose GPU blocks belong to somebody else now until they let go of them, and
  for jobs whose places in the medium may do so until they have ended. Some of these may begin in this very step.
* Loads are submitted in ``start_load_kv``; those that the step itself needs are waited for there.
* Before the engine sleeps ``unregister_kv_caches`` waits for all jobs. The caches come back where they were.

The medium's worker may refuse a job, fail it, report it twice, never end it, or raise an ``OSError`` or
``RuntimeError``. Here it is in any case a job that ended or failed (``running``). This file is the one edge.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any, ClassVar, TypeAlias

from kv_api import (
    ForwardContext,
    KVCacheConfig,
    KVCaches,
    KVConnectorMetadata,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    KVError,
    OffloadingSpec,
    OffloadingWorker,
    TransferResult,
    VllmConfig,
    WorkerSide,
)
from kv_offload.clock import Clock, read_clock
from kv_offload.describe import EngineDescription
from kv_offload.log import warn
from kv_offload.metadata import OffloadingConnectorMetadata, RankRoom, TransferJob
from kv_offload.worker.register import canonical_caches
from kv_offload.worker.running import RunningJobs

Wait: TypeAlias = Callable[[set[int]], Collection[int]]
"""Returns when jobs are done with their GPU blocks, with the ids of those that go on without them."""


class OffloadingWorkerSide(WorkerSide):
    """Runs the jobs of one rank."""

    clock: ClassVar[Clock] = staticmethod(read_clock)
    """Says when a copy has taken too long."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        kv_cache_config: KVCacheConfig | None,
        engine: EngineDescription,
        spec: OffloadingSpec,
    ) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self._engine = engine
        self.spec = spec
        self.medium_worker: OffloadingWorker | None = None
        """The medium's worker. One that watches it takes its place here, before the first step."""
        self._jobs = RunningJobs(fails_requests=engine.fails_requests)
        options = engine.options
        self._load_seconds = options.load_timeout_seconds
        stores = options.store_timeout_seconds
        self._store_seconds = self._load_seconds if stores is None else stores
        replicated = spec.replicated_layout and not engine.config.canonical_layout
        self._writes = not replicated or engine.config.parallel.rank == 0
        """Only the first replica stores; the others report the store as done at once."""

    def register_kv_caches(self, kv_caches: KVCaches) -> None:
        assert self._kv_cache_config is not None, "the engine was described without a kv_cache_config"
        caches = canonical_caches(kv_caches, self._kv_cache_config, self._engine.layout)
        self.medium_worker = self.spec.get_worker(caches)
        if self._engine.has_stages:
            # Those of vLLM's media have no such attribute.
            num_chunks = getattr(self.medium_worker, "num_chunks", None)
            self._jobs.tell_room(RankRoom(self._engine.config.worker_kv_bytes_per_block, num_chunks))

    def unregister_kv_caches(self) -> None:
        # An engine in the caller's own process has waited for no transfer.
        self._flush(self._jobs.all_at_work(), self._wait_until_ended)

    @property
    def medium(self) -> OffloadingWorker | None:
        """Another name of ``medium_worker``."""
        return self.medium_worker

    @medium.setter
    def medium(self, worker: OffloadingWorker | None) -> None:
        self.medium_worker = worker

    @property
    def _registered_worker(self) -> OffloadingWorker:
        """``medium_worker``, for a step: by then the caches are registered."""
        if self.medium_worker is None:
            raise KVError("OffloadingConnector: a step began before register_kv_caches")
        return self.medium_worker

    # -- a step --------------------------------------------------------------------------------

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        meta = _ours(kv_connector_metadata)
        self._jobs.expect_holds(meta.store_jobs.values())
        for job_id, job in meta.store_jobs.items():
            if _goes_first(meta, job_id, job):
                self._begin_store(job_id, job)
        let_go = getattr(self.medium_worker, "let_go", None)  # vLLM's media, and older ones, have none
        self._flush(meta.jobs_to_end, self._wait_until_ended)
        self._flush(meta.jobs_to_flush, self._wait_until_ended if let_go is None else let_go)

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        meta = _ours(self._get_connector_metadata())
        for job_id, job in meta.load_jobs.items():
            self._begin_load(job_id, job)
        needed = [job_id for job_id, job in meta.load_jobs.items() if job.sync and job_id in self._jobs.running]
        if needed:
            self._wait(needed, self._wait_until_ended)
            self._jobs.give_up(needed)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for: what the step loads was there before its forward pass."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing to do: blocks are stored with all their layers."""

    def wait_for_save(self) -> None:
        meta = _ours(self._get_connector_metadata())
        for job_id, job in meta.store_jobs.items():
            if not _goes_first(meta, job_id, job):
                self._begin_store(job_id, job)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        self._poll()
        if self._load_seconds or self._store_seconds:
            self._give_up_late_ones()
        return self._jobs.take_results()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        results = self.get_transfer_results(finished_req_ids)
        return results.finished_sending, results.finished_recving

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._jobs.take_invalid_blocks()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        # Those of older media and of vLLM's have no such method.
        take_counts = getattr(self.medium_worker, "take_counts", None)
        if take_counts is not None:
            self._jobs.count(take_counts())
        return self._jobs.take_meta()

    def shutdown(self) -> None:
        if self.medium_worker is not None:
            self.medium_worker.shutdown()

    def check(self) -> None:
        """Recount."""
        self._jobs.check()

    # -- the edge to the medium ----------------------------------------------------------------

    def _deadline(self, seconds: float) -> float | None:
        return self.clock() + seconds if seconds else None

    def _give_up_late_ones(self) -> None:
        expired = self._jobs.expired(self.clock())
        for job_id in expired:
            running = self._jobs.running[job_id]
            kind = "load" if running.is_load else "store"
            warn("%s %d of request %s has not ended in time", kind, job_id, running.job.req_id)
        self._jobs.give_up(expired)

    def _begin_load(self, job_id: int, job: TransferJob) -> None:
        source = job.src_spec
        self._jobs.begin_load(job_id, job, self._deadline(self._load_seconds))
        if source is None:
            self._jobs.fail(job_id)
        else:
            worker, target = self._registered_worker, job.gpu_spec
            self._submit(job_id, lambda: worker.submit_load(job_id, source, target, expedited=job.sync))

    def _begin_store(self, job_id: int, job: TransferJob) -> None:
        self._jobs.begin_store(job_id, job, self._deadline(self._store_seconds))
        if not self._writes:
            self._jobs.end(TransferResult(job_id, success=True))
        else:
            worker, source = self._registered_worker, job.gpu_spec
            self._submit(job_id, lambda: worker.submit_store(job_id, source, job.dst_spec))

    def _submit(self, job_id: int, submit: Callable[[], bool]) -> None:
        try:
            accepted = submit()
        except (OSError, RuntimeError) as error:
            warn("job %d could not be submitted: %s: %s", job_id, type(error).__name__, error)
            accepted = False
        if not accepted:
            self._jobs.fail(job_id)

    def _flush(self, job_ids: Iterable[int], wait: Wait) -> None:
        """Wait until the medium is done with the GPU blocks of jobs, and distrust stores that may not be."""
        flushed = sorted(job_id for job_id in job_ids if self._jobs.is_at_work(job_id))
        if flushed:
            goes_on = self._wait(flushed, wait)
            self._jobs.distrust(i for i in flushed if i not in goes_on and not self._is_load(i))

    def _wait_until_ended(self, job_ids: set[int]) -> Collection[int]:
        """A `Wait` after which none of the jobs goes on."""
        self._registered_worker.wait(job_ids)
        return ()

    def _wait(self, job_ids: list[int], wait: Wait) -> Collection[int]:
        """Wait by ``wait``, and take in which jobs ended. If waiting fails, none is known to go on safely."""
        goes_on: Collection[int] = ()
        try:
            goes_on = wait(set(job_ids))
        except (OSError, RuntimeError) as error:
            warn("waiting for jobs %s: %s: %s", job_ids, type(error).__name__, error)
        self._poll()
        return goes_on

    def _poll(self) -> None:
        """Take in which jobs ended. If that can't be known, all are given up."""
        try:
            ended = self._registered_worker.get_finished()
        except (OSError, RuntimeError) as error:
            warn("asking which jobs ended: %s: %s", type(error).__name__, error)
            self._jobs.give_up(self._jobs.running)
            return
        for result in ended:
            self._jobs.end(result)

    def _is_load(self, job_id: int) -> bool:
        running = self._jobs.running.get(job_id)
        return running is not None and running.is_load


def _goes_first(meta: OffloadingConnectorMetadata, job_id: int, job: TransferJob) -> bool:
    """Whether a store begins before the step's forward pass."""
    return job.is_computed or meta.goes_first(job_id)


def _ours(metadata: KVConnectorMetadata) -> OffloadingConnectorMetadata:
    if not isinstance(metadata, OffloadingConnectorMetadata):
        raise TypeError(f"connector metadata: expected OffloadingConnectorMetadata, got {type(metadata).__name__}")
    return metadata
