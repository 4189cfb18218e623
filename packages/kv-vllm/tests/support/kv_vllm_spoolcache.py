"""SpoolCache's connector on a machine without a GPU.

``OnCpu`` is the connector as it is, which begins with a model of text, too, and keeps pieces of one block instead
of 256 tokens. It copies tensors, in whose place are the testbed's; what it asks of CUDA for that has stand-ins.
``Whole`` stores prompts that are computed in one step, too, and ``Mended`` is also without what else it was found
to get wrong, but for the blocks that it loads once more.
"""

import logging
import warnings
from types import SimpleNamespace

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM compiles something when it is imported
    from spoolcache import gpu, token_files, token_mover
    from spoolcache.vllm import connector as spoolcache

logging.getLogger("spoolcache").setLevel(logging.CRITICAL)


def pieces_of_a_block(alignment):
    """As few tokens as may be loaded. Prompts of a world are short."""
    return alignment


for module in (token_files, token_mover, spoolcache):
    module.aligned_chunk_tokens = pieces_of_a_block
spoolcache.STAGING_SLOT_BYTES = 1 << 16


class Event:
    """A place in a stream. All that is before it has happened."""

    def __init__(self, *, blocking, interprocess):
        pass

    def record(self, stream):
        """Nothing is under way."""

    def synchronize(self):
        """Nothing to wait for."""


def registered(*memory):
    """Memory that a GPU may copy from and to; all of it may."""
    return 0


def current_stream(device):
    """In which everything has happened."""
    return SimpleNamespace(synchronize=lambda: None)


class Torch:
    """torch, for a module that has a GPU."""

    cuda = SimpleNamespace(
        Event=Event,
        cudart=lambda: SimpleNamespace(cudaHostRegister=registered, cudaHostUnregister=registered),
        current_stream=current_stream,
    )

    def __getattr__(self, name):
        return getattr(torch, name)

    def frombuffer(self, *said, **named):
        """A tensor of memory that was registered."""
        made = torch.frombuffer(*said, **named)
        made.is_pinned = lambda: True
        return made


class OnGpu:
    """A tensor that says that it is on a GPU."""

    device = torch.device("cuda", 0)

    def __init__(self, tensor):
        self._tensor = tensor

    def __getattr__(self, name):
        return getattr(self._tensor, name)


class WorkerEndsError(Exception):
    """A worker's process would end here."""


def ends(error, *, rank, entry_id):
    """Instead of ending this process."""
    raise WorkerEndsError(f"{error}: {error.__cause__}")


gpu._torch = Torch
spoolcache.terminate_worker_after_fatal_restore = ends


class OnCpu(spoolcache.SpoolCacheConnector):
    """It, over the testbed's tensors."""

    def __init__(self, vllm_config, role, kv_cache_config):
        object.__setattr__(vllm_config.model_config, "get_multimodal_config", lambda: None)
        super().__init__(vllm_config, role, kv_cache_config)

    def _create_mover(self, layout, kv_caches, **said):
        return super()._create_mover(layout, {name: OnGpu(one) for name, one in kv_caches.items()}, **said)


def at_the_boundary_or_after(*, before_tokens, target_span_tokens, require_exact_boundary, **others):
    """When to store a prompt: as soon as all of it was computed."""
    if before_tokens < target_span_tokens:
        return None
    return 0 if require_exact_boundary and before_tokens > target_span_tokens else target_span_tokens


class Whole(OnCpu):
    """A prompt is stored in the step after that in which it was computed."""

    @property
    def _store_requires_exact_boundary(self):
        return any(group.reuse_policy != "full" for group in self.layout.groups)

    def build_connector_meta(self, scheduler_output):
        as_it_is = spoolcache._pre_forward_store_span
        spoolcache._pre_forward_store_span = at_the_boundary_or_after
        try:
            return super().build_connector_meta(scheduler_output)
        finally:
            spoolcache._pre_forward_store_span = as_it_is


class Mended(Whole):
    """A request may also be found beyond its prompt, and all that is counted arrives."""

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        if num_computed_tokens > request.num_prompt_tokens:
            return 0, False
        return super().get_num_new_matched_tokens(request, num_computed_tokens)
