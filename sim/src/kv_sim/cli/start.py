"""Where the command begins and ends.

Ctrl-C is an answer from here on, also while everything is imported. Where a library crashes the process, the
stack is printed. A thread that a connector left running is told of by a history; the command ends all the same.
"""

import atexit
import faulthandler
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

INTERRUPTED = 130
"""As in ``kv_sim.console.output``, which would have to be imported for it."""
PATIENCE_SECONDS: Final = 1.0
"""A thread may take so long to end by itself."""


def start(command: Callable[[], int] | None = None) -> int:
    """Run ``kv-sim`` as it was typed, or another command; returns its exit code."""
    with suppress(AttributeError, OSError, ValueError):  # there is no stderr, or none that is a file
        faulthandler.enable()
    try:
        code = (command or _kv_sim())()
    except KeyboardInterrupt:
        sys.stderr.write("note: interrupted\n")
        return INTERRUPTED
    end_with(code)
    return code


def _kv_sim() -> Callable[[], int]:
    from kv_sim.cli.main import main

    return main


def end_with(code: int) -> None:
    """End the process if threads are left that would keep it from ending; else return."""
    ours = (threading.main_thread(), threading.current_thread())
    left = [thread for thread in threading.enumerate() if not thread.daemon and thread not in ours]
    # Those of a pool end when the interpreter tells them to, if none of them has a job that doesn't end.
    pools = getattr(sys.modules.get("concurrent.futures.thread"), "_threads_queues", ())
    alone = [thread for thread in left if thread not in pools]
    for thread in alone:
        thread.join(PATIENCE_SECONDS / len(alone))
    if not any(thread.is_alive() for thread in left):
        return
    names = sorted({thread.name for thread in alone if thread.is_alive()})
    with suppress(AttributeError, OSError, ValueError):
        if names:
            sys.stderr.write(
                f"note: these threads still run after shutdown, and are not waited for: {', '.join(names)}\n"
            )
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(code)
