"""``Trace``: requests as they were recorded, whatever the format they were recorded in.

A block of a trace is named by an integer. Equal integers mean the same tokens *after the same tokens*: an id
names the whole prefix up to the end of its block, so two requests share exactly their leading run of equal ids.
A reader of a format whose ids mean something else (ids that name one block's tokens only, ids that are local to
a session) makes them mean this.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from kv_sim.replay.units import show_bytes

Tell = Callable[[int], None]
"""Told how many requests of a trace are done, now and then."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace."""

    arrival_seconds: float
    """When it arrived, counted from the first request of the trace."""
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    """The ids of its prompt's blocks; the last may stand for fewer tokens than a block has."""


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """What a trace says of the memory for KV of the engine that it was recorded on."""

    bytes_per_token: int
    """On all workers together."""
    gpu_tokens: int
    """For how many the GPU's prefix cache has room."""
    host_bytes: int = 0
    """Host memory behind it, over all workers; 0, as of the disk: none is known of."""
    disk_bytes: int = 0
    policy: str = ""
    """Who leaves when there is no room in either."""

    def __str__(self) -> str:
        sizes = {"host memory": self.host_bytes, "files": self.disk_bytes}
        behind = "".join(f", {show_bytes(size)} of {name}" for name, size in sizes.items() if size)
        policy = f" ({self.policy})" if behind else ""
        return (
            f"recorded: {self.bytes_per_token:,} bytes a token, room for {self.gpu_tokens:,} tokens on the GPU"
            f"{behind}{policy}"
        )


class Trace(Protocol):
    """A trace that can be gone through any number of times, in order of arrival."""

    @property
    def name(self) -> str:
        """How a report calls it."""

    @property
    def block_tokens(self) -> int:
        """How many tokens a block of this trace has."""

    def __iter__(self) -> Iterator[TraceRequest]: ...
