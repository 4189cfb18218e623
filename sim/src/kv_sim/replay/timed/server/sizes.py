"""``Sizes``: what follows from a server's settings and a trace's block size; ``plan`` works it out."""

from dataclasses import dataclass, field
from typing import Final

from kv_api import ConfigError
from kv_sim.replay.timed.durations.timing import LinkCosts, StepCosts, to_ns
from kv_sim.replay.timed.server.hardware import GIB
from kv_sim.replay.timed.server.settings import EngineSettings

_MICRO: Final = 1e3
"""Nanoseconds of a microsecond."""


@dataclass(frozen=True)
class Sizes:
    """The sizes that follow from settings and from a trace's block size."""

    block_tokens: int
    parts: int
    """How many of the engine's blocks make one of the trace's."""
    kv_bytes_per_token: int
    gpu_blocks: int
    max_step_tokens: int
    max_running: int
    max_model_len: int
    pieces_per_block: int
    step: StepCosts = field(repr=False)
    link: LinkCosts = field(repr=False)
    disk_read: LinkCosts = field(repr=False)
    disk_write: LinkCosts = field(repr=False)
    network: LinkCosts = field(repr=False)
    pull_ns: int = field(repr=False)
    """Nanoseconds of each pull, beside its blocks."""

    @property
    def block_bytes(self) -> int:
        """Bytes of a block, over all ranks."""
        return self.kv_bytes_per_token * self.block_tokens

    @property
    def most_tokens(self) -> int:
        """Tokens of the longest request that the engine accepts."""
        return min(self.max_model_len, self.gpu_blocks * self.block_tokens)


def plan(settings: EngineSettings, trace_block_tokens: int) -> Sizes:
    """Compute the sizes, and refuse settings that no server could have."""
    block_tokens = settings.block_tokens or trace_block_tokens
    if trace_block_tokens % block_tokens:
        raise ConfigError(
            f"block_tokens: got {block_tokens}, which doesn't divide the trace's blocks of "
            f"{trace_block_tokens} tokens"
        )
    page_tokens = settings.page_tokens or (block_tokens if block_tokens % 16 else 16)
    if block_tokens % page_tokens:
        raise ConfigError(f"page_tokens: got {page_tokens}, which doesn't divide blocks of {block_tokens} tokens")
    max_running = settings.max_running or settings.gpu.running
    max_step_tokens = settings.max_step_tokens or settings.gpu.step_tokens
    if max_step_tokens < max_running:
        raise ConfigError(
            f"max_step_tokens: got {max_step_tokens}, less than the {max_running} requests that may run at "
            "once, each of which decodes a token in a step"
        )
    model = settings.model
    kv_bytes = model.kv_bytes_per_token(settings.tp_size)
    pages = block_tokens // page_tokens
    pieces = model.layers * pages

    def disk(bandwidth: float) -> LinkCosts:
        return LinkCosts(1e9 / bandwidth, settings.disk_microseconds * _MICRO, kv_bytes * block_tokens, pages)

    return Sizes(
        block_tokens=block_tokens,
        parts=trace_block_tokens // block_tokens,
        kv_bytes_per_token=kv_bytes,
        gpu_blocks=settings.gpu_blocks or _count_blocks(settings, kv_bytes * block_tokens),
        max_step_tokens=max_step_tokens,
        max_running=max_running,
        max_model_len=settings.max_model_len or model.max_tokens,
        pieces_per_block=pieces,
        step=_step_costs(settings, kv_bytes),
        link=LinkCosts(
            ns_per_byte=1e9 / (settings.gpu.link_bandwidth * settings.link_efficiency * settings.tp_size),
            ns_per_piece=settings.copy_microseconds * _MICRO,
            block_bytes=kv_bytes * block_tokens,
            pieces_per_block=pieces,
        ),
        disk_read=disk(settings.disk_read_bandwidth),
        disk_write=disk(settings.disk_write_bandwidth),
        network=LinkCosts(
            ns_per_byte=1e9 / (settings.network_bandwidth * settings.link_efficiency * settings.tp_size),
            ns_per_piece=0.0,
            block_bytes=kv_bytes * block_tokens,
            pieces_per_block=0,
        ),
        pull_ns=to_ns(settings.pull_microseconds / 1e6),
    )


def _step_costs(settings: EngineSettings, kv_bytes: int) -> StepCosts:
    model, gpu, ranks = settings.model, settings.gpu, settings.tp_size
    ns_per_flop = 1e9 / (gpu.flops * settings.flops_efficiency * ranks)
    ns_per_byte = 1e9 / (gpu.hbm_bandwidth * settings.hbm_efficiency * ranks)
    return StepCosts(
        ns_per_token=2 * model.parameters * ns_per_flop,
        ns_per_pair=4 * model.layers * model.heads * model.head_dim * ns_per_flop,
        ns_of_weights=model.weight_bytes * ns_per_byte,
        ns_per_context_token=kv_bytes * ns_per_byte,
        overhead_ns=to_ns(settings.step_microseconds / 1e6),
        idle_ns=max(1, to_ns(settings.idle_step_microseconds / 1e6)),
    )


def _count_blocks(settings: EngineSettings, block_bytes: int) -> int:
    """GPU blocks that fit beside the weights."""
    model, gpu, ranks = settings.model, settings.gpu, settings.tp_size
    usable = int(gpu.memory_bytes * settings.gpu_memory_utilization) * ranks
    blocks = (usable - model.weight_bytes) // block_bytes
    if blocks < 1:
        raise ConfigError(
            f"{model.name} on {ranks} × {gpu.name}: {_gib(usable)} of GPU memory may be used, and the model's "
            "weights take "
            f"{_gib(model.weight_bytes)}, which leaves no room for a block of {_gib(block_bytes)}; "
            "choose another GPU, or more of them"
        )
    return blocks


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"
