"""``PatientConnector``: answers "ask again" while it looks things up, and stores behind a barrier.

A lookup takes a step: the first question starts it and is answered None, a later one gets the result, which may
be outdated by then and is checked once more. Loads belong to the step and are waited for before its forward pass.
Stores are asynchronous; at the beginning of the next step, before anything can be overwritten, the workers wait
for all of them (``handle_preemptions``). A block counts as stored when every worker has said so.

The barrier comes too late on an engine that zeroes new blocks before ``handle_preemptions`` (runner V2): there the
blocks would have to be held instead.
"""

from collections import OrderedDict
from collections.abc import Set
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
    KVConnectorWorkerMetadata,
    Request,
    SchedulerOutput,
    SchedulerSide,
    TwoSidedConnector,
    VllmConfig,
    WorkerSide,
)
from kv_sim.examples.progress import Progress, ProgressBook


@dataclass
class Plan(KVConnectorMetadata):
    """One step's copies, as (GPU block, host slot); ``store_id`` names its stores."""

    loads: list[tuple[int, int]] = field(default_factory=list)
    stores: list[tuple[int, int]] = field(default_factory=list)
    store_id: int = 0


@dataclass
class Ended(KVConnectorWorkerMetadata):
    """The workers' report: ended stores by id, each with the number of workers, and failed slots."""

    stores: dict[int, int] = field(default_factory=dict)
    failed_stores: set[int] = field(default_factory=set)
    failed_slots: set[int] = field(default_factory=set)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "Ended":
        assert isinstance(other, Ended)
        stores = dict(self.stores)
        for store_id, count in other.stores.items():
            stores[store_id] = stores.get(store_id, 0) + count
        return Ended(stores, self.failed_stores | other.failed_stores, self.failed_slots | other.failed_slots)


class PatientScheduler(SchedulerSide):
    """Decides what is loaded and stored."""

    _cache_hit_source = CacheHitSource.HOST

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self._block_size = vllm_config.cache_config.block_size
        self._workers = vllm_config.parallel_config.world_size
        self._capacity = int(self._kv_transfer_config.kv_connector_extra_config["host_slots"])
        self._free_slots = list(range(self._capacity))
        self._slot_of: OrderedDict[bytes, int] = OrderedDict()
        self._filling: dict[int, dict[bytes, int]] = {}
        self._reports: dict[int, int] = {}
        self._failed_stores: set[int] = set()
        self._next_store = 0
        self._local_tokens: dict[str, int] = {}
        self._lookups: dict[str, int] = {}
        self._steps = 0
        self._progress = ProgressBook()
        self._filled_now: list[tuple[Progress, dict[int, bytes]]] = []
        """Of the last step, by request, which of its blocks are being stored, and under which hashes."""
        self._loads: list[tuple[int, int]] = []
        self._loading_now: set[int] = set()

    def on_new_request(self, request: Request) -> None:
        self._progress.arrive(request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        if self._lookup_began(request.request_id) == self._steps:
            return None, False
        first = hit = num_computed_tokens // self._block_size
        while hit < (request.num_tokens - 1) // self._block_size and request.block_hashes[hit] in self._slot_of:
            hit += 1
        self._local_tokens[request.request_id] = num_computed_tokens
        return (hit - first) * self._block_size, False

    def _lookup_began(self, request_id: str) -> int:
        """The step of the request's first query."""
        return self._lookups.setdefault(request_id, self._steps)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        self._lookups.pop(request.request_id, None)
        local = self._local_tokens.pop(request.request_id, 0)
        (table,) = blocks.get_block_ids()
        for index in range(local // self._block_size, (local + num_external_tokens) // self._block_size):
            slot = self._slot_of[request.block_hashes[index]]
            self._loads.append((table[index], slot))
            self._loading_now.add(slot)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Plan:
        self._steps += 1
        plan = Plan(loads=self._loads, store_id=self._next_store)
        self._loads, self._filled_now = [], []
        filling: dict[bytes, int] = {}
        being_stored = {h for hashes in self._filling.values() for h in hashes}
        for progress, computed in self._progress.step(scheduler_output):
            hashes, (table,) = progress.request.block_hashes, progress.tables
            full, filled = min(computed // self._block_size, len(hashes)), dict[int, bytes]()
            for index in range(progress.stored_blocks, full):
                block_hash = hashes[index]
                if block_hash in self._slot_of or block_hash in being_stored or block_hash in filling:
                    continue
                slot = self._take_slot()
                if slot is None:
                    break
                filling[block_hash] = slot
                filled[index] = block_hash
                plan.stores.append((table[index], slot))
            progress.stored_blocks = full
            self._filled_now.append((progress, filled))
        self._loading_now.clear()
        if filling:
            self._filling[self._next_store] = filling
            self._next_store += 1
        return plan

    def _take_slot(self) -> int | None:
        """A free slot, or the oldest one that this step doesn't load from."""
        if not self._free_slots:
            victim = next((h for h, slot in self._slot_of.items() if slot not in self._loading_now), None)
            if victim is None:
                return None
            self._free_slots.append(self._slot_of.pop(victim))
        return self._free_slots.pop()

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        self._forget_what_rests_on(connector_output.invalid_block_ids)
        ended = connector_output.kv_connector_worker_meta
        if not isinstance(ended, Ended):
            return
        if ended.failed_slots:
            for block_hash in [h for h, slot in self._slot_of.items() if slot in ended.failed_slots]:
                self._free_slots.append(self._slot_of.pop(block_hash))
        self._failed_stores |= ended.failed_stores
        for store_id, count in ended.stores.items():
            self._reports[store_id] = self._reports.get(store_id, 0) + count
            if self._reports[store_id] == self._workers:
                self._end_store(store_id)

    def _forget_what_rests_on(self, invalid: Set[int]) -> None:
        """Drop the last step's blocks that were computed from a failed load of any connector.

        The slots are free at once: what is stored there next waits for this step's stores.
        """
        filling = self._filling.get(self._next_store - 1, {})
        for progress, filled in self._filled_now if invalid else ():
            first = progress.first_in(invalid)
            if first is not None:
                spoilt = [block_hash for index, block_hash in filled.items() if index >= first]
                self._free_slots += [filling.pop(block_hash) for block_hash in spoilt if block_hash in filling]
                progress.stored_blocks = min(progress.stored_blocks, first)

    def _end_store(self, store_id: int) -> None:
        del self._reports[store_id]
        failed = store_id in self._failed_stores
        self._failed_stores.discard(store_id)
        for block_hash, slot in self._filling.pop(store_id).items():
            if failed:
                self._free_slots.append(slot)
            else:
                self._slot_of[block_hash] = slot

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._lookups.pop(request.request_id, None)
        self._local_tokens.pop(request.request_id, None)
        self._progress.forget(request.request_id)
        return False, None

    def has_pending_push_work(self) -> bool:
        return bool(self._filling)

    def check(self) -> None:
        """Recount: every slot is free, filling or stored, and only one of these."""
        filling = [slot for slots in self._filling.values() for slot in slots.values()]
        slots = [*self._free_slots, *filling, *self._slot_of.values()]
        assert sorted(slots) == list(range(self._capacity)), (
            f"free {len(self._free_slots)} + filling {len(filling)} + stored {len(self._slot_of)} "
            f"!= {self._capacity}, or one counts twice"
        )


class PatientWorker(WorkerSide):
    """Runs the copies of one rank."""

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self._copies: Any = None
        self._first_slot = 0
        self._stores: dict[int, int] = {}
        self._ended = Ended()
        self._failed_blocks: set[int] = set()

    def register_kv_caches(self, kv_caches: KVCaches) -> None:
        device = next(iter(kv_caches.values())).device
        slots = int(self._kv_transfer_config.kv_connector_extra_config["host_slots"])
        self._first_slot = device.allocate_host(slots)
        self._copies = device.copies.open()

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        self._copies.wait(list(self._stores))
        self._collect()

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        plan = self._get_connector_metadata()
        assert isinstance(plan, Plan)
        if not plan.loads:
            return
        pages = [(block, slot + self._first_slot) for block, slot in plan.loads]
        copy = self._copies.submit(Direction.LOAD, pages)
        self._copies.wait([copy])
        if not self._collect().get(copy, False):
            self._failed_blocks.update(block for block, _ in plan.loads)
            self._ended.failed_slots.update(slot for _, slot in plan.loads)

    def _collect(self) -> dict[int, bool]:
        """Take in what has ended; returns copies that are no stores of ours with their success."""
        others = {}
        for result in self._copies.poll():
            store_id = self._stores.pop(result.copy_id, None)
            if store_id is None:
                others[result.copy_id] = result.success
                continue
            self._ended.stores[store_id] = 1
            if not result.success:
                self._ended.failed_stores.add(store_id)
        return others

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        plan = self._get_connector_metadata()
        assert isinstance(plan, Plan)
        if plan.stores:
            pages = [(block, slot + self._first_slot) for block, slot in plan.stores]
            self._stores[self._copies.submit(Direction.STORE, pages)] = plan.store_id

    def get_block_ids_with_load_errors(self) -> set[int]:
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        self._collect()
        ended, self._ended = self._ended, Ended()
        return ended if ended != Ended() else None


class PatientConnector(TwoSidedConnector):
    """Takes its time to look things up, loads within the step, stores behind a barrier."""

    scheduler_class = PatientScheduler
    worker_class = PatientWorker
