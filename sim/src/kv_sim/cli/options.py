"""The options of ``kv-sim``: what can be typed, and nothing of what it does."""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from kv_api.errors import nearest_name
from kv_sim.actions import USUAL_ACTIONS
from kv_sim.cli.version import ShowVersions
from kv_sim.config import BUILTIN_ENGINE
from kv_sim.console.values import USUAL_MINUTES, split_names
from kv_sim.console.watchdog import USUAL_SECONDS
from kv_sim.console.workers import num_cores
from kv_sim.replay.command.arguments import add_replay_arguments, add_size_arguments, only_in_engine
from kv_sim.subject import PEERS, SHARES, Trait

USUAL_HISTORIES: Final = 300
_LIKE: Final = 0.75
"""How like an option one has to be that may have been meant to be it."""

_LISTS: Final = ("A,B", "NAMES", "SIZES")
"""What stands in the help for a value that may be several."""

Command = Callable[[argparse.Namespace], int]


def parse(commands: Mapping[str, Command], typed: Sequence[str]) -> argparse.Namespace:
    """What was typed. What a command doesn't know ends the program, with the usage of that command."""
    parser = parser_of(commands, typed)
    options, unknown = parser.parse_known_args(typed)
    if unknown:
        is_before = unknown[0] in typed[: typed.index(options.command)]
        refuse = parser.error if is_before else options.refuse
        hints = "" if is_before else "".join(f"; {one}" for one in _hints(parser, options.command, typed, unknown))
        refuse(f"unrecognized arguments: {' '.join(unknown)}{hints}")
    return options


def _hints(
    parser: argparse.ArgumentParser, command: str, typed: Sequence[str], unknown: Sequence[str]
) -> Iterator[str]:
    """Where there is an option that a command doesn't know, or what it may have been meant to be."""
    of_engine = only_in_engine(command, unknown)
    if of_engine:
        yield f"of --fidelity engine: {' and '.join(of_engine)}"
    [commands] = [action.choices for action in parser._actions if isinstance(action.choices, dict)]
    known = {name: set(one._option_string_actions) for name, one in commands.items()}
    option, value = _before(typed, unknown[0])
    if any(option in one.option_strings and one.metavar in _LISTS for one in commands[command]._actions):
        yield f"{option} takes several with commas between them: {value},{unknown[0]}"
    elif not unknown[0].startswith("-") and "--connector" in known[command]:
        yield f"did you mean --connector {unknown[0]}?"
    for word in dict.fromkeys(word.partition("=")[0] for word in unknown if word.startswith("--")):
        if word in of_engine:
            continue
        near = nearest_name(word, known[command], likeness=_LIKE)
        others = [name for name in known if word in known[name]]
        if others:
            yield f"{word} is of {' and '.join(others)}"
        elif near is not None:
            yield f"did you mean {near}?"


def _before(typed: Sequence[str], word: str) -> tuple[str, str]:
    """The option before a word, and its value, if they are the last things before it."""
    *_, option, value = "", "", *typed[: typed.index(word)]
    if value.startswith("--"):
        option, _, value = value.partition("=")
    return option, value


def parser_of(commands: Mapping[str, Command], typed: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser. What it finds has ``run``, the command's function, and ``refuse``, which ends the program.

    Some options depend on what was ``typed``.
    """
    parser = argparse.ArgumentParser(
        prog="kv-sim",
        description="A testbed for KV connectors: a legal and hostile engine, replayed from a seed.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", nargs=0, action=ShowVersions, help="print the versions of these packages")
    added = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        said = text[0].upper() + text[1:]
        one: argparse.ArgumentParser = added.add_parser(name, help=text, description=said, allow_abbrev=False)
        one.set_defaults(run=commands[name], refuse=one.error, extra=None, traits=None)
        return one

    _add_fuzz(command("fuzz", "run histories until an invariant breaks"))
    traced = command("replay", "replay a request trace on a host cache, and print its hit rate and traffic")
    add_replay_arguments(traced, typed)
    sized = command("size", "find how much host memory pays off for a trace, and print the configuration")
    add_size_arguments(sized, typed)
    _add_replay_schedule(command("replay-schedule", "replay a schedule file, maybe onto another connector"))
    _add_conform(command("conform", "test a connector against each trait that it claims"))
    _add_growth(
        command("growth", "measure whether a connector's work per step, or its memory, grows without bound")
    )
    _add_campaign(command("campaign", "run all subjects for a long time, and list which situations were reached"))
    _add_zoo(command("zoo", "hunt the planted bugs, and say which checker caught each"))
    command("subjects", "list the connectors that the testbed knows")
    return parser


def _add_fuzz(parser: argparse.ArgumentParser) -> None:
    _add_connector(parser)
    parser.add_argument("--seed", metavar="N", help="run one history, of this seed (decimal or 0x…)")
    parser.add_argument("--seeds", metavar="A-B", help="run one history for each seed from A to B")
    parser.add_argument("--histories", type=int, metavar="N", help=f"run N histories (default {USUAL_HISTORIES})")
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="J", help="processes (default 1); more find the same, sooner"
    )
    _add_actions(parser)
    _add_views(parser)
    _add_save(parser)
    parser.add_argument(
        "--digest", action="store_true", help="print a digest of each history: same seed, same digest"
    )
    _add_without(parser)
    _add_engine(parser, BUILTIN_ENGINE, f"which engine drives the connector (default {BUILTIN_ENGINE})")


def _add_replay_schedule(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE")
    _add_connector(parser)
    _add_engine(parser, None, "drive the connector by this engine instead of the one in the file")
    _add_views(parser)


def _add_conform(parser: argparse.ArgumentParser) -> None:
    _add_name(parser)
    _add_peers(parser)
    parser.add_argument(
        "--probe", action="store_true", help="also try the traits that the connector doesn't claim"
    )
    parser.add_argument(
        "--keep-going", action="store_true", help="go on with the other claims after one is broken"
    )
    parser.add_argument(
        "--histories", type=int, metavar="N", help="how many histories to run for each scenario (default 100)"
    )
    parser.add_argument("--seed", default="0", metavar="N", help="the first seed (default 0)")
    _add_actions(parser)
    _add_without(parser)
    _add_engine(parser, BUILTIN_ENGINE, f"which engine drives it (default {BUILTIN_ENGINE})")
    _add_save(parser)


def _add_growth(parser: argparse.ArgumentParser) -> None:
    _add_name(parser)
    _add_peers(parser)
    _add_without(parser)
    _add_engine(parser, BUILTIN_ENGINE, f"which engine drives it (default {BUILTIN_ENGINE})")


def _add_zoo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="BUG", help="hunt only these planted bugs (default: all)")
    parser.add_argument("--list", action="store_true", help="list the planted bugs, and run nothing")
    parser.add_argument("--jobs", type=int, default=num_cores(), metavar="J", help="processes (default: cores)")
    parser.add_argument("--seed", default="0", metavar="N", help="the first seed (default 0)")


def _add_campaign(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, metavar="M", help=f"how long (default {USUAL_MINUTES:g})")
    parser.add_argument(
        "--histories", type=int, metavar="N", help="run N histories of each subject, instead of --minutes"
    )
    parser.add_argument("--jobs", type=int, default=num_cores(), metavar="J", help="processes (default: cores)")
    _add_engine(parser, BUILTIN_ENGINE, f"which engine drives the connectors (default {BUILTIN_ENGINE})")
    parser.add_argument("--seed", default="0", metavar="N", help="the first seed (default 0)")
    _add_actions(parser)
    _add_save(parser)


def _add_connector(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--connector",
        metavar="NAME",
        help="a subject of the testbed, module:Class, or the name of an installed connector",
    )
    _add_claims(parser)
    _add_peers(parser)


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="the connector: module:Class, a subject of the testbed, or the name of an installed connector",
    )
    parser.add_argument(
        "--spec", metavar="NAME", help="the offloading medium to test, used by OffloadingConnector"
    )
    _add_claims(parser)


def _add_claims(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--extra", metavar="JSON", help="settings to add to the connector's kv_connector_extra_config"
    )
    parser.add_argument(
        "--traits", metavar="A,B", help=f"what the connector claims to support: {', '.join(Trait)}, or none"
    )
    parser.add_argument(
        "--call-timeout",
        type=float,
        default=USUAL_SECONDS,
        metavar="S",
        help=f"end a connector's call after S seconds and report a violation (default {USUAL_SECONDS:g}; 0: "
        "never)",
    )


def _add_peers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        PEERS[1],
        action="store_const",
        const=1,
        help="the connector serves other engines by tickets in kv_transfer_params; here one engine pulls from "
        "itself",
    )
    parser.add_argument(
        PEERS[2],
        dest="serves_peers",
        action="store_const",
        const=2,
        help="the same with two engines, for a connector that can't pull from itself",
    )
    parser.add_argument(
        SHARES,
        action="store_true",
        default=None,
        help="run two engines that share the connector's store, without tickets",
    )


def _add_engine(parser: argparse.ArgumentParser, usual: str | None, text: str) -> None:
    parser.add_argument("--engine", default=usual, metavar="NAME", help=text)


def _add_actions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--actions",
        type=int,
        default=USUAL_ACTIONS,
        metavar="N",
        help="how many actions a history has (default %(default)s)",
    )


def _add_views(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--log", action="store_true", help="print the history; of several, the one that fails")
    parser.add_argument("--perfetto", metavar="FILE", help="write the history as a trace for ui.perfetto.dev")


def _add_without(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--without", type=split_names, action="extend", default=[], metavar="A,B", help="switch these checkers off"
    )


def _add_save(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--save", default=".", metavar="DIR", help="folder for schedule files of failures (default: this folder)"
    )
