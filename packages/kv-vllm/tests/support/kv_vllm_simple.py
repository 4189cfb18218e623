"""vLLM's SimpleCPUOffloadConnector on a machine without a GPU.

What CUDA does for it is done by ``kv_vllm_gpu``. All else is vLLM's: both sides, the threads that copy, the pages
of the host, and the files.
"""

from kv_vllm_gpu import COMPUTE, QUEUE, THREADING, TORCH, Card, copy_batch
from vllm.distributed.kv_transfer.kv_connector.v1.simple_cpu_offload_connector import SimpleCPUOffloadConnector
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id, resolve_block_hashes
from vllm.v1.simple_kv_offload import copy_backend, cuda_mem_ops, disk_backend, manager, worker

for module in (copy_backend, cuda_mem_ops, disk_backend, worker):
    module.torch = TORCH
for module in (copy_backend, disk_backend):
    module.queue, module.threading = QUEUE, THREADING
cuda_mem_ops._batch_memcpy = (copy_batch, 1)
worker.PIN_MEMORY = True


class Unended(SimpleCPUOffloadConnector):
    """vLLM's, with two settings of our own.

    ``lags``: its threads work when it is asked what has ended, and not before; else whenever they have a job, too.
    ``forgets``: every so many steps all that the GPU caches and no request has is evicted, as if many other
    requests had come and gone. Without it hardly anything is loaded, since the GPU has it.
    """

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        told = self._kv_transfer_config.kv_connector_extra_config
        self._lags, self._forgets = told.get("lags", False), told.get("forgets", 0)
        self._pool, self._steps = None, 0

    def bind_gpu_block_pool(self, gpu_block_pool):
        self._pool = gpu_block_pool
        super().bind_gpu_block_pool(gpu_block_pool)

    def build_connector_meta(self, scheduler_output):
        meta = super().build_connector_meta(scheduler_output)
        self._steps += 1
        if self._forgets and self._steps % self._forgets == 0:
            for block in self._pool.free_block_queue.get_all_free_blocks():
                self._pool._maybe_evict_cached_block(block)
        return meta

    def register_kv_caches(self, kv_caches):
        self.card = COMPUTE.card = Card(next(iter(kv_caches.values())))
        super().register_kv_caches(kv_caches)

    def let_threads_work(self):
        """What they can do now, they do."""
        backend = self.worker_handler and self.worker_handler._backend
        for name in ("_queue", "_store_queue", "_load_queue"):
            jobs = getattr(backend, name, None)
            if jobs is not None:
                jobs.let_thread_work()

    def start_load_kv(self, forward_context, **kwargs):
        super().start_load_kv(forward_context, **kwargs)
        if not self._lags:
            self.let_threads_work()

    def wait_for_save(self):
        COMPUTE.card = self.card
        super().wait_for_save()
        if not self._lags:
            self.let_threads_work()

    def get_finished(self, finished_req_ids):
        self.let_threads_work()
        return super().get_finished(finished_req_ids)


class OnCpu(Unended):
    """The same with an end: vLLM's class has no ``shutdown``, so that of what copies is never called."""

    def shutdown(self):
        backend = self.worker_handler and self.worker_handler._backend
        if backend is None:
            return
        self.card.run_out(self.let_threads_work)
        backend.shutdown()


class MendedManager(manager.SimpleCPUOffloadScheduler):
    """The scheduler's side without what it was found to get wrong."""

    def build_connector_meta(self, scheduler_output):
        """Each turn of a session comes with its whole table, and not with more of it: vLLM's own since 0.33."""
        for new in scheduler_output.scheduled_new_reqs:
            if (state := self._reqs_to_store.get(new.req_id)) is not None:
                state.block_ids = tuple([] for _ in state.block_ids)
        return super().build_connector_meta(scheduler_output)

    def _select_eager_blocks_to_store(self, state, block_ids_by_group):
        """A block that has left a window may be somebody else's: it is none of the request's."""
        tables = [self._still_its(state.request, group, table) for group, table in enumerate(block_ids_by_group)]
        return super()._select_eager_blocks_to_store(state, tables)

    def _still_its(self, request, group, table):
        size, pool = self.group_block_sizes[group], self._gpu_block_pool
        hashes = [*resolve_block_hashes(request.block_hashes, self.hash_block_size, size)]
        names = [make_block_hash_with_group_id(one, group) for one in hashes[: len(table)]]
        its = [
            block if pool.blocks[block].block_hash in (None, name) else pool.null_block.block_id
            for block, name in zip(table, names, strict=False)
        ]
        return [*its, *table[len(its) :]]

    def _classify_store_candidate(self, gpu_block):
        """What is being stored of one request needn't be of another."""
        answer = super()._classify_store_candidate(gpu_block)
        blocks = self._gpu_block_pool.blocks
        under_way = (blocks[block].block_hash for block in self._in_flight_store_gpu_blocks)
        is_stored = answer is manager._StoreAdmission.READY and gpu_block.block_hash in under_way
        return manager._StoreAdmission.IN_FLIGHT if is_stored else answer


class Mended(OnCpu):
    """With that half, so that a hunt finds more."""

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        if self.scheduler_manager is not None:
            self.scheduler_manager.__class__ = MendedManager
