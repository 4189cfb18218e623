"""The options of ``kv-sim replay --fidelity engine``, and from them to settings."""

import argparse
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from typing import Any, Final, TypeVar

from kv_api import ConfigError
from kv_offload import StoreWhen
from kv_offload_cpu.policy import find_policy
from kv_sim.replay.columns import Columns
from kv_sim.replay.fleet import Fleet
from kv_sim.replay.policies import parse_policies
from kv_sim.replay.side_by_side import Progress
from kv_sim.replay.timed.answers import Answers, not_replayed
from kv_sim.replay.timed.goal import EXPECTED as GOAL_EXPECTED
from kv_sim.replay.timed.goal import MEASURES, STATISTICS, Goal, parse_goals
from kv_sim.replay.timed.hardware import GPUS, MODELS, Gpu, Model, find_gpu, find_model
from kv_sim.replay.timed.replay import EngineReplay, replay_engine
from kv_sim.replay.timed.settings import Contents, EngineSettings, Stepping, plan
from kv_sim.replay.timed.sweep import EngineSweep, sweep_engine, usual_sizes
from kv_sim.replay.trace import Trace
from kv_sim.replay.units import EXPECTED, NOTHING, Footprint, parse_bytes, parse_capacity
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
    "network-bandwidth": ("network_bandwidth", float, "bytes a second of a GPU to other servers, each way"),
    "pull-microseconds": ("pull_microseconds", float, "of each pull from another server, beside its bytes"),
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
    "--store-when": "store_when",
}
"""option -> what a connector's configuration calls it"""

_TYPED_AS: Final[Mapping[str, str]] = {
    **{setting: f"--{option}" for option, (setting, _, _) in _NUMBERS.items()},
    "gpu_blocks": "--gpu-capacity",
    "disk_bytes_to_use": "--disk-capacity",
    "prefill_servers": "--prefill-servers",
    "connector": "--connector-config",
}
"""setting -> what was typed"""

_GPU_NUMBERS: Final[Mapping[str, tuple[str, str]]] = {
    "gpu-flops": ("flops", "dense 16-bit operations a second"),
    "hbm-bandwidth": ("hbm_bandwidth", "bytes a second"),
    "link-bandwidth": ("link_bandwidth", "bytes a second, each way"),
}


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``replay``."""
    group = _add_arguments(parser, "(default 64GiB, or none where there is a disk)")
    group.add_argument(
        "--connector-config", metavar="JSON", help="a --kv-transfer-config, in place of sizes and policy"
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
        help=f"what the least memory is looked for with, such as {GOAL_EXPECTED}: {measures}, {statistics}",
    )
    parser.set_defaults(connector_config=None)


def _add_arguments(parser: argparse.ArgumentParser, usual_capacity: str) -> argparse._ArgumentGroup:
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
        "--capacity", metavar="SIZES", help=f"host memory over all GPUs, one or more {usual_capacity}"
    )
    group.add_argument(
        "--disk-capacity", metavar="SIZES", help="files on a disk behind host memory, one or more (default: none)"
    )
    group.add_argument(
        "--disk-shared",
        action="store_true",
        help="each of --servers reads what the others have on the disk, which is one for all (one machine)",
    )
    group.add_argument(
        "--prefill-servers",
        metavar="COUNTS",
        help="of --servers, so many compute prompts for the others, which pull them; one or more (default: none)",
    )
    group.add_argument("--policy", metavar="NAMES", help=f"one or more, or all (default {_USUAL.eviction_policy})")
    group.add_argument(
        "--store-when",
        choices=[when.value for when in StoreWhen],
        help="at once (default), or when the GPU's prefix cache is about to lose it",
    )
    group.add_argument(
        "--stepping", choices=[s.value for s in Stepping], help="single: every step through the engine, slowly"
    )
    group.add_argument("--check-contents", action="store_true", help="give blocks bytes and check them; slow")
    return group


def run(
    trace: Trace, options: argparse.Namespace, progress: Progress = lambda share: None, fleet: Fleet | None = None
) -> EngineReplay | EngineSweep:
    """Replay as the options say: side by side where they say several. That nothing can be is a ``ConfigError``."""
    every = settings_of(options)
    with _said_of_options(options):
        every = _with_gpu_blocks(every, options, trace.block_tokens)
        if len(every) == 1:
            found = replay_engine(trace, every[0], progress, fleet, jobs=options.jobs)
            _check_replayed(trace, found.without)
            return found
        return _swept(trace, every, (), options, progress, fleet)


def size(
    trace: Columns, options: argparse.Namespace, points: int, progress: Progress, fleet: Fleet
) -> EngineSweep:
    """The least memory that meets the goals, of the sizes that the options say, or of so many."""
    every, goals = settings_of(options), goals_of(options)
    with _said_of_options(options):
        every = _with_gpu_blocks(every, options, trace.block_tokens)
        footprint = Footprint(trace.block_tokens, plan(every[0], trace.block_tokens).kv_bytes_per_token)
        budget = None if options.budget is None else parse_capacity(options.budget, footprint, "--budget")
        if options.capacity is None and options.disk_capacity is None:
            sizes = usual_sizes(trace, every[0], fleet, points, budget)
            every = [replace(one, cpu_bytes_to_use=size) for one in every for size in sizes]
        elif budget is not None:
            raise ConfigError("--budget and --capacity or --disk-capacity: give one of them")
        return _swept(trace, every, goals, options, progress, fleet)


def goals_of(options: argparse.Namespace) -> tuple[Goal, ...]:
    """What is to be achieved."""
    if options.goal is None:
        raise ConfigError(f"--fidelity engine: what is the memory to achieve? Say --goal, such as {GOAL_EXPECTED}")
    return parse_goals(options.goal)


def _swept(
    trace: Trace,
    every: Sequence[EngineSettings],
    goals: Sequence[Goal],
    options: argparse.Namespace,
    progress: Progress,
    fleet: Fleet | None,
) -> EngineSweep:
    found = sweep_engine(trace, every, goals, progress, fleet, jobs=options.jobs)
    _check_replayed(trace, found.without)
    return found


def _check_replayed(trace: Trace, answers: Answers) -> None:
    if not answers.requests:
        why = "; ".join(not_replayed(answers.refused))
        raise ConfigError(f"{trace.name}: nothing can be replayed: {why}")


def _with_gpu_blocks(
    every: Sequence[EngineSettings], options: argparse.Namespace, trace_block_tokens: int
) -> list[EngineSettings]:
    """What ``--gpu-capacity`` says, which takes a trace to say what it is."""
    if options.gpu_capacity is None:
        return [*every]
    sizes = plan(replace(every[0], gpu_blocks=1), trace_block_tokens)
    footprint = Footprint(sizes.block_tokens, sizes.kv_bytes_per_token)
    blocks = parse_capacity(options.gpu_capacity, footprint, "--gpu-capacity")
    return [replace(one, gpu_blocks=blocks) for one in every]


@contextmanager
def _said_of_options(options: argparse.Namespace) -> Iterator[None]:
    """What is wrong with a setting, or with the connector that was made of settings, is said of its option.

    An error begins with the name of what it is about: of a setting, or of what a connector's configuration has.
    """
    typed = dict(_TYPED_AS)
    if options.connector_config is None:
        typed |= {own: option for option, own in _CONNECTORS_OWN.items()}
    try:
        yield
    except ConfigError as error:
        name = re.split(r"\W", str(error), maxsplit=1)[0]
        raise ConfigError(typed.get(name, name) + str(error).removeprefix(name)) from None


def settings_of(options: argparse.Namespace) -> list[EngineSettings]:
    """Settings from options, for each policy with each size; what was not given keeps its default.

    Wrong values are a ``ConfigError``. What says how a trace is read isn't among them, nor ``--gpu-capacity``.
    """
    given: dict[str, Any] = {"model": _model(options), "gpu": _gpu(options)}
    for option, (setting, _, _) in _NUMBERS.items():
        value = getattr(options, option.replace("-", "_"))
        if value is not None:
            given[setting] = value
    no_disk = options.disk_capacity is None and options.connector_config is None
    if options.disk_store_threshold is not None and no_disk:
        raise ConfigError("--disk-store-threshold is for --disk-capacity, which isn't given")
    if options.connector_config is not None:
        for option, own in _CONNECTORS_OWN.items():
            if getattr(options, option.strip("-").replace("-", "_")) is not None:
                raise ConfigError(f"{option} and --connector-config (where it is {own}): give one of them")
        given["connector"] = read_option("--connector-config", options.connector_config)
    given["disk_shared"] = options.disk_shared
    if options.store_when is not None:
        given["store_when"] = StoreWhen(options.store_when)
    if options.stepping is not None:
        given["stepping"] = Stepping(options.stepping)
    if options.check_contents:
        given["contents"] = Contents.CHECKED
    with _said_of_options(options):
        return [EngineSettings(**given, **kept) for kept in _kept(options)]


def _kept(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Who leaves, and how much room there is: every policy with every size."""
    policies = [_USUAL.eviction_policy] if options.policy is None else parse_policies(options.policy)
    for policy in policies:
        find_policy(policy)  # a wrong name is known before anything runs
    disks = _sizes(options.disk_capacity, "--disk-capacity") or [_USUAL.disk_bytes_to_use]
    prefilling = _prefill_servers(options.prefill_servers)
    memories = _sizes(options.capacity, "--capacity", may_be_none=prefilling != [None])
    for policy in policies:
        for disk in disks:
            usual = 0 if disk else _USUAL.cpu_bytes_to_use
            for memory in memories or [usual]:
                for count in prefilling:
                    sizes = {"cpu_bytes_to_use": memory, "disk_bytes_to_use": disk, "prefill_servers": count}
                    yield {"eviction_policy": policy, **sizes}


def _sizes(typed: str | None, option: str, *, may_be_none: bool = False) -> list[int]:
    def read(text: str) -> int:
        return 0 if may_be_none and text == NOTHING else parse_bytes(text, option)

    return [] if typed is None else list(dict.fromkeys(read(text) for text in typed.split(",")))


def _prefill_servers(typed: str | None) -> list[int | None]:
    if typed is None:
        return [None]
    counts = typed.split(",")
    if not all(text.isascii() and text.isdigit() for text in counts):
        raise ConfigError(f"--prefill-servers: expected whole numbers with commas between them, got {typed!r}")
    return list(dict.fromkeys(int(text) for text in counts))


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
