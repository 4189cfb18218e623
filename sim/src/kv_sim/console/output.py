"""What every command of ``kv-sim`` has: its exit codes, and how it speaks."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from traceback import print_exception
from typing import Final

FINE, FAILED, MISUSED, BROKEN, INTERRUPTED = 0, 1, 2, 3, 130
UNREAD = 141
"""Whoever read what is printed has gone: what a shell makes of SIGPIPE."""


STANDARD_OUTPUT: Final = "standard output"


def say(text: str) -> None:
    """Print a line at once. If that fails, the error names what was to be written."""
    with printing():
        print(text, flush=True)


@contextmanager
def printing() -> Iterator[None]:
    """What goes wrong with what is printed has a name, as if it were a file's."""
    try:
        yield
    except BrokenPipeError:  # whoever reads has seen enough
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, STANDARD_OUTPUT) from error


def note(text: str) -> None:
    """Print a line beside what was asked for."""
    print(f"note: {text}", file=sys.stderr, flush=True)


def say_interrupted(error: BaseException, seed: int | None, of: str, done: int) -> None:
    """Print where Ctrl-C found a command."""
    from kv_sim.guard import called_at  # with all checkers, which not every command needs

    called = called_at(error)
    where = f" in {called}," if called else ""
    running = f"while seed {seed} of {of} ran" if seed is not None else f"before {of} ran"
    note(f"interrupted{where} {running}; {done} {'history' if done == 1 else 'histories'} of it done before")


def say_that_testbed_failed(error: Exception, seed: int, line: str) -> None:
    """Print what is wrong here, not in a connector: its traceback, and how to see it again."""
    print_exception(error)
    say(f"TESTBED seed={seed}  {type(error).__name__}: {error}")
    say(f"replay: {line}")


def print_whatever_there_is() -> None:
    """What an output's encoding doesn't have is printed as its number, and is no reason to end."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def let_connectors_log_nothing() -> None:
    """What a connector warns of in a thousand histories is no news; without this Python prints it."""
    logging.getLogger().addHandler(logging.NullHandler())
