"""The errors that users of a connector see, and how they are worded.

Each names the value, the place it came from and the choices there were. All of them are
``KVError``; those that a user's configuration causes are ``ValueError`` too, which is what
vLLM raises in their place.
"""

from collections.abc import Iterable


class KVError(Exception):
    """Base of every error that these packages raise on purpose."""


class ConfigError(KVError, ValueError):
    """A value in somebody's configuration can't be used."""


class UnknownNameError(ConfigError):
    """A name in somebody's configuration stands for nothing that is known here."""


class WrongSideError(KVError, RuntimeError):
    """A method of one side was called on an object that was created for the other."""


def unknown_name(kind: str, value: object, known: Iterable[str], *, hint: str = "") -> str:
    """Say that ``value`` is no known ``kind``, list the known ones and point at the nearest."""
    names = sorted(known)
    text = f"unknown {kind} {value!r}; known: {', '.join(names) if names else 'none'}"
    nearest = nearest_name(value, names)
    if nearest is not None:
        text += f"; did you mean {nearest!r}?"
    return f"{text}; {hint}" if hint else text


def nearest_name(value: object, known: Iterable[str]) -> str | None:
    """The known name that ``value`` was probably meant to be, if one is close."""
    if not isinstance(value, str):
        return None
    from difflib import get_close_matches  # costs 10 ms, and only failures need it

    by_lower = {name.lower(): name for name in known}
    found = get_close_matches(value.lower(), list(by_lower), n=1)
    return by_lower[found[0]] if found else None
