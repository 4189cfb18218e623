"""The worker for files: host memory's, which also tells its copy engine the keys of a job's chunks."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

from kv_api import Direction, GPULoadStoreSpec, LoadStoreSpec
from kv_offload_cpu import CPUOffloadingWorker, HostLayout, HostMemory, StoreRole
from kv_offload_file.engine import FileCopyEngine
from kv_offload_file.load_store_spec import labels_of
from kv_offload_file.stats import DAMAGED, ERRORS, GONE


class FileOffloadingWorker(CPUOffloadingWorker):
    """Moves bytes between KV caches of ``num_groups`` groups and a file of ``layout.num_chunks`` slots.

    ``num_places`` is how many places a job may name: all slots, and with neighbours theirs, too.
    """

    def __init__(
        self,
        engine: FileCopyEngine,
        memory: HostMemory,
        layout: HostLayout,
        num_groups: int,
        store_role: StoreRole = StoreRole.WRITES,
        num_places: int = 0,
    ) -> None:
        places = replace(layout, num_chunks=max(num_places, layout.num_chunks))
        super().__init__(engine, memory, places, num_groups, store_role)
        self.num_chunks = layout.num_chunks
        self._files = engine
        self._told = {DAMAGED: 0, ERRORS: 0, GONE: 0}

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        with self._labelled(job_id, Direction.STORE, dst_spec):
            return super().submit_store(job_id, src_spec, dst_spec)

    def submit_load(
        self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec, expedited: bool = False
    ) -> bool:
        with self._labelled(job_id, Direction.LOAD, src_spec):
            return super().submit_load(job_id, src_spec, dst_spec, expedited)

    def let_go(self, job_ids: set[int]) -> list[int]:
        """A store goes on without GPU blocks once its chunks are in bays."""
        return self._files.let_go([*job_ids])

    def take_counts(self) -> dict[str, int]:
        counted = {DAMAGED: self._files.damaged, ERRORS: self._files.errors, GONE: self._files.gone}
        new = {name: count - self._told[name] for name, count in counted.items()}
        self._told = counted
        return {name: count for name, count in new.items() if count}

    def check(self) -> None:
        """Recount the jobs, and the bays."""
        super().check()
        self._files.check()

    @contextmanager
    def _labelled(self, job_id: int, direction: Direction, chunks: LoadStoreSpec) -> Generator[None]:
        self._files.labels[job_id] = labels_of(f"{direction.value} job {job_id}", chunks)
        try:
            yield
        finally:
            del self._files.labels[job_id]
