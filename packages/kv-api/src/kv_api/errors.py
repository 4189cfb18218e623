"""The errors that users of a connector see, and how they are worded.

Each error names the value, the place it came from and the valid choices. The errors that these packages declare
derive from ``KVError``. Those caused by a user's configuration also derive from ``ValueError``, which is what
vLLM raises for them.
"""

from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Final

ALIKE: Final = 0.6
"""How similar (0 to 1) a known name has to be for an error to suggest it."""
MISSPELT: Final = 0.85
"""How similar (0 to 1) an unknown key has to be to a known one to count as a misspelling of it."""


class KVError(Exception):
    """Base of all errors that these packages declare.

    When an engine breaks the contract, a built-in error may come instead.
    """


class ConfigError(KVError, ValueError):
    """A value in somebody's configuration can't be used."""


class UnknownNameError(ConfigError):
    """A name in somebody's configuration stands for nothing that is known here."""


class WrongSideError(KVError, RuntimeError):
    """A method of one side was called on an object that was created for the other."""


def unknown_name(kind: str, value: object, known: Iterable[str], *, hint: str = "") -> str:
    """Say that ``value`` is no known ``kind``, list the known ones and point at the nearest."""
    names = sorted(known)
    text = f"unknown {kind} {value!r}; known: {', '.join(names) if names else 'none'}{did_you_mean(value, names)}"
    return f"{text}; {hint}" if hint else text


def did_you_mean(value: object, known: Iterable[str]) -> str:
    """The end of an error about a name that isn't among the known ones; empty if none is close."""
    nearest = nearest_name(value, known)
    return "" if nearest is None else f"; did you mean {nearest!r}?"


def refuse_misspelt(given: Iterable[object], known: Collection[str], *, where: str, hint: str = "") -> None:
    """Refuse a key that is almost a known key, or has the letters of one in another order.

    Other keys are accepted.

    Somebody else may read those. A known key with more words before or after it is accepted too: nobody writes
    that by mistake.
    """
    names = frozenset(known)
    for key in given:
        if key not in names and _is_misspelt(key, names):
            raise ConfigError(f"{where}: {unknown_name('key', key, known, hint=hint)}")


@lru_cache(maxsize=256)  # the comparison with all names takes long for whoever makes connectors by the thousand
def _is_misspelt(key: object, known: frozenset[str]) -> bool:
    near = nearest_name(key, known, likeness=MISSPELT)
    if near is None and isinstance(key, str):  # of a short name two letters are too much to be alike
        return any(sorted(key.lower()) == sorted(name.lower()) for name in known)
    return near is not None and f"_{near}_" not in f"_{key}_"


def nearest_name(value: object, known: Iterable[str], *, likeness: float = ALIKE) -> str | None:
    """The known name that ``value`` was probably meant to be, if one is close."""
    if not isinstance(value, str):
        return None
    from difflib import get_close_matches  # costs 10 ms, and few need it

    by_lower = {name.lower(): name for name in known}
    found = get_close_matches(value.lower(), list(by_lower), n=1, cutoff=likeness)
    return by_lower[found[0]] if found else None
