"""A connector of vLLM's own base class that copies in a thread of its own, as those of networks do.

It orders its stores by an event, takes addresses when the caches are registered, and asks its group of ranks who
it is. ``careless`` frees a request's blocks before they were stored.
"""

import queue
import threading
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank, get_tp_group

Pairs = list[tuple[int, bytes]]


@dataclass
class Plan(KVConnectorMetadata):
    """By request, which blocks hold which hashes."""

    loads: dict[str, Pairs] = field(default_factory=dict)
    stores: dict[str, Pairs] = field(default_factory=dict)


class ThreadedConnector(KVConnectorBase_V1):
    """Both sides."""

    careless = False
    seconds = 0.0
    """How long a copy takes at least."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._block_size = vllm_config.cache_config.block_size
        self._plan = Plan()
        self._stored: set[bytes] = set()
        self._storing: dict[str, Pairs] = {}
        self._first: dict[str, int] = {}
        """By request, the first block that isn't in the engine's own cache."""
        self._loading: set[str] = set()
        self._thread: threading.Thread | None = None
        if role is KVConnectorRole.WORKER:
            self._pages: dict[bytes, list[Any]] = {}
            self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
            self._sent: set[str] = set()
            self._received: set[str] = set()
            self.ranks = (
                get_tp_group().rank_in_group,
                get_tensor_model_parallel_rank(),
                get_tp_group().world_size,
            )
            self._thread = threading.Thread(target=self._work)
            self._thread.start()

    def shutdown(self) -> None:
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()

    # -- the scheduler's side ------------------------------------------------------------------

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        first = num_computed_tokens // self._block_size
        last = first
        while last < (request.num_tokens - 1) // self._block_size and request.block_hashes[last] in self._stored:
            last += 1
        self._first[request.request_id] = first
        tokens = (last - first) * self._block_size
        return tokens, tokens > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        first, count = self._first.pop(request.request_id, 0), num_external_tokens // self._block_size
        if count:
            table, where = blocks.get_block_ids()[0], slice(first, first + count)
            pairs = zip(table[where], request.block_hashes[where], strict=True)
            self._plan.loads[request.request_id] = list(pairs)
            self._loading.add(request.request_id)

    def build_connector_meta(self, scheduler_output: Any) -> Plan:
        plan, self._plan = self._plan, Plan()
        return plan

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        self._first.pop(request.request_id, None)
        full = min(request.num_computed_tokens, request.num_prompt_tokens) // self._block_size
        pairs = list(zip(block_ids[:full], request.block_hashes[:full], strict=False))
        if not pairs or request.request_id in self._loading:
            return False, None
        self._plan.stores[request.request_id] = pairs
        if self.careless:
            self._stored.update(block_hash for _, block_hash in pairs)
            return False, None
        self._storing[request.request_id] = pairs
        return True, None

    def update_connector_output(self, connector_output: Any) -> None:
        self._loading.difference_update(connector_output.finished_recving or ())
        for name in connector_output.finished_sending or ():
            self._stored.update(block_hash for _, block_hash in self._storing.pop(name))

    # -- a worker's side -----------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._layers = [cache.numpy() for cache in kv_caches.values()]

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        for name, pairs in self._get_connector_metadata().loads.items():
            self._jobs.put((self._load, name, pairs, None))

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None: ...

    def wait_for_save(self) -> None:
        computed = torch.cuda.Event()
        computed.record(torch.cuda.current_stream())
        for name, pairs in self._get_connector_metadata().stores.items():
            self._jobs.put((self._store, name, pairs, computed))

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        sent, self._sent = self._sent, set()
        received, self._received = self._received, set()
        return sent, received

    def _work(self) -> None:
        clock = threading.Event()
        while (job := self._jobs.get()) is not None:
            copy, name, pairs, computed = job
            clock.wait(self.seconds)
            if computed is not None:
                computed.synchronize()
            for block, block_hash in pairs:
                copy(block, block_hash)
            if computed is None:
                self._received.add(name)
            elif not self.careless:
                self._sent.add(name)

    def _load(self, block: int, block_hash: bytes) -> None:
        for layer, page in zip(self._layers, self._pages[block_hash], strict=True):
            layer[block] = page

    def _store(self, block: int, block_hash: bytes) -> None:
        self._pages[block_hash] = [layer[block].copy() for layer in self._layers]


class SlowConnector(ThreadedConnector):
    """A copy takes longer than a step."""

    seconds = 0.15


class GrowingConnector(ThreadedConnector):
    """In each step it has something to do for every token that ever came."""

    tokens = 0

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        self.tokens += request.num_tokens
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Plan:
        for _ in range(self.tokens):
            pass
        return super().build_connector_meta(scheduler_output)


class CarelessConnector(SlowConnector):
    """Blocks are freed while they are read."""

    careless = True
