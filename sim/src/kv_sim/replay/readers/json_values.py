"""Values in logged objects: fields that may be missing, JSON within text, and events of a stream."""

import ast
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from kv_sim.replay.readers.record import MalformedError

_PRINTED: Final = re.compile(r"\s*\[?\s*\{\s*'")


def object_in(value: Any) -> Mapping[str, Any] | None:
    """An object, maybe given as JSON; None if it is something else."""
    found = json_in(value)
    return found if isinstance(found, dict) else None


def json_in(value: Any) -> Any:
    """The value of a text that is a list or object in JSON, or as Python prints it.

    Other values are returned unchanged.
    """
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return value
    with suppress(ValueError, RecursionError):
        return json.loads(value)
    if is_printed(value):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return ast.literal_eval(value.strip())
    return value


def is_printed(value: Any) -> bool:
    """Whether a text begins like a dict, or a list of dicts, that Python has printed."""
    return isinstance(value, str) and _PRINTED.match(value) is not None


def is_stream(value: Any) -> bool:
    """Whether it is the raw text of a stream of events."""
    return isinstance(value, str) and value.lstrip().startswith(("data:", "event:"))


def events_in(stream: str) -> list[Mapping[str, Any]]:
    """The events of a stream."""
    events = (object_in(line.removeprefix("data:").strip()) for line in stream.splitlines())
    return [event for event in events if event]


def inside(value: Any, name: str) -> Any:
    """A field of an object; None if it is none."""
    return value.get(name) if isinstance(value, dict) else None


def listed(value: Any) -> list[Any]:
    """The list that a value is; empty if it is something else."""
    return value if isinstance(value, list) else []


def objects_in(within: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
    """The objects of a list in a field; empty if there is no such field."""
    value = within.get(field, [])
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise MalformedError(f"{field}: expected a list of objects, got {type(value).__name__}")
    return value
