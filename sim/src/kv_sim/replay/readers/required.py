"""Values that must be of a type, and errors that say where in a record something is wrong."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kv_sim.replay.readers.record import MalformedError


@contextmanager
def errors_at(place: str) -> Iterator[None]:
    """Let errors about a field say that it is in the object at ``place``."""
    try:
        yield
    except MalformedError as error:
        raise MalformedError(f"{place}.{error}") from None


def object_at(value: Any, place: str) -> Mapping[str, Any]:
    """The value at ``place``, which must be an object."""
    if not isinstance(value, dict):
        raise MalformedError(f"{place}: expected an object, got {type(value).__name__}")
    return value


def list_at(value: Any, place: str) -> list[Any]:
    """The value at ``place``, which must be a list."""
    if not isinstance(value, list):
        raise MalformedError(f"{place}: expected a list, got {type(value).__name__}")
    return value


def objects_at(value: Any, place: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The objects of the list at ``place``, each with its own place."""
    for number, one in enumerate(list_at(value, place)):
        where = f"{place}[{number}]"
        yield where, object_at(one, where)


def text_at(value: Any, place: str) -> str:
    """The value at ``place``, which must be text."""
    if not isinstance(value, str):
        raise MalformedError(f"{place}: expected text, got {type(value).__name__}")
    return value
