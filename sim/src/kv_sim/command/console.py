"""What every command of ``kv-sim`` has: its exit codes, and how it speaks."""

import logging
import sys

FINE, FAILED, MISUSED, BROKEN, INTERRUPTED = 0, 1, 2, 3, 130


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def note(text: str) -> None:
    """Print a line beside what was asked for."""
    print(f"note: {text}", file=sys.stderr, flush=True)


def let_connectors_log_nothing() -> None:
    """What a connector warns of in a thousand histories is no news; without this Python prints it."""
    logging.getLogger().addHandler(logging.NullHandler())
