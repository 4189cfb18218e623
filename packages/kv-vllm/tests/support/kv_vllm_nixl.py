"""vLLM's NixlConnector with mistakes in it."""

from vllm.distributed.kv_transfer.kv_connector.v1.nixl import NixlConnector


class SwapsBlocks(NixlConnector):
    """What its tickets say is another order of the blocks than that of the prompt."""

    def request_finished_all_groups(self, request, block_ids):
        held, ticket = super().request_finished_all_groups(request, block_ids)
        if ticket and ticket.get("remote_block_ids"):
            ticket["remote_block_ids"] = tuple(table[::-1] for table in ticket["remote_block_ids"])
        return held, ticket


class TakesNothing(NixlConnector):
    """Whoever comes with a ticket computes what another engine holds for it."""

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return 0, False
