"""From a class to an instance: the first of several ways to call its constructor that the signature allows.

Constructors of this field have grown arguments over the years. Which of them a class takes is read from its
signature, never found out by calling it: a ``TypeError`` from inside a constructor must not look like a missing
argument.
"""

from inspect import Parameter, Signature, signature
from typing import Any, NamedTuple, TypeVar

from kv_api import ConfigError

T = TypeVar("T")


class Call(NamedTuple):
    """One way to call a constructor, and its words in an error."""

    words: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def call(words: str, *args: Any, **kwargs: Any) -> Call:
    """Describe a way to call a constructor."""
    return Call(words, args, kwargs)


def build(place: str, built: type[T], *calls: Call) -> T:
    """Make an instance of ``built`` by the first of ``calls`` that fits its signature."""
    missing = sorted(getattr(built, "__abstractmethods__", ()))
    if missing:
        raise ConfigError(f"{place}: {built.__qualname__} is abstract; it lacks {', '.join(missing)}")
    takes = signature(built)
    for way in calls:
        if _fits(takes, way):
            return built(*way.args, **way.kwargs)
    wanted = " or ".join(dict.fromkeys(way.words for way in calls))
    names = ", ".join(
        str(parameter.replace(annotation=Parameter.empty)) for parameter in takes.parameters.values()
    )
    raise ConfigError(f"{place}: its constructor takes ({names}), but it is called as {wanted}")


def takes_by_name(built: type[Any], name: str) -> bool:
    """Whether the constructor names a parameter ``name`` that can be given by that name."""
    parameter = signature(built).parameters.get(name)
    by_name = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    return parameter is not None and parameter.kind in by_name


def _fits(takes: Signature, way: Call) -> bool:
    try:
        takes.bind(*way.args, **way.kwargs)
    except TypeError:
        return False
    return True
