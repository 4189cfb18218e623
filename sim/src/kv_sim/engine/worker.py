"""A rank's worker: calls the connector's hooks for a step in vLLM's order, and gives the device its work.

Runner V1 and V2 differ in when new blocks are zeroed or copied into: V2 does it before ``handle_preemptions``, so
there a fence doesn't protect a freed block that is zeroed or copied into; and only V2 calls ``finish_forward``.
With speculative decoding the end of a step waits for the draft model, so ``wait_for_save`` comes after the
transfer results; a step that computes nothing has none to wait for.
"""

from typing import Any

from kv_api import KVConnectorOutput
from kv_sim.checkers import work
from kv_sim.config import WorldConfig
from kv_sim.engine.crossing import Crossing
from kv_sim.engine.output import Step
from kv_sim.engine.rank_device import RankDevice
from kv_sim.engine.settings import layer_name
from kv_sim.guard import Guard
from kv_sim.memory.kv_cache import KVCache
from kv_sim.memory.launched import LaunchedStep
from kv_sim.violation import Invariant


class Forward:
    """Fits ``kv_api.ForwardContext``."""

    def __init__(self, layers: dict[str, KVCache]) -> None:
        self.no_compile_layers = layers


class Worker:
    """The worker of one rank: it calls the connector's hooks in vLLM's order."""

    def __init__(self, config: WorldConfig, device: RankDevice, connector: Guard, crossing: Crossing) -> None:
        self.config = config
        self._crossing = crossing
        self.device = device
        self.connector = connector
        self._places = {
            layer_name(group, layer): (group, layer)
            for group, layers in enumerate(config.layers_of(device.rank))
            for layer in range(layers)
        }
        self._windows = tuple(group.window for group in config.groups)
        self._parts = tuple(group.parts for group in config.groups)
        self.layers = {name: device.kv_cache(layer) for name, (_, layer) in self._places.items()}
        connector.get_mem_pool_context()
        connector.register_kv_caches(self.layers)
        self.handshake = connector.get_handshake_metadata()
        """This rank's handshake metadata for other engines, if any."""

    def sleep(self) -> None:
        """Free the rank's GPU memory."""
        self.connector.unregister_kv_caches()
        self.device.sleep()

    def wake(self) -> None:
        """Allocate the rank's GPU memory again, at the same addresses."""
        self.device.wake()
        self.connector.restore_kv_caches()
        self.handshake = self.connector.get_handshake_metadata()

    def execute(self, step: Step) -> KVConnectorOutput:
        """Run the hooks of a step and launch its kernels; returns the connector's report."""
        output, connector = step.output, self.connector
        sent = "scheduler side, build_connector_meta"
        meta = self._crossing.unpack(step.packed, output.kv_connector_metadata, sent)
        new_blocks = step.new_blocks
        launched = self._launched(step) if output.total_num_scheduled_tokens else None
        self.device.begin_step(new_blocks, step.handed)
        if self.config.runner == 2:
            self._prepare_blocks(step)
        connector.handle_preemptions(meta)
        self.device.take_over(new_blocks)
        if self.config.runner == 1:
            self._prepare_blocks(step)
        self.device.poison(step.load_targets)
        if launched is not None:
            self.device.prepare(launched)
        connector.bind_connector_metadata(meta)
        forward = Forward(self.layers)
        if output.has_sync_kv_loads:
            self._call("start_load_kv", forward)
        if launched is not None:
            self._forward(step, launched)
        if self.config.runner == 2:
            connector.finish_forward()
        if not output.has_sync_kv_loads:
            self._call("start_load_kv", forward)
        waits_for_drafts = self.config.spec_tokens and output.total_num_scheduled_tokens
        if not waits_for_drafts:
            connector.wait_for_save()
        # In one process nothing is copied, neither what a connector gets nor what it gives: one that goes on to
        # use its sets changes a report that isn't processed yet.
        ended = output.finished_req_ids if step.packed is None else set(output.finished_req_ids)
        results = self._call("get_transfer_results", ended)
        is_v2 = self.config.runner == 2
        report = KVConnectorOutput(
            finished_sending=(results.finished_sending or None) if is_v2 else results.finished_sending,
            finished_recving=(results.finished_recving or None) if is_v2 else results.finished_recving,
            failed_recving=results.failed_recving,
            invalid_block_ids=connector.get_block_ids_with_load_errors(),
            kv_connector_stats=self._told("get_kv_connector_stats"),
            kv_cache_events=self._told("get_kv_connector_kv_cache_events"),
            kv_connector_worker_meta=self._told("build_connector_worker_meta"),
        )
        if waits_for_drafts:
            connector.wait_for_save()
        connector.clear_connector_metadata()
        return report

    def _call(self, method: str, given: Any) -> Any:
        """Call a method that must not wait for asynchronous loads, with a forward context or with what ended."""
        referee = self._crossing.referee
        children = getattr(self.connector.connector, "sub_connectors", ())
        call = getattr(self.connector, method)
        # A connector with finished requests may end one here, and then waits for its copies.
        if Invariant.WORK in referee.switched_off or children:
            return call(given)
        copies = self.device.copies
        copies.waited.clear()
        ended = {*given} if isinstance(given, set) else ()  # the connector may empty it
        answer = call(given)
        work.check_waits(self.device.rank, method, copies.waited, self.device.shadow, referee, ended)
        return answer

    def _told(self, method: str) -> Any:
        """The worker side's output, as it arrives at the scheduler's side."""
        answer = getattr(self.connector, method)()
        if answer is None:
            return None
        return self._crossing.carry(answer, f"worker {self.device.rank} side, {method}")

    def _prepare_blocks(self, step: Step) -> None:
        self.device.zero(step.output.new_block_ids_to_zero or [], step.number)
        self.device.copy_blocks(step.output.kv_cache_block_copies or (), step.number)

    def _launched(self, step: Step) -> LaunchedStep:
        return LaunchedStep(
            step.number,
            step.attentions,
            step.poison,
            step.problems,
            self.config.block_size,
            self._windows,
            self._parts,
            late_states=step.late_states,
        )

    def _forward(self, step: Step, launched: LaunchedStep) -> None:
        loaded = {block for blocks in step.sync_targets.values() for block in blocks}
        for name, (group, layer) in self._places.items():
            if self.connector.has_connector_metadata():  # otherwise an attention layer skips its hooks
                self.connector.wait_for_layer_load(name)
                if loaded:
                    self.device.read_loaded(launched, loaded, group, layer)
        self.device.launch(launched)
        for name, cache in self.layers.items():
            if self.connector.has_connector_metadata():
                self.connector.save_kv_layer(name, cache, None)
