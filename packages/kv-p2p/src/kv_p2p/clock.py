"""The only place that reads time. Time decides nothing but whether somebody has waited too long."""

from time import monotonic
from typing import Final, Protocol


class Clock(Protocol):
    """Seconds since some moment."""

    def __call__(self) -> float: ...


read_clock: Final[Clock] = monotonic
