"""Calls of connectors: whether one is being made now, and how many there were.

Code that ends a call from outside asks here: the timer that every command of ``kv-sim`` has, and the stand-in for
``os._exit``. The functions that call connectors are marked, so that this module needn't import them.
"""

from collections.abc import Callable
from itertools import count
from types import CodeType, FrameType
from typing import Final, ParamSpec, TypeVar

_Parameters = ParamSpec("_Parameters")
_Answer = TypeVar("_Answer")

numbers: Final = count()
"""One for each call, and for each look at whether there is one: two looks at one call have numbers in a row."""
_marked: Final[set[CodeType]] = set()


def calls_a_connector(function: Callable[_Parameters, _Answer]) -> Callable[_Parameters, _Answer]:
    """Mark a function: while it runs, a connector is being called."""
    _marked.add(function.__code__)
    return function


def is_within_a_call(frame: FrameType | None) -> bool:
    """Whether a connector is being called. Code of the caller's own file that runs then tells what came of it."""
    inner: FrameType | None = None
    while frame is not None:
        if frame.f_code in _marked:
            return inner is None or inner.f_code.co_filename != frame.f_code.co_filename
        inner, frame = frame, frame.f_back
    return False
