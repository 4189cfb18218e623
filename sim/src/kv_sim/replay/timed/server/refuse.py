"""Refuses settings and traces that would overflow a replay's clock, or need more blocks than memory holds.

A clock counts nanoseconds in 63 bits, which is 292 years. So that no sum gets there, no single duration may be
more than a day: for example a step of all tokens that fit the GPU, or the copy of the longest request.
"""

from math import inf
from typing import Final

from kv_api import ConfigError
from kv_sim.replay.timed.durations.timing import SECOND
from kv_sim.replay.timed.server.settings import EngineSettings
from kv_sim.replay.timed.server.sizes import Sizes

MOST_BLOCKS: Final = 1 << 26
"""The most blocks of a GPU, and chunks of host memory or files: each takes an entry in a table."""

MOST_SECONDS: Final = 86_400
LATEST_ARRIVAL: Final = 1e9
"""Seconds; that is 31 years."""


def refuse_too_much(settings: EngineSettings, sizes: Sizes) -> None:
    """Refuse settings with which the clock could overflow or memory could run out."""
    _check_count("gpu_blocks", sizes.gpu_blocks)
    if settings.connector is None:
        for name in ("cpu_bytes_to_use", "disk_bytes_to_use"):
            _check_count(name, getattr(settings, name) // sizes.block_bytes)
    longest, step = sizes.most_tokens, sizes.step
    tokens = min(sizes.max_step_tokens, sizes.gpu_blocks * sizes.block_tokens)
    arithmetic = tokens * step.ns_per_token + tokens * longest * step.ns_per_pair
    memory = step.ns_of_weights + sizes.max_running * longest * step.ns_per_context_token
    blocks = -(-longest // sizes.block_tokens)
    disk = max(sizes.disk_read.block_ns, sizes.disk_write.block_ns)
    for what, ns, causes in (
        ("the forward pass of a step", max(arithmetic, memory), "the GPU's FLOP/s, bandwidth and efficiencies"),
        ("a step beside its forward pass", float(step.overhead_ns), "its microseconds"),
        ("an idle step", float(step.idle_ns), "its microseconds"),
        (
            f"a copy of {blocks} blocks",
            blocks * sizes.link.block_ns,
            "the link's bandwidth and efficiency, and the microseconds of a copy",
        ),
        (f"{blocks} blocks on the disk", blocks * disk, "its bandwidths and its microseconds"),
        (
            f"a pull of {blocks} blocks",
            sizes.pull_ns + blocks * sizes.network.block_ns,
            "the network's bandwidth, the link's efficiency, and the microseconds of a pull",
        ),
    ):
        if not ns <= MOST_SECONDS * SECOND:
            raise ConfigError(
                f"{what} could take {_seconds(ns)}, more than the day that one step of a replay's clock may "
                f"take; check {causes}"
            )


def refuse_too_late(index: int, seconds: float) -> None:
    """Refuse a request that comes too late for the clock."""
    if not seconds <= LATEST_ARRIVAL:
        raise ConfigError(
            f"request {index} arrives after {_seconds(seconds * SECOND)}, and a replay's clock ends at "
            f"{LATEST_ARRIVAL:g} s; check --time-unit and --arrival-scale"
        )


def _check_count(name: str, blocks: int) -> None:
    if blocks > MOST_BLOCKS:
        raise ConfigError(
            f"{name}: that is {blocks} blocks, and a replay supports {MOST_BLOCKS} at most; choose larger "
            "blocks or less memory"
        )


def _seconds(ns: float) -> str:
    return "for ever" if ns == inf else f"{ns / SECOND:.3g} s"
