"""Ctrl-C reaches all processes of a terminal. One of them answers for all: it ends the others, and says so."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any


class Told(KeyboardInterrupt):
    """Ctrl-C; where it found the command was said."""


@contextmanager
def heard_here_alone() -> Iterator[None]:
    """Processes that are started within never hear Ctrl-C; this one does when they are started.

    They inherit that it is blocked. That doesn't keep it from this process, whose other threads may take it, so
    here it is noted meanwhile: raised while a process is started, it would leave one that waits for what to do.
    """
    noted: list[int] = []
    with _blocked(), on_interrupt(lambda number, frame: noted.append(number)):
        yield
    if noted:
        signal.raise_signal(signal.SIGINT)


@contextmanager
def on_interrupt(handler: Any) -> Iterator[None]:
    """Have Ctrl-C do this in the place of raising an exception."""
    try:
        before = signal.signal(signal.SIGINT, handler)
    except ValueError:  # not the main thread, where no interrupt comes
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _blocked() -> Iterator[None]:
    """For this thread, and for what it starts, where a system can do that."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # else the first process to be started starts it before, which unblocks it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
