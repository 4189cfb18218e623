"""Processes of a command: how many at once, and they end with it, also if it is killed and can't tell them."""

import multiprocessing
import os
import threading
from typing import Any


def num_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def end_with_parent() -> None:
    """Have this process end when the one that began it has ended. For what a pool, or a process, begins with."""
    parent = multiprocessing.parent_process()
    if parent is not None:  # or a test plays the process
        threading.Thread(target=_end_after, args=(parent,), name="ends with its parent", daemon=True).start()


def _end_after(parent: Any) -> None:
    parent.join()
    os._exit(1)
