"""``SharedConnector``: one store that several engines fill and read, each within its steps.

The store is in this process, and its name is the setting ``store``: connectors with the same name share it. A
chunk is a block of each group. Its key is its hash with the model's path and layout, which say what the bytes
mean. It has a slot, and is found only when each rank of the storing engine has put its part there. A load pins it
until all ranks have taken their parts. Chunks that are neither being put nor pinned may be evicted, the least
recently used first.

A reset removes all chunks of the engine's kind from the index, whichever engine stored them, also those that are
still being put. A slot in use becomes free when its use ends.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from kv_api import (
    BlockIds,
    CacheHitSource,
    KVCacheBlocks,
    KVCacheConfig,
    Request,
    SchedulerOutput,
    SchedulerSide,
    SupportsHMA,
    TwoSidedHMAConnector,
    VllmConfig,
)
from kv_sim.examples.memory import MemoryWorker, Parts, Plan
from kv_sim.examples.progress import ProgressBook

Key = tuple[Any, ...]
"""The meaning of the bytes, and the hash of a block."""


@dataclass
class Chunk:
    """A block of each group."""

    key: Key
    slot: int
    ranks_left: int
    """How many ranks have yet to put their parts there."""
    pins: int = 0
    """How many ranks have yet to take theirs."""

    @property
    def is_in_use(self) -> bool:
        """Whether its slot can't be evicted."""
        return self.ranks_left > 0 or self.pins > 0


class Store:
    """Slots, what is in them, and the index of it."""

    known: ClassVar[WeakValueDictionary[str, "Store"]] = WeakValueDictionary()
    """All stores by the setting, each as long as a connector uses it."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.chunks: OrderedDict[Key, Chunk] = OrderedDict()
        """The index, what was used longest ago first."""
        self.chunk_in: dict[int, Chunk] = {}
        """The chunk that is or will be in each slot, also one that left the index, while it is in use."""
        self._free = list(range(capacity))
        self._parts: dict[tuple[int, int], Parts] = {}

    @classmethod
    def of(cls, vllm_config: VllmConfig) -> "Store":
        """The store that a configuration names."""
        assert vllm_config.kv_transfer_config is not None
        settings = vllm_config.kv_transfer_config.kv_connector_extra_config
        store = cls.known.get(settings["store"])
        if store is None:
            store = cls.known[settings["store"]] = cls(int(settings["host_slots"]))
        return store

    def has(self, key: Key) -> bool:
        """Whether all of a chunk is there."""
        chunk = self.chunks.get(key)
        return chunk is not None and not chunk.ranks_left

    def use(self, key: Key) -> Chunk | None:
        """A chunk that is or will be there, which counts as used now."""
        if key in self.chunks:
            self.chunks.move_to_end(key)
        return self.chunks.get(key)

    def pin(self, key: Key, ranks: int) -> Chunk:
        """Pin a chunk until so many ranks have taken their parts."""
        chunk = self.use(key)
        assert chunk is not None and not chunk.ranks_left, f"{key} is not there"
        chunk.pins += ranks
        return chunk

    def begin(self, key: Key, ranks: int) -> Chunk | None:
        """A slot for a chunk of which so many ranks will put their parts. None: there is no room."""
        if not self._free:
            oldest = next((chunk for chunk in self.chunks.values() if not chunk.is_in_use), None)
            if oldest is None:
                return None
            self.forget(oldest)
        slot = self._free.pop()
        chunk = self.chunks[key] = self.chunk_in[slot] = Chunk(key, slot, ranks)
        return chunk

    def put(self, slot: int, rank: int, parts: Parts) -> None:
        """A rank's part comes to its slot."""
        self._parts[slot, rank] = parts
        self.chunk_in[slot].ranks_left -= 1
        self._free_if_forgotten(self.chunk_in[slot])

    def take(self, slot: int, rank: int) -> Parts:
        """A rank's part of what was pinned."""
        self.chunk_in[slot].pins -= 1
        self._free_if_forgotten(self.chunk_in[slot])
        return self._parts[slot, rank]

    def forget(self, chunk: Chunk) -> None:
        """Remove a chunk from the index."""
        del self.chunks[chunk.key]
        self._free_if_forgotten(chunk)

    def _free_if_forgotten(self, chunk: Chunk) -> None:
        if self.chunks.get(chunk.key) is not chunk and not chunk.is_in_use:
            del self.chunk_in[chunk.slot]
            self._free.append(chunk.slot)

    def check(self) -> None:
        """Recount: every slot is free or has a chunk, and those that are found have one each."""
        slots, found = [*self._free, *self.chunk_in], {chunk.slot for chunk in self.chunks.values()}
        assert sorted(slots) == list(range(self.capacity)) and len(found) == len(self.chunks), (
            f"free {len(self._free)} + in use {len(self.chunk_in)} != {self.capacity}, or one counts twice; "
            f"{len(self.chunks)} chunks are in {len(found)} slots"
        )


def meaning(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None) -> tuple[Any, ...]:
    """All that must be the same for stored bytes to mean the same."""
    assert kv_cache_config is not None
    parallel, groups = vllm_config.parallel_config, kv_cache_config.kv_cache_groups
    model = getattr(vllm_config, "model_config", None)
    return (
        getattr(model, "model", ""),
        str(getattr(model, "dtype", "")),
        vllm_config.cache_config.block_size,
        parallel.tensor_parallel_size,
        parallel.pipeline_parallel_size,
        *(tuple(group.layer_names) for group in groups),
    )


class SharedScheduler(SchedulerSide, SupportsHMA):
    """Decides what is loaded and stored."""

    _cache_hit_source = CacheHitSource.EXTERNAL_UNSPECIFIED

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self._block_size = vllm_config.cache_config.block_size
        self._ranks = vllm_config.parallel_config.world_size
        self._meaning = self._means()
        self._store = Store.of(vllm_config)
        self._progress = ProgressBook()
        self._local_tokens: dict[str, int] = {}
        self._moves = Plan()

    def _means(self) -> tuple[Any, ...]:
        return meaning(self._vllm_config, self._kv_cache_config)

    def _key(self, name: bytes) -> Key:
        return self._meaning, name

    def on_new_request(self, request: Request) -> None:
        self._progress.arrive(request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        first = hit = num_computed_tokens // self._block_size
        last, names = (request.num_tokens - 1) // self._block_size, request.block_hashes
        while hit < last and self._finds(self._key(names[hit])):
            hit += 1
        self._local_tokens[request.request_id] = num_computed_tokens
        return (hit - first) * self._block_size, False

    def _finds(self, key: Key) -> bool:
        return self._store.has(key)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        local = self._local_tokens.pop(request.request_id, 0)
        tables, names = blocks.get_block_ids(), request.block_hashes
        for index in range(local // self._block_size, (local + num_external_tokens) // self._block_size):
            self._moves.loads.append(
                (self._pin(self._key(names[index])).slot, tuple(table[index] for table in tables))
            )

    def _pin(self, key: Key) -> Chunk:
        return self._store.pin(key, self._ranks)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Plan:
        moves, self._moves = self._moves, Plan()
        for progress, computed in self._progress.step(scheduler_output):
            names = progress.request.block_hashes
            full = min(computed // self._block_size, len(names))  # under run-ahead hashes lag behind
            for index in range(progress.stored_blocks, full):
                key, page = self._key(names[index]), tuple(table[index] for table in progress.tables)
                if 0 not in page and self._store.use(key) is None:
                    chunk = self._begin(key)
                    if chunk is not None:
                        moves.stores.append((chunk.slot, page))
            if full > progress.stored_blocks:
                for index in reversed(
                    range(full)
                ):  # evict a prompt's end first: without its beginning it is of no use
                    self._store.use(self._key(names[index]))
            progress.stored_blocks = full
        return moves

    def _begin(self, key: Key) -> Chunk | None:
        return self._store.begin(key, self._ranks)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Request, block_ids: BlockIds
    ) -> tuple[bool, dict[str, Any] | None]:
        self._local_tokens.pop(request.request_id, None)
        self._progress.forget(request.request_id)
        return False, None

    def reset_cache(self) -> bool:
        for chunk in [chunk for chunk in self._store.chunks.values() if self._forgets(chunk)]:
            self._store.forget(chunk)
        return True

    def _forgets(self, chunk: Chunk) -> bool:
        return bool(chunk.key[0] == self._meaning)

    def check(self) -> None:
        """Recount the store."""
        self._store.check()


class SharedWorker(MemoryWorker):
    """Copies pages between the KV caches and the store."""

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self._store = Store.of(vllm_config)
        self._rank = vllm_config.parallel_config.rank

    def _take(self, slot: int) -> Parts:
        return self._store.take(slot, self._rank)

    def _put(self, slot: int, parts: Parts) -> None:
        self._store.put(slot, self._rank, parts)


class SharedConnector(TwoSidedHMAConnector):
    """Stores every full block in a store that other engines have, too, and loads it within the step."""

    scheduler_class = SharedScheduler
    worker_class = SharedWorker
