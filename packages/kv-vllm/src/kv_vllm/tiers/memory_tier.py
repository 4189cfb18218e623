"""``MemoryTier``: a correct tier that keeps chunks in memory.

It shows a tier's duties: it answers at once, reads and writes rows only while a job of theirs is in flight,
reports the end of each job once, and finds only chunks that it can load. If it has too little room it drops the
least recently used chunks, except those that a load still needs.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable
from itertools import takewhile
from typing import Any

from vllm.v1.kv_offload.base import LookupResult, Medium, OffloadPolicy, RequestOffloadingContext
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob


class MemoryTier(SecondaryTierManager):  # type: ignore[misc]
    """Rows by key.

    It has room for ``chunks`` chunks. One job in ``fails_one_in`` fails, a load only for its last chunks. With
    ``asks_first`` a lookup of a key is answered in the next step. With ``whole_requests`` it is also given chunks
    that were in host memory before.
    """

    medium = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        *,
        chunks: int = 1 << 30,
        fails_one_in: int = 0,
        asks_first: bool = False,
        whole_requests: bool = False,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self._room = chunks
        self._fails_one_in = fails_one_in
        self._asks_first = asks_first
        self._policy = OffloadPolicy.REQUEST_LEVEL if whole_requests else OffloadPolicy.CHUNK_LEVEL
        self._kept: OrderedDict[Any, bytes] = OrderedDict()
        self._asked: set[Any] = set()
        self._answers: set[Any] = set()
        self._jobs: list[TransferJob] = []
        self._loading: dict[int, list[bytes]] = {}

    def lookup(self, key: Any, req_context: Any) -> LookupResult:
        """Whether the chunk is kept; at the first lookup since the last step the answer may be to ask again."""
        if self._asks_first and key not in self._answers:
            self._asked.add(key)
            return LookupResult.RETRY
        return LookupResult.HIT if key in self._kept else LookupResult.MISS

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Queue the job."""
        self._jobs.append(job_metadata)

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Queue the job, with the chunks that are kept now."""
        there = takewhile(self._kept.__contains__, job_metadata.keys)
        self._loading[job_metadata.job_id] = [self._kept[key] for key in there]
        self._jobs.append(job_metadata)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Do all queued jobs, and report them."""
        jobs, self._jobs = self._jobs, []
        return [self._load(job) if job.is_promotion else self._store(job) for job in jobs]

    def _store(self, job: TransferJob) -> JobResult:
        if self._fails(job):
            return JobResult(job.job_id, success=False)
        for key, chunk in zip(job.keys, job.chunk_ids, strict=True):
            self._kept[key] = bytes(self._row(chunk))
            self._kept.move_to_end(key)
        while len(self._kept) > self._room:
            self._kept.popitem(last=False)
        return JobResult(job.job_id, success=True)

    def _load(self, job: TransferJob) -> JobResult:
        keys, found = [*job.keys], self._loading.pop(job.job_id)
        there = found[: len(found) // 2] if self._fails(job) else found
        for row, chunk in zip(there, job.chunk_ids, strict=False):
            self._row(chunk)[:] = row
        if len(there) == len(keys):
            return JobResult(job.job_id, success=True)
        return JobResult(job.job_id, success=False, successful_keys=keys[: len(there)] or None)

    def _row(self, chunk: int) -> memoryview:
        size, view = self.block_size_bytes, memoryview(self._primary_kv_view).cast("B")
        return view[int(chunk) * size : (int(chunk) + 1) * size]

    def _fails(self, job: TransferJob) -> bool:
        return bool(self._fails_one_in) and job.job_id % self._fails_one_in == 0

    def touch(self, keys: Collection[Any], req_context: Any) -> None:
        """These chunks were used."""
        for key in keys:
            if key in self._kept:
                self._kept.move_to_end(key)

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        return RequestOffloadingContext(policy=self._policy)

    def on_schedule_end(self, context: Any) -> None:
        """Lookups of this step are answered in the next one, and then forgotten."""
        self._answers, self._asked = self._asked, set()

    def drain_jobs(self) -> None:
        """Nothing to wait for."""
