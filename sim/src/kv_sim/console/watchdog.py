"""Ends a call of a connector that doesn't return: an error is raised in the middle of it, and told like any other.

A timer's signal comes at intervals, and the call that it interrupts is noted. If two signals in a row interrupt
the same call, that has taken at least one interval: a line says where it is. After as many intervals as make up
the limit it is ended. Signals reach the main thread only; Windows has none.
"""

import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from kv_sim import calls
from kv_sim.console.output import note
from kv_sim.violation import DidNotReturn

USUAL_SECONDS = 60.0
LOOK_SECONDS = 10.0
"""The longest time between two looks."""


@contextmanager
def ends_calls(seconds: float) -> Iterator[None]:
    """End calls that take so long, none of them earlier, and each before one more look is due. 0: never."""
    if not seconds or not hasattr(signal, "setitimer") or signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
        yield
        return
    looks = math.ceil(seconds / LOOK_SECONDS)
    seen: int | None = None
    """The number of the last look, if it fell into a call."""
    again = 0
    """How many looks before this one fell into the same call."""

    def look(number: int, frame: FrameType | None) -> None:
        nonlocal seen, again
        before, now = seen, next(calls.numbers)
        seen = now if calls.is_within_a_call(frame) else None
        is_same = seen is not None and before is not None and now == before + 1
        again = again + 1 if is_same else 0
        if again == looks:
            raise DidNotReturn(f"it hasn't returned for {seconds:g} s (--call-timeout)")
        if again == 1:
            _tell(frame, seconds / looks, seconds)

    try:
        signal.signal(signal.SIGALRM, look)
    except ValueError:  # not the main thread
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, seconds / looks, seconds / looks)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _tell(frame: FrameType | None, seconds: float, limit: float) -> None:
    from kv_sim.checkers.raised import runs_at  # with numpy, which not every command needs

    assert frame is not None  # it is within a call
    where = f"a call hasn't returned for {round(seconds, 1):g} s ({runs_at(frame)})"
    with suppress(RuntimeError):  # the call is just writing to the same file
        note(f"{where}; after {limit:g} s it is ended (--call-timeout)")
