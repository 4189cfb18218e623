"""MongoDB's extended JSON, which has objects such as ``{"$numberLong": "5"}`` for numbers, names and dates."""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

_NUMBERS: Final = ("$numberLong", "$numberInt", "$numberDouble", "$oid")


def plain_of(value: Any) -> Any:
    """The number, name or date (as text) in an object of MongoDB's; other values are returned unchanged."""
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
