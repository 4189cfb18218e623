"""Pauses of an engine: who is still scheduled.

A pause never stops the engine's loop while there is work: who holds blocks runs on, or ends, and a connector that
says that it has work still gets steps, empty ones. An engine that has paused and has no work left may sleep.
"""

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Final, Literal, TypeAlias


class Pause(Enum):
    """Who isn't scheduled."""

    NONE = auto()
    NEW = auto()
    """Requests that hold no blocks: those that came or were preempted wait."""
    ALL = auto()
    """Everybody."""


PauseMode: TypeAlias = Literal["abort", "wait", "keep"]
"""What becomes of the requests that there are: they end; those that hold blocks run to their ends; they stay."""

MODES: Final[Mapping[PauseMode, Pause]] = MappingProxyType(
    {"abort": Pause.NEW, "wait": Pause.NEW, "keep": Pause.ALL}
)
"""Who isn't scheduled after each."""
