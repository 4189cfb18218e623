"""``TraceOptions``: how a trace is read."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from kv_api import ConfigError
from kv_api.errors import unknown_name
from kv_sim.replay.readers.catalogue import FORMATS
from kv_sim.replay.readers.format import Turns
from kv_sim.replay.readers.guess import UNITS
from kv_sim.replay.readers.record import MOST_TOKENS
from kv_sim.replay.readers.requests.naming import IdMeaning, IdScope
from kv_sim.replay.readers.requests.sharing import Sharing


class OnError(Enum):
    """What to do with a line that can't be read."""

    STOP = "stop"
    SKIP = "skip"


SKIP_GOES_ON: Final = " (--on-error skip goes on)"
"""A hint in errors about one record, if there are others."""


class Partial(Enum):
    """What to do with a partial last block."""

    KEEP = "keep"
    DROP = "drop"


class Unsorted(Enum):
    """What to do with requests that arrive before one above them in the file."""

    STOP = "stop"
    SORT = "sort"


class EngineField(Enum):
    """What a trace may say about the engine on which it was recorded."""

    BYTES_PER_TOKEN = "bytes_per_token"
    GPU_TOKENS = "gpu_tokens"
    BEHIND = "behind"
    """The tiers behind the GPU: host memory and files."""


@dataclass(frozen=True)
class TraceOptions:
    """How to read a trace. None: as the format says, or as the first records suggest."""

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
    """A model's ``tokenizer.json``, or its folder, by which text is tokenized."""
    sharing: Sharing | None = None
    seed: int = 0
    stagger_seconds: float = 0.0
    """How much later than the one before each session begins, if sessions count their own times."""
    columns: Mapping[str, str] | None = None
    """The columns of an unknown format, by their parts (``own_columns``)."""
    requests: int | None = None
    """Read only the first so many requests."""
    sessions: bool = False
    """Whether to keep the session of each request."""
    overruled: frozenset[EngineField] = frozenset()
    """What options say instead of the trace; in these fields its records may be of several engines."""

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
"""Fields that must be a member of an enum; a plain string would otherwise act as the default."""
