"""Runs ``--fidelity engine``: makes settings from the options, and replays the trace with them."""

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
from kv_sim.replay.caches.policies import parse_policies
from kv_sim.replay.columns import Columns
from kv_sim.replay.command.timed.arguments import GPU_NUMBERS, NUMBERS, USUAL
from kv_sim.replay.crew import Progress
from kv_sim.replay.servers.fleet import Fleet
from kv_sim.replay.timed.goal import EXPECTED as GOAL_EXPECTED
from kv_sim.replay.timed.goal import Goal, parse_goals
from kv_sim.replay.timed.replay import EngineReplay, replay_engine
from kv_sim.replay.timed.runs.answers import Answers, not_replayed
from kv_sim.replay.timed.server.hardware import Gpu, Model, find_gpu, find_model
from kv_sim.replay.timed.server.settings import Contents, EngineSettings, Stepping
from kv_sim.replay.timed.server.sizes import plan
from kv_sim.replay.timed.sweep import EngineSweep, sweep_engine, usual_sizes
from kv_sim.replay.trace import Trace
from kv_sim.replay.units import NOTHING, Footprint, parse_bytes, parse_capacity
from kv_sim.strict import read_option

_T = TypeVar("_T")

_CONNECTORS_OWN: Final[Mapping[str, str]] = {
    "--capacity": "cpu_bytes_to_use",
    "--disk-capacity": "file_bytes_to_use",
    "--disk-store-threshold": "store_threshold",
    "--policy": "eviction_policy",
    "--store-when": "store_when",
}
"""option -> its name in a connector's configuration"""

_TYPED_AS: Final[Mapping[str, str]] = {
    **{setting: f"--{option}" for option, (setting, _, _) in NUMBERS.items()},
    "gpu_blocks": "--gpu-capacity",
    "disk_bytes_to_use": "--disk-capacity",
    "prefill_servers": "--prefill-servers",
    "connector": "--connector-config",
}
"""setting -> the option that sets it"""


def run(
    trace: Trace, options: argparse.Namespace, progress: Progress = lambda share: None, fleet: Fleet | None = None
) -> EngineReplay | EngineSweep:
    """Replay as the options say, side by side if they say several.

    ``ConfigError`` if no request can be replayed.
    """
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
    """Find the least memory that meets the goals, among the options' sizes, or among ``points`` usual ones."""
    every, goals = settings_of(options), goals_of(options)
    with _said_of_options(options):
        every = _with_gpu_blocks(every, options, trace.block_tokens)
        footprint = Footprint(trace.block_tokens, plan(every[0], trace.block_tokens).kv_bytes_per_token)
        budget = None if options.budget is None else parse_capacity(options.budget, footprint, "--budget")
        if options.capacity is None and options.disk_capacity is None:
            sizes = usual_sizes(trace, every[0], fleet, points, budget)
            every = [replace(one, cpu_bytes_to_use=size) for one in every for size in sizes]
        elif budget is not None:
            raise ConfigError("--budget can't be combined with --capacity or --disk-capacity")
        return _swept(trace, every, goals, options, progress, fleet)


def goals_of(options: argparse.Namespace) -> tuple[Goal, ...]:
    """The goals that ``--goal`` names."""
    if options.goal is None:
        raise ConfigError(
            f"--fidelity engine: give the goal that the memory has to meet: --goal, such as {GOAL_EXPECTED}"
        )
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
    """Settings with the GPU blocks of ``--gpu-capacity``, whose unit may depend on the trace."""
    if options.gpu_capacity is None:
        return [*every]
    sizes = plan(replace(every[0], gpu_blocks=1), trace_block_tokens)
    footprint = Footprint(sizes.block_tokens, sizes.kv_bytes_per_token)
    blocks = parse_capacity(options.gpu_capacity, footprint, "--gpu-capacity")
    return [replace(one, gpu_blocks=blocks) for one in every]


@contextmanager
def _said_of_options(options: argparse.Namespace) -> Iterator[None]:
    """Make errors about a setting name the option that sets it.

    Such an error begins with the name of a setting, or of a key in a connector's configuration.
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
    """Settings from options, for each policy with each size; options that were not given keep their defaults.

    Wrong values are a ``ConfigError``. Options that say how to read a trace are ignored, and so is
    ``--gpu-capacity``.
    """
    given: dict[str, Any] = {"model": _model(options), "gpu": _gpu(options)}
    for option, (setting, _, _) in NUMBERS.items():
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
    """The settings that vary: every policy with every size."""
    policies = [USUAL.eviction_policy] if options.policy is None else parse_policies(options.policy)
    for policy in policies:
        find_policy(policy)  # so that a wrong name is refused before anything runs
    disks = _sizes(options.disk_capacity, "--disk-capacity") or [USUAL.disk_bytes_to_use]
    prefilling = _prefill_servers(options.prefill_servers)
    memories = _sizes(options.capacity, "--capacity", may_be_none=prefilling != [None])
    for policy in policies:
        for disk in disks:
            usual = 0 if disk else USUAL.cpu_bytes_to_use
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
    return USUAL.model if options.model is None else _found("--model", find_model, options.model)


def _gpu(options: argparse.Namespace) -> Gpu:
    gpu = USUAL.gpu if options.gpu is None else _found("--gpu", find_gpu, options.gpu)
    changed: dict[str, Any] = {}
    for option, (name, _) in GPU_NUMBERS.items():
        value = getattr(options, option.replace("-", "_"))
        if value is not None:
            if not 0 < value < inf:
                raise ConfigError(f"--{option}: expected more than 0, got {value:g}")
            changed[name] = value
    if options.gpu_memory is not None:
        changed["memory_bytes"] = parse_bytes(options.gpu_memory, "--gpu-memory")
    return replace(gpu, **changed)
