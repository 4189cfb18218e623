"""Cache fidelity: the real manager and policies of kv_offload_cpu, request by request, without a clock.

Requests are served one after the other. For each, the replay does what an engine and the offloading connector do:

- the leading blocks that the GPU's prefix cache has are used as they are;
- the leading run of further blocks that the manager has is loaded;
- all blocks that were not loaded are offered for a store. With ``store_when`` ``evicted``, blocks are offered
  instead when the GPU's prefix cache is about to evict them.

Every copy ends before the next request comes, so no block is in flight or pinned between requests. What a real
server loses because copies take time, engine fidelity (``timed``) measures.

With files on a disk behind host memory there are two media, as in a MultiConnector with ``load_policy``
``longest``. The medium that has more of the request loads all that it has; if both have as much, host memory
loads. Each medium is offered what it didn't load itself.

The GPU's prefix cache is an LRU in which, as in vLLM, a request's tail leaves before its head.
"""

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import repeat

import numpy as np

from kv_api import ConfigError, OffloadKey, ReqContext
from kv_offload import StoreWhen
from kv_offload_cpu import AtOnceManager
from kv_sim.replay.caches.gpu_tier import GpuTier
from kv_sim.replay.caches.keys import KeysContext, keys_of
from kv_sim.replay.caches.leaving import Due, LeavingTier, Owner
from kv_sim.replay.caches.medium import Loaded, MediumRun
from kv_sim.replay.caches.outcome import Borrowed, Outcome, RequestHits, Setup
from kv_sim.replay.columns import Columns, Ints
from kv_sim.replay.trace import Tell

_TELL_EVERY = 256
_NONE: Ints = np.zeros(0, dtype=np.int64)
_NOTHING = Loaded(0)


def replay_cache(columns: Columns, setup: Setup, progress: Tell = lambda count: None) -> Outcome:
    """Replay a trace through a manager."""
    run = CacheRun(setup, len(columns.blocks))
    return run.outcome(*run.feed(columns, progress))


class CacheRun:
    """One replay under way: the caches, and sums over the requests so far. No request is kept.

    ``most_blocks`` limits the memory that is reserved, since the trace needs no more, whatever the capacity.
    ``open_disk`` makes a `MediumRun` of the manager of the files.
    """

    def __init__(
        self,
        setup: Setup,
        most_blocks: int = sys.maxsize,
        open_disk: Callable[[AtOnceManager], MediumRun] = MediumRun,
    ) -> None:
        sizes = (("capacity", setup.capacity), ("gpu_blocks", setup.gpu_blocks), ("disk", setup.disk))
        for name, value in sizes:
            if value < 0:
                raise ConfigError(f"{name}: expected at least 0 blocks, got {value}")
        stores_late = setup.store_when is StoreWhen.EVICTED
        if stores_late and not setup.gpu_blocks:
            raise ConfigError(
                "store_when: got 'evicted', which stores what the GPU's prefix cache is about to evict, but "
                "gpu_blocks is 0"
            )
        self.setup = setup
        self._most_blocks = max(1, most_blocks)
        self._served = 0
        self._host = self._medium(setup.capacity, setup.store_threshold, MediumRun)
        self._disk = self._medium(setup.disk, setup.disk_store_threshold, open_disk)
        self._media = [medium for medium in (self._host, self._disk) if medium is not None]
        self._leaving = LeavingTier(setup.gpu_blocks) if stores_late and self._media else None
        self._gpu = GpuTier(setup.gpu_blocks) if setup.gpu_blocks and self._leaving is None else self._leaving
        self.sums = Outcome(setup, _NONE, _NONE, _NONE)
        if self._host is not None:
            self.sums.host = self._host.traffic
        if self._disk is not None:
            self.sums.disk = self._disk.traffic

    def feed(self, columns: Columns, progress: Tell = lambda count: None) -> RequestHits:
        """Replay a trace, or the next part of one."""
        return feed_in_turn([self], columns, repeat(0, len(columns)), progress)

    def serve(self, keys: list[OffloadKey]) -> tuple[int, int, Loaded]:
        """Replay the next request. Returns the hits of the GPU and of host memory, and what came from the disk."""
        gpu, local = self._gpu, 0
        if gpu is not None:
            local = gpu.hits(keys)
            if self._leaving is None:
                gpu.use(keys)
        if not self._media:
            return local, 0, _NOTHING
        context = KeysContext(str(self._served), keys)
        self._served += 1
        loader, loaded = self._load_and_store(context, keys, local)
        return (local, loaded.blocks, _NOTHING) if loader is self._host else (local, 0, loaded)

    def outcome(self, gpu: Ints, cpu: Ints, disk: Ints, borrowed: Borrowed | None = None) -> Outcome:
        """The outcome so far, with the given hits of requests."""
        return replace(self.sums, gpu_hits=gpu, cpu_hits=cpu, disk_hits=disk, borrowed=borrowed)

    def check(self) -> None:
        """Recount everything."""
        for medium in self._media:
            medium.manager.check()
        if self._gpu is not None:
            self._gpu.check()

    def _medium(
        self, slots: int, store_threshold: int, run: Callable[[AtOnceManager], MediumRun]
    ) -> MediumRun | None:
        if not slots:
            return None
        setup, slots = self.setup, min(slots, self._most_blocks)
        return run(AtOnceManager(slots, setup.policy, setup.policy_module, store_threshold=store_threshold))

    def _choose(self, keys: list[OffloadKey], local: int, context: ReqContext) -> MediumRun:
        """The medium that loads for a request of which the GPU has ``local`` blocks.

        A single medium always does.
        """
        first, *more = self._media
        if not more:
            return first
        [second], missing = more, keys[local:]
        return second if second.found(missing, context) > first.found(missing, context) else first

    def _load_and_store(
        self, context: KeysContext, keys: list[OffloadKey], local: int
    ) -> tuple[MediumRun, Loaded]:
        """Serve one request of which the GPU has ``local`` blocks.

        Returns the medium that loads, and what it loads.
        """
        for medium in self._media:
            medium.manager.on_new_request(context)
        loader = self._choose(keys, local, context)
        loaded = loader.load(keys[local:] if local else keys, context)
        if self._leaving is None:
            self._store_what_was_not_loaded(context, keys, local, loader, loaded.blocks)
        else:
            for look in self._leaving.use_by(Owner(context.req_id, keys), loaded.blocks):
                self._store_what_was_left(look)
        for medium in self._media:
            medium.manager.on_request_finished(context)
        return loader, loaded

    def _store_what_was_not_loaded(
        self, context: KeysContext, keys: list[OffloadKey], local: int, loader: MediumRun, hits: int
    ) -> None:
        for medium in self._media:
            offer = keys
            if medium is loader and hits:
                offer = keys[:local] + keys[local + hits :] if local else keys[hits:]
            if offer:
                medium.offer(offer, context)

    def _store_what_was_left(self, look: Due) -> None:
        """Store blocks that are due, each in a new request's name, since the request that used them has ended."""
        for owner, keys in look.items():
            context = KeysContext(f"{owner.request_id}, left", owner.keys)
            for medium in self._media:
                medium.manager.on_new_request(context)
                medium.offer(keys, context)
                medium.manager.on_request_finished(context)

    def count_stats(self) -> None:
        """Collect the managers' statistics. Call it now and then, and at the end."""
        for medium in self._media:
            medium.count_stats()


def feed_in_turn(
    runs: Sequence[CacheRun], columns: Columns, server_of: Iterable[int], progress: Tell = lambda count: None
) -> RequestHits:
    """Replay a trace, or the next part of one: each request on its server, in the order of the trace."""
    gpu_hits, cpu_hits, disk_hits, borrowed, last = ([0] * len(columns) for _ in range(5))
    with _no_collection():
        for index, (server, keys) in enumerate(zip(server_of, keys_of(columns), strict=True)):
            gpu_hits[index], cpu_hits[index], loaded = runs[server].serve(keys)
            if loaded.blocks:
                disk_hits[index] = loaded.blocks
                if loaded.borrowed:
                    borrowed[index] = loaded.borrowed
                    last[index] = loaded.borrows_last and gpu_hits[index] + loaded.blocks == len(keys)
            if not index % _TELL_EVERY:
                progress(index)
                for run in runs:
                    run.count_stats()
    for run in runs:
        run.count_stats()
    from_others = Borrowed(_ints(borrowed), _ints(last)) if len(runs) > 1 else None
    return RequestHits(_ints(gpu_hits), _ints(cpu_hits), _ints(disk_hits), from_others)


def _ints(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Switch the garbage collector off: a replay makes no cycles, and a search for them costs time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
