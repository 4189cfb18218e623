"""Reading many items of a list or a mapping in one call: a batch without a step of bytecode for each item."""

from collections.abc import Collection
from operator import itemgetter
from typing import Protocol, TypeVar

K = TypeVar("K", contravariant=True)
V = TypeVar("V", covariant=True)
Key = TypeVar("Key")
Value = TypeVar("Value")


class Readable(Protocol[K, V]):
    """A sequence or a mapping, as far as its items are read."""

    def __getitem__(self, key: K, /) -> V: ...


def pick(keys: Collection[Key], where: Readable[Key, Value]) -> list[Value]:
    """The items of these keys. If one is missing, a ``KeyError`` with the first such key."""
    if len(keys) > 1:
        return [*itemgetter(*keys)(where)]
    return [where[key] for key in keys]


def distinct(items: list[Key]) -> list[Key]:
    """The items, each once."""
    return items if len({*items}) == len(items) else [*dict.fromkeys(items)]
