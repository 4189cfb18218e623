"""A deadline, for what has done enough when it has taken long: shrinking, and a hunt."""

from collections.abc import Callable
from time import monotonic


def within(seconds: float) -> Callable[[], bool]:
    """Whether a time that begins now still lasts."""
    until = monotonic() + seconds
    return lambda: monotonic() < until
