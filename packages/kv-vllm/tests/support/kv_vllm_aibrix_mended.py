"""AIBrix's connectors without what they were found to get wrong, so that a hunt finds more."""

import zlib
from dataclasses import replace

from kv_vllm_aibrix import ByLayer, OnCpu
from kv_vllm_aibrix_runner import Runner


class MendedRunner(Runner):
    """What the scheduler said stays as it was said, and new blocks are zeroed before they are loaded."""

    def _execute(self, output, step):
        own = replace(output, num_scheduled_tokens={**output.num_scheduled_tokens})
        return super()._execute(own, step)

    def kv_connector_load_before_update(self, output):
        self.device.zero(output.new_block_ids_to_zero or [], self._step.number)
        output.new_block_ids_to_zero = None
        return super().kv_connector_load_before_update(output)


class _Mended:
    """In front of either type."""

    runner_v1 = MendedRunner

    def __init__(self, config, role, kv_cache_config):
        super().__init__(config, role, kv_cache_config)
        self._masks = {}
        """Request -> what its tokens are told apart by from the same ones of somebody else's."""
        self._was_asked = False

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        """Hear of whom it is."""
        adapter = request.lora_request.lora_name if request.lora_request else None
        self._masks[request.request_id] = zlib.crc32(repr((adapter, request.cache_salt)).encode()) >> 1
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def build_connector_meta(self, scheduler_output):
        plan = super().build_connector_meta(scheduler_output)
        for new in scheduler_output.scheduled_new_reqs:
            name = new.req_id
            if name in plan:
                mask = self._masks[name]
                plan[name].seq_token_ids = (0, [token ^ mask for token in new.prompt_token_ids])
                left = plan[name].prompt_len - plan[name].context_len
                plan[name].query_len = min(plan[name].query_len, left)  # runner V2 resumes it as if it were new
        return plan

    def start_load_kv_before_update(self):
        """In runner V1."""
        self._was_asked = True
        self._forget_turns()
        return super().start_load_kv_before_update()

    def start_load_kv(self, forward_context, **named):
        """Runner V2 doesn't ask for loads; what is saved later has to be known all the same."""
        if not self._was_asked:
            self._forget_turns()
            self.connector_worker._update_meta_cache(self._connector_metadata)
        self._was_asked = False

    def _forget_turns(self):
        """The next turn of a session has a longer prompt."""
        known = self.connector_worker._meta_cache
        for name, meta in self._connector_metadata.items():
            if meta.seq_token_ids and name in known and len(known[name].context_tokens) != meta.prompt_len:
                del known[name]

    def request_finished(self, request, block_ids):
        self._masks.pop(request.request_id, None)
        return super().request_finished(request, block_ids)


class Mended(_Mended, OnCpu):
    """AIBrix's first type."""


class MendedByLayer(_Mended, ByLayer):
    """AIBrix's second type."""
