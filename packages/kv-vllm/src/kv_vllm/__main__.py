"""The command line: ``python -m kv_vllm differential | drift | fuzz | smoke | schedule``."""

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import count
from pathlib import Path

from kv_api import ConfigError
from kv_vllm.installed import MissingError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. 1: it found a difference; 2: it could not look."""
    parser = argparse.ArgumentParser(prog="python -m kv_vllm", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    one = commands.add_parser("differential", help="compare the testbed's engine with vLLM's schedulers")
    one.add_argument("--subject", nargs="+", action="extend", metavar="NAME", help="default: the three examples")
    one.add_argument("--seeds", type=_seeds, default=range(500), metavar="A-B", help="from A to B (default 0-499)")
    one.add_argument("--runner", type=int, choices=(1, 2), help="only this model runner")
    one.add_argument("--async", dest="is_async", choices=("yes", "no"), help="only AsyncScheduler, or Scheduler")
    one.set_defaults(run=_differential)
    drift = commands.add_parser("drift", help="compare the contract with the installed vLLM's classes")
    drift.set_defaults(run=_drift)
    _add_fuzz(commands.add_parser("fuzz", help="drive connectors by vLLM's engine until time is up"))
    smoke = commands.add_parser("smoke", help="run vLLM without and with a connector, and compare")
    smoke.add_argument("--model", metavar="MODEL", help="as for vLLM (default: a tiny one, made on the spot)")
    smoke.add_argument(
        "--kv-transfer-config", metavar="JSON", help="the connector, as for vLLM (default: ours, with 1 GiB)"
    )
    smoke.add_argument("--eager", action="store_true", help="without compilation and graphs: faster to start")
    smoke.set_defaults(run=_smoke)
    schedule = commands.add_parser("schedule", help="make a schedule of what a RecordingConnector wrote down")
    schedule.add_argument("calls", metavar="CALLS", help="the file of calls")
    schedule.add_argument("schedule", metavar="SCHEDULE", help="where the schedule goes")
    schedule.set_defaults(run=_schedule)
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        commands.choices[options.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        code: int = options.run(options)
    except (ConfigError, MissingError, OSError) as error:
        print(f"kv_vllm: {error}", file=sys.stderr)
        return 2
    return code


def _add_fuzz(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--subject", nargs="+", action="extend", metavar="NAME", help="default: some of vLLM's own"
    )
    parser.add_argument("--connector", metavar="NAME", help="another one: module:Class, or a name that vLLM knows")
    parser.add_argument("--extra", metavar="JSON", help="settings to add to its kv_connector_extra_config")
    parser.add_argument("--traits", metavar="A,B", help="what it claims to withstand, or none (the default)")
    by_tickets = "it serves other engines by tickets in kv_transfer_params"
    parser.add_argument("--serves-peers", action="store_const", const=1, help=by_tickets)
    parser.add_argument(
        "--two-engines",
        dest="serves_peers",
        action="store_const",
        const=2,
        help="the same with two engines in a world: for one that can't pull from itself",
    )
    parser.add_argument(
        "--without", nargs="+", action="extend", default=[], metavar="CHECKER", help="switch these checkers off"
    )
    parser.add_argument("--minutes", type=float, default=10.0, metavar="M", help="for all of them (default 10)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the first seed (default 0)")
    parser.add_argument("--save", default=".", metavar="DIR", help="where to put schedules of failures")
    parser.set_defaults(run=_fuzz)


def _seeds(text: str) -> range:
    first, dash, last = text.partition("-")
    try:
        seeds = range(int(first), int(last if dash else first) + 1)
    except ValueError:
        seeds = range(0)
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a seed nor a range like 0-499")
    return seeds


def _differential(options: argparse.Namespace) -> int:
    _need_the_testbed()
    from kv_sim.examples.catalogue import SUBJECTS
    from kv_vllm.differential.matrix import CELLS
    from kv_vllm.differential.run import USUAL_SUBJECTS, differential
    from kv_vllm.installed import vllm_version

    names = options.subject or list(USUAL_SUBJECTS)
    unknown = [name for name in names if name not in SUBJECTS]
    if unknown:
        print(f"unknown subject {unknown[0]!r}; known: {', '.join(SUBJECTS)}", file=sys.stderr)
        return 2
    cells = [
        cell
        for cell in CELLS
        if options.runner in (None, cell.runner)
        and options.is_async in (None, "yes" if cell.async_scheduling else "no")
    ]
    version = vllm_version()
    from kv_vllm.differential.scheduler import VllmScheduler

    return 0 if differential(cells, names, options.seeds, VllmScheduler, version, _show) else 1


def _drift(options: argparse.Namespace) -> int:
    from kv_vllm.drift.compare import drift

    return 0 if drift(_show) else 1


def _fuzz(options: argparse.Namespace) -> int:
    _need_the_testbed()
    from kv_sim.command.console import let_connectors_log_nothing
    from kv_sim.command.selection import choose_subject, look_in_this_folder
    from kv_sim.command.values import parse_checkers
    from kv_sim.examples.catalogue import SUBJECTS
    from kv_sim.failures.deadline import within
    from kv_vllm.driver.hunt import hunt, show_found
    from kv_vllm.driver.subjects import OUR_SUBJECTS, VLLM_SUBJECTS
    from kv_vllm.installed import vllm_version

    known = {**VLLM_SUBJECTS, **OUR_SUBJECTS, **SUBJECTS}
    names = options.subject or ([] if options.connector else list(VLLM_SUBJECTS))
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"unknown subject {unknown[0]!r}; known: {', '.join(known)}", file=sys.stderr)
        return 2
    let_connectors_log_nothing()
    without = parse_checkers(options.without)
    version = vllm_version()
    if options.connector is not None:
        look_in_this_folder()
        known[options.connector] = choose_subject(
            options.connector, options.extra, options.traits, "vllm", serves_peers=options.serves_peers
        )
        names = [*names, options.connector]
    _show(f"vLLM {version[0]}.{version[1]}: {', '.join(names)}, {options.minutes:g} minutes in all")
    failed = False
    for name in names:
        found = hunt(known[name], count(options.seed), within(60 * options.minutes / len(names)), silent=without)
        failed |= show_found(name, found, Path(options.save), _show)
    return 1 if failed else 0


def _smoke(options: argparse.Namespace) -> int:
    from kv_vllm.smoke.run import CONNECTOR, read_transfer, smoke

    typed = options.kv_transfer_config
    transfer = CONNECTOR if typed is None else read_transfer(typed)
    return 0 if smoke(options.model, {"enforce_eager": options.eager}, _show, transfer) else 1


def _schedule(options: argparse.Namespace) -> int:
    from kv_vllm.recording.schedule import write_schedule_of

    _show(str(write_schedule_of(Path(options.calls), Path(options.schedule))))
    return 0


def _need_the_testbed() -> None:
    if find_spec("kv_sim") is None:
        raise MissingError("this needs the testbed: install kv-vllm[sim]")


def _show(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
