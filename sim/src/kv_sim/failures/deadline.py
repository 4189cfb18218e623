"""A deadline for work that can stop at any time: shrinking, and a hunt."""

from collections.abc import Callable
from time import monotonic


def every(seconds: float) -> Callable[[], bool]:
    """A function that is True once so much time has passed since now, or since it was last True."""
    last = monotonic()

    def is_due() -> bool:
        nonlocal last
        if monotonic() - last < seconds:
            return False
        last = monotonic()
        return True

    return is_due


def within(seconds: float) -> Callable[[], bool]:
    """A function that is True until so much time has passed from now on."""
    until = monotonic() + seconds
    return lambda: monotonic() < until
