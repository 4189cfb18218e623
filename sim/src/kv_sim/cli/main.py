"""``kv-sim``: the testbed on the command line.

Exit codes: 0 nothing is wrong; 1 an invariant broke, a campaign missed something, or work grows; 2 the command
can't be run as it stands; 3 the testbed itself failed, which is never the connector's fault; 130 interrupted;
141 nobody reads on.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from traceback import print_exception
from typing import Final

from kv_api import ConfigError
from kv_sim.campaign.command import campaign
from kv_sim.cli.fuzz import fuzz
from kv_sim.cli.options import parse
from kv_sim.cli.replay_schedule import replay_schedule
from kv_sim.cli.subjects import subjects
from kv_sim.command import selection, values
from kv_sim.command.console import (
    BROKEN,
    INTERRUPTED,
    MISUSED,
    UNREAD,
    let_connectors_log_nothing,
    note,
    print_whatever_there_is,
    printing,
)
from kv_sim.command.interrupts import Told
from kv_sim.command.watchdog import ends_calls
from kv_sim.conformance.command import conform
from kv_sim.growth.command import growth
from kv_sim.replay.command import run as replaying


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    typed = sys.argv[1:] if arguments is None else arguments
    print_whatever_there_is()
    try:
        options = parse(COMMANDS, typed)
    except BrokenPipeError:
        return UNREAD
    except OSError as error:  # of the versions, which are printed at once
        print(f"kv-sim: {error.filename}: {error.strerror}", file=sys.stderr)
        return MISUSED
    let_connectors_log_nothing()
    try:
        values.check_numbers(options)
        values.check_folder("--save", getattr(options, "save", None))
        selection.look_in_this_folder()
        with ends_calls(getattr(options, "call_timeout", 0)):
            code: int = options.run(options)
        with printing():
            print(end="", flush=True)  # where there is no standard output, nothing
    except ConfigError as error:
        print(f"kv-sim {options.command}: {error}", file=sys.stderr)
        return MISUSED
    except Told:
        return INTERRUPTED
    except KeyboardInterrupt:
        note("interrupted")
        return INTERRUPTED
    except SystemExit as error:  # out of reach of what guards a connector's calls; it must not look like an answer
        print(f"kv-sim {options.command}: somebody called sys.exit({error.code!r}) in the middle", file=sys.stderr)
        return BROKEN
    except BrokenPipeError:  # whoever reads has seen enough
        return UNREAD
    except OSError as error:
        named = error.filename is not None and error.strerror is not None
        said = f"{error.filename}: {error.strerror}" if named else error
        print(f"kv-sim {options.command}: {said}", file=sys.stderr)
        return MISUSED
    except Exception as error:  # noqa: BLE001 - reported with its traceback, under an exit code of its own
        print_exception(error)
        print(f"kv-sim {options.command}: kv-sim itself failed: please report it", file=sys.stderr)
        return BROKEN
    return code


def _zoo(options: argparse.Namespace) -> int:
    from kv_sim.zoo.command import zoo  # it breaks the insides of connectors, which no other command needs

    return zoo(options)


COMMANDS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "fuzz": fuzz,
    "replay": replaying.replay,
    "size": replaying.size,
    "replay-schedule": replay_schedule,
    "conform": conform,
    "growth": growth,
    "campaign": campaign,
    "zoo": _zoo,
    "subjects": subjects,
}
