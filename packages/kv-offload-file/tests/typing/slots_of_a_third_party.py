"""Checked by mypy and pyright, never run: a configured spec, and one that keeps its slots somewhere else."""

from typing import assert_type

from kv_api import CanonicalKVCaches, OffloadingConfig, OffloadKey
from kv_offload_cpu import CopyEngine, HostMemory
from kv_offload_file import FileLoadStoreSpec, FileOffloadingManager, FileOffloadingSpec, FileOptions
from kv_offload_file.engine import FileCopyEngine, Slots
from kv_offload_file.home import Home
from kv_offload_file.label import Label
from kv_offload_file.restore import Found


class Elsewhere:
    def write(self, slot: int, label: Label, bay: int) -> None:
        assert_type(label.key, OffloadKey)

    def read(self, slot: int, label: Label, bay: int) -> None: ...

    def close(self) -> None: ...


class NoHome:
    epoch = 1

    def renew(self) -> None:
        self.epoch += 1

    def close(self) -> None: ...


class ElsewhereSpec(FileOffloadingSpec):
    extra_keys = FileOffloadingSpec.extra_keys | {"elsewhere"}

    def open_home(self) -> Home:
        return NoHome()

    def find(self, epoch: int) -> Found:
        return Found([([OffloadKey(b"key")], [0])], 2)

    def make_slots(self, memory: HostMemory) -> Slots:
        return Elsewhere()

    def make_engine(self, inner: CopyEngine, slots: Slots, num_blocks: list[int]) -> FileCopyEngine:
        engine = super().make_engine(inner, slots, num_blocks)
        assert_type(engine.damaged, int)
        return engine


def use(config: OffloadingConfig, caches: CanonicalKVCaches) -> None:
    spec = ElsewhereSpec(config)
    assert_type(spec.options, FileOptions)
    assert_type(spec.options.copy_threads, int)
    assert_type(spec.get_manager(), FileOffloadingManager)
    worker = spec.get_worker(caches)
    assert_type(worker.take_counts(), dict[str, int])
    FileLoadStoreSpec([1], [OffloadKey(b"key")], epoch=1, number=1)
