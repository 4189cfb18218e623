"""The options of ``kv-sim replay`` and ``kv-sim size``; ``selection`` says what they mean."""

import argparse
import importlib
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

from kv_offload import StoreWhen
from kv_offload_cpu.policy import POLICIES
from kv_sim.console.workers import num_cores
from kv_sim.replay.caches.policies import ALL_POLICIES, USUAL_POLICY
from kv_sim.replay.command.foreign import add_refused
from kv_sim.replay.command.trace_arguments import add_trace_arguments, values_of
from kv_sim.replay.kv_bytes.kv_model import DTYPES
from kv_sim.replay.kv_bytes.model_config import FILE
from kv_sim.replay.kv_bytes.models import MODELS
from kv_sim.replay.servers.routing import USUAL as USUAL_ROUTING
from kv_sim.replay.servers.routing import Routing
from kv_sim.replay.units import EXPECTED, NOTHING

TIMED: Final = "kv_sim.replay.command.timed.run"
TIMED_ARGUMENTS: Final = "kv_sim.replay.command.timed.arguments"
TIMED_REPORT: Final = "kv_sim.replay.report.timed"
"""The modules of engine fidelity and its report, which import the engine model, so only when it is asked for."""

USUAL_DTYPE: Final = "bf16"
USUAL_POINTS: Final = 20
USUAL_ENGINE_POINTS: Final = 8
"""Fewer than in cache fidelity, since each takes longer."""


class Fidelity(Enum):
    """How much of a server is modelled."""

    CACHE = "cache"
    """The cache's contents, request by request, without a clock."""
    ENGINE = "engine"
    """An engine with time: batches, copies, waiting."""


def add_replay_arguments(parser: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    """Add the options of ``replay``: those of the typed fidelity, and the common ones."""
    add_trace_arguments(parser)
    _add_fleet(parser)
    _add_fidelity(parser)
    parser.add_argument(
        "--write-oracle", metavar="FILE", help="also write the trace in libCacheSim's format oracleGeneral"
    )
    _add_json(parser)
    if _fidelity(typed) == Fidelity.ENGINE.value:
        importlib.import_module(TIMED_ARGUMENTS).add_replay_arguments(parser)
        _add_jobs(parser)
        _refuse_those_of(_add_cache, parser)
    else:
        _add_cache(parser)


def add_size_arguments(parser: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    """Add the options of ``size`` in the same way."""
    add_trace_arguments(parser)
    _add_fleet(parser)
    _add_fidelity(parser)
    is_engine = _fidelity(typed) == Fidelity.ENGINE.value
    usual = USUAL_ENGINE_POINTS if is_engine else USUAL_POINTS
    parser.add_argument("--points", type=int, metavar="N", help=f"how many capacities to try (default {usual})")
    parser.add_argument("--budget", metavar="SIZE", help="recommend at most this much memory")
    _add_json(parser)
    if is_engine:
        importlib.import_module(TIMED_ARGUMENTS).add_size_arguments(parser)
        _add_jobs(parser)
        _refuse_those_of(_add_sizing, parser)
    else:
        _add_sizing(parser)


def only_in_engine(command: str, unknown: Sequence[str]) -> list[str]:
    """Those of the unknown options that the command has with engine fidelity."""
    timed = importlib.import_module(TIMED_ARGUMENTS)
    add = {"replay": timed.add_replay_arguments, "size": timed.add_size_arguments}.get(command)
    if add is None:
        return []
    parser = argparse.ArgumentParser(add_help=False)
    add(parser)
    names = {name for action in parser._actions for name in action.option_strings} - set(timed.OLD_NAMES)
    return [name for name in dict.fromkeys(word.partition("=")[0] for word in unknown) if name in names]


def _refuse_those_of(add: Callable[[argparse.ArgumentParser], None], parser: argparse.ArgumentParser) -> None:
    other = argparse.ArgumentParser(add_help=False)
    add(other)
    add_refused(parser, other)


def _add_fleet(parser: argparse.ArgumentParser) -> None:
    fleet = parser.add_argument_group("servers and routing")
    fleet.add_argument(
        "--servers", type=int, metavar="N", help="replay N servers, each with the memory given here (default 1)"
    )
    fleet.add_argument(
        "--routing",
        metavar="HOW",
        help=f"how requests go to servers: {', '.join(values_of(Routing))} (default {USUAL_ROUTING.value})",
    )


def _add_footprint(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument_group("KV bytes of a token")
    model.add_argument("--model", metavar="NAME", help=f"{', '.join(MODELS)}, or the path of a {FILE}")
    model.add_argument(
        "--kv-dtype", metavar="TYPE", help=f"the type of KV numbers: {', '.join(DTYPES)} (default {USUAL_DTYPE})"
    )
    model.add_argument(
        "--bytes-per-token",
        metavar="SIZE",
        help="KV bytes of one token, summed over layers and workers: 131072, or 128KiB",
    )


def _add_policies(parser: argparse.ArgumentParser, usual: str) -> None:
    known = ", ".join(POLICIES)
    parser.add_argument(
        "--policy", default=usual, metavar="NAMES", help=f"eviction policies: {known}, or all (default {usual})"
    )
    parser.add_argument("--cache-policy-module-path", metavar="MODULE", help="the module of a policy of your own")


def _add_gpu(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gpu-capacity",
        metavar="SIZE",
        help=f"the size of the GPU's prefix cache, or {NOTHING} (default: as recorded in the trace, or {NOTHING})",
    )


def _add_disk_shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--disk-shared",
        action="store_true",
        help="the servers are on one machine, and each loads what another stored on disk, too",
    )


def _add_store_when(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--store-when",
        choices=values_of(StoreWhen),
        default=StoreWhen.COMPUTED.value,
        help="when a block is stored: once it is computed (default), or when the GPU's prefix cache is about to "
        "evict it",
    )


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", metavar="FILE", help="write the whole result as JSON; - prints it in place of the table"
    )


def _add_fidelity(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--fidelity",
        choices=values_of(Fidelity),
        default=Fidelity.CACHE.value,
        help="cache: hits and traffic only (default); engine: a whole engine with a clock",
    )


def _add_jobs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, default=num_cores(), metavar="J", help="processes (default: cores)")


def _add_page(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--html", metavar="FILE", help="write a report as one page that needs no network")


def _add_cache(parser: argparse.ArgumentParser) -> None:
    """The options of ``replay`` that only cache fidelity reads."""
    _add_footprint(parser)
    _add_policies(parser, USUAL_POLICY)
    parser.add_argument(
        "--capacity", metavar="SIZES", help=f"sizes of host memory, comma-separated: {EXPECTED}; or {NOTHING}"
    )
    _add_gpu(parser)
    parser.add_argument(
        "--disk-capacity",
        metavar="SIZES",
        help="sizes of files on a disk behind host memory, comma-separated (default: none)",
    )
    _add_disk_shared(parser)
    parser.add_argument(
        "--store-threshold",
        type=int,
        default=0,
        metavar="N",
        help="store a block only when it is offered for the N-th time",
    )
    parser.add_argument(
        "--disk-store-threshold", type=int, metavar="N", help="the same for the disk (default: store all)"
    )
    _add_store_when(parser)
    parser.add_argument(
        "--stream",
        action="store_true",
        help="don't keep the trace in memory, for very large traces; leaves out MIN, the infinite cache, ages "
        "and hits over time",
    )
    _add_jobs(parser)
    _add_page(parser)


def _add_sizing(parser: argparse.ArgumentParser) -> None:
    """The options of ``size`` that only cache fidelity reads."""
    _add_footprint(parser)
    _add_policies(parser, ",".join(ALL_POLICIES))
    parser.add_argument(
        "--capacity", metavar="SIZES", help=f"the capacities to sweep, comma-separated: {EXPECTED}"
    )
    parser.add_argument(
        "--disk", metavar="FOLDER", help="size files in FOLDER (a folder of the server) instead of host memory"
    )
    parser.add_argument("--host-capacity", metavar="SIZE", help="host memory in front of --disk (default: none)")
    _add_disk_shared(parser)
    _add_gpu(parser)
    _add_store_when(parser)
    _add_jobs(parser)
    _add_page(parser)


def _fidelity(typed: Sequence[str]) -> str | None:
    """The typed value of ``--fidelity``, right or wrong; the complete parser checks it."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--fidelity", nargs="?")
    found: str | None = parser.parse_known_args(typed)[0].fidelity
    return found
