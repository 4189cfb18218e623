"""Pauses of an engine: which requests are still scheduled.

A pause never stops the engine's loop while there is work: requests that hold blocks run on, or end, and a
connector with pending work still gets empty steps. A paused engine without work may sleep.
"""

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Final, Literal, TypeAlias


class Pause(Enum):
    """Which requests are not scheduled."""

    NONE = auto()
    NEW = auto()
    """Requests without blocks: new and preempted ones wait."""
    ALL = auto()
    """All requests."""


PauseMode: TypeAlias = Literal["abort", "wait", "keep"]
"""What happens to present requests: they are aborted; those with blocks run to their ends; they stay paused."""

MODES: Final[Mapping[PauseMode, Pause]] = MappingProxyType(
    {"abort": Pause.NEW, "wait": Pause.NEW, "keep": Pause.ALL}
)
"""Which requests are not scheduled in each mode."""
