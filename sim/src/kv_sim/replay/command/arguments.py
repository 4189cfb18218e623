"""The options of ``kv-sim replay`` and ``kv-sim size``, and what they mean."""

import argparse
import importlib
import os
from collections.abc import Callable, Sequence
from enum import Enum
from math import inf
from typing import Final

from kv_api import ConfigError
from kv_offload_cpu.policy import POLICIES, find_policy
from kv_sim.replay.command.foreign import add_refused
from kv_sim.replay.fleet import Fleet
from kv_sim.replay.kv_model import DTYPES
from kv_sim.replay.model_config import FILE
from kv_sim.replay.models import MODELS, find_model
from kv_sim.replay.policies import ALL_POLICIES, parse_policies
from kv_sim.replay.readers.catalogue import FORMATS
from kv_sim.replay.readers.naming import IdMeaning, IdScope
from kv_sim.replay.readers.options import EngineField, OnError, Partial, TraceOptions, Unsorted
from kv_sim.replay.readers.own_columns import PARTS, parse_columns
from kv_sim.replay.readers.sharing import parse_sharing
from kv_sim.replay.readers.source import SHIPPED
from kv_sim.replay.routing import USUAL as USUAL_ROUTING
from kv_sim.replay.routing import Routing, find_routing
from kv_sim.replay.sizing import Disk
from kv_sim.replay.trace import EngineMemory
from kv_sim.replay.units import EXPECTED, Footprint, check_bytes, parse_capacity

TIMED: Final = "kv_sim.replay.timed.command"
USUAL_DTYPE: Final = "bf16"
NOTHING: Final = "none"
USUAL_POINTS: Final = 20


class Fidelity(Enum):
    """How much of a server is modelled."""

    CACHE = "cache"
    """The cache's contents, request by request, without a clock."""
    ENGINE = "engine"
    """An engine with time: batches, copies, waiting."""


def add_replay_arguments(parser: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    """The options of ``replay``: those of the fidelity that was typed, and those of every one."""
    _add_trace(parser)
    parser.add_argument(
        "--fidelity", choices=_values(Fidelity), default=Fidelity.CACHE.value, help="cache (default) or engine"
    )
    parser.add_argument(
        "--write-oracle", metavar="FILE", help="write the trace as libCacheSim's oracleGeneral, too"
    )
    _add_json(parser)
    if _fidelity(typed) == Fidelity.ENGINE.value:
        importlib.import_module(TIMED).add_arguments(parser)
        other = argparse.ArgumentParser(add_help=False)
        _add_cache(other)
        add_refused(parser, other)
    else:
        _add_cache(parser)


def add_size_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``size``."""
    _add_trace(parser)
    _add_footprint(parser)
    _add_policies(parser, ",".join(ALL_POLICIES))
    parser.add_argument("--capacity", metavar="SIZES", help=f"the capacities to sweep: {EXPECTED}")
    parser.add_argument("--points", type=int, metavar="N", help=f"or so many of them (default {USUAL_POINTS})")
    parser.add_argument("--budget", metavar="SIZE", help="recommend no more than this")
    parser.add_argument(
        "--disk", metavar="FOLDER", help="size files in this folder of the server instead of host memory"
    )
    parser.add_argument("--host-capacity", metavar="SIZE", help="host memory in front of --disk (default: none)")
    _add_gpu(parser)
    _add_json(parser)
    _add_jobs_and_page(parser)


def take_old_names(options: argparse.Namespace, say: Callable[[str], object]) -> None:
    """Take what was given under a name that an option had as given under its own, and say so."""
    for old, (new, unit) in importlib.import_module(TIMED).OLD_NAMES.items():
        value = getattr(options, _attribute(old))
        if value is None:
            continue
        if getattr(options, _attribute(new)) is not None:
            raise ConfigError(f"{old} is the old name of {new}: give one of them")
        setattr(options, _attribute(new), f"{value}{unit}" if unit else value)
        say(f"{old} is called {new} now")


def _attribute(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


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
        stagger_seconds=options.stagger,
        columns=None if options.columns is None else parse_columns(options.columns),
        requests=options.requests,
        sessions=fleet_of(options).needs_sessions,
        overruled=_overruled(options),
    )


def _overruled(options: argparse.Namespace) -> frozenset[EngineField]:
    """What options say in the trace's place; of an engine that is modelled, all."""
    if getattr(options, "fidelity", None) == Fidelity.ENGINE.value:
        return frozenset(EngineField)
    said = {
        EngineField.BYTES_PER_TOKEN: (options.model, options.bytes_per_token),
        EngineField.GPU_TOKENS: (options.gpu_capacity,),
    }
    return frozenset(field for field, values in said.items() if any(value is not None for value in values))


def bytes_per_token(options: argparse.Namespace, engine: EngineMemory | None) -> tuple[int | None, str | None]:
    """The bytes of a token, and the sum that they come from; as the trace says, where nobody else does."""
    if options.kv_dtype is not None and options.model is None:
        raise ConfigError("--kv-dtype is for --model, which isn't given")
    if options.bytes_per_token is not None:
        if options.model is not None:
            raise ConfigError("--model and --bytes-per-token: give one of them")
        check_bytes(options.bytes_per_token, "--bytes-per-token")
        return options.bytes_per_token, f"{options.bytes_per_token:,} bytes a token"
    if options.model is None:
        return (None, None) if engine is None else (engine.bytes_per_token, str(engine))
    dtype = options.kv_dtype or USUAL_DTYPE
    model = find_model(options.model, dtype)
    return model.bytes_per_token(dtype), f"{options.model}: {model.sum_shown(dtype)}"


def footprint_of(options: argparse.Namespace, block_tokens: int, engine: EngineMemory | None) -> Footprint:
    """What a block takes."""
    return Footprint(block_tokens, bytes_per_token(options, engine)[0])


def gpu_blocks_of(options: argparse.Namespace, footprint: Footprint, engine: EngineMemory | None) -> int:
    """Blocks of the GPU's prefix cache in front; as the trace says, where nobody else does."""
    if options.gpu_capacity is None:
        return 0 if engine is None else engine.gpu_tokens // footprint.block_tokens
    return (
        0 if options.gpu_capacity == NOTHING else parse_capacity(options.gpu_capacity, footprint, "--gpu-capacity")
    )


def fleet_of(options: argparse.Namespace) -> Fleet:
    """How many servers there are, and who gets what."""
    if options.servers is None:
        if options.routing is not None:
            raise ConfigError("--routing is for --servers, which isn't given")
        return Fleet()
    return Fleet(options.servers, USUAL_ROUTING if options.routing is None else find_routing(options.routing))


def disk_of(options: argparse.Namespace, footprint: Footprint) -> Disk | None:
    """The disk that is sized, where it is one."""
    if options.disk is None:
        if options.host_capacity is not None:
            raise ConfigError(
                "--host-capacity lies in front of --disk, which isn't given; --capacity is host memory"
            )
        return None
    if not options.disk:
        raise ConfigError("--disk: expected a folder of the server, got nothing")
    if options.host_capacity is None:
        return Disk(options.disk)
    return Disk(options.disk, parse_capacity(options.host_capacity, footprint, "--host-capacity"))


def points_of(options: argparse.Namespace) -> int:
    """How many capacities to sweep, where nobody lists them."""
    if options.points is not None and options.capacity is not None:
        raise ConfigError("--points and --capacity: give one of them")
    return USUAL_POINTS if options.points is None else int(options.points)


def policies_of(options: argparse.Namespace) -> list[str]:
    """The policies asked for; ``all`` is each of them."""
    wanted = parse_policies(options.policy)
    for name in wanted:
        find_policy(name, options.cache_policy_module_path)
    return wanted


def _add_trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "trace", metavar="TRACE", help=f"a file, a folder of files, or a shipped one: {', '.join(SHIPPED)}"
    )
    reading = parser.add_argument_group("how the trace is read")
    reading.add_argument("--format", metavar="NAME", help=f"instead of by its contents: {', '.join(FORMATS)}")
    reading.add_argument(
        "--columns", metavar="PARTS", help=f"or which of its columns is what: {', '.join(f'{p}=…' for p in PARTS)}"
    )
    reading.add_argument("--time-unit", metavar="UNIT", help="s, ms, us or ns (default: the format's)")
    reading.add_argument("--block-size", type=int, metavar="N", help="tokens of a block (default: the format's)")
    reading.add_argument("--partial-block", choices=_values(Partial), default="keep", help="a last block not full")
    reading.add_argument(
        "--ids",
        choices=_values(IdMeaning),
        default="auto",
        help="what an id names: a prefix, or a block by itself",
    )
    reading.add_argument(
        "--id-scope", choices=_values(IdScope), default="auto", help="where equal ids mean equal blocks"
    )
    reading.add_argument("--on-error", choices=_values(OnError), default="stop", help="at a malformed record")
    reading.add_argument("--unsorted", choices=_values(Unsorted), default="stop", help="at times that go back")
    reading.add_argument("--stagger", type=float, default=0.0, metavar="S", help="seconds from session to session")
    reading.add_argument("--requests", type=int, metavar="N", help="only the first N requests")
    reading.add_argument(
        "--assume-sharing", metavar="HOW", help="for traces without ids: none, or zipf:prefixes=…"
    )
    reading.add_argument("--seed", type=int, metavar="N", help="for --assume-sharing (default 0)")
    fleet = parser.add_argument_group("who gets the requests")
    fleet.add_argument(
        "--servers", type=int, metavar="N", help="so many servers, each with all of this (default: one)"
    )
    fleet.add_argument(
        "--routing", metavar="HOW", help=f"{', '.join(_values(Routing))} (default {USUAL_ROUTING.value})"
    )


def _add_footprint(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument_group("what a token takes")
    model.add_argument("--model", metavar="NAME", help=f"{', '.join(MODELS)}, or the path of a {FILE}")
    model.add_argument("--kv-dtype", metavar="TYPE", help=f"{', '.join(DTYPES)} (default {USUAL_DTYPE})")
    model.add_argument("--bytes-per-token", type=int, metavar="N", help="of all layers, over all workers")


def _add_policies(parser: argparse.ArgumentParser, usual: str) -> None:
    known = ", ".join(POLICIES)
    parser.add_argument("--policy", default=usual, metavar="NAMES", help=f"{known}, or all (default {usual})")
    parser.add_argument("--cache-policy-module-path", metavar="MODULE", help="where another policy is found")


def _add_gpu(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gpu-capacity",
        metavar="SIZE",
        help=f"the GPU's prefix cache in front, or {NOTHING} (default: what the trace says, or {NOTHING})",
    )


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", metavar="FILE", help="write everything as JSON; - prints it instead of the table"
    )


def _add_jobs_and_page(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, default=_cores(), metavar="J", help="processes (default: cores)")
    parser.add_argument("--html", metavar="FILE", help="write a report as one page that needs no network")


def _add_cache(parser: argparse.ArgumentParser) -> None:
    """The options of ``replay`` that only cache fidelity reads."""
    _add_footprint(parser)
    _add_policies(parser, "lru")
    parser.add_argument("--capacity", metavar="SIZES", help=f"host memory, one or more: {EXPECTED}")
    _add_gpu(parser)
    parser.add_argument(
        "--disk-capacity", metavar="SIZES", help="files on a disk behind host memory, one or more (default: none)"
    )
    parser.add_argument(
        "--store-threshold", type=int, default=0, metavar="N", help="store a block from its N-th offer on"
    )
    parser.add_argument(
        "--disk-store-threshold", type=int, metavar="N", help="the same of the disk (default: store all)"
    )
    parser.add_argument(
        "--stream",
        action="store_true",
        help="keep nothing of the trace: memory is bounded by --capacity; no MIN, no infinite cache, no ages, no "
        "hits over time, which need all of it",
    )
    _add_jobs_and_page(parser)


def _fidelity(typed: Sequence[str]) -> str | None:
    """What was typed of it, right or wrong; the parser that has all options judges."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--fidelity", nargs="?")
    found: str | None = parser.parse_known_args(typed)[0].fidelity
    return found


def _values(choices: type[Enum]) -> list[str]:
    return [str(choice.value) for choice in choices]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
