"""A connector of vLLM's own base class that serves other engines: vLLM's words, vLLM's statuses, one engine."""

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
)
from vllm.distributed.parallel_state import get_pp_group, get_tensor_model_parallel_rank
from vllm.v1.request import RequestStatus


@dataclass
class Plan(KVConnectorMetadata):
    pulls: list = field(default_factory=list)
    let_go: list = field(default_factory=list)


class Peers(KVConnectorBase_V1):
    """Takes a ticket by crossing it out, as vLLM's own do; holds what ended with its one token."""

    lets_go = True

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        self._size = vllm_config.cache_config.block_size
        self._plan, self._sent, self._received = Plan(), set(), set()

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        if not (request.kv_transfer_params or {}).get("do_remote_prefill"):
            return 0, False
        more = request.num_prompt_tokens - num_computed_tokens
        return more, more > 0

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        params = request.kv_transfer_params or {}
        if not params.get("do_remote_prefill"):
            return
        params["do_remote_prefill"] = False
        if num_external_tokens == 0:
            self._plan.let_go.append(params["remote_request_id"])
            return
        (table,) = blocks.get_block_ids()
        first = (request.num_prompt_tokens - num_external_tokens) // self._size
        pairs = list(zip(params["remote_block_ids"][first:], table[first:], strict=True))
        self._plan.pulls.append((request.request_id, params["remote_request_id"], pairs))

    def build_connector_meta(self, scheduler_output):
        plan, self._plan = self._plan, Plan()
        return plan

    def request_finished(self, request, block_ids):
        params = request.kv_transfer_params or {}
        if params.get("do_remote_prefill") and self.lets_go:
            self._plan.let_go.append(params["remote_request_id"])
        if not params.get("do_remote_decode") or request.status is not RequestStatus.FINISHED_LENGTH_CAPPED:
            return False, None
        blocks = block_ids[: -(-request.num_prompt_tokens // self._size)]
        ticket = {"remote_request_id": request.request_id, "remote_block_ids": blocks}
        return True, {"do_remote_prefill": True, "do_remote_decode": False, **ticket}

    def register_kv_caches(self, kv_caches):
        self._caches = list(kv_caches.values())

    def start_load_kv(self, forward_context, **kwargs):
        plan = self._get_connector_metadata()
        for name, whose, pairs in plan.pulls:
            for cache in self._caches:
                for theirs, ours in pairs:
                    cache[ours] = cache[theirs].clone()
            self._received.add(name)
            self._sent.add(whose)
        self._sent.update(plan.let_go)

    def get_finished(self, finished_req_ids):
        ended = self._sent, self._received
        self._sent, self._received = set(), set()
        return ended

    def wait_for_layer_load(self, layer_name):
        pass

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        pass

    def wait_for_save(self):
        pass


class HoldsNothing(Peers):
    """What is wanted is freed at once, and no ticket is left."""

    def request_finished(self, request, block_ids):
        super().request_finished(request, block_ids)
        return False, None


class KeepsHolding(Peers):
    """A ticket that comes to nothing lets go of nothing."""

    lets_go = False


@dataclass
class Stands(KVConnectorHandshakeMetadata):
    """Where a worker stands: its pipeline rank and its tensor rank."""

    place: tuple[int, int]


class TellsWhereItStands(Peers):
    """Its workers tell others where they stand, and its scheduler's side keeps that."""

    def get_handshake_metadata(self):
        return Stands((get_pp_group().rank_in_group, get_tensor_model_parallel_rank()))

    def set_xfer_handshake_metadata_pp_aware(self, metadata):
        self.heard = metadata
        self.parallel = self._vllm_config.parallel_config
