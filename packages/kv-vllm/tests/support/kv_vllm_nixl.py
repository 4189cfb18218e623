"""vLLM's NixlConnector with mistakes in it, and its NixlPushConnector without one."""

from vllm.distributed.kv_transfer.kv_connector.v1.nixl import NixlConnector, NixlPushConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_worker import NixlPushConnectorWorker


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


class LearnsAll(NixlPushConnector):
    """Whoever connects to another engine learns where its blocks are, even if it only has to tell it something."""

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        if self.connector_worker is not None:
            self.connector_worker.__class__ = LearningWorker


class LearningWorker(NixlPushConnectorWorker):
    def _ensure_handshake(self, engine, host, port, tp_size, dcp_size=1, pp_size=1, notif_agents_only=False):
        return super()._ensure_handshake(engine, host, port, tp_size, dcp_size, pp_size)
