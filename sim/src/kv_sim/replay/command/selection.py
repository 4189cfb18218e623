"""From the options of ``replay`` and ``size`` to what they mean; a mistake is a ``ConfigError``."""

import argparse
import importlib
from collections.abc import Callable
from math import inf

from kv_api import ConfigError
from kv_offload import StoreWhen
from kv_offload_cpu.policy import find_policy
from kv_sim.replay.caches.policies import parse_policies
from kv_sim.replay.command.arguments import (
    TIMED_ARGUMENTS,
    USUAL_DTYPE,
    USUAL_ENGINE_POINTS,
    USUAL_POINTS,
    Fidelity,
)
from kv_sim.replay.kv_bytes.models import find_model
from kv_sim.replay.readers.format import Turns
from kv_sim.replay.readers.options import EngineField, OnError, Partial, TraceOptions, Unsorted
from kv_sim.replay.readers.requests.naming import IdMeaning, IdScope
from kv_sim.replay.readers.requests.sharing import parse_sharing
from kv_sim.replay.readers.unknown.own_columns import parse_columns
from kv_sim.replay.servers.fleet import Fleet
from kv_sim.replay.servers.routing import USUAL as USUAL_ROUTING
from kv_sim.replay.servers.routing import find_routing
from kv_sim.replay.sizing.around import Disk
from kv_sim.replay.trace import EngineMemory
from kv_sim.replay.units import EXPECTED, NOTHING, Footprint, parse_bytes_of_a_token, parse_capacity


def take_old_names(options: argparse.Namespace, say: Callable[[str], object]) -> None:
    """Accept options under their former names, and say the present name."""
    for old, (new, unit) in importlib.import_module(TIMED_ARGUMENTS).OLD_NAMES.items():
        value = getattr(options, _attribute(old))
        if value is None:
            continue
        if getattr(options, _attribute(new)) is not None:
            raise ConfigError(f"{old} is the old name of {new}: give one of them")
        setattr(options, _attribute(new), f"{value}{unit}" if unit else value)
        say(f"{old} is called {new} now")


def trace_options(options: argparse.Namespace) -> TraceOptions:
    """How to read the trace."""
    for name in ("requests", "block_size"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')}: expected at least 1, got {value}")
    if options.seed is not None and options.assume_sharing is None:
        raise ConfigError("--seed is for --assume-sharing, which isn't given")
    if not 0 <= options.stagger < inf:
        raise ConfigError(f"--stagger: expected at least 0 seconds, got {options.stagger:g}")
    return TraceOptions(
        format=options.format,
        time_unit=options.time_unit,
        block_tokens=options.block_size,
        partial=Partial(options.partial_block),
        ids=IdMeaning(options.ids),
        scope=IdScope(options.id_scope),
        on_error=OnError(options.on_error),
        unsorted=Unsorted(options.unsorted),
        sharing=None if options.assume_sharing is None else parse_sharing(options.assume_sharing),
        seed=options.seed or 0,
        turns=Turns(options.turns),
        tokenizer=options.tokenizer,
        stagger_seconds=options.stagger,
        columns=None if options.columns is None else parse_columns(options.columns),
        requests=options.requests,
        sessions=fleet_of(options).needs_sessions,
        overruled=_overruled(options),
    )


def _overruled(options: argparse.Namespace) -> frozenset[EngineField]:
    """The engine's fields for which options overrule the trace; with engine fidelity, all."""
    if getattr(options, "fidelity", None) == Fidelity.ENGINE.value:
        return frozenset(EngineField)
    said = {
        EngineField.BYTES_PER_TOKEN: (options.model, options.bytes_per_token),
        EngineField.GPU_TOKENS: (options.gpu_capacity,),
        EngineField.BEHIND: (options.capacity, getattr(options, "disk_capacity", None)),
    }
    found = {field for field, values in said.items() if any(value is not None for value in values)}
    return frozenset(found | ({EngineField.BEHIND} if getattr(options, "command", None) == "size" else set()))


def bytes_per_token(options: argparse.Namespace, engine: EngineMemory | None) -> tuple[int | None, str | None]:
    """The KV bytes of a token, and their formula; from the trace if no option says them."""
    if options.kv_dtype is not None and options.model is None:
        raise ConfigError("--kv-dtype needs --model, which isn't given")
    if options.bytes_per_token is not None:
        if options.model is not None:
            raise ConfigError("--model and --bytes-per-token: give one of them")
        size = parse_bytes_of_a_token(options.bytes_per_token, "--bytes-per-token")
        return size, f"{size:,} bytes a token"
    if options.model is None:
        return (None, None) if engine is None else (engine.bytes_per_token, str(engine))
    dtype = options.kv_dtype or USUAL_DTYPE
    model = find_model(options.model, dtype)
    return model.bytes_per_token(dtype), f"{options.model}: {model.sum_shown(dtype)}"


def footprint_of(options: argparse.Namespace, block_tokens: int, engine: EngineMemory | None) -> Footprint:
    """The footprint of a block."""
    return Footprint(block_tokens, bytes_per_token(options, engine)[0])


def gpu_blocks_of(options: argparse.Namespace, footprint: Footprint, engine: EngineMemory | None) -> int:
    """Blocks of the GPU's prefix cache in front; from the trace if no option says it."""
    if options.gpu_capacity is None:
        return 0 if engine is None else engine.gpu_tokens // footprint.block_tokens
    return capacity_or_none(options.gpu_capacity, footprint, "--gpu-capacity")


def capacity_or_none(text: str, footprint: Footprint, option: str) -> int:
    """Blocks of a memory that may be 0."""
    if text == NOTHING:
        return 0
    if not any(map(str.isdigit, text)):
        raise ConfigError(f"{option} {text}: expected {NOTHING}, or a size such as {EXPECTED}")
    return parse_capacity(text, footprint, option)


def store_when_of(options: argparse.Namespace, gpu_blocks: int) -> StoreWhen:
    """When blocks are stored, on a server with this many blocks in the GPU's prefix cache."""
    when = StoreWhen(options.store_when)
    if when is StoreWhen.EVICTED and not gpu_blocks:
        raise ConfigError(
            "--store-when evicted stores what the GPU's prefix cache is about to evict, but there is no such "
            "cache; give its size with --gpu-capacity"
        )
    return when


def fleet_of(options: argparse.Namespace) -> Fleet:
    """How many servers there are, and how requests are routed."""
    if options.servers is None:
        given = {"--routing": options.routing is not None, "--disk-shared": options.disk_shared}
        for option in (name for name, is_given in given.items() if is_given):
            raise ConfigError(f"{option} is for --servers, which isn't given")
        return Fleet()
    routing = USUAL_ROUTING if options.routing is None else find_routing(options.routing)
    return Fleet(options.servers, routing, _disk_shared(options))


def _disk_shared(options: argparse.Namespace) -> bool:
    """Whether servers read each other's disks."""
    if not options.disk_shared:
        return False
    is_sized = options.command == "size" and Fidelity(options.fidelity) is Fidelity.CACHE
    disk = "--disk" if is_sized else "--disk-capacity"
    if getattr(options, _attribute(disk)) is None and getattr(options, "connector_config", None) is None:
        raise ConfigError(f"--disk-shared is for {disk}, which isn't given")
    return True


def disk_of(options: argparse.Namespace, footprint: Footprint) -> Disk | None:
    """The disk, if it is the one to be sized."""
    if options.disk is None:
        if options.host_capacity is not None:
            raise ConfigError(
                "--host-capacity is the host memory in front of --disk, which isn't given; without a disk give "
                "--capacity"
            )
        return None
    if not options.disk:
        raise ConfigError("--disk: expected a folder of the server, got nothing")
    if options.host_capacity is None:
        return Disk(options.disk)
    return Disk(options.disk, parse_capacity(options.host_capacity, footprint, "--host-capacity"))


def points_of(options: argparse.Namespace) -> int:
    """How many capacities to sweep, if the options don't list them."""
    is_engine = Fidelity(options.fidelity) is Fidelity.ENGINE
    for option in ("--capacity", "--disk-capacity") if is_engine else ("--capacity",):
        if options.points is not None and getattr(options, _attribute(option)) is not None:
            raise ConfigError(f"--points and {option}: give one of them")
    usual = USUAL_ENGINE_POINTS if is_engine else USUAL_POINTS
    return usual if options.points is None else int(options.points)


def policies_of(options: argparse.Namespace) -> list[str]:
    """The policies asked for; ``all`` is each of them."""
    wanted = parse_policies(options.policy)
    for name in wanted:
        find_policy(name, options.cache_policy_module_path)
    return wanted


def _attribute(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")
