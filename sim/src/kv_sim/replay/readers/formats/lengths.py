"""Formats with only times and lengths, each under its own field names.

Shared prefixes must be assumed (``sharing``).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kv_sim.replay.readers.chats.asked import left_out_of
from kv_sim.replay.readers.chats.cached import cached_among
from kv_sim.replay.readers.fields import number, number_or_date, session_of, text_of, whole
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.json_values import inside, json_in
from kv_sim.replay.readers.record import MalformedError, Record

Time = Callable[[Mapping[str, Any], str], int | float]


@dataclass(frozen=True)
class _Fields:
    """The fields of a record with its time and its lengths."""

    time: str
    input: str
    output: str
    read_time: Time = number
    ids: str | None = None
    """A field that this format doesn't have."""

    def parse(self, record: Mapping[str, Any]) -> Iterator[Record]:
        """The request of one record."""
        if self.ids is not None and record.get(self.ids) is not None:
            raise MalformedError(f"{self.ids}: expected none, since the first record has none")
        if (why := left_out_of(record)) is not None:
            yield Record(None, 0, 0, None, left_out=why)
            return
        yield Record(
            self.read_time(record, self.time),
            whole(record, self.input),
            whole(record, self.output),
            None,
            session=session_of(record),
            model=text_of(record, "model"),
            cached_tokens=_cached_in(record),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The fields that identify the format."""
        return self.time, self.input, self.output

    def lacks_ids(self, record: Mapping[str, Any]) -> bool:
        """Whether a record lacks the field ``ids``."""
        return self.ids is None or record.get(self.ids) is None


def _cached_in(record: Mapping[str, Any]) -> int | None:
    """The prompt tokens found in a cache; LiteLLM keeps a provider's count in its metadata."""
    metadata = json_in(record.get("metadata"))
    return cached_among((record, *(inside(metadata, field) for field in _USAGES)))


_USAGES: Final = ("usage_object", "additional_usage_values")
_MOONCAKE: Final = _Fields("timestamp", "input_length", "output_length", ids="hash_ids")
_SPLITWISE: Final = _Fields("arrival_timestamp", "prompt_size", "token_size")
_LITELLM: Final = _Fields("startTime", "prompt_tokens", "completion_tokens", number_or_date)

LENGTHS: Final = (
    Format(
        "mooncake-lengths",
        Container.JSON,
        _MOONCAKE.names,
        _MOONCAKE.parse,
        unit_seconds=1e-3,
        matches=_MOONCAKE.lacks_ids,
        looked_for="no hash_ids",
    ),
    Format(
        "litellm",
        None,
        ("call_type", *_LITELLM.names),
        _LITELLM.parse,
    ),
    Format(
        "splitwise",
        Container.CSV,
        _SPLITWISE.names,
        _SPLITWISE.parse,
    ),
)
