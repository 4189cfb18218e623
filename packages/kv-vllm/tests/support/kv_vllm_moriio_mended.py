"""vLLM's MoRIIOConnector without what it was found to get wrong, so that a hunt finds more.

Each class does without one mistake; ``Mended`` is all of them.
"""

from kv_vllm_moriio import OnCpu


class AsksForTickets(OnCpu):
    """Nothing is found for who has no ticket, or has used it."""

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        params = request.kv_transfer_params or {}
        if not params.get("do_remote_prefill"):
            return 0, False
        return super().get_num_new_matched_tokens(request, num_computed_tokens)


class ReadsWhatItLacks(OnCpu):
    """Blocks that were found in the engine's own cache aren't read again."""

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        scheduler, name = self.connector_scheduler, request.request_id
        if not num_external_tokens or name not in scheduler._reqs_need_recv:
            return
        size = scheduler.block_size
        known = (request.num_prompt_tokens - 1 - num_external_tokens) // size
        lacks = -(-request.num_prompt_tokens // size) - known
        _, local = scheduler._reqs_need_recv[name]
        params = scheduler._req_kv_params[name]
        scheduler._reqs_need_recv[name] = request, [group[-lacks:] for group in local]
        params["remote_block_ids"] = [group[-lacks:] for group in params["remote_block_ids"]]


class ForgetsWhatIsNotHeld(OnCpu):
    """Of who ends, and isn't held, nothing is known any more."""

    def request_finished_all_groups(self, request, block_ids):
        answer = super().request_finished_all_groups(request, block_ids)
        scheduler, name = self.connector_scheduler, request.request_id
        if not answer[0] and name in scheduler.request_id_to_transfer_id:
            scheduler.unmap_request_id(name)
        return answer


class Mended(ForgetsWhatIsNotHeld, ReadsWhatItLacks, AsksForTickets):
    """Without all of them."""
