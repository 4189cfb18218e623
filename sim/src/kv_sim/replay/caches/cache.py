"""Cache fidelity: the real manager and policies of kv_offload_cpu, request by request, without a clock.

Each request is one after the other what an engine and the offloading connector would make of it: as far as the
GPU's prefix cache has it, nothing is asked; then the leading run of blocks that the manager has is loaded; then
everything that was not loaded is offered for a store; or, with ``store_when`` ``evicted``, what earlier requests
left in GPU blocks that are about to be given away. Every copy has ended before the next request comes, so nothing
is ever in flight or pinned meanwhile: what a real server loses to copies that are late is what engine fidelity is
for.

With files on a disk behind host memory there are two media, as MultiConnector has them with ``load_policy``
``longest``: the one that has more of the request loads all that it has, of equals host memory, and each is offered
what it didn't load itself.

The GPU's prefix cache is an LRU in which, as in vLLM, a request's tail leaves before its head.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from kv_api import ConfigError, OffloadKey, ReqContext
from kv_offload import StoreWhen
from kv_offload_cpu import AtOnceManager
from kv_sim.replay.caches.gpu_tier import GpuTier
from kv_sim.replay.caches.leaving import Due, LeavingTier, Owner
from kv_sim.replay.caches.medium import MediumRun, Traffic
from kv_sim.replay.columns import Columns, Ints
from kv_sim.replay.policies import USUAL_POLICY
from kv_sim.replay.trace import Tell

_KEYS_AT_ONCE = 1 << 15
_TELL_EVERY = 256
_KEYS_LOOKED_FOR = 4
_NONE: Ints = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Setup:
    """One server's caches, on which a trace is replayed: their sizes, and what they do."""

    policy: str = USUAL_POLICY
    capacity: int = 0
    """Blocks of host memory; 0: there is none."""
    gpu_blocks: int = 0
    """Blocks of the GPU's prefix cache; 0: it keeps nothing."""
    store_threshold: int = 0
    policy_module: str | None = None
    disk: int = 0
    """Blocks of files behind host memory; 0: there are none."""
    disk_store_threshold: int = 0
    store_when: StoreWhen = StoreWhen.COMPUTED
    """Whether blocks are stored at once, or when the GPU's prefix cache is about to lose them."""

    @property
    def blocks(self) -> int:
        """What all of it holds, the GPU included."""
        return self.gpu_blocks + self.capacity + self.disk


@dataclass
class Outcome:
    """What happened: per request the hits of each tier, in blocks, and what the media stored.

    Only one medium answers a request: of ``cpu_hits`` and ``disk_hits`` one is 0.
    """

    setup: Setup
    gpu_hits: Ints
    cpu_hits: Ints
    disk_hits: Ints
    host: Traffic = field(default_factory=Traffic)
    disk: Traffic = field(default_factory=Traffic)

    @property
    def loaded(self) -> Ints:
        """The hits of whichever medium answered."""
        return self.cpu_hits + self.disk_hits

    def check(self, columns: Columns) -> None:
        """Recount what can be recounted."""
        assert (self.gpu_hits + self.loaded <= columns.counts).all(), "more hits than blocks"
        assert not (self.cpu_hits * self.disk_hits).any(), "two media loaded for one request"
        for slots, traffic in ((self.setup.capacity, self.host), (self.setup.disk, self.disk)):
            kept = traffic.stored - traffic.evicted
            assert 0 <= kept <= slots, f"{kept} chunks kept in {slots} slots"


def replay_cache(columns: Columns, setup: Setup, progress: Tell = lambda count: None) -> Outcome:
    """Replay a trace through a manager."""
    run = CacheRun(setup, len(columns.blocks))
    return run.outcome(*run.feed(columns, progress))


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
        sizes = (("capacity", setup.capacity), ("gpu_blocks", setup.gpu_blocks), ("disk", setup.disk))
        for name, value in sizes:
            if value < 0:
                raise ConfigError(f"{name}: expected at least 0 blocks, got {value}")
        stores_late = setup.store_when is StoreWhen.EVICTED
        if stores_late and not setup.gpu_blocks:
            raise ConfigError(
                "store_when: got 'evicted', which is what a GPU's prefix cache is about to lose, "
                "and there is none: gpu_blocks is 0"
            )
        self.setup = setup
        self._most_blocks = max(1, most_blocks)
        self._served = 0
        self._host = self._medium(setup.capacity, setup.store_threshold)
        self._disk = self._medium(setup.disk, setup.disk_store_threshold)
        self._media = [medium for medium in (self._host, self._disk) if medium is not None]
        self._leaving = LeavingTier(setup.gpu_blocks) if stores_late and self._media else None
        self._gpu = GpuTier(setup.gpu_blocks) if setup.gpu_blocks and self._leaving is None else self._leaving
        self.sums = Outcome(setup, _NONE, _NONE, _NONE)
        if self._host is not None:
            self.sums.host = self._host.traffic
        if self._disk is not None:
            self.sums.disk = self._disk.traffic

    def feed(self, columns: Columns, progress: Tell = lambda count: None) -> tuple[Ints, Ints, Ints]:
        """Replay a trace, or the next part of one. Each request's hits: the GPU's, host memory's, the disk's."""
        gpu, leaving, host, before = self._gpu, self._leaving, self._host, self._served
        gpu_hits, cpu_hits, disk_hits = ([0] * len(columns) for _ in range(3))
        with _no_collection():
            for index, keys in enumerate(keys_of(columns)):
                local = 0
                if gpu is not None:
                    local = gpu_hits[index] = gpu.hits(keys)
                    if leaving is None:
                        gpu.use(keys)
                if self._media:
                    loader, hits = self._serve(_Context(str(before + index), keys), keys, local)
                    (cpu_hits if loader is host else disk_hits)[index] = hits
                if not index % _TELL_EVERY:
                    progress(index)
                    self._count_stats()
        self._count_stats()
        self._served += len(columns)
        return _ints(gpu_hits), _ints(cpu_hits), _ints(disk_hits)

    def outcome(self, gpu_hits: Ints, cpu_hits: Ints, disk_hits: Ints) -> Outcome:
        """What happened so far, with the hits of those requests that the caller cares for."""
        return replace(self.sums, gpu_hits=gpu_hits, cpu_hits=cpu_hits, disk_hits=disk_hits)

    def check(self) -> None:
        """Recount everything."""
        for medium in self._media:
            medium.manager.check()
        if self._gpu is not None:
            self._gpu.check()

    def _medium(self, slots: int, store_threshold: int) -> MediumRun | None:
        if not slots:
            return None
        setup, slots = self.setup, min(slots, self._most_blocks)
        return MediumRun(AtOnceManager(slots, setup.policy, setup.policy_module, store_threshold=store_threshold))

    def _choose(self, keys: list[OffloadKey], local: int, context: ReqContext) -> MediumRun:
        """Who loads for a request of which the GPU has ``local`` blocks. Where there is one, it isn't asked."""
        first, *more = self._media
        if not more:
            return first
        [second], missing = more, keys[local:]
        return second if second.found(missing, context) > first.found(missing, context) else first

    def _serve(self, context: _Context, keys: list[OffloadKey], local: int) -> tuple[MediumRun, int]:
        """One request of which the GPU has ``local`` blocks. Returns who loads, and how many."""
        for medium in self._media:
            medium.manager.on_new_request(context)
        loader = self._choose(keys, local, context)
        hits = loader.load(keys[local:] if local else keys, context)
        if self._leaving is None:
            self._store_what_was_not_loaded(context, keys, local, loader, hits)
        else:
            for look in self._leaving.use_by(Owner(context.req_id, keys), hits):
                self._store_what_was_left(look)
        for medium in self._media:
            medium.manager.on_request_finished(context)
        return loader, hits

    def _store_what_was_not_loaded(
        self, context: _Context, keys: list[OffloadKey], local: int, loader: MediumRun, hits: int
    ) -> None:
        for medium in self._media:
            offer = keys
            if medium is loader and hits:
                offer = keys[:local] + keys[local + hits :] if local else keys[hits:]
            if offer:
                medium.offer(offer, context)

    def _store_what_was_left(self, look: Due) -> None:
        """By requests of their own: those who computed it store nothing any more."""
        for owner, keys in look.items():
            context = _Context(f"{owner.request_id}, left", owner.keys)
            for medium in self._media:
                medium.manager.on_new_request(context)
                medium.offer(keys, context)
                medium.manager.on_request_finished(context)

    def _count_stats(self) -> None:
        for medium in self._media:
            medium.count_stats()


def _ints(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)


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
