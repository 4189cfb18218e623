"""``MemoryConnector``: host memory, everything within the step and synchronous. The simplest connector that works.

The scheduler's side keeps an index from block hash to host slot, oldest first, and evicts the oldest for a new
one. A step's loads run before its forward pass and its stores after it, and steps run in order on every rank: so
what is planned later never overtakes, and a block counts as stored as soon as its store is planned.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kv_api import (
    MEDIUM_CPU,
    BlockIds,
    BlockRemoved,
    BlockStored,
    CacheHitSource,
    ForwardContext,
    KVCacheBlocks,
    KVCacheConfig,
    KVCacheEvent,
    KVCaches,
    KVConnectorMetadata,
    KVConnectorOutput,
    Request,
    SchedulerOutput,
    SchedulerSide,
    SupportsHMA,
    TwoSidedHMAConnector,
    VllmConfig,
    WorkerSide,
)
from kv_api.blocks import hash_extras
from kv_sim.examples.progress import Progress, ProgressBook

Page = tuple[int, tuple[int, ...]]
"""A slot, and the block of each group that belongs there (0: none)."""
Parts = list[list[Any]]
"""A rank's part of a slot: for each group the pages of its layers."""


@dataclass
class Plan(KVConnectorMetadata):
    """The loads and stores of one step."""

    loads: list[Page] = field(default_factory=list)
    stores: list[Page] = field(default_factory=list)


class MemoryScheduler(SchedulerSide, SupportsHMA):
    """Decides what is loaded and stored."""

    _cache_hit_source = CacheHitSource.HOST

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self._block_size = vllm_config.cache_config.block_size
        self._capacity = int(self._kv_transfer_config.kv_connector_extra_config["host_slots"])
        self._free_slots = list(range(self._capacity))
        self._slot_of: OrderedDict[bytes, int] = OrderedDict()
        self._local_tokens: dict[str, int] = {}
        self._progress = ProgressBook()
        self._stored_now: list[tuple[Progress, dict[int, bytes]]] = []
        """For each request of the last step, which of its blocks are stored, and under which keys."""
        self._loads: list[Page] = []
        self._events: list[KVCacheEvent] = []

    def on_new_request(self, request: Request) -> None:
        self._progress.arrive(request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        first = hit = num_computed_tokens // self._block_size
        last, keys = self._last_loadable(request), self._keys(request)
        while hit < last and keys[hit] in self._slot_of:
            hit += 1
        self._local_tokens[request.request_id] = num_computed_tokens
        return (hit - first) * self._block_size, False

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        local = self._local_tokens.pop(request.request_id, 0)
        tables, keys = blocks.get_block_ids(), self._keys(request)
        for index in range(local // self._block_size, (local + num_external_tokens) // self._block_size):
            slot = self._slot_of[keys[index]]
            self._loads.append((slot, tuple(table[index] for table in tables)))

    def _last_loadable(self, request: Request) -> int:
        """A load within the step leaves a token to compute."""
        return (request.num_tokens - 1) // self._block_size

    def _keys(self, request: Request) -> Sequence[bytes]:
        """The keys of blocks: the hashes cover the whole prefix, salt and adapter."""
        return request.block_hashes

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Plan:
        plan = Plan(loads=self._loads)
        self._loads, self._stored_now = [], []
        for progress, computed in self._progress.step(scheduler_output):
            keys, stored = self._keys(progress.request), dict[int, bytes]()
            full = self._full_blocks(computed, keys)
            for index in range(progress.stored_blocks, full):
                page = tuple(table[index] for table in progress.tables)
                if keys[index] not in self._slot_of and 0 not in page:
                    plan.stores.append((self._slot_for(progress.request, index), page))
                    stored[index] = keys[index]
            progress.stored_blocks = full
            self._stored_now.append((progress, stored))
        return plan

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """If a sibling's load within the step failed, drop the blocks that were computed from it."""
        invalid = connector_output.invalid_block_ids
        for progress, stored in self._stored_now if invalid else ():
            first = progress.first_in(invalid)
            if first is not None:
                self._drop([key for index, key in stored.items() if index >= first])
                progress.stored_blocks = min(progress.stored_blocks, first)

    def _drop(self, keys: list[bytes]) -> None:
        held: list[Any] = [key for key in keys if key in self._slot_of]
        self._free_slots += map(self._slot_of.pop, held)
        if held:
            self._events.append(BlockRemoved(held, MEDIUM_CPU))

    def _full_blocks(self, computed: int, keys: Sequence[bytes]) -> int:
        """Only blocks that have a hash: with run-ahead the newest computed ones may have none yet."""
        return min(computed // self._block_size, len(keys))

    def _slot_for(self, request: Request, index: int) -> int:
        if not self._free_slots:
            self._evict_oldest()
        slot = self._slot_of[self._keys(request)[index]] = self._free_slots.pop()
        self._events.append(self._stored(request, index))
        return slot

    def _evict_oldest(self) -> None:
        evicted, slot = self._slot_of.popitem(last=False)
        self._free_slots.append(slot)
        self._events.append(BlockRemoved([evicted], MEDIUM_CPU))

    def _stored(self, request: Request, index: int) -> BlockStored:
        first, keys = index * self._block_size, self._keys(request)
        return BlockStored(
            [keys[index]],
            keys[index - 1] if index else None,
            list(request.all_token_ids[first : first + self._block_size]),
            self._block_size,
            None,
            MEDIUM_CPU,
            request.lora_request.lora_name if request.lora_request else None,
            [hash_extras(request, range(first, first + self._block_size))],
        )

    def take_events(self) -> list[KVCacheEvent]:
        events, self._events = self._events, []
        return events

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        # A MultiConnector calls this form if another child supports one group only.
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Request, block_ids: BlockIds
    ) -> tuple[bool, dict[str, Any] | None]:
        self._local_tokens.pop(request.request_id, None)
        self._progress.forget(request.request_id)
        return False, None

    def reset_cache(self) -> bool:
        self._events.append(BlockRemoved(list(self._slot_of), MEDIUM_CPU))
        self._free_slots += self._slot_of.values()
        self._slot_of.clear()
        return True

    def check(self) -> None:
        """Recount: every slot is free or in use, and no slot is both."""
        slots = [*self._free_slots, *self._slot_of.values()]
        assert sorted(slots) == list(range(self._capacity)), (
            f"free {len(self._free_slots)} + in use {len(self._slot_of)} != {self._capacity}, or one counts twice"
        )


class MemoryWorker(WorkerSide):
    """Copies pages between the KV caches and a dictionary."""

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self._layers: list[list[Any]] = []
        self._parts: dict[int, Parts] = {}

    def register_kv_caches(self, kv_caches: KVCaches) -> None:
        assert self._kv_cache_config is not None
        groups = self._kv_cache_config.kv_cache_groups
        self._layers = [[kv_caches[name] for name in group.layer_names] for group in groups]

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        plan = self._get_connector_metadata()
        assert isinstance(plan, Plan)
        for slot, blocks in plan.loads:
            for block, layers, pages in zip(blocks, self._layers, self._take(slot), strict=True):
                for layer, page in zip(layers, pages, strict=True) if block else ():
                    layer.write(block, page)

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        plan = self._get_connector_metadata()
        assert isinstance(plan, Plan)
        for slot, blocks in plan.stores:
            parts = zip(blocks, self._layers, strict=True)
            self._put(slot, [[layer.read(block) for layer in layers] for block, layers in parts])

    def _take(self, slot: int) -> Parts:
        """The contents of a slot, for a load."""
        return self._parts[slot]

    def _put(self, slot: int, parts: Parts) -> None:
        """A store fills a slot."""
        self._parts[slot] = parts


class MemoryConnector(TwoSidedHMAConnector):
    """Stores every full block in host memory, and loads it within the step that needs it."""

    scheduler_class = MemoryScheduler
    worker_class = MemoryWorker
