"""LMCacheMPConnector without what it was found to get wrong, so that a hunt finds more.

Each class does without one mistake; ``Mended`` is all of them, and ``AllButX`` all but ``X``.
"""

import copy

from kv_vllm_lmcache_mp import OnCpu
from kv_vllm_who_loads import KnowsWhoLoads
from lmcache.integration.vllm.lmcache_mp_metadata import LMCacheMPRequestState


class NamesWhose(OnCpu):
    """The names of chunks have in them whose they are: the salt and the adapter of their request."""

    def _get_or_create_request_tracker(self, request):
        tracker = super()._get_or_create_request_tracker(request)
        if request.lora_request:
            tracker.cache_salt = f"{request.cache_salt or ''} {request.lora_request.lora_name}"
        return tracker


class NamesType(OnCpu):
    """The names of chunks have in them of which type numbers are."""

    def __init__(self, vllm_config, role, kv_cache_config):
        named = copy.copy(vllm_config)
        named.model_config = copy.copy(vllm_config.model_config)
        named.model_config.model += f" {vllm_config.model_config.dtype}"
        super().__init__(named, role, kv_cache_config)


class HoldsOnce(KnowsWhoLoads, OnCpu):
    """Of one that ends while it is loaded the end of its load alone frees the blocks."""

    def request_finished(self, request, block_ids):
        is_held, params = super().request_finished(request, block_ids)
        if request.request_id in self._loading:
            return False, params
        if is_held:
            self._held.add(request.request_id)
        return is_held, params

    def get_finished(self, finished_req_ids):
        held = self._get_connector_metadata().held
        ended = super().get_finished(held)
        self.worker_adapter.finished_stores -= finished_req_ids - held
        return ended


class ForgetsWhoWasTold(OnCpu):
    """Whose end was told is forgotten, and may come again."""

    def get_finished(self, finished_req_ids):
        ended = super().get_finished(finished_req_ids)
        self.worker_adapter._returned_finished.clear()
        return ended


class AsksAgain(OnCpu):
    """Who is to ask again is told nothing else."""

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        count, is_async = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return count, is_async and count is not None


class CountsWhatLoads(OnCpu):
    """What was found and isn't loaded doesn't count as computed."""

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        tracker = self._get_request_tracker(request.request_id)
        is_first = tracker.state is LMCacheMPRequestState.PREFETCHING
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if is_first and not num_external_tokens:
            tracker.num_lmcache_hit_tokens = 0


class LetsGo(OnCpu):
    """What was looked up for one that ends before it has blocks is let go."""

    def request_finished(self, request, block_ids):
        tracker = self.request_trackers.get(request.request_id)
        if tracker and tracker.state is LMCacheMPRequestState.PREFETCHING and tracker.num_lmcache_hit_tokens:
            whose = {"cache_salt": tracker.cache_salt, "request_configs": tracker.request_configs}
            span = tracker.get_token_ids(), 0, tracker.num_lmcache_hit_tokens
            self.scheduler_adapter.free_lookup_locks(*span, request.request_id, **whose)
        return super().request_finished(request, block_ids)


class WaitsForAll(OnCpu):
    """Of one that is stored in several parts all have ended."""

    def register_kv_caches(self, kv_caches):
        super().register_kv_caches(kv_caches)
        adapter = self.worker_adapter
        process = adapter._process_finished_stores

        def processed(from_lmcache, from_engine):
            adapter.finished_stores -= adapter.store_futures.keys()
            return process(from_lmcache, from_engine)

        adapter._process_finished_stores = processed


class WaitsForWindows(OnCpu):
    """Of several groups what is stored has been read before the next step, in which vLLM gives away blocks."""

    def build_connector_meta(self, scheduler_output):
        meta = super().build_connector_meta(scheduler_output)
        meta.need_flush_before_forward |= len(self._group_tokens_per_block) > 1
        return meta


class StoresNoHoles(OnCpu):
    """A chunk that ends where a group has no block isn't stored of that group."""

    def build_connector_meta(self, scheduler_output):
        meta = super().build_connector_meta(scheduler_output)
        size = self.scheduler_adapter.lmcache_tokens_per_chunk
        for one in meta.requests:
            if one.direction == "STORE":
                for blocks, tokens in zip(one.op.block_ids, self._group_tokens_per_block, strict=True):
                    count = size // tokens
                    for first in range(0, len(blocks), count):
                        if not blocks[first + count - 1]:
                            blocks[first : first + count] = [0] * count
        return meta


class ChecksWords(OnCpu):
    """What a client says is heeded if it is what it should be."""

    def _get_or_create_request_tracker(self, request):
        tracker = super()._get_or_create_request_tracker(request)
        if type(tracker.max_offload_tokens) is not int:
            tracker.max_offload_tokens = None
        return tracker

    def request_finished(self, request, block_ids):
        if not isinstance(request.kv_transfer_params, dict):
            request.kv_transfer_params = None
        return super().request_finished(request, block_ids)


class AnswersForAll(OnCpu):
    """A reset answers True if nothing from before it is left: locked in the server, or on its way there."""

    def reset_cache(self):
        is_done = super().reset_cache()
        memory = self.server.context.storage_manager._l1_manager
        return is_done and not (memory._objects or memory._staging or self.request_trackers)


PARTS = (
    *(AnswersForAll, ChecksWords, StoresNoHoles, WaitsForWindows, WaitsForAll, LetsGo, CountsWhatLoads, AsksAgain),
    *(ForgetsWhoWasTold, HoldsOnce, NamesWhose, NamesType),
)


class Mended(*PARTS):
    """Without all of them."""


for part in PARTS:
    name = f"AllBut{part.__name__}"
    globals()[name] = type(name, tuple(one for one in PARTS if one is not part), {"__module__": __name__})
