"""The only place that reads time: when a request arrived, for a trace. Nothing is decided by it."""

from time import time
from typing import Final, Protocol


class Clock(Protocol):
    """Seconds since 1970."""

    def __call__(self) -> float: ...


read_clock: Final[Clock] = time
