"""vLLM's runner V1 as AIBrix changes it: its connector loads before a step's requests are taken over.

AIBrix's own patch is applied, to the testbed's worker in the place of ``GPUModelRunner``. With what was loaded
there is less to compute than the scheduler said; the scheduler isn't told.
"""

import asyncio
import copy
import warnings
from dataclasses import replace
from types import SimpleNamespace

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM compiles something when it is imported
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    from kv_vllm.driver.worker import VllmWorker

    as_they_were = GPUModelRunner.execute_model, GPUModelRunner._update_states, asyncio.get_event_loop_policy()
    from aibrix_kvcache.integration.vllm.kv_connector import _apply_gpu_model_runner_patches

# To import it has an effect on the whole process, in which there may be others.
GPUModelRunner.execute_model, GPUModelRunner._update_states, policy = as_they_were
asyncio.set_event_loop_policy(policy)
del GPUModelRunner._aibrix_patched


def patched(runner):
    """A class of a runner, after AIBrix was imported."""
    _apply_gpu_model_runner_patches(SimpleNamespace(GPUModelRunner=runner))
    return runner


@patched
class Runner(VllmWorker):
    """One rank. What the connector loads lies in blocks into which the step would compute."""

    def execute(self, step):
        self._step, self._has_begun = step, False
        return super().execute(step)

    def begins(self):
        """Metadata are bound twice: for what is loaded before anything else, and for the step."""
        if self._has_begun:
            return
        self._has_begun = True
        super().begins()
        self.device.synchronize()  # it loads in the stream in which the steps before compute
        self.device.poison(self._step.poison)
        for attention in self._step.attentions:
            tokens = range(attention.start, attention.end)
            tables = [list(table) for table in attention.tables]
            size = self.world.block_size
            self.device.shadow.expect_load(attention.request_id, tables, tokens, size, self._step.number)

    def kv_connector_load_before_update(self, output):
        """Who was loaded, and how many tokens."""
        self.connector.bind_connector_metadata(output.kv_connector_metadata)
        self.loaded = self.connector.inner.call("start_load_kv_before_update")
        return self.loaded

    def _execute(self, output, step):
        self._output = output
        return self.execute_model(output)

    def execute_model(self, output):
        """A step."""
        return super()._execute(output, self._step)

    def _prepare_blocks(self, output, step):
        self._update_states(output)

    def _update_states(self, output):
        """Take over what the scheduler says of requests, and begin with their blocks."""
        super()._prepare_blocks(output, self._step)

    def _forward(self, step):
        """Compute what is left of the step."""
        left = self._output.num_scheduled_tokens
        less = copy.copy(step)
        less.attentions = [replace(one, start=one.end - left[one.request_id]) for one in step.attentions]
        less.poison = []
        super()._forward(less)
