"""Tiers that do wrong, and one whose work is done by a thread."""

import os
import threading
from pathlib import Path

from vllm.v1.kv_offload.base import LookupResult
from vllm.v1.kv_offload.tiering.base import JobResult
from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager

from kv_vllm.tiers import MemoryTier


class Twice(MemoryTier):
    """Reports the end of a job twice."""

    def get_finished_jobs(self):
        results = super().get_finished_jobs()
        return [*results, *results]


class Elsewhere(MemoryTier):
    """Writes into a row that it was told to read."""

    def _store(self, job):
        self._row(job.chunk_ids[0])[0] ^= 1
        return super()._store(job)


class NotDrained(MemoryTier):
    """Has no result after it was drained."""

    def get_finished_jobs(self):
        return []


class ReadsLate(MemoryTier):
    """Says that a store has ended, and reads the rows when it is asked for results again."""

    late = ()

    def get_finished_jobs(self):
        for job in self.late:
            super()._store(job)
        self.late = [job for job in self._jobs if not job.is_promotion]
        return super().get_finished_jobs()

    def _store(self, job):
        return JobResult(job.job_id, success=True)


class LoadsLess(MemoryTier):
    """Says that all was loaded, and left out the last chunk."""

    def _load(self, job):
        self._loading[job.job_id].pop()
        return JobResult(super()._load(job).job_id, success=True)


class OtherKeys(MemoryTier):
    """Of a load that failed in part it names keys of another."""

    def _load(self, job):
        return JobResult(super()._load(job).job_id, success=False, successful_keys=[b"nobody's"])


class FindsInVain(MemoryTier):
    """Finds again and again what it can't load."""

    def _load(self, job):
        return JobResult(super()._load(job).job_id, success=False)


class SwapsKeys(MemoryTier):
    """Stores the first two chunks of a job under each other's keys."""

    def _store(self, job):
        result, keys = super()._store(job), [*job.keys]
        if len(keys) > 1 and all(key in self._kept for key in keys[:2]):
            self._kept[keys[0]], self._kept[keys[1]] = self._kept[keys[1]], self._kept[keys[0]]
        return result


class ByThread(MemoryTier):
    """Does right, in a thread for each job."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._threads, self._lock, self._done = [], threading.Lock(), []

    def _run(self, job):
        with self._lock:
            self._done.append(self._load(job) if job.is_promotion else self._store(job))

    def _start(self):
        while self._jobs:
            thread = threading.Thread(target=self._run, args=[self._jobs.pop(0)])
            self._threads.append(thread)
            thread.start()

    def submit_store(self, job_metadata):
        super().submit_store(job_metadata)
        self._start()

    def submit_load(self, job_metadata):
        with self._lock:
            super().submit_load(job_metadata)
        self._start()

    def get_finished_jobs(self):
        with self._lock:
            done, self._done = self._done, []
        return done

    def drain_jobs(self):
        while self._threads:
            self._threads.pop().join()


class LosesAFile(MemoryTier):
    """Has lost the bytes of each chunk, which stays in its index: it is found, never loaded, never stored again.

    A request whose load has failed isn't told again, as by vLLM's own tiers.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._told = set()

    def lookup(self, key, req_context):
        return LookupResult.MISS if (req_context.req_id, key) in self._told else super().lookup(key, req_context)

    def _store(self, job):
        if all(key in self._kept for key in job.keys):
            return JobResult(job.job_id, success=True)
        return super()._store(job)

    def _load(self, job):
        super()._load(job)
        self._told.update((job.req_context.req_id, key) for key in job.keys)
        return JobResult(job.job_id, success=False)


class LosesAFileByThread(LosesAFile, ByThread):
    """The same, in a thread for each job."""


class Cancels(LosesAFileByThread):
    """Does nothing until it is drained, and then cancels loads, as it may."""

    def _start(self):
        """Not yet."""

    def drain_jobs(self):
        super()._start()
        super().drain_jobs()


class Hears(MemoryTier):
    """Does every other job when it is drained, and then asks itself for results."""

    _heard = ()

    def get_finished_jobs(self):
        heard, self._heard = self._heard, ()
        later = [job for job in self._jobs if job.job_id % 2]
        self._jobs = [job for job in self._jobs if job not in later]
        ended, self._jobs = super().get_finished_jobs(), later
        return [*heard, *ended]

    def drain_jobs(self):
        self._heard = [*self.get_finished_jobs(), *super().get_finished_jobs()]


class FilesGo(FileSystemTierManager):
    """vLLM's tier of files, in a folder from which somebody else removes files."""

    def submit_load(self, job_metadata):
        if job_metadata.job_id % 3 == 0:
            Path(self.file_mapper.get_file_name(list(job_metadata.keys)[-1])).unlink(missing_ok=True)
        super().submit_load(job_metadata)


class FilesAreCut(FileSystemTierManager):
    """The same, on a disk that has lost the ends of files."""

    def submit_load(self, job_metadata):
        if job_metadata.job_id % 3 == 0:
            path = Path(self.file_mapper.get_file_name(list(job_metadata.keys)[-1]))
            if path.exists():
                os.truncate(path, path.stat().st_size // 2)
        super().submit_load(job_metadata)
