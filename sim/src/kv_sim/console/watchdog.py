"""Ends a call of a connector that doesn't return: an error is raised in the middle of it, and told like any other.

A timer's signal comes at intervals, and the call that it interrupts is noted. If two signals in a row interrupt
the same call, that has taken at least one interval. Signals reach the main thread only; Windows has none.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from kv_sim import calls
from kv_sim.violation import DidNotReturn

USUAL_SECONDS = 60.0


@contextmanager
def ends_calls(seconds: float) -> Iterator[None]:
    """End calls that take twice as long for sure, and none that takes less. 0: never."""
    if not seconds or not hasattr(signal, "setitimer") or signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
        yield
        return
    seen: int | None = None
    """The number of the last look, if it fell into a call."""

    def look(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        before, now = seen, next(calls.numbers)
        seen = now if calls.is_within_a_call(frame) else None
        if seen is not None and before is not None and now == before + 1:
            raise DidNotReturn(f"it hasn't returned for {seconds:g} s (--call-timeout)")

    try:
        signal.signal(signal.SIGALRM, look)
    except ValueError:  # not the main thread
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
