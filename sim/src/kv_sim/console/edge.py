"""The edge of a command: whatever ends it is told in a line, and is an exit code."""

import sys
from collections.abc import Callable
from traceback import print_exception

from kv_api import ConfigError
from kv_sim.console.exits import exits_are_raised
from kv_sim.console.interrupts import Told
from kv_sim.console.output import BROKEN, INTERRUPTED, MISUSED, UNREAD, note, printing


def exit_code_of(name: str, run: Callable[[], int]) -> int:
    """Run the command of this name."""
    try:
        with exits_are_raised():
            code = run()
        with printing():
            print(end="", flush=True)  # where there is no standard output, nothing
    except ConfigError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return MISUSED
    except Told:
        return INTERRUPTED
    except KeyboardInterrupt:
        note("interrupted")
        return INTERRUPTED
    except SystemExit as error:  # out of reach of what guards a connector's calls; it must not look like an answer
        print(f"{name}: a connector or a library called sys.exit({error.code!r})", file=sys.stderr)
        return BROKEN
    except BrokenPipeError:  # whoever reads has seen enough
        return UNREAD
    except OSError as error:
        named = error.filename is not None and error.strerror is not None
        print(f"{name}: {f'{error.filename}: {error.strerror}' if named else error}", file=sys.stderr)
        return MISUSED
    except Exception as error:  # noqa: BLE001 - reported with its traceback, under an exit code of its own
        print_exception(error)
        print(f"{name}: kv-sim itself failed: please report it", file=sys.stderr)
        return BROKEN
    return code
