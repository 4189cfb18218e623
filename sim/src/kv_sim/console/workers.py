"""Processes of a command: how many at once, and they end with it, also if it is killed and can't tell them.

A process leads a group, which is ended as a whole: a connector may begin processes of its own in it, as it may in
the command's.
"""

import multiprocessing
import os
import signal
import threading
from contextlib import suppress
from typing import Any


def num_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def end_with_parent() -> None:
    """Have this process, with all that it begins, end when the one that began it has ended.

    For what a pool, or a process, begins with.
    """
    parent = multiprocessing.parent_process()
    if parent is None:  # a test plays the process
        return
    multiprocessing.current_process().daemon = False  # a daemon may begin none; to its parent it still is one
    with suppress(AttributeError, OSError):
        os.setpgid(0, 0)
    threading.Thread(target=_end_after, args=(parent,), name="ends with its parent", daemon=True).start()


def end_group(process: Any) -> None:
    """End a process that began with ``end_with_parent``, with all that it began."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
    except (AttributeError, OSError):  # a system without groups; or it doesn't lead one yet, or none is left in it
        process.terminate()


def _end_after(parent: Any) -> None:
    parent.join()
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
