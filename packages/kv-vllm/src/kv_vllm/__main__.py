"""The command line: ``python -m kv_vllm differential | drift | fuzz | smoke | schedule``."""

import argparse
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, Final

from kv_api import ConfigError, UnknownNameError
from kv_api.errors import did_you_mean
from kv_vllm.installed import MissingError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns 0; 1 if it found a difference; 2 if it couldn't run; others as ``kv-sim`` does."""
    options = _parse(arguments)
    try:
        if options.run in IN_THE_TESTBED:
            _need_the_testbed()
            from kv_sim.console.edge import exit_code_of

            return exit_code_of("kv_vllm", partial(_run, options))
        return _run(options)
    except OSError as error:
        print(
            f"kv_vllm: {error.filename}: {error.strerror}" if error.filename else f"kv_vllm: {error}",
            file=sys.stderr,
        )
    except (ConfigError, MissingError) as error:
        print(f"kv_vllm: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("note: interrupted", file=sys.stderr)
        return 130
    return 2


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The parsed command line; ``run`` is the command's function."""
    parser = argparse.ArgumentParser(prog="python -m kv_vllm", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    one = commands.add_parser("differential", help="compare the testbed's engine with vLLM's schedulers")
    one.add_argument(
        "--subject",
        type=_names,
        action="extend",
        metavar="A,B",
        help="which subjects of the testbed (default: the three examples)",
    )
    one.add_argument(
        "--seeds", type=_seeds, default=range(500), metavar="A-B", help="the seeds from A to B (default 0-499)"
    )
    one.add_argument(
        "--runner", type=int, choices=(1, 2), help="compare only with this model runner (default: both)"
    )
    one.add_argument(
        "--async",
        dest="is_async",
        choices=("yes", "no"),
        help="yes: only vLLM's AsyncScheduler; no: only its Scheduler (default: both)",
    )
    one.set_defaults(run=_differential)
    drift = commands.add_parser("drift", help="compare the contract with the installed vLLM's classes")
    drift.set_defaults(run=_drift)
    _add_fuzz(commands.add_parser("fuzz", help="fuzz connectors in vLLM's engine for some minutes"))
    smoke = commands.add_parser("smoke", help="run vLLM with and without a connector, and compare the outputs")
    smoke.add_argument(
        "--model", metavar="MODEL", help="the model, as for vLLM (default: a tiny one, which is generated)"
    )
    smoke.add_argument(
        "--kv-transfer-config", metavar="JSON", help="the connector, as for vLLM (default: ours, with 1 GiB)"
    )
    smoke.add_argument(
        "--eager", action="store_true", help="run vLLM without compilation and graphs: faster to start"
    )
    smoke.set_defaults(run=_smoke)
    schedule = commands.add_parser(
        "schedule", help="turn the calls that a RecordingConnector wrote into a schedule file"
    )
    schedule.add_argument("calls", metavar="CALLS", help="the file that the RecordingConnector wrote")
    schedule.add_argument("schedule", metavar="SCHEDULE", help="the schedule file to write")
    schedule.set_defaults(run=_schedule)
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        commands.choices[options.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    return options


def _run(options: argparse.Namespace) -> int:
    try:
        code: int = options.run(options)
    except MissingError as error:
        raise ConfigError(str(error)) from error
    return code


def _start() -> int:
    """Start and end the process as ``kv-sim`` does, if it is installed, whatever a connector left behind."""
    if find_spec("kv_sim") is None:
        return main()
    from kv_sim.cli.start import start

    return start(main)


def _add_fuzz(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--subject",
        type=_names,
        action="extend",
        metavar="A,B",
        help="which subjects (default: some of vLLM's own connectors)",
    )
    parser.add_argument(
        "--connector",
        metavar="NAME",
        help="a connector that is not a subject: module:Class, or a name that vLLM knows",
    )
    parser.add_argument(
        "--extra", metavar="JSON", help="settings to add to the connector's kv_connector_extra_config"
    )
    parser.add_argument(
        "--traits", metavar="A,B", help="what the connector claims to support, or none (the default)"
    )
    by_tickets = "the connector serves other engines by tickets in kv_transfer_params"
    parser.add_argument("--serves-peers", action="store_const", const=1, help=by_tickets)
    parser.add_argument(
        "--two-engines",
        dest="serves_peers",
        action="store_const",
        const=2,
        help="the same with two engines, for a connector that can't pull from itself",
    )
    parser.add_argument(
        "--shares-store",
        action="store_true",
        default=None,
        help="run two engines that share the connector's store, without tickets",
    )
    parser.add_argument(
        "--without", type=_names, action="extend", default=[], metavar="A,B", help="switch these checkers off"
    )
    parser.add_argument(
        "--call-timeout",
        type=float,
        default=60.0,
        metavar="S",
        help="end a connector's call after S seconds (default 60; 0: never), as in kv-sim fuzz",
    )
    parser.add_argument(
        "--minutes", type=float, default=10.0, metavar="M", help="how long to fuzz, over all subjects (default 10)"
    )
    parser.add_argument("--seed", default="0", metavar="N", help="the first seed (default 0)")
    parser.add_argument(
        "--save", default=".", metavar="DIR", help="folder for schedule files of failures (default: this folder)"
    )
    parser.set_defaults(run=_fuzz)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


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
    from kv_sim.console.output import let_connectors_log_nothing
    from kv_sim.examples.catalogue import SUBJECTS
    from kv_vllm.differential.matrix import CELLS
    from kv_vllm.differential.run import USUAL_SUBJECTS, differential
    from kv_vllm.installed import vllm_version

    names = options.subject or list(USUAL_SUBJECTS)
    _check_subjects(names, (), SUBJECTS)
    cells = [
        cell
        for cell in CELLS
        if options.runner in (None, cell.runner)
        and options.is_async in (None, "yes" if cell.async_scheduling else "no")
    ]
    let_connectors_log_nothing()
    version = vllm_version()
    from kv_vllm.differential.scheduler import VllmScheduler

    return 0 if differential(cells, names, options.seeds, VllmScheduler, version, _show) else 1


def _drift(options: argparse.Namespace) -> int:
    from kv_vllm.drift.compare import drift

    return 0 if drift(_show) else 1


def _fuzz(options: argparse.Namespace) -> int:
    from kv_sim.console import selection, values
    from kv_sim.console.output import let_connectors_log_nothing
    from kv_sim.console.watchdog import ends_calls
    from kv_sim.examples.catalogue import SUBJECTS
    from kv_vllm.driver.subjects import OUR_SUBJECTS, VLLM_SUBJECTS
    from kv_vllm.installed import vllm_version

    own = {**VLLM_SUBJECTS, **OUR_SUBJECTS}
    known = {**own, **SUBJECTS}
    names = options.subject or ([] if options.connector else list(VLLM_SUBJECTS))
    _check_subjects(names, own, SUBJECTS)
    values.check_numbers(options)
    values.check_folder("--save", options.save)
    seed, without = values.parse_seed(options.seed), values.parse_checkers(options.without)
    about_it = options.extra, options.traits, options.serves_peers, options.shares_store
    if options.connector is None:
        selection.refuse_what_is_about_one(*about_it)
    let_connectors_log_nothing()
    version = vllm_version()
    with ends_calls(options.call_timeout):
        if options.connector is not None:
            values.look_in_this_folder()
            extra, traits, serves_peers, shares_store = about_it
            known[options.connector] = selection.choose_subject(
                options.connector, extra, traits, "vllm", serves_peers=serves_peers, shares_store=shares_store
            )
            names = [*names, options.connector]
        _show(f"vLLM {version[0]}.{version[1]}: {', '.join(names)}, {options.minutes:g} minutes in all")
        return _hunt_all({name: known[name] for name in names}, seed, options, without)


def _hunt_all(subjects: Mapping[str, Any], seed: int, options: argparse.Namespace, without: frozenset[Any]) -> int:
    """Fuzz each subject for its share of the time. Ctrl-C ends it; failures found so far are kept."""
    from kv_sim.failures.deadline import within
    from kv_vllm.driver.hunt import hunt, show_found

    failed = False
    for name, subject in subjects.items():
        found = hunt(subject, count(seed), within(60 * options.minutes / len(subjects)), without=without)
        failed |= show_found(name, found, Path(options.save), _show)
        if found.was_interrupted:
            print("note: interrupted; this is what was found so far", file=sys.stderr)
            return 1 if failed else 130
    return 1 if failed else 0


def _check_subjects(names: Sequence[str], own: Collection[str], testbeds: Collection[str]) -> None:
    for name in names:
        if name in own or name in testbeds:
            continue
        meant = did_you_mean(name, [*own, *testbeds])
        known = ", ".join([*own, "those that kv-sim subjects lists"])
        raise UnknownNameError(f"--subject: unknown subject {name!r}{meant}; known: {known}")


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


IN_THE_TESTBED: Final = (_differential, _fuzz)


def _show(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(_start())
