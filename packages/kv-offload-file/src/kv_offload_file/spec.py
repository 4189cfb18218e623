"""``FileOffloadingSpec``: files as an offloading medium; it makes the manager and the workers.

Importing this needs nothing but kv_api and kv_offload_cpu; making the manager reads what is in the files already.
Modules that handle bytes are imported by ``get_worker``.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from sys import maxsize
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar

from kv_api import CanonicalKVCaches, ConfigError, OffloadingConfig, OffloadingMetricMetadata, OffloadingSpec
from kv_offload_cpu import HostLayout
from kv_offload_cpu.stats import STORES_SKIPPED
from kv_offload_file.folder import home_folder, home_of
from kv_offload_file.home import Home, LockedHome
from kv_offload_file.info import FileOffloadingInfo, offloading_info
from kv_offload_file.label import ROW_BYTES
from kv_offload_file.layers import claim, has_same_layers
from kv_offload_file.manager import FileOffloadingManager, Restore
from kv_offload_file.options import OWN_KEYS, FileOptions, read_options
from kv_offload_file.restore import Found, find_stores
from kv_offload_file.sharing.listing import ENTRY_BYTES
from kv_offload_file.sharing.manager import SharingManager
from kv_offload_file.sharing.place import MOST_ENGINES, MOST_SLOTS, NUM_PLACES
from kv_offload_file.slot_file import ALIGNMENT, read_rows
from kv_offload_file.staging import LEAST_BAYS, store_bays
from kv_offload_file.stats import METRICS, OF_SHARING

if TYPE_CHECKING:
    from kv_api import Direction
    from kv_offload_cpu import CopyEngine, HostMemory
    from kv_offload_file.engine import FileCopyEngine, Slots
    from kv_offload_file.sharing.neighbourhood import Neighbours, OwnListing
    from kv_offload_file.worker import FileOffloadingWorker


class FileOffloadingSpec(OffloadingSpec):
    """Chunks in files of ``file_bytes_to_use`` bytes: one for each worker, or one if all hold the same bytes.

    ``options`` has all settings.

    A subclass may keep them elsewhere (``open_home``, ``open_neighbourhood``, ``find``, ``make_slots``), and have
    other memory and another copy engine between that and the GPU, as one of `CPUOffloadingSpec` may.
    """

    SLOT_ALIGNMENT: ClassVar[int] = ALIGNMENT
    ROW_BYTES: ClassVar[int] = ROW_BYTES
    """Bytes of a slot's row, in a file of its own."""
    LISTED_BYTES: ClassVar[int] = ENTRY_BYTES
    """Bytes of a slot's entry in the listing for other engines."""
    extra_keys = frozenset(OWN_KEYS)

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        self.options: FileOptions = read_options(config.extra_config)
        self.replicated_layout = config.replicated_layout
        self.has_stages = config.parallel.pp_size > 1
        self.num_files = 1 if self.replicated_layout else config.parallel.world_size
        self.slot_bytes = self.slot_bytes_for(config.worker_kv_bytes_per_block * self.blocks_per_chunk)
        self.engine = self._number()
        """This engine's number among those that share a folder; None: it doesn't share."""
        listed = self.LISTED_BYTES if self.is_shared else 0
        taken = (self.slot_bytes + self.ROW_BYTES) * self.num_files + listed
        self.num_chunks = self.options.file_bytes_to_use // taken
        if self.num_chunks < 1:
            raise ConfigError(
                f"file_bytes_to_use: {self.options.file_bytes_to_use} bytes are less than one chunk, which takes "
                f"{taken}: {config.worker_kv_bytes_per_block} bytes a block × {self.blocks_per_chunk} blocks, in "
                f"pages of {self.SLOT_ALIGNMENT}, and a row of {self.ROW_BYTES}, "
                f"× {self.num_files} workers" + (f", and {listed} in the listing" if listed else "")
            )
        if self.is_shared and self.num_chunks > MOST_SLOTS:
            raise ConfigError(
                f"file_bytes_to_use: {self.num_chunks} chunks; an engine that shares has at most {MOST_SLOTS}"
            )
        self.num_bays = self.options.file_staging_bytes // self.slot_bytes
        if self.num_bays < LEAST_BAYS:
            raise ConfigError(
                f"file_staging_bytes: {self.options.file_staging_bytes} bytes are less than {LEAST_BAYS} chunks "
                f"of {self.slot_bytes}"
            )
        self.folder = home_folder(self.options.file_dir, config, self.options.file_tag, self.engine)
        self.file_info = offloading_info(config, self.layout(), self.num_files)
        self._manager: FileOffloadingManager | None = None
        self._worker: FileOffloadingWorker | None = None

    @classmethod
    def slot_bytes_for(cls, chunk_bytes: int) -> int:
        """Bytes of a chunk's slot: whole pages of the disk."""
        return -(-chunk_bytes // cls.SLOT_ALIGNMENT) * cls.SLOT_ALIGNMENT

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        threshold = extra_config.get("store_threshold", 0)
        skips = isinstance(threshold, int) and threshold >= 2
        left_out = set() if skips else {STORES_SKIPPED}
        left_out |= set() if extra_config.get("file_shared") else OF_SHARING
        return {name: metric for name, metric in METRICS.items() if name not in left_out}

    @classmethod
    def config_info_keys(cls, extra_config: dict[str, Any]) -> tuple[str, ...]:
        return FileOffloadingInfo.config_info_keys()

    @property
    def is_shared(self) -> bool:
        """Whether this engine and others read each other's chunks."""
        return self.engine is not None

    def get_manager(self) -> FileOffloadingManager:
        if self._manager is None:
            with ExitStack() as undo:
                home = self.open_home()
                undo.callback(home.close)
                make: Callable[..., FileOffloadingManager] = FileOffloadingManager
                if self.is_shared:
                    own, neighbours = self.open_neighbourhood()
                    undo.callback(own.close)
                    undo.callback(neighbours.close)
                    make = partial(SharingManager, own=own, neighbours=neighbours)
                self._manager = make(
                    self.num_chunks,
                    home,
                    self.find(home.epoch),
                    cache_policy=self.options.eviction_policy,
                    cache_policy_module_path=self.options.cache_policy_module_path,
                    enable_events=self.kv_events_config.enable_kv_cache_events,
                    store_threshold=self.options.store_threshold,
                    max_tracker_size=self.options.max_tracker_size,
                    most_in_flight=self.most_in_flight,
                    info=self.file_info,
                    info_of=lambda num_chunks: offloading_info(
                        self.config, replace(self.layout(), num_chunks=num_chunks), self.num_files
                    ),
                    when=Restore.WHEN_LIMITED if self.has_stages else Restore.AT_ONCE,
                )
                undo.pop_all()
        return self._manager

    def get_worker(self, kv_caches: CanonicalKVCaches) -> "FileOffloadingWorker":
        from kv_offload_cpu import StoreRole
        from kv_offload_file.worker import FileOffloadingWorker

        if self._worker is None:
            role = StoreRole.WRITES if self._has_file else StoreRole.ACKNOWLEDGES
            bays = HostLayout(self.num_bays, self.blocks_per_chunk, self.slot_bytes, 1, self.slot_bytes)
            with ExitStack() as undo:
                memory = self.make_memory(bays)
                undo.callback(memory.release)
                inner = self.make_copy_engine(kv_caches, bays, memory)
                undo.callback(inner.shutdown)
                slots = self.make_slots(memory)
                undo.callback(slots.close)
                engine = self.make_engine(inner, slots, _num_blocks(kv_caches))
                num_groups = len(kv_caches.group_data_refs)
                places = NUM_PLACES if self.is_shared else 0
                self._worker = FileOffloadingWorker(engine, memory, self.layout(), num_groups, role, places)
                undo.pop_all()
        return self._worker

    @property
    def most_in_flight(self) -> int:
        """How many chunks may be in flight in stores: as many as staging memory has room for."""
        return store_bays(self.num_bays)

    def layout(self) -> HostLayout:
        """The slots of one worker's file."""
        return HostLayout(self.num_chunks, self.blocks_per_chunk, self.slot_bytes, 1, self.slot_bytes)

    # Methods that a subclass may override

    def open_home(self) -> Home:
        """The home of this engine's files, for the process that manages them."""
        return LockedHome(self.options.file_dir, self.config, self.options.file_tag, self.engine)

    def open_neighbourhood(self) -> "tuple[OwnListing, Neighbours]":
        """This engine's listing for its neighbours, and theirs."""
        from kv_offload_file.sharing.loans import refuse_without_locks
        from kv_offload_file.sharing.neighbours import ListedNeighbours
        from kv_offload_file.sharing.own_listing import FileListing

        assert self.engine is not None, "this engine shares with nobody"
        refuse_without_locks()
        own = FileListing(self.folder, self.num_chunks)
        return own, ListedNeighbours(self.folder.parent, self.engine, monotonic)

    def find(self, epoch: int) -> Found:
        """The chunks of this epoch that the files have already."""
        rows_of = partial(read_rows, self.folder, num_slots=self.num_chunks)
        return find_stores(rows_of, self.num_files, epoch)

    def make_memory(self, layout: HostLayout) -> "HostMemory":
        """Staging memory, with ``layout.num_chunks`` bays."""
        from kv_offload_cpu.memory import MappedMemory

        return MappedMemory(layout, setting="file_staging_bytes")

    def make_copy_engine(
        self, kv_caches: CanonicalKVCaches, layout: HostLayout, memory: "HostMemory"
    ) -> "CopyEngine":
        """The engine that copies between these KV caches and the memory of ``make_memory``."""
        from kv_offload_cpu import Options
        from kv_offload_cpu.copy.choose import make_copy_engine

        options = self.options
        wishes = Options(
            options.file_staging_bytes,
            copy_engine=options.copy_engine,
            copy_threads=options.copy_threads,
            copy_submission=options.copy_submission,
            pin_memory=options.pin_memory,
        )
        return make_copy_engine(kv_caches, memory, wishes)

    def make_slots(self, memory: "HostMemory") -> "Slots":
        """This worker's slots, which are read into the bays of ``memory`` and written from them."""
        from kv_offload_file.sharing.slot_borrower import SlotBorrower
        from kv_offload_file.sharing.slots import SharedSlots
        from kv_offload_file.slot_file import GoneError, SlotFile, SlotReader
        from kv_offload_file.slots import FileSlots

        if self.has_stages:
            claim(self.folder, self.config)
        kind, rank = (SlotFile, self.config.parallel.rank) if self._has_file else (SlotReader, 0)
        direct = self.options.file_direct
        file = kind(self.folder, rank, self.num_chunks, self.slot_bytes, direct=direct)
        if not self.is_shared:
            return FileSlots(file, memory)

        def open_file(engine: int) -> SlotBorrower:
            home = home_of(self.folder.parent, engine)
            if self.has_stages and not has_same_layers(home, self.config):
                raise GoneError(f"{home}: this stage of the pipeline has other layers there")
            return SlotBorrower(home, rank, MOST_SLOTS, self.slot_bytes, direct=direct)

        return SharedSlots(file, memory, open_file)

    def make_engine(self, inner: "CopyEngine", slots: "Slots", num_blocks: list[int]) -> "FileCopyEngine":
        """The engine that moves chunks between KV caches and slots, with threads for each direction."""
        from kv_offload_file.engine import FileCopyEngine

        return FileCopyEngine(inner, slots, self.num_bays, num_blocks, self._threads)

    def _number(self) -> int | None:
        """This engine's number among those that share."""
        if not self.options.file_shared:
            if self.options.file_engine is not None:
                raise ConfigError(
                    f"file_engine: {self.options.file_engine}; it tells apart engines that share (file_shared)"
                )
            return None
        number = self.options.file_engine
        number = self.config.parallel.data_parallel_index if number is None else number
        if number >= MOST_ENGINES:
            raise ConfigError(f"file_shared: engine {number}; those that share have numbers below {MOST_ENGINES}")
        return number

    @property
    def _has_file(self) -> bool:
        """Whether this worker has a file of its own, or reads the first one's, which holds the same."""
        return self.config.parallel.rank < self.num_files

    def _threads(self, direction: "Direction") -> ThreadPoolExecutor:
        """Start all threads now: if one couldn't start later, a job would never end."""
        count = self.options.file_threads
        threads, all_there = ThreadPoolExecutor(count, f"kv-file-{direction.value}"), Event()
        try:
            for _ in range(count):
                threads.submit(all_there.wait)
        except RuntimeError as error:
            threads.shutdown(wait=False)
            raise ConfigError(f"file_threads: {count} for each direction is too much: {error}") from error
        finally:
            all_there.set()
        return threads


def _num_blocks(kv_caches: CanonicalKVCaches) -> list[int]:
    """How many blocks each group has: those of its smallest tensor. No limit for a group without tensors here."""
    counts = [int(tensor.tensor.shape[0]) for tensor in kv_caches.tensors]
    return [min((counts[ref.tensor_idx] for ref in refs), default=maxsize) for refs in kv_caches.group_data_refs]
