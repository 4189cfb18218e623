"""Reads and checks the fields of a record: counts, times, names, ids and prompts, as programs write them."""

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from kv_sim.replay.readers.dates import date_in
from kv_sim.replay.readers.extended_json import plain_of
from kv_sim.replay.readers.record import MOST_TOKENS, Id, MalformedError, Moment, Prompt

_LATEST: Final = 2**63
"""Times must be below: nanoseconds since 1970 are until 2262, and differences of times stay finite."""


def spelled(*names: str) -> tuple[str, ...]:
    """The names, and after them those with underscores in camelCase, as JavaScript writes them."""
    words = [name.split("_") for name in names]
    return *names, *(first + "".join(map(str.title, more)) for first, *more in words if first and more)


TIMES: Final = spelled(
    *("timestamp", "created", "created_at", "time", "start_time", "request_created_at"),
    *("@timestamp", "time_iso8601", "time_local", "started_at", "ts", "logging_time", "tstamp"),
    *("arrival_time", "arrived_at", "datetime_utc"),
)
_IN_MS: Final = spelled("timestamp_ms")
"""Databricks' name for it in inference tables."""
_IF_DATES: Final = spelled("request_time")
"""Names of times that elsewhere are how long a request took."""
_SHORTEST_DATE: Final = len("2026-01-31")
_EPOCH: Final = (1_000_000_000, 4_000_000_000)
"""Seconds since 1970, of 2001 and of 2096."""
_IDS: Final = frozenset((int, str))
"""The types of ids in JSON; true and false aren't ids."""
_OF_TIMES: Final = re.compile("time|created|date|msec|(_at|_ts|_ms|_us|_ns)$", re.IGNORECASE)
_MOST_DATES: Final = 3
_EXACT: Final = 2.0**53
"""From here on a float can't represent each integer."""
_EXACT_DIGITS: Final = 17
"""The most characters of a number that a float represents exactly, with ``.0`` at its end."""
_BETWEEN: Final = str.maketrans(",;|", "   ")
_INSIDE: Final = frozenset("[]{}()")
_LISTED: Final = re.compile(r"\s*\[[\d,\s]+\]\s*", re.ASCII)
"""Token ids as JSON, or as NumPy prints them."""
_PROMPTS: Final = "text, a list of token ids, or a list of such prompts"
_NAMES: Final = ("request_id", "requestId", "litellm_call_id")
_NOBODY: Final = ("-", "None", "none", "null", "NaN", "nan", "N/A", "\\N")
"""What Envoy, Python, databases and others write for no name."""
_SESSIONS: Final = spelled("session_id", "conversation_id", "thread_id")


def whole(record: Mapping[str, Any], field: str, usual: int | None = None) -> int:
    """A count: an integer of at least 0, maybe written as 12.0 or, in a table, as text."""
    value = plain_of(record.get(field))
    if value is None and usual is not None:
        return usual
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            value = record[field]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise MalformedError(f"{field}: expected a whole number of at least 0, got {_shown(record, field)}")
    if value > MOST_TOKENS:
        raise MalformedError(f"{field}: expected at most {MOST_TOKENS}, got {_shown(record, field)}")
    return value


def positive(record: Mapping[str, Any], field: str) -> int:
    """A field with a whole number that isn't 0, such as the tokens of a block."""
    value = whole(record, field)
    if not value:
        raise MalformedError(f"{field}: expected at least 1, got 0")
    return value


def number(record: Mapping[str, Any], field: str) -> int | float:
    """A time: a number. Integers stay integers, since nanoseconds don't fit a float."""
    value = plain_of(record.get(field))
    if isinstance(value, str):
        text = value.strip()
        try:
            value = int(text) if text.lstrip("+-").isdigit() else float(text)
        except ValueError:
            value = None
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        hint = "; --columns time=… takes dates" if date_in(plain_of(record.get(field))) else ""
        raise MalformedError(f"{field}: expected a number, got {_shown(record, field)}{hint}")
    if not -_LATEST < value < _LATEST:  # so is what is no number
        raise MalformedError(f"{field}: expected a time within 2**63, got {_shown(record, field)}")
    return value


def number_or_date(record: Mapping[str, Any], field: str) -> int | float:
    """A time: a number, or a date."""
    value = plain_of(record.get(field))
    try:
        return number(record, field)
    except MalformedError:
        if not isinstance(value, str):
            raise
    date = date_in(value)
    if date is None:
        raise MalformedError(f"{field}: expected a number or a date, got {value!r}")
    return moment(date)


def moment(date: datetime) -> Moment:
    """A date as a time; without a time zone it is taken as UTC."""
    return Moment((date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp())


def time_of(record: Mapping[str, Any]) -> int | float | None:
    """When it arrived, under any of the names that logs use; None: the record has no time."""
    field = next((field for field in (*TIMES, *_IN_MS, *_IF_DATES) if record.get(field) is not None), None)
    if field is None or (field in _IF_DATES and not _is_date(record[field])):
        return None
    time = number_or_date(record, field)
    return Moment(time / 1000) if field in _IN_MS and not isinstance(time, Moment) else time


def dates_in(record: Mapping[str, Any]) -> list[str]:
    """The fields of a record, or of objects in it, that are dates or times since 1970, under any name."""
    inner = {
        f"{name}.{one}": value
        for name, found in record.items()
        if isinstance(found, dict)
        for one, value in found.items()
    }
    found = [name for name, value in {**record, **inner}.items() if _is_date(value) or _may_be_time(name, value)]
    return found[:_MOST_DATES]


def _is_date(value: Any) -> bool:
    return len(str(value)) >= _SHORTEST_DATE and date_in(value) is not None


def _may_be_time(name: str, value: Any) -> bool:
    """Whether it may be a time since 1970, in any unit, by its name and its value, which in a log may be text."""
    if not _OF_TIMES.search(name) or isinstance(value, bool):
        return False
    with suppress(ValueError, TypeError, OverflowError):
        return any(_EPOCH[0] <= float(value) / unit < _EPOCH[1] for unit in (1, 1e3, 1e6, 1e9))
    return False


def session_of(record: Mapping[str, Any]) -> str | None:
    """The name of its session, under any of the names that logs use."""
    return next((name for field in _SESSIONS if (name := name_in(record, field)) is not None), None)


def name_of(record: Mapping[str, Any]) -> str | None:
    """The request's id, under any of the names that logs use."""
    return next((name for field in _NAMES if (name := name_in(record, field)) is not None), None)


def id_list(record: Mapping[str, Any], field: str) -> list[Id]:
    """Block ids: integers of any size, maybe written as 12.0, or strings."""
    value = record.get(field)
    if not isinstance(value, list):
        hint = "; --columns ids=… takes text" if isinstance(value, str) else ""
        raise MalformedError(f"{field}: expected a list of ids, got {_shown(record, field)}{hint}")
    if not _IDS.issuperset(map(type, value)):
        odd = next((one for one in value if type(one) not in _IDS and not _is_whole(one)), None)
        if odd is not None or None in value:
            raise MalformedError(f"{field}: expected integers or strings, got {odd!r}")
        value = [one if type(one) in _IDS else int(one) for one in value]
    return [*map(as_id, value)] if value and str in set(map(type, value)) else value


def _is_whole(one: Any) -> bool:
    """Whether it is a float that represents exactly one integer."""
    return isinstance(one, float) and one.is_integer() and abs(one) < _EXACT


def as_id(one: Id) -> Id:
    """An integer that is written as text, maybe as 12.0, is the same id as that integer."""
    if isinstance(one, str) and one.endswith(".0") and one.isascii() and len(one) <= _EXACT_DIGITS:
        one = one.removesuffix(".0") or one
    if isinstance(one, str) and one.isdecimal() and one.isascii() and (one[0] != "0" or one == "0"):
        with suppress(ValueError):  # Python's own limit
            return int(one)
    return one


def ids_in(record: Mapping[str, Any], field: str) -> list[Id]:
    """Block ids as a list, or as text with blanks, commas, semicolons or bars between them, maybe in brackets."""
    value = record.get(field)
    if not isinstance(value, str):
        return id_list(record, field)
    words = value.strip("[]{}() \n").translate(_BETWEEN).split()
    if "..." in words:
        raise MalformedError(f"{field}: expected all ids, got some with '...' in place of others")
    odd = next((word for word in words if not _INSIDE.isdisjoint(word)), None)
    if odd is not None:
        raise MalformedError(f"{field}: expected a list of ids, got one of lists: {odd!r:.60}")
    return [as_id(word.strip("'\"")) for word in words]


def text_of(record: Mapping[str, Any], field: str) -> str | None:
    """The name of a session or of a model, if there is one; in a table a blank is none."""
    value = plain_of(record.get(field))
    return None if value is None or value == "" else str(value)


def name_in(record: Mapping[str, Any], field: str) -> str | None:
    """The same of one that is nobody's where a log writes a word for it."""
    name = text_of(record, field)
    return None if name in _NOBODY else name


def prompts_of(record: Mapping[str, Any]) -> list[Prompt]:
    """The prompts of a completion: one or several, each as text or as token ids."""
    prompt = record.get("prompt")
    if isinstance(prompt, list) or (isinstance(prompt, str) and _LISTED.fullmatch(prompt)):
        prompt = as_tokens(prompt)
    if isinstance(prompt, list) and prompt and all(map(_is_prompt, prompt)):
        return [([one], None) if isinstance(one, str) else (None, one) for one in prompt]
    if isinstance(prompt, str):
        return [([prompt], None)]
    if not isinstance(prompt, list):
        raise MalformedError(f"prompt: expected {_PROMPTS}, got {type(prompt).__name__}")
    if not _is_tokens(prompt):  # messages of a chat
        odd = next(one for one in prompt if not _is_token(one))
        raise MalformedError(f"prompt: expected {_PROMPTS}, got one of {type(odd).__name__}")
    return [(None, prompt)]


def as_tokens(value: Any) -> Any:
    """Token ids that are written as text, or as several texts; other values are returned unchanged."""
    words = value.strip("[]() \n").translate(_BETWEEN).split() if isinstance(value, str) else value
    if not isinstance(words, list) or (len(words) < 2 and words is value):
        return value
    are_numbers = bool(words) and all(isinstance(one, str) and one.isascii() and one.isdecimal() for one in words)
    return [*map(int, words)] if are_numbers and max(map(len, words)) <= _EXACT_DIGITS else value


def _is_prompt(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and _is_tokens(value))


def _is_tokens(value: list[Any]) -> bool:
    return all(map(_is_token, value))


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(record: Mapping[str, Any], field: str) -> str:
    if field not in record:
        return "no such field"
    text = repr(record[field])
    return text if len(text) <= 60 else f"{text[:57]}..."
