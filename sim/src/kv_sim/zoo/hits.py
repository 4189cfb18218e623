"""Planted in ``MemoryConnector``: what is found is not what is there; and what is said of it is wrong."""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

from kv_api import (
    CacheHitSource,
    KVCacheBlocks,
    KVCacheConfig,
    Request,
    SchedulerOutput,
    VllmConfig,
)
from kv_sim.examples.memory import MemoryConnector, MemoryScheduler
from kv_sim.examples.progress import Progress, ProgressBook


class _KeysWithoutSalt(MemoryScheduler):
    def _keys(self, request: Request) -> Sequence[bytes]:
        tokens, size = request.all_token_ids, self._block_size
        ends = range(size, len(tokens) + 1, size)
        return [blake2b(repr(tokens[:end]).encode(), digest_size=8).digest() for end in ends]


class KeysWithoutSalt(MemoryConnector):
    """Keys are made from tokens alone: two salts, or an adapter and none, share what they must not."""

    scheduler_class = _KeysWithoutSalt


class _KeysWithoutPrefix(MemoryScheduler):
    def _keys(self, request: Request) -> Sequence[bytes]:
        tokens, size = request.all_token_ids, self._block_size
        whose = request.cache_salt, request.lora_request.lora_name if request.lora_request else None
        blocks = [tokens[begin : begin + size] for begin in range(0, len(tokens) - size + 1, size)]
        return [blake2b(repr((whose, block)).encode(), digest_size=8).digest() for block in blocks]


class KeysWithoutPrefix(MemoryConnector):
    """Keys are made from the tokens of a block alone: it is found after another beginning, too."""

    scheduler_class = _KeysWithoutPrefix


class _KeysWithoutImages(MemoryScheduler):
    def _keys(self, request: Request) -> Sequence[bytes]:
        tokens, size = request.all_token_ids, self._block_size
        whose = request.cache_salt, request.lora_request.lora_name if request.lora_request else None
        ends = range(size, len(tokens) + 1, size)
        return [blake2b(repr((whose, tokens[:end])).encode(), digest_size=8).digest() for end in ends]


class KeysWithoutImages(MemoryConnector):
    """Keys are made from tokens, salt and adapter. Tokens that stand for an image are the same for any image."""

    scheduler_class = _KeysWithoutImages


class _ShortKeys(MemoryScheduler):
    def _keys(self, request: Request) -> Sequence[bytes]:
        return [block_hash[-1:] for block_hash in request.block_hashes]


class ShortKeys(MemoryConnector):
    """Keys are cut short, so different prefixes meet."""

    scheduler_class = _ShortKeys


class _FirstChunkOnly(ProgressBook):
    def step(self, output: SchedulerOutput) -> Iterator[tuple[Progress, int]]:
        new = {request.req_id for request in output.scheduled_new_reqs}
        for progress, computed in super().step(output):
            if progress.request.request_id in new:
                yield progress, computed


class _ForgetsLaterChunks(MemoryScheduler):
    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self._progress = _FirstChunkOnly()


class ForgetsLaterChunks(MemoryConnector):
    """Only the step that begins a prompt stores: the later chunks of a long one are never registered."""

    scheduler_class = _ForgetsLaterChunks


class _ServesAfterReset(MemoryScheduler):
    def reset_cache(self) -> bool:
        return True


class ServesAfterReset(MemoryConnector):
    """A reset reports success and forgets nothing."""

    scheduler_class = _ServesAfterReset


class _FullHit(MemoryScheduler):
    def _last_loadable(self, request: Request) -> int:
        return request.num_tokens // self._block_size


class FullHit(MemoryConnector):
    """A prompt that ends with a block is found to its last token, and nothing is left to compute."""

    scheduler_class = _FullHit


class _CountsLocalHits(MemoryScheduler):
    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        self._local = self._local_tokens.get(request.request_id, 0)
        super().update_state_after_alloc(request, blocks, num_external_tokens)

    def get_external_cache_hit_sources(
        self, request: Request, num_external_tokens: int
    ) -> dict[CacheHitSource, int]:
        return {CacheHitSource.HOST: self._local + num_external_tokens}


class CountsLocalHits(MemoryConnector):
    """Tokens that the GPU had anyway are counted as hits of the host, too."""

    scheduler_class = _CountsLocalHits


class _EvictsSilently(MemoryScheduler):
    def _evict_oldest(self) -> None:
        self._free_slots.append(self._slot_of.popitem(last=False)[1])


class EvictsSilently(MemoryConnector):
    """Eviction tells nobody, so a router goes on sending requests for what is gone."""

    scheduler_class = _EvictsSilently


class _HashesLag(MemoryScheduler):
    def _full_blocks(self, computed: int, keys: Sequence[bytes]) -> int:
        return computed // self._block_size


class HashesLag(MemoryConnector):
    """Every computed block is taken to have a hash; under run-ahead the newest have none yet."""

    scheduler_class = _HashesLag


class _AppendsOnResume(ProgressBook):
    def _restart(self, request_id: str, blocks: tuple[list[int], ...]) -> None:
        before = self._requests[request_id].tables
        super()._restart(request_id, blocks)
        progress = self._requests[request_id]
        if before:
            progress.tables = tuple(old + new for old, new in zip(before, progress.tables, strict=True))


class _ResumeAppends(MemoryScheduler):
    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self._progress: Any = _AppendsOnResume()


class ResumeAppends(MemoryConnector):
    """The whole table of a resumed request is appended to what it had before it was preempted."""

    scheduler_class = _ResumeAppends


class _AppendsWhatIsNew(ProgressBook):
    def _restart(self, request_id: str, blocks: tuple[list[int], ...]) -> None:
        before = self._requests[request_id]
        super()._restart(request_id, blocks)
        request: Any = before.request
        goes_on = request.num_computed_tokens > 0 and request.num_preemptions == 0
        if before.tables and goes_on:
            after = self._requests[request_id]
            after.tables = tuple(old + new for old, new in zip(before.tables, after.tables, strict=True))


class _SessionAppends(MemoryScheduler):
    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self._progress: Any = _AppendsWhatIsNew()


class SessionAppends(MemoryConnector):
    """A session that goes on is taken for new: what it has besides is appended to what it had."""

    scheduler_class = _SessionAppends
