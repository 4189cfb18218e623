"""``Format``: the description of one format of traces. What all formats share is done by the other modules."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import itemgetter
from typing import Any, TypeAlias

from kv_sim.replay.readers.record import Record

Line: TypeAlias = Mapping[str, Any]
"""The object in a line of a file."""
Asked: TypeAlias = Iterator[tuple[int, Iterator[Record]]]
"""The number of the line where an answer begins, and the requests for it, of each answer in a file.

Requests are made when they are read: what is malformed is refused with the answer that needs it, and not earlier.
"""


class Container(Enum):
    """How a file holds records."""

    JSON = "json"
    """One object a line, or one object or list for the whole file."""
    CSV = "csv"
    """A line of column names, then one row a record."""
    COLUMNS = "columns"
    """Parquet or Arrow: columns with a value a record, which may be objects and lists."""


class Turns(Enum):
    """What a later turn's record has."""

    AUTO = "auto"
    """Decided from the first records, for formats in which it may be either."""
    WHOLE = "whole"
    ADDED = "added"
    """Only what it adds to the turn before and that turn's answer."""


@dataclass(frozen=True)
class Format:
    """One format of traces."""

    name: str
    container: Container | None
    """None: JSON or CSV. Records of any format may also be in columns."""
    fields: tuple[str, ...]
    """The fields without which a record isn't of this format."""
    parse: Callable[[Mapping[str, Any]], Iterator[Record]]
    """The requests of one record; raises `MalformedError`."""
    unit_seconds: float = 1.0
    """Seconds of one unit of its times."""
    block_tokens: int | None = None
    """The format's usual tokens of a block, if its records don't say it."""
    merges_sessions: bool = False
    """Whether each session counts its own time, so that reading has to sort the requests."""
    overlaps: bool = False
    """Whether a record is a session whose requests overlap in time with those of later records."""
    sessions_go_on: bool = False
    """Whether a later record of the file with the same name continues a session."""
    names_sessions: bool = False
    """Whether a session has the same name in all files of a trace."""
    turns: Turns = Turns.WHOLE
    """Whether a later turn of a session has its whole prompt."""
    may_add: bool = False
    """Whether a later turn may have only what it adds, if the user says so, though its prompt is mostly whole."""
    has_retries: bool = False
    """Whether a session is one request, which may occur several times because it was retried."""
    is_text: bool = False
    """Whether it has prompts as text or token ids."""
    assumes: str | None = None
    """A further assumption of a format with text, for the notes."""
    matches: Callable[[Mapping[str, Any]], bool] = lambda record: True
    """A further check of a record that has all fields."""
    told_unit: str | None = None
    """A note that its unit of time comes from a column's name."""
    looked_for: str | None = None
    """What that check looks for, in words, if the fields don't say it."""
    gather: Callable[[Sequence[Mapping[str, Any]]], Iterator[tuple[int, Mapping[str, Any]]]] | None = None
    """For formats in which several lines describe one request: makes of all lines of a file the records to parse,
    each with the number of its first line."""
    look_through: (
        Callable[[Iterable[Mapping[str, Any]]], Callable[[Mapping[str, Any]], Iterator[Record]]] | None
    ) = None
    """For formats in which a record depends on others: makes the parser after it has seen all of them."""
    comes_once: bool = False
    """Whether requests of one name are the same: a session that continues in another file is copied there."""

    @property
    def is_sorted_when_read(self) -> bool:
        """Whether the format's files aren't in the order of arrival, so that sorting needs no note."""
        return self.merges_sessions or self.overlaps

    @property
    def asks_for(self) -> str:
        """The fields that a record must have, in words."""
        return ", ".join([*self.fields, *filter(None, [self.looked_for])])

    def lies_in(self, container: Container) -> bool:
        """Whether a file of this kind may hold its records."""
        return container is Container.COLUMNS or self.container in (None, container)

    def is_of(self, record: Mapping[str, Any]) -> bool:
        """Whether a record looks like one of this format."""
        return all(field in record for field in self.fields) and self.matches(record)


def kept_chats(
    name: str, fields: tuple[str, ...], parse: Callable[[Mapping[str, Any]], Iterator[Record]], **more: Any
) -> Format:
    """A format in which a program keeps or exports its chats with all text, each whole in a record."""
    return Format(name, Container.JSON, fields, parse, overlaps=True, is_text=True, **more)


def kept_sessions(
    name: str,
    fields: tuple[str, ...],
    requests: Callable[[Sequence[Line]], Asked],
    **more: Any,
) -> Format:
    """A format in which a program keeps sessions with all text, each in lines; ``requests`` gets all of a file."""

    def gather(lines: Sequence[Line]) -> Iterator[tuple[int, Line]]:
        return ((number, {"requests": found}) for number, found in requests(lines))

    return kept_chats(name, fields, itemgetter("requests"), gather=gather, sessions_go_on=True, **more)
