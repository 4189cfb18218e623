"""Two tiers for vLLM that others wrote, on a machine without their servers: memkv-vllm's and vllm-kvblockd's.

Both were written for earlier versions: vLLM 0.32 gives a tier one argument more, and calls a job's ``block_ids``
``chunk_ids``. These subclasses have what they were written for. What their clients do is done by stores in memory.
``MendedMemKV`` and ``MendedKvblockd`` are without what they were found to get wrong.
"""

import ctypes
import os
import time
import warnings
from types import SimpleNamespace

os.environ.setdefault("PYTHONHASHSEED", "0")
"""One of them doesn't begin without."""

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM compiles something when it is imported
    from kv_vllm_kvblockd_store import STORES, Client, Store
    from memkv_vllm import tier as memkv
    from vllm.v1.kv_offload.file_mapper import FileMapper
    from vllm_kvblockd import tier_manager as kvblockd
    from vllm_kvblockd.config import fingerprint

CURRENT = SimpleNamespace(store=None)
"""The store of the tier that is being made: its client isn't told."""


class MemKVClient:
    """Fits ``Client`` of memkv-vllm's compiled part, as far as its tier uses it."""

    def __init__(self):
        self._store = CURRENT.store

    def warmup(self):
        """Nothing is to be connected."""

    def register_region(self, address, size):
        """All memory may be read and written."""

    def servers(self):
        """One."""
        return ["the testbed's"]

    def has_rdma(self):
        """There is no network."""
        return False

    def exists(self, keys):
        """Which are there."""
        return [key in self._store.blobs for key in keys]

    def exists_on(self, server, keys):
        """The same of the only server."""
        return self.exists(keys)

    def put(self, key, data):
        """Keep it."""
        self._store.blobs.pop(key, None)
        self._store.put(key, bytes(data))

    def delete(self, key):
        """Let go of it."""
        self._store.blobs.pop(key, None)

    def batch_put_views(self, items):
        """Keep what is at these addresses."""
        for key, address, size in items:
            self.put(key, ctypes.string_at(address, size))
        return [True] * len(items)

    def batch_get_into(self, items):
        """Get each to an address, if it has that size; which came."""
        return [self._got(*item) for item in items]

    def _got(self, key, address, size):
        blob = self._store.get(key)
        if blob is None or len(blob) != size:
            return False
        ctypes.memmove(address, blob, size)
        return True


memkv.Client = MemKVClient
kvblockd.Client = Client


def as_before(job):
    """A job as it was called before."""
    return SimpleNamespace(job_id=job.job_id, keys=job.keys, block_ids=job.chunk_ids)


class MemKV(memkv.MemKVSecondaryTierManager):
    """memkv-vllm's."""

    def __init__(
        self, offloading_spec, primary_kv_view, tier_type, backpressure_detector=None, *, store=None, **said
    ):
        CURRENT.store = STORES.setdefault(said["prefix"], Store(**(store or {})))
        super().__init__(offloading_spec, primary_kv_view, tier_type, **said)

    def submit_store(self, job_metadata):
        super().submit_store(as_before(job_metadata))

    def submit_load(self, job_metadata):
        super().submit_load(as_before(job_metadata))


class Kvblockd(kvblockd.KvblockdTierManager):
    """vllm-kvblockd's."""

    def __init__(
        self, offloading_spec, primary_kv_view, tier_type, backpressure_detector=None, *, store=None, **said
    ):
        self._store = STORES.setdefault(said["namespace"], Store(**(store or {})))
        super().__init__(offloading_spec, primary_kv_view, tier_type, **said)

    def submit_store(self, job_metadata):
        super().submit_store(as_before(job_metadata))

    def submit_load(self, job_metadata):
        super().submit_load(as_before(job_metadata))

    def on_schedule_end(self, context):
        """Its thread answers before the next step begins."""
        super().on_schedule_end(context)
        asked = self._lookup
        while any(state is None for state in asked._state.values()) and asked._out_q.empty():
            time.sleep(0)


class MendedMemKV(MemKV):
    """What couldn't be loaded isn't found again, and no result gets lost."""

    def __init__(self, *args, **said):
        self._loading = {}
        super().__init__(*args, **said)

    def submit_load(self, job_metadata):
        self._loading[job_metadata.job_id] = job_metadata.keys
        super().submit_load(job_metadata)

    def get_finished_jobs(self):
        results = super().get_finished_jobs()
        for result in results:
            keys = self._loading.pop(result.job_id, ())
            if not result.success:
                self._lookup_manager.mark_miss(keys)
        return results

    def drain_jobs(self):
        self._pool.wait_idle()
        results = self.get_finished_jobs()
        self._instant_results = results


class MendedKvblockd(Kvblockd):
    """What couldn't be loaded isn't found again, and keys tell the model."""

    def __init__(self, offloading_spec, *args, **said):
        self._loading = {}
        super().__init__(offloading_spec, *args, **said)
        self._fp = fingerprint({"run": FileMapper.from_offloading_spec("", offloading_spec).base_path})

    def submit_load(self, job_metadata):
        self._loading[job_metadata.job_id] = job_metadata.keys
        super().submit_load(job_metadata)

    def get_finished_jobs(self):
        results = super().get_finished_jobs()
        for result in results:
            keys = self._loading.pop(result.job_id, ())
            if not result.success:
                self._lookup._state.update((self._key(key), False) for key in keys)
        return results
