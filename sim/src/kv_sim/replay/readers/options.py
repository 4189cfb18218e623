"""``TraceOptions``: how a trace is read."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from kv_api import ConfigError
from kv_api.errors import unknown_name
from kv_sim.replay.readers.catalogue import FORMATS
from kv_sim.replay.readers.guess import UNITS
from kv_sim.replay.readers.naming import IdMeaning, IdScope
from kv_sim.replay.readers.record import MOST_TOKENS
from kv_sim.replay.readers.sharing import Sharing
from kv_sim.replay.readers.turns import Turns


class OnError(Enum):
    """What becomes of a line that can't be read."""

    STOP = "stop"
    SKIP = "skip"


SKIP_GOES_ON: Final = " (--on-error skip goes on)"
"""What is said of one where there are others."""


class Partial(Enum):
    """What becomes of a last block that isn't full."""

    KEEP = "keep"
    DROP = "drop"


class Unsorted(Enum):
    """What becomes of requests that arrive before the one above them."""

    STOP = "stop"
    SORT = "sort"


class EngineField(Enum):
    """What a trace may say of the engine that it was recorded on."""

    BYTES_PER_TOKEN = "bytes_per_token"
    GPU_TOKENS = "gpu_tokens"
    BEHIND = "behind"
    """Host memory and files."""


@dataclass(frozen=True)
class TraceOptions:
    """How a trace is read. None: as the format says, or by what the first records look like."""

    format: str | None = None
    time_unit: str | None = None
    block_tokens: int | None = None
    partial: Partial = Partial.KEEP
    ids: IdMeaning = IdMeaning.AUTO
    scope: IdScope = IdScope.AUTO
    on_error: OnError = OnError.STOP
    unsorted: Unsorted = Unsorted.STOP
    turns: Turns = Turns.AUTO
    tokenizer: str | Path | None = None
    """The ``tokenizer.json`` of a model, or its folder: what text is cut by."""
    sharing: Sharing | None = None
    seed: int = 0
    stagger_seconds: float = 0.0
    """How much later each session begins than the one before, where every session counts its own time."""
    columns: Mapping[str, str] | None = None
    """Which column is what, of a format that isn't known (``own_columns``)."""
    requests: int | None = None
    """Only so many requests, the first of the files."""
    sessions: bool = False
    """Keep of which session each request is."""
    overruled: frozenset[EngineField] = frozenset()
    """What isn't asked of the trace, since somebody else says it: there its records may be of several engines."""

    def __post_init__(self) -> None:
        for name, kind in _CHOICES.items():
            if not isinstance(getattr(self, name), kind):
                raise ConfigError(f"{name}: expected {' or '.join(map(str, kind))}, got {getattr(self, name)!r}")
        if self.format is not None and self.format not in FORMATS:
            raise ConfigError(f"--format: {unknown_name('format', self.format, FORMATS)}")
        if self.format is not None and self.columns is not None:
            raise ConfigError("--columns and --format: give one of them")
        if self.time_unit is not None and self.time_unit not in UNITS:
            raise ConfigError(f"--time-unit: {unknown_name('unit', self.time_unit, UNITS)}")
        if self.block_tokens is not None and self.block_tokens < 1:
            raise ConfigError(f"--block-size: expected at least 1, got {self.block_tokens}")
        if self.block_tokens is not None and self.block_tokens > MOST_TOKENS:
            raise ConfigError(f"--block-size: expected at most {MOST_TOKENS}, got {self.block_tokens}")


_CHOICES: Final[Mapping[str, type[Enum]]] = {
    "partial": Partial,
    "ids": IdMeaning,
    "scope": IdScope,
    "on_error": OnError,
    "unsorted": Unsorted,
    "turns": Turns,
}
"""A name would be none of them, and so stand for what is usual."""
