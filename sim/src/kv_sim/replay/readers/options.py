"""``TraceOptions``: how a trace is read."""

from dataclasses import dataclass
from enum import Enum

from kv_sim.replay.readers.naming import IdMeaning, IdScope
from kv_sim.replay.readers.sharing import Sharing


class OnError(Enum):
    """What becomes of a line that can't be read."""

    STOP = "stop"
    SKIP = "skip"


class Partial(Enum):
    """What becomes of a last block that isn't full."""

    KEEP = "keep"
    DROP = "drop"


class Unsorted(Enum):
    """What becomes of requests that arrive before the one above them."""

    STOP = "stop"
    SORT = "sort"


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
    sharing: Sharing | None = None
    seed: int = 0
    stagger_seconds: float = 0.0
    """How much later each session begins than the one before, where every session counts its own time."""
    requests: int | None = None
    """Only so many requests, the first of the files."""
