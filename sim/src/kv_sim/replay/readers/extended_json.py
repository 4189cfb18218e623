"""What MongoDB's exports have in place of numbers, names and dates: objects such as ``{"$numberLong": "5"}``."""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

_NUMBERS: Final = ("$numberLong", "$numberInt", "$numberDouble", "$oid")


def plain_of(value: Any) -> Any:
    """What an object of MongoDB's stands for: a number or a name, or a date, as text; all else is what it is."""
    if not isinstance(value, dict) or len(value) != 1:
        return value
    [(kind, found)] = value.items()
    if kind in _NUMBERS:
        return found
    if kind != "$date":
        return value
    told = plain_of(found)
    if isinstance(told, str) and told.lstrip("-").isdecimal():
        told = int(told)
    if isinstance(told, str):
        return told
    with suppress(TypeError, ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(told / 1000, UTC).isoformat()
    return value
