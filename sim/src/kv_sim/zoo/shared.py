"""Bugs planted in ``SharedConnector``: incomplete keys, and engines that disregard the other engine."""

from typing import Any

from kv_api import KVCacheConfig, VllmConfig
from kv_sim.examples.memory import Plan
from kv_sim.examples.shared import Chunk, Key, SharedConnector, SharedScheduler, SharedWorker


class _KeysWithoutModel(SharedScheduler):
    def _means(self) -> tuple[Any, ...]:
        return super()._means()[1:]


class KeysWithoutModel(SharedConnector):
    """Keys leave out the model, so two models of the same shape load each other's blocks."""

    scheduler_class = _KeysWithoutModel


class _KeysWithEndOfPath(SharedScheduler):
    def _means(self) -> tuple[Any, ...]:
        path, *shape = super()._means()
        return (path.rpartition("/")[2], *shape)


class KeysWithEndOfPath(SharedConnector):
    """Keys have only the last part of the model's path, so two models may load each other's blocks."""

    scheduler_class = _KeysWithEndOfPath


class _KeysWithoutType(SharedScheduler):
    def _means(self) -> tuple[Any, ...]:
        model, _, *shape = super()._means()
        return (model, *shape)


class KeysWithoutType(SharedConnector):
    """Keys leave out the dtype, so engines with one model in two dtypes load each other's blocks."""

    scheduler_class = _KeysWithoutType


class _KeysWithoutRanks(SharedScheduler):
    def _means(self) -> tuple[Any, ...]:
        model, dtype, size, _, _, *layers = super()._means()
        return (model, dtype, size, *layers)


class KeysWithoutRanks(SharedConnector):
    """Keys leave out the number of ranks, although each rank stores only its own part."""

    scheduler_class = _KeysWithoutRanks


class _FindsItsOwn(SharedScheduler):
    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self._mine: set[Key] = set()

    def _finds(self, key: Key) -> bool:
        return key in self._mine and super()._finds(key)

    def _begin(self, key: Key) -> Chunk | None:
        chunk = super()._begin(key)
        if chunk is not None:
            self._mine.add(key)
        return chunk


class FindsItsOwn(SharedConnector):
    """An engine looks only in a list of its own stores, so it never finds another engine's blocks."""

    scheduler_class = _FindsItsOwn


class _BelievesOldIndex(SharedScheduler):
    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self._looked_up: dict[Key, int] = {}

    def _finds(self, key: Key) -> bool:
        chunk = self._store.chunks.get(key)
        if chunk is not None and not chunk.ranks_left:
            self._looked_up.setdefault(key, chunk.slot)
        return key in self._looked_up

    def _pin(self, key: Key) -> Chunk:
        chunk = self._store.chunk_in[self._looked_up[key]]
        chunk.pins += self._ranks
        return chunk

    def reset_cache(self) -> bool:
        self._looked_up.clear()
        return super().reset_cache()


class BelievesOldIndex(SharedConnector):
    """An engine looks a chunk's slot up only once, although the slot may hold another chunk later."""

    scheduler_class = _BelievesOldIndex


class _LoadsWithoutPinning(SharedScheduler):
    def _pin(self, key: Key) -> Chunk:
        chunk = self._store.use(key)
        assert chunk is not None, "what was just found is there"
        return chunk


class _TakesWithoutPinning(SharedWorker):
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        moves = self._get_connector_metadata()
        assert isinstance(moves, Plan)
        for slot, _ in moves.loads:
            self._store.chunk_in[slot].pins += 1
        super().start_load_kv(forward_context, **kwargs)


class LoadsWithoutPinning(SharedConnector):
    """A load doesn't pin its slots, so another engine may evict them before the load's step."""

    scheduler_class = _LoadsWithoutPinning
    worker_class = _TakesWithoutPinning


class _FindsWhatIsPlanned(SharedScheduler):
    def _finds(self, key: Key) -> bool:
        return key in self._store.chunks

    def _pin(self, key: Key) -> Chunk:
        chunk = self._store.chunks[key]
        chunk.pins += self._ranks
        return chunk


class FindsWhatIsPlanned(SharedConnector):
    """A chunk is found as soon as its store is planned, which is right for one engine but not for a second."""

    scheduler_class = _FindsWhatIsPlanned


class _ResetForgetsItsOwn(_FindsItsOwn):
    def _finds(self, key: Key) -> bool:
        return self._store.has(key)

    def _forgets(self, chunk: Chunk) -> bool:
        return chunk.key in self._mine


class ResetForgetsItsOwn(SharedConnector):
    """A reset forgets only this engine's own stores, and still finds what others stored before it."""

    scheduler_class = _ResetForgetsItsOwn
