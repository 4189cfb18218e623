"""Where the command begins: Ctrl-C is an answer from here on, also while everything is imported."""

import sys

INTERRUPTED = 130
"""As in ``kv_sim.command.console``, which would have to be imported for it."""


def start() -> int:
    """Run the command that was typed; returns its exit code."""
    try:
        from kv_sim.cli.main import main
    except KeyboardInterrupt:
        sys.stderr.write("note: interrupted\n")
        return INTERRUPTED
    return main()
