"""An unknown format, of which the user names the columns, or fields (``--columns``).

An example is ``time=arrived,input=usage.prompt_tokens,ids=blocks``. A dot goes into an object. A length may be the
sum of several columns (``input=a+b``), of which only the first must be there, and text may be several columns one
after the other. Only a prompt's length, or its text, is needed.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from kv_api import ConfigError
from kv_api.errors import unknown_name
from kv_sim.replay.readers.chats.asked import for_each, left_out_of
from kv_sim.replay.readers.chats.chat import BEFORE
from kv_sim.replay.readers.chats.counts import counted_beside
from kv_sim.replay.readers.fields import ids_in, name_in, number_or_date, text_of, whole
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.guess import UNITS
from kv_sim.replay.readers.json_values import json_in
from kv_sim.replay.readers.record import MalformedError, Record
from kv_sim.replay.readers.unknown.own_prompts import answers_of, conversation_format, prompts_in_column

PARTS: Final[Mapping[str, str]] = {
    "time": "when a request arrived, as a number or a date",
    "input": "the tokens of its prompt",
    "output": "the tokens of its answer",
    "ids": "its blocks, as a list, or as text with blanks, commas, semicolons or bars between them",
    "prompt": "what was asked, as text, token ids, messages, or the JSON of such or of a request",
    "answer": "what was answered, as text",
    "conversation": "a session, as messages, of which each answer is a request",
    "session": "what it belongs to",
    "model": "who computes it",
    "cached": "the tokens of its prompt that its server had in its own caches",
}
"""The parts, and what each is."""

Parse: TypeAlias = Callable[[Mapping[str, Any]], Iterator[Record]]
_ONE_OF: Final = ("input", "prompt", "conversation")
_NEVER_WITH: Final[Mapping[str, tuple[str, ...]]] = {
    "prompt": ("ids",),
    "answer": ("output",),
    "conversation": ("prompt", "answer", "input", "output", "ids", "session", "cached"),
}
"""Parts that exclude each other because they say the same."""
_SUM: Final = "+"
_TEXTS: Final = ("prompt", "answer")
_MAYBE: Final = "cached"
"""The part that some requests may lack."""
_ENDS: Final = {
    unit: re.compile(rf"(^|[^A-Za-z])(?i:{names})[)\]]?$|[a-z]({names.title()})$")
    for unit, names in {"ms": "ms|millis", "us": "us|micros", "ns": "ns|nanos?"}.items()
}
"""Endings of a column's name that say a unit of time."""
_MOST_SHOWN: Final = 12


def parse_columns(text: str) -> dict[str, str]:
    """``--columns``: the column of each part."""
    columns: dict[str, str] = {}
    for one in text.split(","):
        part, equals, column = (word.strip() for word in one.partition("="))
        if not equals or not column:
            raise ConfigError(f"--columns: expected PART=COLUMN with commas between them, got {one.strip()!r}")
        if part not in PARTS:
            raise ConfigError(f"--columns: {unknown_name('part', part, PARTS)}")
        if part in columns:
            raise ConfigError(f"--columns: {part} is {columns[part]!r} and {column!r}: give one of them")
        columns[part] = column
    if columns.keys().isdisjoint(_ONE_OF):
        raise ConfigError(
            "--columns: input=COLUMN is missing, the tokens of a prompt; or prompt=COLUMN, what it says, or "
            "conversation=COLUMN"
        )
    for part in columns:
        beside = next((other for other in _NEVER_WITH.get(part, ()) if other in columns), None)
        if beside is not None:
            raise ConfigError(f"--columns: {part} is {PARTS[part]}, so {beside} can't be given, too")
    if {"cached", "prompt"} <= columns.keys() and "input" not in columns:
        raise ConfigError(
            "--columns: cached is a part of what a server counted of a prompt: input=COLUMN is missing, all of it"
        )
    if "answer" in columns and "prompt" not in columns:
        raise ConfigError("--columns: answer is cut as prompts are: prompt=COLUMN is missing")
    return columns


def own_format(columns: Mapping[str, str], container: Container) -> Format:
    """The format with these columns."""
    name = f"--columns {','.join(f'{part}={column}' for part, column in columns.items())}"
    if "conversation" in columns:
        return conversation_format(name, container, columns, _found_by(columns), _told_beside)
    unit = _unit_of(columns.get("time", ""))
    return Format(
        name,
        container,
        (),
        _parser_of(columns),
        unit_seconds=UNITS[unit or "s"],
        told_unit=unit and f"times count {unit}, as {columns['time']} is called (--time-unit)",
        is_text="prompt" in columns,
        may_add="prompt" in columns,
    )


def _unit_of(column: str) -> str | None:
    """The unit of time with which the column's name ends: arrival_ms, startTimeUnixNano."""
    return next((unit for unit, ends in _ENDS.items() if ends.search(column)), None)


def _parser_of(columns: Mapping[str, str]) -> Parse:
    find = _found_by(columns)

    def parse(record: Mapping[str, Any]) -> Iterator[Record]:
        if (why := left_out_of(record)) is not None:
            yield Record(None, 0, 0, None, left_out=why)
            return
        found = find(record)
        request = _request(columns, found)
        if "prompt" not in columns:
            request.input_tokens = _tokens_of_prompt(columns, record, found)
            yield request
            return
        if "input" in columns:
            request.told_tokens = _tokens_of_prompt(columns, record, found)
        if "answer" in columns:
            request.answer = answers_of(found, columns["answer"])
        yield from for_each(
            prompts_in_column(found, columns["prompt"], _told_beside(record, columns["prompt"])), request
        )

    return parse


def _found_by(columns: Mapping[str, str]) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """Make the function that gets the columns' values from a record; all must be there except `_MAYBE`."""

    def find(record: Mapping[str, Any]) -> Mapping[str, Any]:
        found = {column: _value(record, column, is_text=part in _TEXTS) for part, column in columns.items()}
        missing = [column for part, column in columns.items() if found[column] is None and part != _MAYBE]
        if missing:
            part = next(part for part, column in columns.items() if column == missing[0])
            there = ", ".join(list(record)[:_MOST_SHOWN]) or "nothing"
            raise MalformedError(
                f"{missing[0]}: there is none, and --columns says that it is {PARTS[part]}; there is: {there}"
            )
        return found

    return find


def _request(columns: Mapping[str, str], found: Mapping[str, Any]) -> Record:
    """The request without its prompt."""
    given = columns.get
    return Record(
        number_or_date(found, columns["time"]) if "time" in columns else None,
        0,
        whole(found, columns["output"]) if "output" in columns else 0,
        ids_in(found, columns["ids"]) if "ids" in columns else None,
        name_in(found, given("session", "")),
        model=text_of(found, given("model", "")),
        cached_tokens=_cached(found, columns[_MAYBE]) if _MAYBE in columns else None,
    )


def _cached(found: Mapping[str, Any], column: str) -> int | None:
    """The cached tokens; None if the value is below 0 or empty, which means unknown."""
    value = found[column]
    if value in (None, "") or (isinstance(value, (int, float, str)) and str(value).startswith("-")):
        return None
    return whole(found, column)


def _tokens_of_prompt(columns: Mapping[str, str], record: Mapping[str, Any], found: Mapping[str, Any]) -> int:
    lacking = _lacking(record, columns["input"])
    if lacking:
        raise MalformedError(
            f"{columns['input']}: what a cache had of a prompt is counted apart: say "
            f"input={'+'.join([columns['input'], *lacking])}"
        )
    return whole(found, columns["input"])


def _lacking(record: Mapping[str, Any], column: str) -> list[str]:
    """The columns of cached tokens that must be added to a prompt's length, if any of them isn't 0."""
    beside = counted_beside(column)
    return beside if any(_value(record, one) for one in beside) else []


def _value(record: Mapping[str, Any], column: str, *, is_text: bool = False) -> Any:
    """A column's value; None: the record doesn't have it."""
    if column in record:
        return record[column]
    if _SUM in column:
        first, *more = (_value(record, one.strip()) for one in column.split(_SUM))
        if is_text:
            return (
                None if first is None else "".join(_text(column, one) for one in (first, *more) if one is not None)
            )
        counts = [whole({column: one}, column, usual=0) for one in (first, *more)]
        return None if first is None else sum(counts)
    outer, dot, inner = column.partition(".")
    below = record.get(outer)
    return _value(below, inner) if dot and isinstance(below, dict) else None


def _told_beside(record: Mapping[str, Any], column: str) -> Mapping[str, Any]:
    """The tools and system prompts that lie beside a column, which count before its messages."""
    if _SUM in column:
        return {}
    outer, dot, name = column.rpartition(".")
    there = {field: json_in(_value(record, f"{outer}{dot}{field}")) for field in BEFORE if field != name}
    return {field: value for field, value in there.items() if isinstance(value, (str, list))}


def _text(column: str, value: Any) -> str:
    if not isinstance(value, str):
        raise MalformedError(f"{column}: expected texts, got one of {type(value).__name__}")
    return value
