"""vLLM's HF3FSKVConnector without what it was found to get wrong, so that a hunt finds more.

Each class does without one mistake; ``Mended`` is all of them.
"""

from kv_vllm_hf3fs import OnCpu
from kv_vllm_hf3fs_server import server_of
from kv_vllm_who_loads import KnowsWhoLoads
from vllm.distributed.kv_transfer.kv_connector.v1.hf3fs import hf3fs_metadata_server


class HoldsOnce(KnowsWhoLoads, OnCpu):
    """Of one that ends while it is loaded nothing is stored: the end of its load alone frees its blocks."""

    def request_finished(self, request, block_ids):
        if request.request_id in self._loading:
            return False, None
        self._held.add(request.request_id)
        return super().request_finished(request, block_ids)

    def get_finished(self, finished_req_ids):
        held = self._get_connector_metadata().held
        for name in finished_req_ids - held:
            self._async_manager._save_futures.pop(name, None)  # of blocks that it had before it was preempted
        return super().get_finished(held)


class NamesWhose(OnCpu):
    """The names of blocks begin with whose they are: the salt and the adapter of their request."""

    _whose = ""

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        self._whose = whose(request)
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def _compute_prefix_hash(self, token_ids, previous_hash=""):
        return super()._compute_prefix_hash(token_ids, previous_hash or self._whose)

    def build_connector_meta(self, scheduler_output):
        states = {**self._scheduling_states}
        meta = super().build_connector_meta(scheduler_output)
        states |= self._scheduling_states
        for one in meta.requests:
            one.whose = whose(states[one.request_id].request)
        return meta

    def _each(self, act, *args, **kwargs):
        """Do that for each request by itself."""
        meta = self._get_connector_metadata()
        requests = meta.requests
        for one in requests:
            meta.requests, self._whose = [one], one.whose
            act(*args, **kwargs)
        meta.requests = requests

    def start_load_kv(self, forward_context, **kwargs):
        self._each(super().start_load_kv, forward_context, **kwargs)

    def wait_for_save(self):
        self._each(super().wait_for_save)


def whose(request):
    """Whose KV a request's is."""
    return f"{request.cache_salt} {request.lora_request and request.lora_request.lora_name}"


class FollowsTables(OnCpu):
    """Who resumes has another table, and tokens that aren't computed any more."""

    def build_connector_meta(self, scheduler_output):
        cached = scheduler_output.scheduled_cached_reqs
        for name, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            if name in cached.resumed_req_ids:
                state = self._scheduling_states[name]
                state.token_ids = [*state.request.all_token_ids[:computed]]
                state.allocated_block_ids = []
                state.num_saved_blocks = computed // self._block_size
        return super().build_connector_meta(scheduler_output)


class Fences(OnCpu):
    """What is being stored of one that is preempted has been read when its blocks are given away."""

    def build_connector_meta(self, scheduler_output):
        meta = super().build_connector_meta(scheduler_output)
        meta.preempted = set(scheduler_output.preempted_req_ids or ())
        return meta

    def handle_preemptions(self, kv_connector_metadata):
        super().handle_preemptions(kv_connector_metadata)
        manager = self._async_manager
        for name in kv_connector_metadata.preempted & manager._save_futures.keys():
            while not manager._all_saves_done(name):
                self.let_threads_work()
                self.card.copies.wait([*self.card.device.copies.running])


class TellsFailures(OnCpu):
    """A load that failed is told."""

    _blocks = None

    def register_kv_caches(self, kv_caches):
        super().register_kv_caches(kv_caches)
        self._blocks, self._unfilled = {}, set()
        submit = self._async_manager.submit_load_operation

        def submitted(request_id, block_ids, block_hashes):
            future = submit(request_id, block_ids, block_hashes)
            self._blocks[future] = block_ids
            return future

        self._async_manager.submit_load_operation = submitted

    def get_finished(self, finished_req_ids):
        ended = super().get_finished(finished_req_ids)
        for future in [future for future in self._blocks if future.done()]:
            blocks = self._blocks.pop(future)
            self._unfilled.update(() if future.result() else blocks)
        return ended

    def get_block_ids_with_load_errors(self):
        unfilled, self._unfilled = self._unfilled, set()
        return unfilled


class KeepsPages(hf3fs_metadata_server.GlobalMetadataState):
    """A page that a key has isn't free, and one that it has no more is."""

    def confirm_write_for_keys(self, rank, key_confirmations, pages_to_release=None):
        pages = {key: one.rank_to_page.get(rank) for key, one in self.key_metadata.items()}
        released = [page for page in pages_to_release or () if page not in pages.values()]
        replaced = [pages[key] for key, page in key_confirmations if pages.get(key) not in (None, page)]
        super().confirm_write_for_keys(rank, key_confirmations, [*released, *replaced])


class ForgetsNoTable(TellsFailures, Fences, NamesWhose, HoldsOnce):
    """Without all but that of ``FollowsTables``."""


class Mended(TellsFailures, Fences, FollowsTables, NamesWhose, HoldsOnce):
    """Without all of them."""

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        server_of(self).state.__class__ = KeepsPages
