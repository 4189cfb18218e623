"""Cache fidelity: the real manager and policies of kv_offload_cpu, request by request, without a clock.

Each request is one after the other what an engine and the offloading connector would make of it: as far as the
GPU's prefix cache has it, nothing is asked; then the leading run of blocks that the manager has is loaded; then
everything that was not loaded is offered for a store. If an offer doesn't fit, its first half is offered, and so
on, as the connector does. Every copy has ended before the next request comes, so nothing is ever in flight or
pinned meanwhile: what a real server loses to copies that are late is what engine fidelity is for.

The GPU's prefix cache is an LRU in which, as in vLLM, a request's tail leaves before its head.
"""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

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
_NONE: Ints = np.zeros(0, dtype=np.int64)


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
    run = CacheRun(setup, len(columns.blocks))
    gpu_hits, cpu_hits = run.feed(columns, progress)
    return run.outcome(gpu_hits, cpu_hits)


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


class CacheRun:
    """One replay under way: the caches, and sums over what they were fed. No request is kept.

    Room for more than ``most_blocks`` is never needed, whatever the capacity.
    """

    def __init__(self, setup: Setup, most_blocks: int = sys.maxsize) -> None:
        for name, value in (("capacity", setup.capacity), ("gpu_blocks", setup.gpu_blocks)):
            if value < 0:
                raise ConfigError(f"{name}: expected at least 0 blocks, got {value}")
        self.setup = setup
        self.sums = Outcome(setup, _NONE, _NONE)
        self._served = 0
        self._gpu = GpuTier(setup.gpu_blocks) if setup.gpu_blocks else None
        self._manager = (
            CPUOffloadingManager(
                min(setup.capacity, max(1, most_blocks)),
                setup.policy,
                setup.policy_module,
                store_threshold=setup.store_threshold,
            )
            if setup.capacity
            else None
        )

    def feed(self, columns: Columns, progress: Progress = lambda count: None) -> tuple[Ints, Ints]:
        """Replay a trace, or the next part of one. Each request's hits: the GPU's, and host memory's."""
        gpu, manager, before = self._gpu, self._manager, self._served
        gpu_hits, cpu_hits = [0] * len(columns), [0] * len(columns)
        with _no_collection():
            for index, keys in enumerate(keys_of(columns)):
                local = 0
                if gpu is not None:
                    local = gpu_hits[index] = gpu.hits(keys)
                    gpu.use(keys)
                if manager is not None:
                    cpu_hits[index] = self._serve(manager, _Context(str(before + index), keys), keys, local)
                if not index % _TELL_EVERY:
                    progress(index)
                    self._count_stats()
        self._count_stats()
        self._served += len(columns)
        return np.array(gpu_hits, dtype=np.int64), np.array(cpu_hits, dtype=np.int64)

    def outcome(self, gpu_hits: Ints, cpu_hits: Ints) -> Outcome:
        """What happened so far, with the hits of those requests that the caller cares for."""
        return replace(self.sums, gpu_hits=gpu_hits, cpu_hits=cpu_hits)

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
        hits = manager.load_prefix(keys[local:] if local else keys, context)
        offer = keys[:local] + keys[local + hits :] if local else keys[hits:]
        if offer:
            self._store(manager, context, offer)
        manager.on_request_finished(context)
        return hits

    def _store(self, manager: CPUOffloadingManager, context: ReqContext, offer: list[OffloadKey]) -> None:
        count = len(offer)
        while count:
            stored = manager.store(offer if count == len(offer) else offer[:count], context)
            if stored is not None:
                self.sums.stored += len(stored.keys)
                self.sums.evicted += len(stored.evicted)
                break
            count //= 2
        self.sums.stores_refused += len(offer) - count

    def _count_stats(self) -> None:
        """The manager counts until it is asked; asked never, its lists would grow with the trace."""
        if self._manager is not None:
            self.sums.stores_skipped += self._manager.get_stats().data.get(STORES_SKIPPED, 0)


@contextmanager
def _no_collection() -> Iterator[None]:
    """A replay leaves no cycles behind; looking for them costs more the more there is in memory besides."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


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
        keys: list[OffloadKey] = rows.view("V12").tolist()
        ends = (offsets[first : stop + 1] - begin).tolist()
        for index in range(stop - first):
            yield keys[ends[index] : ends[index + 1]]
        first = stop
