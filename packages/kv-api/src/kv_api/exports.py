"""Lazy exports: a package imports the module of an exported name when the name is first used."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from kv_api.errors import did_you_mean

MOST_LISTED = 20
"""An error lists the names of a package only if there are no more than this."""


def imported_later(package: dict[str, Any], module_of: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package, given its ``globals()``; ``module_of`` has the module of each such name.

    A type checker should not see it: it would take every misspelt name for an ``Any``.
    """

    def find(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(
                f"module {package['__name__']!r} has no attribute {name!r}{_choices(package, name)}"
            )
        value = package[name] = getattr(import_module(module_of[name]), name)
        return value

    return find


def _choices(package: Mapping[str, Any], name: str) -> str:
    exported = package["__all__"]
    if len(exported) <= MOST_LISTED:
        return f"; it exports {', '.join(exported)}"
    return did_you_mean(name, exported)
