"""vLLM's MooncakeStoreConnector without what it was found to get wrong, so that a hunt finds more.

Each class does without one mistake; ``Mended`` is all of them.
"""

from dataclasses import replace
from weakref import WeakSet

from kv_vllm_mooncake_store import OnCpu, pool_of
from msgspec.structs import replace as replace_event


class KnowsWhoResumes(OnCpu):
    """Of what is preempted and has got blocks since, nothing is forgotten."""

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        self._allocated = set()

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        self._allocated.add(request.request_id)

    def build_connector_meta(self, scheduler_output):
        preempted = (scheduler_output.preempted_req_ids or set()) - self._allocated
        self._allocated.clear()
        return super().build_connector_meta(replace(scheduler_output, preempted_req_ids=preempted))


class TellsAdapters(OnCpu):
    """Events tell whose adapter a block was computed with."""

    def build_connector_meta(self, scheduler_output):
        requests = {name: request for name, (request, _) in self.connector_scheduler._unfinished_requests.items()}
        meta = super().build_connector_meta(scheduler_output)
        requests |= {name: request for name, (request, _) in self.connector_scheduler._unfinished_requests.items()}
        for one in meta.requests:
            lora = requests[one.req_id].lora_request
            one.adapter = (lora.adapter_id, lora.lora_name) if lora else (None, None)
        return meta

    def register_kv_caches(self, kv_caches):
        super().register_kv_caches(kv_caches)
        thread = self.connector_worker.kv_send_thread
        if thread is None:
            return
        handle, update = thread._handle_request, thread.update_kv_event

        def handled(req_meta):
            thread.adapter = req_meta.adapter
            handle(req_meta)

        def updated(events):
            number, name = thread.adapter
            update([replace_event(event, lora_id=number, lora_name=name) for event in events])

        thread._handle_request, thread.update_kv_event = handled, updated


class CountsNoDrafts(OnCpu):
    """Who is new, or resumes, has the tokens that are known, and not those that are only tried."""

    def build_connector_meta(self, scheduler_output):
        counts, cached = {**scheduler_output.num_scheduled_tokens}, scheduler_output.scheduled_cached_reqs
        for name in [*(new.req_id for new in scheduler_output.scheduled_new_reqs), *cached.resumed_req_ids]:
            counts[name] -= len(scheduler_output.scheduled_spec_decode_tokens.get(name, ()))
        return super().build_connector_meta(replace(scheduler_output, num_scheduled_tokens=counts))


class ProducesOnly(OnCpu):
    """Who only produces loads nothing."""

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        if self.kv_role == "kv_producer":
            return 0, False
        return super().get_num_new_matched_tokens(request, num_computed_tokens)


class ResetsAll(OnCpu):
    """A reset comes after what any rank has yet to put, and what was found before it isn't told after it."""

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        self._ranks = vars(pool_of(vllm_config.model_config.model, {})).setdefault("ranks", WeakSet())

    def register_kv_caches(self, kv_caches):
        super().register_kv_caches(kv_caches)
        self._ranks.add(self.connector_worker)

    def reset_cache(self):
        for worker in sorted(self._ranks, key=lambda worker: worker.tp_rank):
            if worker.kv_send_thread is not None:
                worker.kv_send_thread.request_queue.join()
        for name in list(self.connector_scheduler.client.futures):
            self.connector_scheduler.client.discard(name)
        return super().reset_cache()


class NamesWhole(OnCpu):
    """Keys have the whole path of the model in them, and of which type its numbers are."""

    def __init__(self, vllm_config, role, kv_cache_config):
        model, told = vllm_config.model_config, vllm_config.kv_transfer_config.kv_connector_extra_config
        told["cache_prefix"] = f"{model.model} {model.dtype}"
        super().__init__(vllm_config, role, kv_cache_config)


class Mended(NamesWhole, ResetsAll, ProducesOnly, CountsNoDrafts, TellsAdapters, KnowsWhoResumes):
    """Without all of them."""
