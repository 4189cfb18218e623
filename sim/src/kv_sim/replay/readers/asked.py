"""What an API was asked, and how long its answer was, wherever a log keeps them.

The request is the record itself, or lies in one of its fields: as an object, or as the JSON of one; there it may
lie behind what else was sent with it, in a ``body`` of its own.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.record import MalformedError, whole

_BODIES: Final = ("body", "request_body", "proxy_server_request", "request", "request_args")
_PROMPTS: Final = ("messages", "prompt", "input")
_COUNTS: Final = ("completion_tokens", "output_tokens", "output_length")


def asked_in(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the API was asked."""
    for field in _BODIES:
        outer = object_in(record.get(field))
        for body in (outer, object_in(inside(outer, "body"))):
            if body and not body.keys().isdisjoint(_PROMPTS):
                return body
    return record


def object_in(value: Any) -> Mapping[str, Any] | None:
    """An object, maybe written as JSON; None if it is none."""
    found = json_in(value)
    return found if isinstance(found, dict) else None


def json_in(value: Any) -> Any:
    """What a text says, if it is the JSON of a list or of an object; everything else is what it is."""
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def answered_in(record: Mapping[str, Any]) -> int | None:
    """The tokens of the answer, where the record says how many."""
    for place, counts in _counts_of(record):
        field = next((field for field in _COUNTS if inside(counts, field) is not None), None)
        if field is not None:
            try:
                return whole(counts, field)
            except MalformedError as error:
                raise MalformedError(f"{place}{error}") from None
    return None


def _counts_of(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Where they may be, as objects or as the JSON of such."""
    response = object_in(record.get("response"))
    body = object_in(inside(response, "body"))
    yield "", record
    yield "usage.", object_in(record.get("usage"))
    yield "info.", record.get("info")
    yield "response.", response
    yield "response.usage.", inside(response, "usage")
    yield "response.body.usage.", inside(body, "usage")


def inside(value: Any, name: str) -> Any:
    """A field of an object; None if it is none."""
    return value.get(name) if isinstance(value, dict) else None


def shares_of(tokens: int, prompts: int) -> list[int]:
    """The answer's tokens of each of several prompts, where only their sum is known: about equal ones."""
    each, rest = divmod(tokens, prompts)
    return [each + (number < rest) for number in range(prompts)]
