"""Planted in ``MemoryConnector``: lookups that find wrong blocks or miss right ones, and wrong reports of hits."""

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
    """Keys are made from tokens only, so requests with different cache salts or LoRA adapters share blocks."""

    scheduler_class = _KeysWithoutSalt


class _KeysWithoutPrefix(MemoryScheduler):
    def _keys(self, request: Request) -> Sequence[bytes]:
        tokens, size = request.all_token_ids, self._block_size
        whose = request.cache_salt, request.lora_request.lora_name if request.lora_request else None
        blocks = [tokens[begin : begin + size] for begin in range(0, len(tokens) - size + 1, size)]
        return [blake2b(repr((whose, block)).encode(), digest_size=8).digest() for block in blocks]


class KeysWithoutPrefix(MemoryConnector):
    """Keys are made from the tokens of one block only, so the block is found after a different prefix, too."""

    scheduler_class = _KeysWithoutPrefix


class _KeysWithoutImages(MemoryScheduler):
    def _keys(self, request: Request) -> Sequence[bytes]:
        tokens, size = request.all_token_ids, self._block_size
        whose = request.cache_salt, request.lora_request.lora_name if request.lora_request else None
        ends = range(size, len(tokens) + 1, size)
        return [blake2b(repr((whose, tokens[:end])).encode(), digest_size=8).digest() for end in ends]


class KeysWithoutImages(MemoryConnector):
    """Keys leave out image hashes.

    Placeholder tokens are the same for any image, so different images share blocks.
    """

    scheduler_class = _KeysWithoutImages


class _ShortKeys(MemoryScheduler):
    def _keys(self, request: Request) -> Sequence[bytes]:
        return [block_hash[-1:] for block_hash in request.block_hashes]


class ShortKeys(MemoryConnector):
    """Keys are truncated, so different prefixes get the same key."""

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
    """Only a prompt's first step stores blocks, so those of the later steps of a long prefill are never stored."""

    scheduler_class = _ForgetsLaterChunks


class _ServesAfterReset(MemoryScheduler):
    def reset_cache(self) -> bool:
        return True


class ServesAfterReset(MemoryConnector):
    """A reset reports success but keeps every block."""

    scheduler_class = _ServesAfterReset


class _FullHit(MemoryScheduler):
    def _last_loadable(self, request: Request) -> int:
        return request.num_tokens // self._block_size


class FullHit(MemoryConnector):
    """A prompt of full blocks is reported as found to its last token, so no token is left to compute."""

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
    """Tokens that are in the GPU's prefix cache are also counted as external hits."""

    scheduler_class = _CountsLocalHits


class _EvictsSilently(MemoryScheduler):
    def _evict_oldest(self) -> None:
        self._free_slots.append(self._slot_of.popitem(last=False)[1])


class EvictsSilently(MemoryConnector):
    """Evictions emit no KV cache event, so a router goes on sending requests for evicted blocks."""

    scheduler_class = _EvictsSilently


class _HashesLag(MemoryScheduler):
    def _full_blocks(self, computed: int, keys: Sequence[bytes]) -> int:
        return computed // self._block_size


class HashesLag(MemoryConnector):
    """It assumes that every computed block has a hash, but with run-ahead the newest ones have none yet."""

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
    """When a preempted request resumes, its new block table is appended to the old one instead of replacing it."""

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
    """When a session continues as a new request, its whole block table is appended to the one it had."""

    scheduler_class = _SessionAppends
