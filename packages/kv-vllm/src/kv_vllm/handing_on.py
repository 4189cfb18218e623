"""For connectors that wrap another one: methods for all names of the contract that call the inner connector's."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from kv_api.contract import CONTRACT, HMA_CONTRACT, Kind

CALLED: Final = tuple(row.name for row in CONTRACT if row.kind is Kind.METHOD)
"""The names of a connector object's methods."""

CALLED_WITH_GROUPS: Final = tuple(row.name for row in HMA_CONTRACT)


def methods_to_inner(names: Iterable[str]) -> dict[str, Callable[..., Any]]:
    """Methods that call those of the object in the attribute ``inner``."""
    return {name: _method_to_inner(name) for name in names}


def hand_the_rest_on(cls: Any, base: type) -> None:
    """Have a class pass on to ``inner`` what ``base`` has of a connector and the class doesn't define itself."""
    names = (name for name in (*CALLED, *CALLED_WITH_GROUPS) if hasattr(base, name) and name not in vars(cls))
    for name, method in methods_to_inner(names).items():
        setattr(cls, name, method)
    cls.__abstractmethods__ = frozenset()


def _method_to_inner(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.inner, name)(*args, **kwargs)

    method.__name__ = name
    return method
