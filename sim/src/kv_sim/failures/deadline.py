"""A deadline, for what has done enough when it has taken long: shrinking, and a hunt."""

from collections.abc import Callable
from time import monotonic


def every(seconds: float) -> Callable[[], bool]:
    """Whether as much time has passed since it began, or since it was so last."""
    last = monotonic()

    def is_due() -> bool:
        nonlocal last
        if monotonic() - last < seconds:
            return False
        last = monotonic()
        return True

    return is_due


def within(seconds: float) -> Callable[[], bool]:
    """Whether a time that begins now still lasts."""
    until = monotonic() + seconds
    return lambda: monotonic() < until
