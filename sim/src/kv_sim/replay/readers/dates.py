"""Reads dates as programs write them.

A date that is ambiguous, such as 01/02/2026, isn't read, nor one whose time zone is only a name.
"""

import re
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

_WRITTEN: Final = (
    re.compile(
        r"\[?(?P<day>\d\d)/(?P<month>[A-Za-z]{3})/(?P<year>\d{4}):(?P<time>[\d:]{8}) ?(?P<zone>[+-]\d{4})\]?"
    ),
    re.compile(
        r"[A-Za-z]{3} (?P<month>[A-Za-z]{3}) (?P<day>\d\d) (?P<year>\d{4}) (?P<time>[\d:]{8}) "
        r"GMT(?P<zone>[+-]\d{4})(?: \([^()]*\))?"
    ),
    re.compile(
        r"[A-Za-z]{3} (?P<month>[A-Za-z]{3}) {1,2}(?P<day>\d{1,2}) (?P<time>[\d:]{8})"
        r"(?: (?P<zone>UTC|GMT))? (?P<year>\d{4})"
    ),
)
"""As web servers, browsers and C write them: 31/Jan/2026:10:00:02 +0000, Sat Jan 31 2026 10:00:02 GMT+0000
(Coordinated Universal Time), Sat Jan 31 10:00:02 2026."""
_OF_LETTERS: Final = re.compile("[A-Za-z]{3}, [0-9]")
"""How a date begins in the headers of mail and HTTP: Sat, 31 Jan 2026 10:00:02 GMT."""
_MONTHS: Final = ("", "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_SLASHES: Final = (re.compile(r"(\d{4})/(\d\d)/(\d\d)(?=[ T]\d)"), r"\1-\2-\3")
_BEHIND: Final = (
    (re.compile(r" m=[+-][\d.]+$"), ""),
    (re.compile(r"(Z|[+-]\d\d:?\d\d)\[[A-Za-z_/+-]+\]$"), r"\1"),
    (re.compile(r"(:\d\d[.,\d]*) ([+-]\d\d:?\d\d)(?: [A-Z]{3,5})?$"), r"\1\2"),
)
"""Redundant parts after a date, as Go and Java write them, and a blank before the zone."""


def date_in(value: Any) -> datetime | None:
    """The date in a text; without a time zone it is taken as UTC. None: it is no date that can be read."""
    if not isinstance(value, str):
        return None
    text = value.strip()
    with suppress(ValueError):
        return _in_utc(parsedate_to_datetime(text) if _OF_LETTERS.match(text) else _read(text))
    if found := next((found for one in _WRITTEN if (found := one.fullmatch(text))), None):
        month = found["month"].lower()
        number = _MONTHS.index(month) if month in _MONTHS else 0
        zone = "" if found["zone"] in (None, "UTC", "GMT") else found["zone"]
        text = f"{found['year']}-{number:02}-{int(found['day']):02}T{found['time']}{zone}"
    for pattern, instead in (_SLASHES, *_BEHIND):
        text = pattern.sub(instead, text)
    with suppress(ValueError):
        return _in_utc(_read(text))
    return None


def _read(text: str) -> datetime:
    return datetime.fromisoformat(text.upper().removesuffix(" UTC"))


def _in_utc(date: datetime) -> datetime:
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)
