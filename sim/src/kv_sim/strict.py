"""Strict reading of JSON: every key is known and of its type, and none is missing; ``Bad`` says where not."""

import json
from collections.abc import Iterator, Mapping
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

from kv_api import ConfigError
from kv_api.errors import did_you_mean

Name = TypeVar("Name", bound=StrEnum)

WORDS: Final[Mapping[type, str]] = {
    int: "a whole number",
    float: "a number",
    str: "a string",
    bool: "true or false",
    dict: "an object",
    list: "a list",
    NoneType: "null",
}


class Bad(Exception):  # noqa: N818 - whoever reads a file adds where in it, and raises its own error
    """The reason why a value can't be read."""


def read_object(line: str) -> dict[str, Any]:
    """One line that holds an object."""
    try:
        value = json.loads(line, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        raise Bad(f"no JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise Bad(f"no JSON that can be read: {error}") from None
    if not isinstance(value, dict):
        raise Bad(f"expected an object, got {word(value)}")
    return value


def read_option(option: str, text: str) -> dict[str, Any]:
    """An option of the command line whose value is an object."""
    try:
        return read_object(text)
    except Bad as error:
        raise ConfigError(f"{option}: {error}") from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise Bad(f"the key {key!r} stands there twice")
        values[key] = value
    return values


def check_keys(
    where: str,
    values: Mapping[str, Any],
    wanted: Mapping[str, Any],
    *,
    optional: set[str] | frozenset[str] = frozenset(),
) -> None:
    """Every key of ``values`` is known, has its type, and none is missing."""
    for key, value in values.items():
        if key not in wanted:
            raise Bad(f"{where}: unknown key {key!r}; known: {', '.join(wanted)}{did_you_mean(key, wanted)}")
        check_type(f"{where}.{key}", value, wanted[key])
    missing = [key for key in wanted if key not in values and key not in optional]
    if missing:
        raise Bad(f"{where}: {', '.join(map(repr, missing))} missing")


def check_type(where: str, value: Any, wanted: Any) -> None:
    """A value is of the type, or one of the literals, that an annotation says."""
    if wanted is Any:
        return
    if get_origin(wanted) is Literal:
        if not any(value == choice and type(value) is type(choice) for choice in get_args(wanted)):
            choices = ", ".join(json.dumps(choice) for choice in get_args(wanted))
            raise Bad(f"{where}: got {json.dumps(value)}; choices: {choices}")
        return
    types = get_args(wanted) if isinstance(wanted, UnionType) else (wanted,)
    if not any(type(value) is kind for kind in types):
        names = " or ".join(WORDS[kind] for kind in types)
        raise Bad(f"{where}: expected {names}, got {word(value)}")


def word(value: Any) -> str:
    """A value and its kind, for an error."""
    return f"{json.dumps(value)} ({WORDS[type(value)]})"


def read_names(where: str, values: list[Any], kind: type[Name]) -> frozenset[Name]:
    """A list of names of an enum."""
    return frozenset(_each_name(where, values, kind))


def _each_name(where: str, values: list[Any], kind: type[Name]) -> Iterator[Name]:
    known = [member.value for member in kind]
    for value in values:
        if value not in known:
            raise Bad(f"{where}: unknown name {value!r}; known: {', '.join(known)}{did_you_mean(value, known)}")
        yield kind(value)
