"""The worker's side of a connector: it moves bytes as the scheduler's side said, and decides nothing.

One object lives in each worker process. At start it gets the KV caches; then in every step, in this order:
``handle_preemptions`` · ``bind_connector_metadata`` · ``start_load_kv`` (before the forward pass when the step
loads something itself, else after it) · for each layer ``wait_for_layer_load`` and ``save_kv_layer`` ·
``wait_for_save`` · ``get_transfer_results`` · ``get_block_ids_with_load_errors`` · stats, events, worker
metadata · ``clear_connector_metadata``. With speculative decoding ``wait_for_save`` and ``clear`` come last,
after the draft model's pass. A step without a forward pass has all of it but the layers.
"""

from abc import abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from kv_api.engine import AttentionMetadata, CopyBlocksOp, ForwardContext, KVCaches, Tensor
from kv_api.events import KVConnectorKVEvents
from kv_api.metadata import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)
from kv_api.output import KVConnectorTransferResults
from kv_api.side import ConnectorSide


class WorkerSide(ConnectorSide):
    """Every method that an engine's worker calls, with its contract and its default."""

    _connector_metadata: KVConnectorMetadata | None = None

    # -- start and sleep -----------------------------------------------------------------------

    def get_mem_pool_context(self) -> AbstractContextManager[Any] | None:
        """A context in which the engine allocates its KV caches. None: the engine's own pool."""
        return None

    def register_kv_caches(self, kv_caches: KVCaches) -> None:
        """Take the KV caches by layer name. Called once at start, before any step."""

    def unregister_kv_caches(self) -> None:
        """Let go of the KV caches before the engine sleeps. May be repeated.

        The engine has paused, all its steps have returned, and it has asked ``has_pending_push_work``; a
        connector that implements that has no transfers under way. An engine in the caller's own process
        (``InprocClient``) takes no steps for that, so transfers may still be under way there.
        """

    def restore_kv_caches(self) -> None:
        """Take the same KV caches again after the engine woke: they are where they were, and hold nothing.

        May be repeated. ``get_handshake_metadata`` is asked again after it.
        """

    def set_host_xfer_buffer_ops(self, copy_operation: CopyBlocksOp) -> None:
        """Take the platform's way to copy blocks between device and host buffers."""

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """What peers need to reach this worker; asked at the start, and after each wake-up. None: nothing."""
        return None

    # -- begin of a step -----------------------------------------------------------------------

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Wait for the copies that must end before this step may overwrite their blocks. Called in every step.

        It comes before ``bind_connector_metadata``, with the same metadata. Runner V2 zeroes and copies blocks
        *before* it, so there it protects only against what the forward pass writes.
        """

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Take what the scheduler's side built for this step."""
        self._connector_metadata = connector_metadata

    def has_connector_metadata(self) -> bool:
        """Whether metadata is bound, that is, whether a step is going on."""
        return self._connector_metadata is not None

    def _get_connector_metadata(self) -> KVConnectorMetadata:
        """The bound metadata; only within a step."""
        if self._connector_metadata is None:
            raise RuntimeError(
                f"{type(self).__name__} has no metadata: it is bound only between "
                "bind_connector_metadata and clear_connector_metadata"
            )
        return self._connector_metadata

    @abstractmethod
    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        """Begin the step's loads. Must not wait for asynchronous ones.

        What the step itself needs has to be there by ``wait_for_layer_load`` of each layer.
        """

    # -- forward pass --------------------------------------------------------------------------

    @abstractmethod
    def wait_for_layer_load(self, layer_name: str) -> None:
        """Return when the layer's in-step loads are in the cache. Called from inside the attention layer."""

    @abstractmethod
    def save_kv_layer(
        self, layer_name: str, kv_layer: Tensor, attn_metadata: AttentionMetadata, **kwargs: Any
    ) -> None:
        """Begin to store what this step computed of a layer. Called from inside the attention layer."""

    def finish_forward(self) -> None:
        """The model no longer reads this step's KV. Runner V2 only."""

    def reset_capture_state(self) -> None:
        """Forget what the capture of device graphs left behind. Runner V2 only."""

    # -- end of a step -------------------------------------------------------------------------

    @abstractmethod
    def wait_for_save(self) -> None:
        """Begin the step's stores, and wait for those that must end within the step.

        Called once a step, an empty one too, with metadata bound. An asynchronous store must keep its source
        blocks (held or fenced) until it has read them.
        """

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Ids whose asynchronous store, and whose asynchronous load, ended since the last call.

        ``finished_req_ids`` are the requests that ended in this step; a store is reported only for an id of this
        or an earlier call. Report each id once. Report every asynchronous load, even of an aborted request: the
        engine waits for it.
        """
        return None, None

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """The same as ``get_finished``, with the loads that failed. This is what the engine calls."""
        answer: Any = self.get_finished(finished_req_ids)
        if not _is_pair_of_ids(answer):
            raise TypeError(
                f"{type(self).__name__}.get_finished answered {answer!r}, expected a pair of sets: the ids of "
                "requests whose store ended, and of those whose load ended; None stands for an empty set"
            )
        stored, loaded = answer
        return KVConnectorTransferResults(finished_sending=set(stored or ()), finished_recving=set(loaded or ()))

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that loads failed to fill, since the last call.

        Report them no later than the end of the request's load; for an in-step load, in the same step. Report
        only blocks that a load of this connector was to write. For models with one group only, of layers that
        read all tokens; others use ``failed_recving``. (The engine goes on at the first of these blocks. A load
        of a window fills only the window's end, so what is read before that block isn't there.)
        """
        return set()

    def get_kv_connector_kv_cache_events(self) -> KVConnectorKVEvents | None:
        """The KV events that this worker caused since the last call."""
        return None

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """What this worker tells the scheduler's side after the step. None: nothing."""
        return None

    def clear_connector_metadata(self) -> None:
        """The step is over: forget its metadata."""
        self._connector_metadata = None


def _is_pair_of_ids(answer: Any) -> bool:
    """As vLLM's engine would unpack it; a text would be taken for the set of its letters."""
    is_pair = isinstance(answer, (tuple, list)) and len(answer) == 2
    return is_pair and all(not ids or (isinstance(ids, Iterable) and not isinstance(ids, str)) for ids in answer)
