"""Options that take several values, with commas between them, as those of ``kv-sim`` do."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable, Collection
from typing import TypeVar

T = TypeVar("T")


def list_of(parse: Callable[[str], T]) -> Callable[[str], list[T]]:
    """The type of an option that takes several of what ``parse`` understands."""

    def parse_all(text: str) -> list[T]:
        try:
            return [parse(one.strip()) for one in text.split(",")]
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from error

    return parse_all


def some_of(known: Collection[str]) -> Callable[[str], list[str]]:
    """The type of an option that takes several of these names."""

    def parse(name: str) -> str:
        if name not in known:
            raise ArgumentTypeError(f"unknown {name!r}; known: {', '.join(known)}")
        return name

    return list_of(parse)
