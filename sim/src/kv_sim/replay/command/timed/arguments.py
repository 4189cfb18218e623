"""The command-line options of ``--fidelity engine``."""

import argparse
from collections.abc import Mapping
from typing import Final

from kv_offload import StoreWhen
from kv_sim.replay.timed.goal import EXPECTED as GOAL_EXPECTED
from kv_sim.replay.timed.goal import MEASURES, STATISTICS
from kv_sim.replay.timed.server.hardware import GPUS, MODELS
from kv_sim.replay.timed.server.settings import EngineSettings, Stepping
from kv_sim.replay.units import EXPECTED

USUAL: Final = EngineSettings()

NUMBERS: Final[Mapping[str, tuple[str, type, str]]] = {
    "tp-size": ("tp_size", int, "GPUs that share the model"),
    "flops-efficiency": ("flops_efficiency", float, "share of --gpu-flops that a forward pass reaches"),
    "hbm-efficiency": ("hbm_efficiency", float, "share of --hbm-bandwidth that a forward pass reaches"),
    "link-efficiency": ("link_efficiency", float, "share of --link-bandwidth that copies reach"),
    "step-microseconds": ("step_microseconds", float, "microseconds of each step beyond its forward pass"),
    "idle-step-microseconds": (
        "idle_step_microseconds",
        float,
        "microseconds between polls of copies while no request runs",
    ),
    "copy-microseconds": ("copy_microseconds", float, "microseconds of each copy beyond moving its bytes"),
    "page-tokens": ("page_tokens", int, "contiguous tokens of a layer: the server's block size"),
    "gpu-memory-utilization": ("gpu_memory_utilization", float, "share of GPU memory for weights and KV"),
    "block-tokens": ("block_tokens", int, "the server's block size in tokens (default: the trace's)"),
    "max-step-tokens": ("max_step_tokens", int, "tokens of a step; vLLM's max_num_batched_tokens"),
    "max-running": ("max_running", int, "requests that run at once; vLLM's max_num_seqs"),
    "disk-read-bandwidth": ("disk_read_bandwidth", float, "bytes a second from the disk, for all GPUs"),
    "disk-write-bandwidth": ("disk_write_bandwidth", float, "bytes a second to the disk, for all GPUs"),
    "disk-microseconds": (
        "disk_microseconds",
        float,
        "microseconds of each chunk on the disk beyond moving its bytes",
    ),
    "network-bandwidth": ("network_bandwidth", float, "bytes a second of a GPU to other servers, each way"),
    "pull-microseconds": ("pull_microseconds", float, "microseconds of each pull beyond moving its bytes"),
    "disk-store-threshold": (
        "disk_store_threshold",
        int,
        "how often a block must be offered before the disk stores it",
    ),
    "arrival-scale": ("arrival_scale", float, "spread arrivals by this factor: 2 halves the load"),
    "max-model-len": ("max_model_len", int, "tokens of the longest request (default: the model's)"),
}
"""option -> (setting, kind, help)"""

OLD_NAMES: Final[Mapping[str, tuple[str, str]]] = {
    "--limit": ("--requests", ""),
    "--cpu-bytes-to-use": ("--capacity", ""),
    "--gpu-blocks": ("--gpu-capacity", "blocks"),
}
"""An option's former name -> its name now, and the unit that its value had"""

GPU_NUMBERS: Final[Mapping[str, tuple[str, str]]] = {
    "gpu-flops": ("flops", "dense 16-bit operations a second"),
    "hbm-bandwidth": ("hbm_bandwidth", "bytes a second"),
    "link-bandwidth": ("link_bandwidth", "bytes a second, each way"),
}


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``replay``."""
    group = _add_arguments(parser, "(default 64GiB, or none with a disk)")
    group.add_argument(
        "--connector-config", metavar="JSON", help="a --kv-transfer-config, instead of sizes and policy"
    )
    for old in ("--limit", "--gpu-blocks"):
        group.add_argument(old, type=int, help=argparse.SUPPRESS)
    group.add_argument("--cpu-bytes-to-use", help=argparse.SUPPRESS)


def add_size_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``size``."""
    group = _add_arguments(parser, "(default: --points)")
    measures, statistics = "|".join(MEASURES), "|".join(STATISTICS)
    group.add_argument(
        "--goal",
        metavar="GOALS",
        help=f"find the least memory that meets these goals, such as {GOAL_EXPECTED}: {measures}, {statistics}",
    )
    parser.set_defaults(connector_config=None)


def _add_arguments(parser: argparse.ArgumentParser, usual_capacity: str) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("engine fidelity")
    _add_hardware(group)
    _add_servers(group, usual_capacity)
    return group


def _add_hardware(group: argparse._ArgumentGroup) -> None:
    """Add the model, the GPU and all numbers of the timing model."""
    group.add_argument("--model", metavar="NAME", help=f"default {USUAL.model.name}; known: {', '.join(MODELS)}")
    group.add_argument("--gpu", metavar="NAME", help=f"default {USUAL.gpu.name}; known: {', '.join(GPUS)}")
    for option, (_, text) in GPU_NUMBERS.items():
        group.add_argument(f"--{option}", type=float, metavar="N", help=f"{text} (default: the GPU's)")
    group.add_argument(
        "--gpu-memory", metavar="SIZE", help="memory of one GPU, such as 80GiB (default: the GPU's)"
    )
    for option, (setting, kind, text) in NUMBERS.items():
        usual = getattr(USUAL, setting)
        shown = "" if usual is None else f" (default {usual:g})"
        group.add_argument(f"--{option}", type=kind, metavar="N", help=text + shown)


def _add_servers(group: argparse._ArgumentGroup, usual_capacity: str) -> None:
    """Add the sizes and policies of caches, and how servers work together."""
    group.add_argument(
        "--gpu-capacity",
        metavar="SIZE",
        help=f"GPU memory for KV, such as {EXPECTED} (default: the rest beside the weights)",
    )
    group.add_argument(
        "--capacity",
        metavar="SIZES",
        help=f"sizes of host memory for all GPUs together, comma-separated {usual_capacity}",
    )
    group.add_argument(
        "--disk-capacity",
        metavar="SIZES",
        help="sizes of files on a disk behind host memory, comma-separated (default: none)",
    )
    group.add_argument(
        "--disk-shared",
        action="store_true",
        help="the servers share one machine and its disk, and load each other's chunks from there",
    )
    group.add_argument(
        "--prefill-servers",
        metavar="COUNTS",
        help="how many of --servers prefill for the others, which pull the KV and decode; one or more counts "
        "(default: none)",
    )
    group.add_argument(
        "--policy",
        metavar="NAMES",
        help=f"eviction policies, comma-separated, or all (default {USUAL.eviction_policy})",
    )
    group.add_argument(
        "--store-when",
        choices=[when.value for when in StoreWhen],
        help="when a block is stored: once it is computed (default), or when the GPU's prefix cache is about to "
        "evict it",
    )
    group.add_argument(
        "--stepping",
        choices=[s.value for s in Stepping],
        help="single: simulate every step one by one, slowly (the default skips steps that change nothing)",
    )
    group.add_argument(
        "--check-contents", action="store_true", help="give blocks real bytes and check them at every step; slow"
    )
