"""The scheduler's side of files: host memory's manager, over slots whose contents outlive the engine."""

from collections.abc import Collection
from enum import Enum, auto
from typing import Any, ClassVar

from kv_api import CacheHitSource, Medium, OffloadKey
from kv_offload_cpu import CPUOffloadingManager
from kv_offload_cpu.slots.columns import pack
from kv_offload_file.home import Home
from kv_offload_file.load_store_spec import FileLoadStoreSpec
from kv_offload_file.restore import Found
from kv_offload_file.stats import FileOffloadingStats, own_name


class Restore(Enum):
    """When the chunks that were found in the files become resident."""

    AT_ONCE = auto()
    WHEN_LIMITED = auto()
    """When the number of slots that all ranks have is known."""


class FileOffloadingManager(CPUOffloadingManager):
    """Manages ``num_chunks`` slots, of which those in ``found`` have chunks; ``options`` are host memory's."""

    medium: ClassVar[Medium] = Medium.STORAGE
    source: ClassVar[CacheHitSource] = CacheHitSource.DISK

    def __init__(
        self, num_chunks: int, home: Home, found: Found, when: Restore = Restore.AT_ONCE, **options: Any
    ) -> None:
        super().__init__(num_chunks, **options)
        self._home = home
        self._next_number = found.next_number
        self._found = found.stores
        if when is Restore.AT_ONCE:
            self._restore_found(num_chunks)

    def limit_chunks(self, num_chunks: int) -> bool:
        super().limit_chunks(num_chunks)
        self._restore_found(num_chunks)
        return True

    def _restore_found(self, num_slots: int) -> None:
        """Make the found chunks in the first slots resident, unless there was a reset."""
        found, self._found = self._found, []
        within = [[(k, s) for k, s in zip(*one, strict=True) if s < num_slots] for one in found]
        self.restore([([k for k, _ in one], [s for _, s in one]) for one in within if one])

    def places(self, keys: Collection[OffloadKey], slots: list[int]) -> FileLoadStoreSpec:
        number = self._next_number
        self._next_number += 1
        return FileLoadStoreSpec(pack(slots), keys, self._home.epoch, number)

    def reset_cache(self) -> None:
        self._home.renew()  # first: after a crash in between the next engine finds too little, but nothing stale
        self._found = []
        super().reset_cache()

    def get_stats(self) -> FileOffloadingStats:  # type: ignore[override]
        counted = super().get_stats()
        return FileOffloadingStats({own_name(name): value for name, value in counted.data.items()})

    def shutdown(self) -> None:
        self._home.close()
