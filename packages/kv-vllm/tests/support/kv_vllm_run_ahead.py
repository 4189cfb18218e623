"""A real vLLM on CPUs with asynchronous scheduling, which its platform switches off there.

vLLM's runner then asks CUDA for streams and events; on a CPU whatever they would wait for has ended.
"""

from contextlib import nullcontext

import torch
from vllm.platforms.cpu import CpuPlatform
from vllm.v1.worker.cpu_worker import CPUWorker


class Nothing:
    """A stream or an event."""

    def __init__(self, *args, **kwargs):
        self.device = torch.device("cpu")

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


class Worker(CPUWorker):
    """A worker whose runner finds streams and events."""

    def __init__(self, *args, **kwargs):
        torch.cuda.Stream = torch.cuda.Event = torch.Event = torch.cuda.current_stream = Nothing
        torch.cuda.stream = nullcontext
        super().__init__(*args, **kwargs)


def run_ahead(patch):
    """Let engines that are made from here on schedule ahead; the options that they need for it."""
    settle = CpuPlatform.check_and_update_config.__func__

    def settle_ahead(platform, config):
        settle(platform, config)
        config.scheduler_config.async_scheduling = True

    patch.setattr(CpuPlatform, "check_and_update_config", classmethod(settle_ahead))
    for owner, names in ((torch.cuda, ("Stream", "Event", "current_stream", "stream")), (torch, ("Event",))):
        for name in names:
            patch.setattr(owner, name, getattr(owner, name))  # the worker's are undone with the rest
    return {"worker_cls": f"{__name__}.{Worker.__name__}"}
