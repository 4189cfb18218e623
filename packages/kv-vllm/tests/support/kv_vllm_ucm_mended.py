"""UCM's connector without most of what it was found to get wrong, so that a hunt finds more.

Each class does without one mistake; ``Mended`` is all of them.
"""

from kv_vllm_ucm import OnCpu


class AsksForNoneWhoReadsNone(OnCpu):
    """Of a request that reads no cache the answer is dropped, so nothing is found for it."""

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        if request.skip_reading_prefix_cache:
            return 0, False
        return super().get_num_new_matched_tokens(request, num_computed_tokens)


class LoadsOnce(OnCpu):
    """What was found for a session's first turn isn't loaded again with the next."""

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        self._begun = set()

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        self._begun.discard(request.request_id)
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def build_connector_meta(self, scheduler_output):
        side = self.connector
        for request in scheduler_output.scheduled_new_reqs:
            if request.req_id in self._begun:
                side.requests_meta.pop(request.req_id, None)
            self._begun.add(request.req_id)
        self._begun -= scheduler_output.finished_req_ids
        return super().build_connector_meta(scheduler_output)


class HoldsWhatIsDumped(OnCpu):
    """The dumps of a request that is preempted end at once, so they hold nothing of it later."""

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        self._held = set()

    def request_finished_all_groups(self, request, block_ids):
        is_held, told = super().request_finished_all_groups(request, block_ids)
        if is_held:
            self._held.add(request.request_id)
        return is_held, told

    def build_connector_meta(self, scheduler_output):
        ended = (scheduler_output.preempted_req_ids or set()) - self._held
        self._held -= scheduler_output.finished_req_ids
        self.connector._async_dump_req_ids -= ended
        plan = super().build_connector_meta(scheduler_output)
        plan.ended = ended
        return plan

    def handle_preemptions(self, kv_connector_metadata):
        super().handle_preemptions(kv_connector_metadata)
        ended = kv_connector_metadata.ended & self.connector._async_dump_req_ids
        self.connector._async_dump_req_ids -= ended
        self.connector._rank_consistency.finish_dump(ended)


class LeavesNullAlone(OnCpu):
    """Where a window has no block, nothing is moved."""

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        self.connector._skip_null_vllm_blocks = True


class LoadsWhatItSaid(OnCpu):
    """Of a prompt that is found whole, blocks that are computed anew aren't loaded."""

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        found, is_later = super().get_num_new_matched_tokens(request, num_computed_tokens)
        known = self.connector.requests_meta.get(request.request_id)
        if known is not None:
            blocks = -(-found // self.connector.block_size)
            known.total_hit_block_num = known.hbm_hit_block_num + blocks
        return found, is_later


class ForgetsLayers(OnCpu):
    """What was loaded layer by layer in a step isn't loaded again in the next."""

    def clear_connector_metadata(self):
        super().clear_connector_metadata()
        self.connector.need_load = False


class Mended(
    AsksForNoneWhoReadsNone, LoadsOnce, HoldsWhatIsDumped, LeavesNullAlone, LoadsWhatItSaid, ForgetsLayers
):
    """Without all of them."""
