"""A rank's worker in the driver: vLLM's own code calls the connector's hooks, and the testbed's device computes.

For runner V1 that code is ``KVConnectorModelRunnerMixin``, for V2 ``ActiveKVConnector``. The code around them is
in the model runners, which need a GPU, so it is done here, in their order: V1 calls ``handle_preemptions``, then
zeroes new blocks and copies those that are copied on write; V2 does both before anything else. Both copy states to
the blocks in which requests go on before they call ``start_load_kv``. With drafts the end of a step waits for the
draft model (V2: since 0.33). The device runs all layers of a step at once, so every ``wait_for_layer_load`` comes
before it and every ``save_kv_layer`` after it; a real model goes layer by layer.
"""

import inspect
import pickle
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any, Final

from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.distributed.kv_transfer.kv_connector.utils import copy_kv_blocks
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1, KVConnectorRole
from vllm.forward_context import set_forward_context
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.worker.gpu.kv_connector import ActiveKVConnector
from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin

from kv_sim.config import WorldConfig
from kv_sim.engine.output import Step
from kv_sim.engine.rank_device import RankDevice
from kv_sim.memory.launched import LaunchedStep
from kv_vllm.driver.connector import DrivenConnector
from kv_vllm.driver.surroundings.ranks import at_work
from kv_vllm.vllm_world import kv_cache_config, layer_name

TELLS_OF_SLEEP: Final = hasattr(KVConnectorBase_V1, "unregister_kv_caches")
"""Before 0.33 vLLM sleeps and tells connectors nothing of it."""


@contextmanager
def process_of(connector: DrivenConnector, rank: int, world_size: int) -> Iterator[None]:
    """A context in which this process is the worker's: vLLM has a process for each connector."""
    assert kv_transfer_state._KV_CONNECTOR_AGENT is None, "two workers of a process are at work at the same time"
    kv_transfer_state._KV_CONNECTOR_AGENT = connector
    try:
        with at_work(rank, world_size):
            yield
    finally:
        kv_transfer_state._KV_CONNECTOR_AGENT = None


class VllmWorker:
    """The worker of one rank: it calls the connector's hooks by vLLM's own code."""

    def __init__(
        self, world: WorldConfig, device: RankDevice, driven: Callable[[Any], Any], kv_caches: dict[str, Any]
    ) -> None:
        """``driven`` makes the configuration of the rank's connector, which tells this worker when it begins."""
        self.world = world
        self.device = device
        self._config = driven(self)
        self._layers = kv_caches
        self._config.compilation_config.static_forward_context.update(
            {name: SimpleNamespace(kv_cache=cache) for name, cache in kv_caches.items()}
        )
        self._new_blocks: Collection[int] = ()
        self._load_targets: list[int] = []
        self._launched: LaunchedStep | None = None
        sharing_ranks = self._config.parallel_config.decode_context_parallel_size
        caches = kv_cache_config(world, sharing_ranks)
        self.connector = DrivenConnector(self._config, KVConnectorRole.WORKER, caches)
        with self._process():
            self.connector.get_mem_pool_context()
            self._start()
            self.handshake = self.connector.get_handshake_metadata()
            """The rank's handshake metadata for other engines, if it has any."""

    def _process(self) -> AbstractContextManager[None]:
        return process_of(self.connector, self._config.parallel_config.rank, self.world.world_size)

    def _start(self) -> None:
        self.connector.register_kv_caches(self._layers)
        self.connector.set_host_xfer_buffer_ops(copy_kv_blocks)

    def sleep(self) -> None:
        """Release the rank's GPU memory."""
        if TELLS_OF_SLEEP:
            with self._process():
                self.connector.unregister_kv_caches()
        self.device.sleep()

    def wake(self) -> None:
        """Restore the rank's GPU memory at the same addresses."""
        self.device.wake()
        if TELLS_OF_SLEEP:
            with self._process():
                self.connector.restore_kv_caches()
                self.handshake = self.connector.get_handshake_metadata()

    def begins(self) -> None:
        """The connector has handled preemptions: from now on loads may begin."""
        self.device.take_over(self._new_blocks)
        self.device.poison(self._load_targets)
        if self._launched is not None:
            self.device.prepare(self._launched)

    def execute(self, step: Step) -> KVConnectorOutput:
        """Run the hooks of a step and launch its kernels; returns what the connector reports."""
        self._new_blocks, self._load_targets = step.new_blocks, step.load_targets
        self._launched = self._launch_of(step) if step.attentions else None
        self.device.begin_step(step.new_blocks, step.handed)
        output: Any = step.output if step.packed is None else pickle.loads(step.packed)
        with self._process():
            report = self._execute(output, step)
        return report if report is not None else KVConnectorOutput()

    def _execute(self, output: Any, step: Step) -> KVConnectorOutput | None:
        """The order of runner V1."""
        self.connector.handle_preemptions(output.kv_connector_metadata)
        self._prepare_blocks(output, step)
        if not output.total_num_scheduled_tokens:
            empty = KVConnectorModelRunnerMixin.kv_connector_no_forward(output, self._config)
            return empty.kv_connector_output
        waits_for_drafts = bool(self.world.spec_tokens)
        with (
            set_forward_context(self._attention(), self._config),
            KVConnectorModelRunnerMixin.maybe_get_kv_connector_output(
                output, defer_finalize=waits_for_drafts
            ) as report,
        ):
            self._forward(step)
        if waits_for_drafts:
            KVConnectorModelRunnerMixin.finalize_kv_connector()
        return report

    def _prepare_blocks(self, output: Any, step: Step) -> None:
        self.device.zero(output.new_block_ids_to_zero or [], step.number)
        copies = getattr(output, "kv_cache_block_copies", None) or ()
        self.device.copy_blocks([(copy.src_block_id, copy.dst_block_id) for copy in copies], step.number)

    def _attention(self) -> dict[str, Any]:
        """A stand-in for the attention backend's metadata, which says that there is a forward pass."""
        return {name: SimpleNamespace() for name in self._layers}

    def _launch_of(self, step: Step) -> LaunchedStep:
        windows, parts = zip(*((group.window, group.parts) for group in self.world.groups), strict=True)
        return LaunchedStep(
            step.number,
            step.attentions,
            step.poison,
            step.problems,
            self.world.block_size,
            windows,
            parts,
            late_states=step.late_states,
        )

    def _forward(self, step: Step) -> None:
        launched = self._launched
        assert launched is not None, f"step {step.number} computes nothing"
        loaded = {block for blocks in step.sync_targets.values() for block in blocks}
        for group in range(len(self.world.groups)):
            for layer in range(self.world.layers):
                self.connector.wait_for_layer_load(layer_name(group, layer))
                if loaded:
                    self.device.read_loaded(launched, loaded, group, layer)
        self.device.launch(launched)
        for name, attention in self._attention().items():
            self.connector.save_kv_layer(name, self._layers[name], attention)


class VllmWorkerV2(VllmWorker):
    """A worker with the order of runner V2."""

    def _start(self) -> None:
        self._active = ActiveKVConnector(self._config, self._layers)
        self._can_wait = "defer_finalize" in inspect.signature(self._active.post_forward).parameters

    def _execute(self, output: Any, step: Step) -> KVConnectorOutput | None:
        self._prepare_blocks(output, step)
        if not output.total_num_scheduled_tokens:
            empty = self._active.no_forward(output)
            return empty.kv_connector_output
        batch = SimpleNamespace(idx_mapping=None, req_ids=list(output.num_scheduled_tokens))
        batch.num_tokens = output.total_num_scheduled_tokens
        with set_forward_context(self._attention(), self._config):
            self._active.pre_forward(output, batch)
            self._forward(step)
        self._active.finish_forward()
        finished = output.finished_req_ids
        if not (self.world.spec_tokens and self._can_wait):
            return self._active.post_forward(finished)
        report = self._active.post_forward(finished, defer_finalize=True)
        self._active.finalize_step()
        return report
