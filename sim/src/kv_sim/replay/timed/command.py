"""The options of ``kv-sim replay --fidelity engine``, and from them to settings."""

import argparse
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from typing import Any, Final, TypeVar

from kv_api import ConfigError
from kv_sim.replay.fleet import Fleet
from kv_sim.replay.timed.hardware import GPUS, MODELS, Gpu, Model, find_gpu, find_model
from kv_sim.replay.timed.replay import EngineReplay, not_replayed, num_replays, replay_engine
from kv_sim.replay.timed.run import Progress
from kv_sim.replay.timed.settings import Contents, EngineSettings, Stepping, plan
from kv_sim.replay.timed.stack import PLACE
from kv_sim.replay.trace import Trace
from kv_sim.replay.units import EXPECTED, Footprint, parse_bytes, parse_capacity
from kv_sim.strict import read_option

_T = TypeVar("_T")

_USUAL: Final = EngineSettings()

_NUMBERS: Final[Mapping[str, tuple[str, type, str]]] = {
    "tp-size": ("tp_size", int, "GPUs that share the model"),
    "flops-efficiency": ("flops_efficiency", float, "share of --gpu-flops that a forward pass reaches"),
    "hbm-efficiency": ("hbm_efficiency", float, "share of --hbm-bandwidth that a forward pass reaches"),
    "link-efficiency": ("link_efficiency", float, "share of --link-bandwidth that copies reach"),
    "step-microseconds": ("step_microseconds", float, "of each step, beside the forward pass"),
    "idle-step-microseconds": ("idle_step_microseconds", float, "between looks at copies while nothing runs"),
    "copy-microseconds": ("copy_microseconds", float, "of each copy, beside its bytes"),
    "page-tokens": ("page_tokens", int, "tokens of a layer that lie together: the server's block size"),
    "gpu-memory-utilization": ("gpu_memory_utilization", float, "share of GPU memory for weights and KV"),
    "block-tokens": ("block_tokens", int, "tokens of a block of the server (default: the trace's)"),
    "max-step-tokens": ("max_step_tokens", int, "tokens of a step; vLLM's max_num_batched_tokens"),
    "max-running": ("max_running", int, "requests that run at once; vLLM's max_num_seqs"),
    "disk-read-bandwidth": ("disk_read_bandwidth", float, "bytes a second from the disk, for all GPUs"),
    "disk-write-bandwidth": ("disk_write_bandwidth", float, "bytes a second to the disk, for all GPUs"),
    "disk-microseconds": ("disk_microseconds", float, "of each chunk on the disk, beside its bytes"),
    "disk-store-threshold": ("disk_store_threshold", int, "offers until a block goes to the disk"),
    "arrival-scale": ("arrival_scale", float, "spread arrivals by this factor: 2 halves the load"),
    "max-model-len": ("max_model_len", int, "tokens of the longest request (default: the model's)"),
}
"""option -> (setting, kind, help)"""

OLD_NAMES: Final[Mapping[str, tuple[str, str]]] = {
    "--limit": ("--requests", ""),
    "--cpu-bytes-to-use": ("--capacity", ""),
    "--gpu-blocks": ("--gpu-capacity", "blocks"),
}
"""what an option was called -> its name, and the unit that went without saying"""

_CONNECTORS_OWN: Final[Mapping[str, str]] = {
    "--capacity": "cpu_bytes_to_use",
    "--disk-capacity": "file_bytes_to_use",
    "--disk-store-threshold": "store_threshold",
    "--policy": "eviction_policy",
}
"""option -> what a connector's configuration calls it"""

_TYPED_AS: Final[Mapping[str, str]] = {
    **{setting: f"--{option}" for option, (setting, _, _) in _NUMBERS.items()},
    "gpu_blocks": "--gpu-capacity",
    "disk_bytes_to_use": "--disk-capacity",
}
"""what an error calls it -> what was typed"""

_GPU_NUMBERS: Final[Mapping[str, tuple[str, str]]] = {
    "gpu-flops": ("flops", "dense 16-bit operations a second"),
    "hbm-bandwidth": ("hbm_bandwidth", "bytes a second"),
    "link-bandwidth": ("link_bandwidth", "bytes a second, each way"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    group = parser.add_argument_group("engine fidelity")
    group.add_argument("--model", metavar="NAME", help=f"default {_USUAL.model.name}; known: {', '.join(MODELS)}")
    group.add_argument("--gpu", metavar="NAME", help=f"default {_USUAL.gpu.name}; known: {', '.join(GPUS)}")
    for option, (_, text) in _GPU_NUMBERS.items():
        group.add_argument(f"--{option}", type=float, metavar="N", help=f"{text} (default: the GPU's)")
    group.add_argument("--gpu-memory", metavar="SIZE", help="of one GPU, such as 80GiB (default: the GPU's)")
    for option, (setting, kind, text) in _NUMBERS.items():
        usual = getattr(_USUAL, setting)
        shown = "" if usual is None else f" (default {usual:g})"
        group.add_argument(f"--{option}", type=kind, metavar="N", help=text + shown)
    group.add_argument(
        "--gpu-capacity", metavar="SIZE", help=f"GPU memory for KV, in place of what fits: {EXPECTED}"
    )
    group.add_argument(
        "--capacity",
        metavar="SIZE",
        help="host memory over all GPUs (default 64GiB, or none where there is a disk)",
    )
    group.add_argument(
        "--disk-capacity", metavar="SIZE", help="files on a disk behind host memory (default: none)"
    )
    group.add_argument("--policy", metavar="NAME", help=f"default {_USUAL.eviction_policy}")
    group.add_argument(
        "--connector-config", metavar="JSON", help="a --kv-transfer-config, in place of these three"
    )
    group.add_argument(
        "--stepping", choices=[s.value for s in Stepping], help="single: every step through the engine, slowly"
    )
    group.add_argument("--check-contents", action="store_true", help="give blocks bytes and check them; slow")
    for old in ("--limit", "--gpu-blocks"):
        group.add_argument(old, type=int, help=argparse.SUPPRESS)
    group.add_argument("--cpu-bytes-to-use", help=argparse.SUPPRESS)


def run(
    trace: Trace, options: argparse.Namespace, progress: Progress | None = None, fleet: Fleet | None = None
) -> EngineReplay:
    """Replay as the options say. That no request could be replayed is a ``ConfigError``."""
    settings = settings_of(options)
    with _named_as_typed(options):
        if options.gpu_capacity is not None:
            sizes = plan(replace(settings, gpu_blocks=1), trace.block_tokens)
            footprint = Footprint(sizes.block_tokens, sizes.kv_bytes_per_token)
            blocks = parse_capacity(options.gpu_capacity, footprint, "--gpu-capacity")
            settings = replace(settings, gpu_blocks=blocks)
        found = replay_engine(trace, settings, progress, fleet)
    if not found.with_connector.requests:
        why = "; ".join(not_replayed(found.with_connector.refused))
        raise ConfigError(f"{trace.name}: nothing can be replayed: {why}")
    return found


@contextmanager
def _named_as_typed(options: argparse.Namespace) -> Iterator[None]:
    """What is wrong with a setting, or with the connector that was made of settings, is said of its option.

    An error of a package below this one has no more than words, and those of its own configuration.
    """
    typed = dict(_TYPED_AS)
    if options.connector_config is None:
        typed |= {own: option for option, own in _CONNECTORS_OWN.items()}
    names = "|".join(map(re.escape, sorted(typed, key=len, reverse=True)))
    try:
        yield
    except ConfigError as error:
        said = re.sub(rf"(?<![\w./-])({names})(?![\w/-]|\.\w)", lambda found: typed[found[0]], str(error))
        raise ConfigError(re.sub(rf"^{PLACE}\.", "--connector-config: ", said)) from None


def replays_of(options: argparse.Namespace) -> int:
    """How many times a trace is replayed then."""
    return num_replays(settings_of(options))


def settings_of(options: argparse.Namespace) -> EngineSettings:
    """Settings from options; what was not given keeps its default. Wrong values are a ``ConfigError``.

    What says how a trace is read isn't among them, nor ``--gpu-capacity``, which takes a trace to say what it is.
    """
    given: dict[str, Any] = {"model": _model(options), "gpu": _gpu(options)}
    for option, (setting, _, _) in _NUMBERS.items():
        value = getattr(options, option.replace("-", "_"))
        if value is not None:
            given[setting] = value
    if options.policy is not None:
        given["eviction_policy"] = options.policy
    if options.disk_capacity is not None:
        size = given["disk_bytes_to_use"] = parse_bytes(options.disk_capacity, "--disk-capacity")
        given |= {"cpu_bytes_to_use": 0} if size else {}
    elif options.disk_store_threshold is not None and options.connector_config is None:
        raise ConfigError("--disk-store-threshold is for --disk-capacity, which isn't given")
    if options.capacity is not None:
        given["cpu_bytes_to_use"] = parse_bytes(options.capacity, "--capacity")
    if options.connector_config is not None:
        for option, own in _CONNECTORS_OWN.items():
            if getattr(options, option.strip("-").replace("-", "_")) is not None:
                raise ConfigError(f"{option} and --connector-config (where it is {own}): give one of them")
        given["connector"] = read_option("--connector-config", options.connector_config)
    if options.stepping is not None:
        given["stepping"] = Stepping(options.stepping)
    if options.check_contents:
        given["contents"] = Contents.CHECKED
    with _named_as_typed(options):
        return EngineSettings(**given)


def _found(option: str, find: Callable[[str], _T], name: str) -> _T:
    try:
        return find(name)
    except ConfigError as error:
        raise ConfigError(f"{option}: {error}") from None


def _model(options: argparse.Namespace) -> Model:
    return _USUAL.model if options.model is None else _found("--model", find_model, options.model)


def _gpu(options: argparse.Namespace) -> Gpu:
    gpu = _USUAL.gpu if options.gpu is None else _found("--gpu", find_gpu, options.gpu)
    changed: dict[str, Any] = {}
    for option, (name, _) in _GPU_NUMBERS.items():
        value = getattr(options, option.replace("-", "_"))
        if value is not None:
            if not 0 < value < inf:
                raise ConfigError(f"--{option}: expected more than 0, got {value:g}")
            changed[name] = value
    if options.gpu_memory is not None:
        changed["memory_bytes"] = parse_bytes(options.gpu_memory, "--gpu-memory")
    return replace(gpu, **changed)
