"""Cache fidelity: the real manager and policies of kv_offload_cpu, request by request, without a clock.

With each request, one after the other, happens what an engine and the offloading connector would do:

- as far as the GPU's prefix cache has it, nothing is asked;
- then the leading run of blocks that the manager has is loaded;
- then everything that was not loaded is offered for a store. With ``store_when`` ``evicted`` it is instead what
  earlier requests left in GPU blocks that are about to be given away.

Every copy has ended before the next request comes, so nothing is ever in flight or pinned meanwhile: what a real
server loses to copies that are late is what engine fidelity is for.

With files on a disk behind host memory there are two media, as MultiConnector has them with ``load_policy``
``longest``. The one that has more of the request loads all that it has; if both have as much, host memory does.
Each is offered what it didn't load itself.

The GPU's prefix cache is an LRU in which, as in vLLM, a request's tail leaves before its head.
"""

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import NamedTuple

import numpy as np

from kv_api import ConfigError, OffloadKey, ReqContext
from kv_offload import StoreWhen
from kv_offload_cpu import AtOnceManager
from kv_sim.replay.caches.gpu_tier import GpuTier
from kv_sim.replay.caches.keys import KeysContext, keys_of
from kv_sim.replay.caches.leaving import Due, LeavingTier, Owner
from kv_sim.replay.caches.medium import Loaded, MediumRun, Traffic
from kv_sim.replay.columns import Columns, Ints
from kv_sim.replay.policies import USUAL_POLICY
from kv_sim.replay.trace import Tell

_TELL_EVERY = 256
_NONE: Ints = np.zeros(0, dtype=np.int64)
_NOTHING = Loaded(0)


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


class Borrowed(NamedTuple):
    """What each request got from the disks of other servers."""

    blocks: Ints
    """How many of its ``disk_hits``."""
    last: Ints
    """1 where the last block of the prompt was among them, and else 0."""


class RequestHits(NamedTuple):
    """The hits of each request by who answered, in blocks."""

    gpu: Ints
    cpu: Ints
    disk: Ints
    """Those from other servers' disks, too."""
    borrowed: Borrowed | None = None
    """None: there is one server."""


@dataclass
class Outcome:
    """What happened: per request the hits of each tier, in blocks, and what the media stored.

    Only one medium answers a request: of ``cpu_hits`` and ``disk_hits`` one is 0.
    """

    setup: Setup
    gpu_hits: Ints
    cpu_hits: Ints
    disk_hits: Ints
    borrowed: Borrowed | None = None
    """What of ``disk_hits`` came from the disks of other servers; None: they don't read each other's."""
    host: Traffic = field(default_factory=Traffic)
    disk: Traffic = field(default_factory=Traffic)

    @property
    def loaded(self) -> Ints:
        """The hits of whichever medium answered."""
        return self.cpu_hits + self.disk_hits

    def check(self, columns: Columns, servers: int = 1) -> None:
        """Recount what can be recounted of what so many servers did."""
        assert (self.gpu_hits + self.loaded <= columns.counts).all(), "more hits than blocks"
        assert not (self.cpu_hits * self.disk_hits).any(), "two media loaded for one request"
        for slots, traffic in ((self.setup.capacity, self.host), (self.setup.disk, self.disk)):
            kept = traffic.stored - traffic.evicted
            assert 0 <= kept <= servers * slots, f"{kept} chunks kept in {servers * slots} slots"
        if self.borrowed is not None:
            blocks, last = self.borrowed
            assert (blocks <= self.disk_hits).all(), "more was borrowed than disks answered"
            assert (last <= blocks).all(), "the last block was borrowed, and none was"
            reached = self.gpu_hits + self.disk_hits == columns.counts
            assert reached[last == 1].all(), "the last block was borrowed, and it is no hit"


def add_up_sums(outcomes: Sequence[Outcome]) -> Outcome:
    """What all servers' media did together, as the first one's outcome."""
    host, disk = Traffic(), Traffic()
    for outcome in outcomes:
        host, disk = host.plus(outcome.host), disk.plus(outcome.disk)
    return replace(outcomes[0], host=host, disk=disk)


def replay_cache(columns: Columns, setup: Setup, progress: Tell = lambda count: None) -> Outcome:
    """Replay a trace through a manager."""
    run = CacheRun(setup, len(columns.blocks))
    return run.outcome(*run.feed(columns, progress))


class CacheRun:
    """One replay under way: the caches, and sums over what they were fed. No request is kept.

    Room for more than ``most_blocks`` is never needed, whatever the capacity. ``open_disk`` makes of the manager
    of the files what is fed.
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
        """What happened so far, with the hits of those requests that the caller cares for."""
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
        """Who loads for a request of which the GPU has ``local`` blocks. Where there is one, it isn't asked."""
        first, *more = self._media
        if not more:
            return first
        [second], missing = more, keys[local:]
        return second if second.found(missing, context) > first.found(missing, context) else first

    def _load_and_store(
        self, context: KeysContext, keys: list[OffloadKey], local: int
    ) -> tuple[MediumRun, Loaded]:
        """One request of which the GPU has ``local`` blocks. Returns who loads, and what."""
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
        """By requests of their own: those who computed it store nothing any more."""
        for owner, keys in look.items():
            context = KeysContext(f"{owner.request_id}, left", owner.keys)
            for medium in self._media:
                medium.manager.on_new_request(context)
                medium.offer(keys, context)
                medium.manager.on_request_finished(context)

    def count_stats(self) -> None:
        """To be called now and then, and at the end."""
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
    """A replay leaves no cycles behind; looking for them costs more the more there is in memory besides."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
