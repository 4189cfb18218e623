"""vllm-kvblockd's tier for vLLM on a machine without its daemon: its client's part is played by a store in memory.

It was written for earlier versions: vLLM 0.32 gives a tier one argument more, and calls a job's ``block_ids``
``chunk_ids``. ``Kvblockd`` has what it was written for, and ``MendedKvblockd`` is without what it was found to get
wrong.
"""

import os
import time
import warnings
from types import SimpleNamespace

os.environ.setdefault("PYTHONHASHSEED", "0")
"""It doesn't begin without."""

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM compiles something when it is imported
    from kv_vllm_kvblockd_store import STORES, Client, Store
    from vllm.v1.kv_offload.file_mapper import FileMapper
    from vllm_kvblockd import tier_manager as kvblockd
    from vllm_kvblockd.config import fingerprint

kvblockd.Client = Client


def as_before(job):
    """A job as it was called before."""
    return SimpleNamespace(job_id=job.job_id, keys=job.keys, block_ids=job.chunk_ids)


class Kvblockd(kvblockd.KvblockdTierManager):
    """It, with a store of the world's."""

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
