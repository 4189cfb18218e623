"""``Format``: what a reader says of its format. Everything that all formats share is done elsewhere."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kv_sim.replay.readers.record import Record
from kv_sim.replay.readers.turns import Turns


class Container(Enum):
    """How records lie in a file."""

    JSON = "json"
    """One object a line, or one object or list in the whole file."""
    CSV = "csv"
    """A line of column names, then one line a record."""
    COLUMNS = "columns"
    """Parquet or Arrow: columns with a value a record, which may be objects and lists."""


@dataclass(frozen=True)
class Format:
    """One format of traces."""

    name: str
    about: str
    container: Container | None
    """None: either. Records of any format may lie in columns."""
    fields: tuple[str, ...]
    """The fields without which a record isn't of this format."""
    parse: Callable[[Mapping[str, Any]], Iterator[Record]]
    """The requests of one record; raises `MalformedError`."""
    unit_seconds: float = 1.0
    """What one unit of its times is."""
    block_tokens: int | None = None
    """Tokens of a block, where the format usually has them and a record doesn't say it itself."""
    merges_sessions: bool = False
    """Whether the times of every session begin anew, so that sorting is part of reading."""
    overlaps: bool = False
    """Whether a record is a session whose requests go on arriving after those of later records begin."""
    sessions_go_on: bool = False
    """Whether such a session goes on in a later record of the file that names it, too."""
    names_sessions: bool = False
    """Whether a session has one name, whatever file of a trace it goes on in."""
    turns: Turns = Turns.WHOLE
    """What a later turn of a session has."""
    has_retries: bool = False
    """Whether a session is one request, which may be there several times since it was tried again."""
    is_text: bool = False
    """Whether its prompts are there as text, or as token ids."""
    assumes: str | None = None
    """What else is taken for granted of those that are text, for the notes."""
    matches: Callable[[Mapping[str, Any]], bool] = lambda record: True
    """A further look at a record that has all fields."""
    told_unit: str | None = None
    """What says which unit its times have, where that is the name of a column."""
    looked_for: str | None = None
    """What that look is for, where fields don't say it."""
    gather: Callable[[Sequence[Mapping[str, Any]]], Iterator[tuple[int, Mapping[str, Any]]]] | None = None
    """Where a line is no request, but several lines tell of one: what is to be parsed, of all lines of a file, and
    the number of the line with which each begins."""
    look_through: (
        Callable[[Iterable[Mapping[str, Any]]], Callable[[Mapping[str, Any]], Iterator[Record]]] | None
    ) = None
    """Where what a record is depends on other ones: how it is parsed, of all of them."""
    comes_once: bool = False
    """Whether requests of one name are one, since what goes on in another file is copied there."""

    @property
    def is_sorted_when_read(self) -> bool:
        """Whether the order of a file is no order of arrival, and isn't meant to be."""
        return self.merges_sessions or self.overlaps

    @property
    def asks_for(self) -> str:
        """What a record of it has."""
        return ", ".join([*self.fields, *filter(None, [self.looked_for])])

    def lies_in(self, container: Container) -> bool:
        """Whether its records may lie in a file like this."""
        return container is Container.COLUMNS or self.container in (None, container)

    def is_of(self, record: Mapping[str, Any]) -> bool:
        """Whether a record looks like one of this format."""
        return all(field in record for field in self.fields) and self.matches(record)
