"""``LaterConnector``: stores after a request has ended and loads between steps, both asynchronous.

``request_finished`` holds the blocks (True) until the workers have copied them; a match answers "asynchronously",
so the request waits while its load goes on. A host slot is *free*, *filling* (a store is under way), *ready*, or
ready and *pinned* by loads. Only ready, unpinned slots are evicted, oldest first. A failed store drops its slots,
a failed load drops its slots and hands its blocks back as failed. After a reset nothing is found any more, and a
slot that is still in use becomes free when its job ends.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from kv_api import (
    CacheHitSource,
    Direction,
    ForwardContext,
    KVCacheBlocks,
    KVCacheConfig,
    KVCaches,
    KVConnectorMetadata,
    KVConnectorOutput,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    Request,
    SchedulerOutput,
    SchedulerSide,
    TwoSidedConnector,
    VllmConfig,
    WorkerSide,
)

Pages = list[tuple[int, int]]
"""(GPU block, host slot) each."""


@dataclass
class Jobs(KVConnectorMetadata):
    """Copies that begin in this step, by request."""

    loads: dict[str, Pages] = field(default_factory=dict)
    stores: dict[str, Pages] = field(default_factory=dict)


@dataclass
class FailedStores(KVConnectorWorkerMetadata):
    """Requests whose store failed on some rank."""

    request_ids: set[str]

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "FailedStores":
        assert isinstance(other, FailedStores)
        return FailedStores(self.request_ids | other.request_ids)


@dataclass
class Slot:
    """One host slot in use."""

    number: int
    block_hash: bytes
    is_ready: bool = False
    pins: int = 0


class LaterScheduler(SchedulerSide):
    """Decides what is loaded and stored."""

    _cache_hit_source = CacheHitSource.HOST

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self._block_size = vllm_config.cache_config.block_size
        self._capacity = int(self._kv_transfer_config.kv_connector_extra_config["host_slots"])
        self._free_slots = list(range(self._capacity))
        self._slots: OrderedDict[bytes, Slot] = OrderedDict()
        self._local_tokens: dict[str, int] = {}
        self._loading: dict[str, list[Slot]] = {}
        self._storing: dict[str, list[Slot]] = {}
        self._failed_stores: set[str] = set()
        self._jobs = Jobs()

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        first = hit = num_computed_tokens // self._block_size
        while hit < len(request.block_hashes):
            slot = self._slots.get(request.block_hashes[hit])
            if slot is None or not slot.is_ready:
                break
            hit += 1
        self._local_tokens[request.request_id] = num_computed_tokens
        return (hit - first) * self._block_size, hit > first

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        local = self._local_tokens.pop(request.request_id, 0)
        if num_external_tokens == 0:
            return
        (table,) = blocks.get_block_ids()
        span = range(local // self._block_size, (local + num_external_tokens) // self._block_size)
        slots = [self._slots[request.block_hashes[index]] for index in span]
        for slot in slots:
            slot.pins += 1
        self._loading[request.request_id] = slots
        pages = [(table[index], slot.number) for index, slot in zip(span, slots, strict=True)]
        self._jobs.loads[request.request_id] = pages

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Jobs:
        jobs, self._jobs = self._jobs, Jobs()
        return jobs

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._forget(request.request_id)
        if self._is_loading(request.request_id):
            return False, None  # the engine holds the blocks for the load already, and there is nothing to store
        full = self._full_blocks(request)
        new = [
            (block, block_hash)
            for block, block_hash in zip(block_ids[:full], request.block_hashes, strict=False)
            if block_hash not in self._slots
        ]
        slots = self._take_slots([block_hash for _, block_hash in new])
        if not slots:
            return False, None
        self._storing[request.request_id] = slots
        pages = [(block, slot.number) for (block, _), slot in zip(new, slots, strict=False)]
        self._jobs.stores[request.request_id] = pages
        return True, None

    def _forget(self, request_id: str) -> None:
        """Forget a request that was matched and may never have got blocks."""
        self._local_tokens.pop(request_id, None)

    def _is_loading(self, request_id: str) -> bool:
        return request_id in self._loading

    def _full_blocks(self, request: Request) -> int:
        """The last token was sampled and never computed, so no slot of the GPU holds it."""
        return min(request.num_computed_tokens, request.num_tokens - 1) // self._block_size

    def _take_slots(self, block_hashes: list[bytes]) -> list[Slot]:
        """A slot for each of the first hashes, as far as there is room."""
        taken = []
        for block_hash in block_hashes:
            if not self._free_slots:
                victim = self._victim()
                if victim is None:
                    break
                del self._slots[victim.block_hash]
                self._free_slots.append(victim.number)
            slot = Slot(self._free_slots.pop(), block_hash)
            self._slots[block_hash] = slot
            taken.append(slot)
        return taken

    def _victim(self) -> Slot | None:
        """The oldest slot that no copy reads or writes."""
        return next((slot for slot in self._slots.values() if slot.is_ready and not slot.pins), None)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        failed = connector_output.kv_connector_worker_meta
        if isinstance(failed, FailedStores):
            self._failed_stores |= failed.request_ids
        for request_id in sorted(connector_output.finished_sending or ()):
            for slot in self._storing.pop(request_id):
                slot.is_ready = request_id not in self._failed_stores
                if not slot.is_ready:
                    self._drop(slot)
                self._release(slot)
            self._failed_stores.discard(request_id)
        for request_id in sorted(connector_output.finished_recving or ()):
            for slot in self._loading.pop(request_id):
                slot.pins -= 1
                if request_id in connector_output.failed_recving:
                    self._drop(slot)
                self._release(slot)

    def _drop(self, slot: Slot) -> None:
        """Remove the slot from the index."""
        if self._slots.get(slot.block_hash) is slot:
            del self._slots[slot.block_hash]

    def _release(self, slot: Slot) -> None:
        """Free a slot that is neither in the index nor in use."""
        if self._slots.get(slot.block_hash) is not slot and not slot.pins:
            self._free_slots.append(slot.number)

    def reset_cache(self) -> bool:
        busy = {slot.number for slots in self._storing.values() for slot in slots}
        found, self._slots = self._slots, OrderedDict()
        self._free_slots += [s.number for s in found.values() if not s.pins and s.number not in busy]
        return True

    def has_pending_push_work(self) -> bool:
        return bool(self._storing or self._loading)

    def check(self) -> None:
        """Recount: every slot is free or in use, no slot is both, and pins are the loads under way."""
        loading = [slot for slots in self._loading.values() for slot in slots]
        storing = [slot for slots in self._storing.values() for slot in slots]
        used = {slot.number for slot in (*self._slots.values(), *loading, *storing)}
        assert sorted([*self._free_slots, *used]) == list(range(self._capacity)), (
            f"free {len(self._free_slots)} + in use {len(used)} != {self._capacity}, or one counts twice"
        )
        pins = sum(
            slot.pins for slot in {slot.number: slot for slot in (*self._slots.values(), *loading)}.values()
        )
        assert pins == len(loading), f"{pins} pins, but {len(loading)} pages are being loaded"


class LaterWorker(WorkerSide):
    """Runs the copies of one rank."""

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self._copies: Any = None
        self._first_slot = 0
        self._loads: dict[int, tuple[str, Pages]] = {}
        self._stores: dict[int, str] = {}
        self._failed_blocks: set[int] = set()
        self._failed_stores: set[str] = set()

    def register_kv_caches(self, kv_caches: KVCaches) -> None:
        device = next(iter(kv_caches.values())).device
        slots = int(self._kv_transfer_config.kv_connector_extra_config["host_slots"])
        self._first_slot = device.allocate_host(slots)
        self._copies = device.copies.open()

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        jobs = self._get_connector_metadata()
        assert isinstance(jobs, Jobs)
        for request_id, pages in jobs.loads.items():
            copy = self._submit(Direction.LOAD, pages)
            self._loads[copy] = (request_id, pages)

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        jobs = self._get_connector_metadata()
        assert isinstance(jobs, Jobs)
        for request_id, pages in jobs.stores.items():
            self._stores[self._submit(Direction.STORE, pages)] = request_id

    def _submit(self, direction: Direction, pages: Pages) -> int:
        pairs = [(block, slot + self._first_slot) for block, slot in pages]
        copy: int = self._copies.submit(direction, pairs)
        return copy

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        results = KVConnectorTransferResults()
        for result in self._copies.poll():
            if result.copy_id in self._stores:
                request_id = self._stores.pop(result.copy_id)
                results.finished_sending.add(request_id)
                if not result.success:
                    self._failed_stores.add(request_id)
            elif result.copy_id in self._loads:
                request_id, pages = self._loads.pop(result.copy_id)
                results.finished_recving.add(request_id)
                if not result.success:
                    results.failed_recving.add(request_id)
                    self._failed_blocks.update(block for block, _ in pages)
        return results

    def get_block_ids_with_load_errors(self) -> set[int]:
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        if not self._failed_stores:
            return None
        failed, self._failed_stores = self._failed_stores, set()
        return FailedStores(failed)


class LaterConnector(TwoSidedConnector):
    """Stores what a request computed after it has ended, and loads while the next one waits."""

    scheduler_class = LaterScheduler
    worker_class = LaterWorker
