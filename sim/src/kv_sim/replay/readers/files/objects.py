"""Reads a file's records as objects, each with the line from which it comes."""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from kv_api import ConfigError
from kv_sim.replay.readers.fields import TIMES
from kv_sim.replay.readers.files.columnar import has_rows, is_columnar, rows_of
from kv_sim.replay.readers.files.lines import all_lines, first_bad_byte, lines_of, refuse_by_line, whole_text
from kv_sim.replay.readers.files.table import NOT_CLOSED, Table
from kv_sim.replay.readers.format import Container, Format

MAX_PROBLEM = 60
NOT_TEXT: Final = "this is not text in UTF-8"
NOTHING: Final = "this file is empty"
FOR_PEOPLE: Final = (
    " (is it a server's log for people? what is in that is no whole prompt; TraceConnector writes one; of a text "
    "with a prompt a line jq -Rc '{prompt: .}' makes a trace)"
)
NAMELESS: Final = " (a table's first line must name its columns)"
BEFORE_JSON: Final = " (remove what is before the JSON of a line)"
_LONGEST_NAME: Final = 40
"""Characters of a column's name; a longer text with blanks is no name."""

_SAYS_BETWEEN: Final = re.compile("sep=[,;|\t]?", re.IGNORECASE)
"""A line above a table's header that tells spreadsheets the separator of the columns."""
_SUMMARY: Final = " (is it the summary that GuideLLM writes? each request is in its JSON)"
_CLOSED_BEHIND_COMMA: Final = re.compile(r"\s*,\s*[\]}]")
_COMMENTS: Final = ("#", "//")
_COMMENT: Final = " (remove what is above the records: tail -n +2 leaves out a first line)"
_TAGGED: Final = re.compile(r"\[(?:\d{4}-\d\d-\d\d|[A-Za-z]+\]\s)")
"""How a line of a log begins that isn't JSON though it begins with a bracket: with a date, a level or a name."""
_BEFORE: Final = re.compile(rf"(?:{_TAGGED.pattern}|[^\s{{\[\",])[^{{\"]{{,200}}(?<=\s)(?=\{{\"[^\"])")
"""What a logger or a container's log has before the JSON of a line: a date, a level, a name, and a blank."""


class Place(NamedTuple):
    """The place of a record in a trace."""

    file: Path
    line: int
    record: int | None = None
    """Its number, in a document that is a list of records."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.record is None else f"{self.file}: record {self.record}"


class Broken(NamedTuple):
    """A line that can't be read as a record."""

    reason: str


Found = tuple[Place, Mapping[str, Any] | Broken]


class _Shape(Enum):
    LINES = 1
    DOCUMENT = 2
    TABLE = 3


class Contents(NamedTuple):
    """What a file holds."""

    container: Container
    header: Place | Path | None
    """Where the column names are, in a table or a file of columns."""
    found: Iterator[Found]


def objects_of(path: Path) -> Contents:
    """Which kind of file it is, and its records."""
    if is_columnar(path):
        if not has_rows(path):
            raise ConfigError(f"{path}: {NOTHING}")
        return Contents(Container.COLUMNS, path, _rows(path))
    lines = lines_of(path)
    first = next(lines, None)
    if first is None:
        raise ConfigError(f"{path}: {NOTHING}")
    refuse_by_line(path, first[1])
    if _is_behind(first[1]):
        return Contents(Container.JSON, None, _json_lines(path, _behind(chain([first], lines))))
    shape = _shape(first[1])
    if shape is _Shape.TABLE:
        header = next(lines, first) if _SAYS_BETWEEN.fullmatch(first[1].strip()) else first
        return Contents(Container.CSV, Place(path, header[0]), _table(path, header))
    if shape is _Shape.LINES:
        return Contents(Container.JSON, None, _json_lines(path, chain([first], lines)))
    return Contents(Container.JSON, None, _document(path, first[1], next(lines, None)))


def gathered(found: Iterator[Found], form: Format) -> Iterator[Found]:
    """The records of a file to parse, each with its place, after the format has joined lines of one request."""
    if form.gather is None:
        yield from found
        return
    lines: list[tuple[Place, Mapping[str, Any]]] = []
    for place, value in found:
        if isinstance(value, Broken):
            yield place, value
        else:
            lines.append((place, value))
    for number, record in form.gather([value for _, value in lines]):
        yield lines[number][0], record


def _is_behind(line: str) -> bool:
    """Whether a line is one object behind what a logger writes, and says by itself when it was."""
    found = _BEFORE.match(line)
    value = None if found is None else _parsed(line[found.end() :].strip())[1]
    return isinstance(value, dict) and not value.keys().isdisjoint(TIMES)


def _behind(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """The lines without what is before their JSON, where there is any."""
    for number, line in lines:
        found = _BEFORE.match(line)
        yield number, line if found is None else line[found.end() :]


def _shape(line: str) -> _Shape:
    text = line.strip()
    if text[0] not in "{[":
        return _Shape.TABLE
    return _Shape.LINES if text[0] == "{" and text[-1] == "}" else _Shape.DOCUMENT


def _json_lines(path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[Found]:
    for number, line in lines:
        text = line.strip()
        value = _parsed(text)[1]
        if isinstance(value, Broken) and (several := _in_a_line(text)):
            yield from ((Place(path, number), one) for one in several)
        else:
            yield Place(path, number), _object(value, text)


def _in_a_line(text: str) -> list[Mapping[str, Any]]:
    """The objects of a line that has several one after the other; none if it has anything else."""
    found: list[Mapping[str, Any]] = []
    at = 0
    while at < len(text):
        value, end = _next_of(text, at)
        if not isinstance(value, dict):
            return []
        found.append(value)
        at = _not_blank(text, end)
    return found


def _document(path: Path, first: str, second: tuple[int, str] | None) -> Iterator[Found]:
    text = whole_text(path)
    number, value = _parsed(text)
    follows = None if second is None else _parsed(second[1])[1]
    is_cut_off = first.lstrip()[0] == "{" and isinstance(follows, dict)
    if isinstance(value, Broken) and (is_cut_off or isinstance(_parsed(first)[1], list)):
        yield from _json_lines(path, lines_of(path))  # whose first line is truncated, or is a whole list
    elif isinstance(value, Broken) and isinstance(_next_of(text, 0)[0], (dict, list)):
        yield from _several(path, text)
    elif isinstance(value, list):
        for record, item in enumerate(value, 1):
            yield Place(path, number, record), _object(item, type(item).__name__)
    elif isinstance(value, Broken) and _TAGGED.match(first):
        yield Place(path, number), Broken(value.reason + (BEFORE_JSON if '{"' in first else FOR_PEOPLE))
    else:
        yield Place(path, number), value


def _several(path: Path, text: str) -> Iterator[Found]:
    """Documents one after the other, each over many lines, as consoles print them. A broken one ends the file."""
    at, line = 0, 1
    while (begin := _behind_comma(text, at)) < len(text):
        line += text.count("\n", at, begin)
        value, end = _next_of(text, begin)
        if isinstance(value, list):
            for item in value:
                yield Place(path, line), _object(item, type(item).__name__)
        else:
            yield Place(path, line), _object(value, type(value).__name__)
        line, at = line + text.count("\n", begin, end), end


def _next_of(text: str, begin: int) -> tuple[Any, int]:
    """The document that begins at ``begin``, and where it ends."""
    try:
        value, end = json.JSONDecoder().raw_decode(text, _not_blank(text, begin))
    except (ValueError, RecursionError):
        return Broken("not JSON, and what follows isn't read"), len(text)
    bad = first_bad_byte(text[begin:end])
    return (value, end) if bad is None else (Broken(NOT_TEXT), end)


def _behind_comma(text: str, at: int) -> int:
    """Where the next document begins: there may be a comma between two, as in a list without brackets."""
    begin = _not_blank(text, at)
    return _not_blank(text, begin + 1) if at and text.startswith(",", begin) else begin


def _not_blank(text: str, at: int) -> int:
    """The next place that isn't blank."""
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _object(value: Any, shown: str) -> Mapping[str, Any] | Broken:
    return value if isinstance(value, (dict, Broken)) else Broken(f"expected an object, got {_short(shown)}")


def _parsed(text: str) -> tuple[int, Any]:
    """The value of a JSON text, or the line of its error and the reason."""
    bad = first_bad_byte(text)
    if bad is not None:
        return text.count("\n", 0, bad) + 1, Broken(NOT_TEXT)
    try:
        return 1, json.loads(text)
    except json.JSONDecodeError as error:
        more = " (each document on a line of its own, as jq -c writes them)" if error.msg == "Extra data" else ""
        if _CLOSED_BEHIND_COMMA.match(text, len(text[: error.pos].rstrip(", \t\r\n"))):
            more = " (a comma too many)"
        return error.lineno, Broken(f"not JSON from column {error.colno} on{more}")
    except ValueError:  # Python's own limit
        return 1, Broken(f"a number of more than {sys.get_int_max_str_digits()} digits")
    except RecursionError:
        return 1, Broken("nested too deeply")


def _table(path: Path, header: tuple[int, str]) -> Iterator[Found]:
    number, names = header
    if first_bad_byte(names) is not None:
        raise ConfigError(f"{path}:{number}: {NOT_TEXT}")
    try:
        table = Table(names)
    except ValueError as error:
        hint = BEFORE_JSON if '{"' in names else _SUMMARY if "Run Info" in names else ""
        hint = hint or (NAMELESS if names[:1].isdecimal() else "")
        raise ConfigError(f"{path}:{number}: {error}{hint}") from None
    for line, text, cells in table.rows(islice(all_lines(path), number, None)):
        yield Place(path, line), _row(table, text, cells)


def _row(table: Table, text: str, cells: list[str] | None) -> Mapping[str, Any] | Broken:
    if first_bad_byte(text) is not None:
        return Broken(NOT_TEXT)
    if cells is None:
        return Broken(NOT_CLOSED)
    named = table.named(cells)
    if isinstance(named, str):
        return Broken(named + _about(table.names))
    return named


def _about(names: list[str]) -> str:
    """A hint what the first line may be if it isn't a table's header."""
    if names[0].startswith(_COMMENTS):
        return _COMMENT
    if any('{"' in name for name in names):
        return BEFORE_JSON
    return FOR_PEOPLE if looks_for_people(names) else ""


def looks_for_people(names: Iterable[str]) -> bool:
    """Whether the header is a sentence: its only name, and with blanks."""
    found = list(names)
    return any(" " in name and (len(name) > _LONGEST_NAME or len(found) == 1) for name in found)


def _rows(path: Path) -> Iterator[Found]:
    for record, row in enumerate(rows_of(path), 1):
        yield Place(path, 1, record), row


def _short(text: str) -> str:
    return text if len(text) <= MAX_PROBLEM else f"{text[: MAX_PROBLEM - 3]}..."
