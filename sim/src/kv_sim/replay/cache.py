"""Cache fidelity: the real manager and policies of kv_offload_cpu, request by request, without a clock.

Each request is one after the other what an engine and the offloading connector would make of it: as far as the
GPU's prefix cache has it, nothing is asked; then the leading run of blocks that the manager has is loaded; then
everything that was not loaded is offered for a store. If an offer doesn't fit, its first half is offered, and so
on, as the connector does. Every copy has ended before the next request comes, so nothing is ever in flight or
pinned meanwhile: what a real server loses to copies that are late is what engine fidelity is for.

The GPU's prefix cache is an LRU in which, as in vLLM, a request's tail leaves before its head.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np

from kv_api import ConfigError, OffloadKey, ReqContext
from kv_offload_cpu import CPUOffloadingManager
from kv_offload_cpu.stats import STORES_SKIPPED
from kv_sim.replay.columns import Columns, Ints
from kv_sim.replay.gpu_tier import GpuTier

Progress = Callable[[int], None]
"""Told how many requests were replayed, now and then."""

_KEYS_AT_ONCE = 1 << 15
_TELL_EVERY = 256
_KEYS_LOOKED_FOR = 4


@dataclass(frozen=True)
class Setup:
    """What is replayed on."""

    policy: str = "lru"
    capacity: int = 0
    """Blocks of host memory; 0: there is none."""
    gpu_blocks: int = 0
    """Blocks of the GPU's prefix cache; 0: it keeps nothing."""
    store_threshold: int = 0
    policy_module: str | None = None


@dataclass
class Outcome:
    """What happened: per request the hits of each tier, and sums, in blocks."""

    setup: Setup
    gpu_hits: Ints
    cpu_hits: Ints
    stored: int = 0
    evicted: int = 0
    stores_skipped: int = 0
    """Not offered often enough yet (``store_threshold``)."""
    stores_refused: int = 0
    """Did not fit."""

    def check(self, columns: Columns) -> None:
        """Recount what can be recounted."""
        hits = self.gpu_hits + self.cpu_hits
        assert (hits <= columns.counts).all(), "more hits than blocks"
        kept = self.stored - self.evicted
        assert 0 <= kept <= self.setup.capacity, f"{kept} chunks kept in {self.setup.capacity} slots"


def replay_cache(columns: Columns, setup: Setup, progress: Progress = lambda count: None) -> Outcome:
    """Replay a trace through a manager."""
    for name, value in (("capacity", setup.capacity), ("gpu_blocks", setup.gpu_blocks)):
        if value < 0:
            raise ConfigError(f"{name}: expected at least 0 blocks, got {value}")
    return _Replay(columns, setup).run(progress)


class _Context(ReqContext):
    """The request as the manager knows it. Where all keys stand is worked out when a policy asks for many."""

    def __init__(self, request_id: str, keys: list[OffloadKey]) -> None:
        super().__init__(request_id)
        self._keys = keys
        self._asked = 0
        self._places: dict[OffloadKey, int] = {}

    def get_offload_key_position(self, key: OffloadKey) -> int | None:
        if self._places:
            return self._places.get(key)
        if self._asked < _KEYS_LOOKED_FOR:
            self._asked += 1
            try:
                return self._keys.index(key)
            except ValueError:
                return None
        self._places = {one: place for place, one in enumerate(self._keys)}
        return self._places.get(key)


class _Replay:
    """One replay under way."""

    def __init__(self, columns: Columns, setup: Setup) -> None:
        self._columns = columns
        none: Ints = np.zeros(len(columns), dtype=np.int64)
        self._outcome = Outcome(setup, none, none.copy())
        self._gpu = GpuTier(setup.gpu_blocks) if setup.gpu_blocks else None
        self._manager = (
            CPUOffloadingManager(
                setup.capacity, setup.policy, setup.policy_module, store_threshold=setup.store_threshold
            )
            if setup.capacity
            else None
        )

    def run(self, progress: Progress) -> Outcome:
        outcome, gpu, manager = self._outcome, self._gpu, self._manager
        gpu_hits, cpu_hits = [0] * len(self._columns), [0] * len(self._columns)
        for index, keys in enumerate(keys_of(self._columns)):
            local = 0
            if gpu is not None:
                local = gpu_hits[index] = gpu.hits(keys)
                gpu.use(keys)
            if manager is not None:
                cpu_hits[index] = self._serve(manager, _Context(str(index), keys), keys, local)
            if not index % _TELL_EVERY:
                progress(index)
                self._count_stats()
        self._count_stats()
        outcome.gpu_hits, outcome.cpu_hits = np.array(gpu_hits, dtype=np.int64), np.array(cpu_hits, dtype=np.int64)
        return outcome

    def check(self) -> None:
        """Recount everything."""
        if self._manager is not None:
            self._manager.check()
        if self._gpu is not None:
            self._gpu.check()

    def _serve(
        self, manager: CPUOffloadingManager, context: ReqContext, keys: list[OffloadKey], local: int
    ) -> int:
        """One request of which the GPU has ``local`` blocks. Returns how many are loaded."""
        manager.on_new_request(context)
        asked = keys[local:] if local else keys
        hits = manager.lookup_prefix(asked, context).hits
        offer = keys
        if hits:
            loaded = asked[:hits]
            manager.prepare_load(loaded, context)
            manager.complete_load(loaded, context)
            offer = keys[:local] + asked[hits:]
        if offer:
            self._store(manager, context, offer)
        manager.on_request_finished(context)
        return hits

    def _store(self, manager: CPUOffloadingManager, context: ReqContext, offer: list[OffloadKey]) -> None:
        count = len(offer)
        while count:
            output = manager.prepare_store(offer[:count], context)
            if output is not None:
                manager.complete_store(output.keys_to_store, context)
                self._outcome.stored += len(output.keys_to_store)
                self._outcome.evicted += len(output.evicted_keys)
                break
            count //= 2
        self._outcome.stores_refused += len(offer) - count

    def _count_stats(self) -> None:
        """The manager counts until it is asked; asked never, its lists would grow with the trace."""
        if self._manager is not None:
            self._outcome.stores_skipped += self._manager.get_stats().data.get(STORES_SKIPPED, 0)


def keys_of(columns: Columns) -> Iterator[list[OffloadKey]]:
    """The keys of each request's blocks, as a connector makes them: a hash and the group."""
    offsets = columns.offsets
    first, requests = 0, len(columns)
    while first < requests:
        stop = int(np.searchsorted(offsets, offsets[first] + _KEYS_AT_ONCE, side="right")) - 1
        stop = min(max(stop, first + 1), requests)
        begin, end = int(offsets[first]), int(offsets[stop])
        rows = np.zeros(end - begin, dtype=[("hash", "<i8"), ("group", "<u4")])
        rows["hash"] = columns.blocks[begin:end]
        packed = rows.tobytes()
        keys = cast("list[OffloadKey]", [packed[place : place + 12] for place in range(0, len(packed), 12)])
        ends = (offsets[first : stop + 1] - begin).tolist()
        for index in range(stop - first):
            yield keys[ends[index] : ends[index + 1]]
        first = stop
