"""Runs ``kv-sim replay`` and ``kv-sim size``: reads the trace, replays it, and reports."""

import argparse
import importlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kv_api import ConfigError
from kv_offload_cpu.policy import POLICIES
from kv_sim.console.output import FAILED, FINE, note, say
from kv_sim.replay.caches.outcome import Setup
from kv_sim.replay.columns import Columns
from kv_sim.replay.command import selection
from kv_sim.replay.command.arguments import TIMED, TIMED_REPORT, Fidelity
from kv_sim.replay.command.foreign import refuse_foreign
from kv_sim.replay.command.outputs import PRINTED, check_outputs, writing
from kv_sim.replay.command.progress import ProgressBar
from kv_sim.replay.crew import Crew
from kv_sim.replay.hit_rates.results import results_of
from kv_sim.replay.hit_rates.setups import replay_all
from kv_sim.replay.hit_rates.stream import replay_stream
from kv_sim.replay.readers.opening import open_stream, open_trace
from kv_sim.replay.report.as_json import replays_as_json, sizing_as_json
from kv_sim.replay.report.oracle import write_oracle
from kv_sim.replay.report.page import replay_page, size_page
from kv_sim.replay.report.text import replay_lines, size_lines
from kv_sim.replay.servers.fleet import RoutedTrace
from kv_sim.replay.sizing.around import Around
from kv_sim.replay.sizing.capacities import size_trace, usual_capacities
from kv_sim.replay.sizing.transfer_config import disk_bytes_for
from kv_sim.replay.trace import EngineMemory
from kv_sim.replay.units import Footprint, parse_capacity
from kv_sim.whole_file import whole_file

USUAL_SHARES = (0.001, 0.01, 0.05, 0.1, 0.25)
"""The default capacities of a replay, as shares of the trace's different blocks."""


def replay(options: argparse.Namespace) -> int:
    """``kv-sim replay``."""
    refuse_foreign(options)
    if Fidelity(options.fidelity) is Fidelity.ENGINE:
        selection.take_old_names(options, note)
    check_outputs(options)
    with ProgressBar() as progress:
        return _replay(options, progress)


def _replay(options: argparse.Namespace, progress: ProgressBar) -> int:
    if options.stream:
        return _replay_stream(options, progress)
    columns = _read(options, progress)
    if Fidelity(options.fidelity) is Fidelity.ENGINE:
        return _replay_engine(columns, options, progress)
    trace = RoutedTrace(columns, selection.fleet_of(options))
    footprint = selection.footprint_of(options, columns.block_tokens, columns.engine)
    gpu_blocks = selection.gpu_blocks_of(options, footprint, columns.engine)
    policies = selection.policies_of(options)
    setups = _own(options, columns.engine, footprint, gpu_blocks)
    setups += _setups(options, policies, footprint, gpu_blocks, _usual(trace.most_blocks))
    outcomes = replay_all(trace, setups, Crew(options.jobs, lambda share: progress.share("replaying", share)))
    progress.clear()
    found = results_of(trace, outcomes, footprint)
    model = selection.bytes_per_token(options, columns.engine)[1]
    _report(options, replays_as_json(found, model), replay_lines(found, model), lambda: replay_page(found, model))
    _write_oracle(options, columns)
    return FINE


def size(options: argparse.Namespace) -> int:
    """``kv-sim size``."""
    refuse_foreign(options)
    points = selection.points_of(options)
    check_outputs(options)
    with ProgressBar() as progress:
        if Fidelity(options.fidelity) is Fidelity.ENGINE:
            return _size_engine(options, points, progress)
        return _size(options, points, progress)


def _size(options: argparse.Namespace, points: int, progress: ProgressBar) -> int:
    columns = _read(options, progress)
    footprint = selection.footprint_of(options, columns.block_tokens, columns.engine)
    gpu_blocks = selection.gpu_blocks_of(options, footprint, columns.engine)
    trace, policies = RoutedTrace(columns, selection.fleet_of(options)), selection.policies_of(options)
    budget = None if options.budget is None else parse_capacity(options.budget, footprint, "--budget")
    around = Around(
        gpu_blocks,
        selection.disk_of(options, footprint),
        options.cache_policy_module_path,
        selection.store_when_of(options, gpu_blocks),
    )
    capacities = _capacities(options.capacity, footprint) or usual_capacities(trace.most_blocks, points)
    found = size_trace(
        trace,
        policies,
        capacities,
        footprint,
        around,
        budget_blocks=budget,
        crew=Crew(options.jobs, lambda share: progress.share("sweeping", share)),
    )
    progress.clear()
    model = selection.bytes_per_token(options, columns.engine)[1]

    def page() -> str:
        [run] = results_of(trace, replay_all(trace, [found.setup], Crew(options.jobs)), footprint).runs
        return size_page(found, model, run)

    _report(options, sizing_as_json(found, model), size_lines(found, model), page)
    return FINE


def _read(options: argparse.Namespace, progress: ProgressBar) -> Columns:
    columns = open_trace(
        options.trace, selection.trace_options(options), lambda count: progress.count("reading requests", count)
    )
    progress.clear()
    return columns


def _replay_stream(options: argparse.Namespace, progress: ProgressBar) -> int:
    for option, place in (("--html", options.html), ("--write-oracle", options.write_oracle)):
        if place is not None:
            raise ConfigError(f"--stream doesn't keep the trace, which {option} needs")
    if options.capacity is None and options.disk_capacity is None:
        raise ConfigError(
            "--stream needs --capacity: the default sizes are fractions of the whole trace, which --stream "
            "doesn't keep"
        )
    opening = open_stream(options.trace, selection.trace_options(options))
    footprint = selection.footprint_of(options, opening.block_tokens, opening.engine)
    gpu_blocks = selection.gpu_blocks_of(options, footprint, opening.engine)
    policies = selection.policies_of(options)
    setups = _setups(options, policies, footprint, gpu_blocks, [])
    fleet = selection.fleet_of(options)
    found = replay_stream(
        opening, setups, footprint, lambda count: progress.count("replaying requests", count), fleet
    )
    progress.clear()
    model = selection.bytes_per_token(options, opening.engine)[1]
    _report(options, replays_as_json(found, model), replay_lines(found, model), str)
    return FINE


def _setups(
    options: argparse.Namespace, policies: Sequence[str], footprint: Footprint, gpu_blocks: int, usual: list[int]
) -> list[Setup]:
    """Each policy with each capacity; with the ``usual`` capacities if no option gives a size."""
    disks = _capacities(options.disk_capacity, footprint, "--disk-capacity")
    hosts = _capacities(options.capacity, footprint, read=selection.capacity_or_none)
    capacities = hosts or ([0] if disks else usual)
    threshold = _threshold(options.store_threshold, "--store-threshold")
    if options.disk_store_threshold is not None and not disks:
        raise ConfigError("--disk-store-threshold is for --disk-capacity, which isn't given")
    disk_threshold = _threshold(options.disk_store_threshold or 0, "--disk-store-threshold")
    module, when = options.cache_policy_module_path, selection.store_when_of(options, gpu_blocks)
    return [
        Setup(
            policy=policy,
            capacity=size,
            gpu_blocks=gpu_blocks,
            store_threshold=threshold,
            policy_module=module,
            disk=disk,
            disk_store_threshold=disk_threshold,
            store_when=when,
        )
        for policy in policies
        for size in capacities
        for disk in disks or [0]
    ]


def _own(
    options: argparse.Namespace, engine: EngineMemory | None, footprint: Footprint, gpu_blocks: int
) -> list[Setup]:
    """The setup of the trace's own server, if no option says what to replay and its policy is known."""
    said = (options.capacity, options.disk_capacity, options.servers)
    if engine is None or engine.policy not in POLICIES or any(one is not None for one in said):
        return []
    of_a_block = engine.bytes_per_token * footprint.block_tokens
    host, disk = engine.host_bytes // of_a_block, engine.disk_bytes // disk_bytes_for(1, of_a_block)
    return [Setup(engine.policy, host, gpu_blocks, disk=disk)] if host or disk else []


def _threshold(offers: int, option: str) -> int:
    if offers < 0:
        raise ConfigError(f"{option}: expected at least 0, got {offers}")
    return offers


def _replay_engine(columns: Columns, options: argparse.Namespace, progress: ProgressBar) -> int:
    timed = importlib.import_module(TIMED)
    fleet = selection.fleet_of(options)
    found = timed.run(columns, options, lambda share: progress.share("replaying", share), fleet)
    progress.clear()
    _report_timed(options, found)
    _write_oracle(options, columns)
    return FINE


def _size_engine(options: argparse.Namespace, points: int, progress: ProgressBar) -> int:
    timed = importlib.import_module(TIMED)
    timed.goals_of(options)  # refuse wrong goals before reading a long trace
    columns, fleet = _read(options, progress), selection.fleet_of(options)
    found = timed.size(columns, options, points, lambda share: progress.share("replaying", share), fleet)
    progress.clear()
    _report_timed(options, found)
    return FINE if found.can_be_met else FAILED


def _report_timed(options: argparse.Namespace, found: object) -> None:
    as_json, text = (importlib.import_module(f"{TIMED_REPORT}.{name}") for name in ("as_json", "text"))
    _report(options, as_json.timed_as_json(found), text.timed_lines(found), str)


def _capacities(
    typed: str | None,
    footprint: Footprint,
    option: str = "--capacity",
    read: Callable[[str, Footprint, str], int] = parse_capacity,
) -> list[int]:
    if typed is None:
        return []
    sizes = [read(text, footprint, option) for text in typed.split(",")]
    return list(dict.fromkeys(sizes))


def _usual(unique_blocks: int) -> list[int]:
    return sorted({max(1, int(unique_blocks * share)) for share in USUAL_SHARES})


def _report(
    options: argparse.Namespace, data: Mapping[str, Any], lines: Iterable[str], page: Callable[[], str]
) -> None:
    if options.json == PRINTED:
        with writing("--json", PRINTED):
            say(json.dumps(data, indent=1))
    else:
        for line in lines:
            say(line)
    if options.json not in (None, PRINTED):
        _write("--json", options.json, json.dumps(data, indent=1) + "\n")
    if getattr(options, "html", None) is not None:
        _write("--html", options.html, page())
        _say_written(options, f"{options.html}: the report as a page")


def _write_oracle(options: argparse.Namespace, columns: Columns) -> None:
    """Write the oracle's file, after all checks of other options."""
    if options.write_oracle is not None:
        with writing("--write-oracle", options.write_oracle):
            count = write_oracle(columns, Path(options.write_oracle))
        _say_written(options, f"{options.write_oracle}: {count:,} records of libCacheSim's oracleGeneral")


def _write(option: str, place: str, text: str) -> None:
    with writing(option, place), whole_file(Path(place)) as file:
        file.write(text.encode(errors="backslashreplace"))  # a lone surrogate, such as of a file's name


def _say_written(options: argparse.Namespace, text: str) -> None:
    """Say that a file was written, unless JSON is printed on the same stream."""
    if options.json != PRINTED:
        say(text)
