"""Offloading media: what the scheduler asks a medium (manager), and what moves its bytes (worker).

A *chunk* is one slot of the medium: ``blocks_per_chunk`` consecutive blocks of one group, found by its *key*. Its
life: ``prepare_store`` gives it a place (in flight) · ``complete_store`` makes it resident, or drops it ·
``prepare_load`` pins it, ``complete_load`` unpins it · it is evicted when a later store needs its place.
A manager lives in the scheduler and never sees a byte. A worker lives in each worker process and never decides.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, ClassVar, NamedTuple, TypeAlias

from kv_api.errors import ConfigError
from kv_api.layout import CanonicalKVCaches
from kv_api.load_store_spec import GPULoadStoreSpec, LoadStoreSpec
from kv_api.offload_config import (
    ConfigInfoMapping,
    OffloadingConfig,
    OffloadingKVEventsConfig,
    OffloadingMetricMetadata,
)
from kv_api.offload_request import (
    Locality,
    Medium,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from kv_api.stats import CacheHitSource, KVConnectorStats


class LookupResult(Enum):
    """What a lookup found."""

    MISS = auto()
    HIT = auto()
    HIT_PENDING = auto()
    """There, and not readable yet."""
    RETRY = auto()
    """Not known yet; ask again later."""


class PrefixLookup(NamedTuple):
    """How many leading keys are hits, and the result for the first key that isn't (HIT if all are)."""

    hits: int
    rest: LookupResult


StoreOffer: TypeAlias = tuple[Collection[OffloadKey], ReqContext]
"""Chunks that a request offers for one store."""


@dataclass
class PrepareStoreOutput:
    """What ``prepare_store`` decided: the keys that do need storing, where to, and what had to go for them."""

    keys_to_store: list[OffloadKey]
    store_spec: LoadStoreSpec
    evicted_keys: list[OffloadKey]


@dataclass
class OffloadingEvent:
    """Chunks appeared in a medium or vanished from it."""

    keys: list[OffloadKey]
    medium: Medium
    removed: bool
    locality: Locality | None = None
    ownership: str | None = None
    """Name of the secondary tier it is about; None: the primary one."""
    removal_expected: bool = False
    metadata_only: bool = False
    """The place of a chunk was freed before it held readable bytes, so routers need not be told."""


_NO_LOCK = nullcontext()


class OffloadingManager(ABC):
    """The scheduler's view of a medium: what is in it, what is pinned, what leaves.

    A caller holds ``lock`` across calls that belong together, such as a lookup and the ``prepare_load`` that pins
    what it found; methods never take it themselves.
    """

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Keeps other threads out of the manager. Not reentrant; by default there are no other threads."""
        return _NO_LOCK

    @abstractmethod
    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """A request was added; says how it is offloaded."""

    @abstractmethod
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Whether a chunk can be loaded now. Changes nothing, and promises nothing once the lock is released."""

    def lookup_prefix(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrefixLookup:
        """The same as ``lookup`` for each key, up to the first that is not a hit.

        A medium may override it to be faster.

        vLLM's managers don't have this method.
        """
        hits = 0
        for key in keys:
            found = self.lookup(key, req_context)
            if found is not LookupResult.HIT:
                return PrefixLookup(hits, found)
            hits += 1
        return PrefixLookup(hits, LookupResult.HIT)

    def drop(self, keys: Collection[OffloadKey]) -> None:
        """Forget chunks whose bytes proved wrong, pinned or not. Unknown keys are ignored.

        Their jobs still end, and their completions come by key. Until then these keys are not to be stored again.

        vLLM's managers don't have this method, and a medium may be unable to: a caller that must not meet such a
        chunk again remembers it itself.
        """

    def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> CacheHitSource:
        """Which tier supplies a chunk that was a hit."""
        return CacheHitSource.EXTERNAL_UNSPECIFIED

    @abstractmethod
    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        """Pin resident chunks for a load and say where they are. Each call is ended by one ``complete_load``."""

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Unpin chunks after a load."""

    @abstractmethod
    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        """Make room for chunks and say where they go. All or nothing: None when they don't fit.

        Keys that are there already, or not worth storing, are left out of ``keys_to_store``. What is returned is
        pinned until ``complete_store``.
        """

    def prepare_stores(self, stores: Sequence[StoreOffer]) -> list[PrepareStoreOutput]:
        """The same as ``prepare_store`` for one store after the other, up to the first that is refused.

        The answer leaves out the refused store and those after it, for which nothing was done. A medium may
        override it to be faster. vLLM's managers don't have this method.
        """
        outputs = []
        for keys, req_context in stores:
            output = self.prepare_store(keys, req_context)
            if output is None:
                break
            outputs.append(output)
        return outputs

    def complete_store(self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True) -> None:
        """Make chunks resident after their store, or drop them when it failed. Unknown keys are ignored."""

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Note that chunks were of use although nothing was loaded."""

    def on_request_finished(self, req_context: ReqContext) -> None:
        """The request prepares nothing more. Its jobs may still be running."""

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """The last call of a step: the place for work that is better done in one go."""

    def has_pending_work(self) -> bool:
        """Whether the engine must keep stepping for this manager."""
        return False

    def take_events(self) -> Iterable[OffloadingEvent]:
        """The events since the last call."""
        return ()

    def limit_chunks(self, num_chunks: int) -> bool:
        """Use the first ``num_chunks`` places and no others. Returns whether it does; by default it can't.

        Called at most once, before the first store, with the number of chunks for which every rank has room: the
        stages of a pipeline hold different layers, so their chunks have different sizes. vLLM's managers don't
        have this method.
        """
        return False

    def reset_cache(self) -> None:
        """Forget every chunk, pinned or not. The caller ignores the completion of jobs from before."""

    def on_reset_flushed(self) -> None:
        """Every job that was running at the last ``reset_cache`` has ended: nobody writes its chunks any more."""

    def get_stats(self) -> KVConnectorStats | None:
        """What was counted since the last call. None: nothing."""
        return None

    def config_info(self) -> Sequence[ConfigInfoMapping]:
        """Labels for the info metric, one mapping for each series. Asked once."""
        return [{}]

    def shutdown(self) -> None:
        """Release everything. Called without the lock."""


class Direction(Enum):
    """Which way a job copies."""

    STORE = "store"
    """GPU → medium."""
    LOAD = "load"
    """Medium → GPU."""


@dataclass
class TransferResult:
    """The end of a job in one worker, with the bytes moved and the seconds taken, if known."""

    job_id: int
    success: bool
    transfer_size: int | None = None
    transfer_time: float | None = None


class OffloadingWorker(ABC):
    """Moves the bytes of one medium, asynchronously, in one worker process. Jobs are known by their id."""

    num_chunks: int | None = None
    """For how many chunks this rank has room. None: unknown. vLLM's workers don't have it."""

    @abstractmethod
    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        """Begin a copy GPU → medium, which runs after all work that the device got before. False: refused."""

    @abstractmethod
    def submit_load(
        self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec, expedited: bool = False
    ) -> bool:
        """Begin a copy medium → GPU.

        ``expedited``: the step waits for it, so it may overtake others. False: refused.
        """

    @abstractmethod
    def get_finished(self) -> list[TransferResult]:
        """The jobs that ended since the last call, each once."""

    @abstractmethod
    def wait(self, job_ids: set[int]) -> None:
        """Return when these jobs have ended. Unknown ids are ignored."""

    def let_go(self, job_ids: set[int]) -> Collection[int]:
        """Wait until none of these jobs touches GPU blocks any more.

        Returns the jobs that still go on without them.

        It is for media that copy a store's bytes to staging memory first, and from there to their place. Any
        other medium just waits until the jobs end, and returns none.
        """
        self.wait(job_ids)
        return ()

    def take_counts(self) -> Mapping[str, int]:
        """What was counted since the last call, by the names of the spec's counters."""
        return {}

    def shutdown(self) -> None:
        """Finish or cancel every job and release everything."""


class OffloadingSpec(ABC):
    """A medium: makes its manager in the scheduler and its worker in each worker process."""

    extra_keys: ClassVar[frozenset[str]] = frozenset()
    """The keys of ``kv_connector_extra_config`` that are the medium's own.

    The connector's own keys are in the same mapping. It refuses a key that looks like a misspelling of any of
    them.
    """

    def __init__(self, config: OffloadingConfig) -> None:
        if not hasattr(config, "extra_config"):
            raise ConfigError(f"{type(self).__name__} needs an OffloadingConfig, got a {type(config).__name__}")
        self.config = config
        self.extra_config: Mapping[str, Any] = config.extra_config
        self.replicated_layout = False
        self.kv_events_config = OffloadingKVEventsConfig(
            config.enable_kv_cache_events, bool(self.extra_config.get("self_describing_kv_events", False))
        )
        self.offload_prompt_only = bool(self.extra_config.get("offload_prompt_only", True))
        self.tokens_per_block = tuple(group.tokens_per_block for group in config.groups)
        self.tokens_per_hash = config.cache.tokens_per_hash
        self.blocks_per_chunk = config.cache.blocks_per_chunk

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        """The metrics that this medium reports, by name."""
        return {}

    @classmethod
    def config_info_keys(cls, extra_config: dict[str, Any]) -> tuple[str, ...]:
        """The labels of the info metric that the manager fills."""
        return ()

    @abstractmethod
    def get_manager(self) -> OffloadingManager:
        """The manager; asked once, in the scheduler."""

    @abstractmethod
    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """The worker for these KV caches; asked once, in each worker process."""
