"""From the ids of a file to ids that name a whole prefix, which is what a `Trace` promises.

An id in a file names either a prefix up to the end of a block, or one block's tokens alone. Ids are *chained*
here: a block's new id is a hash of its parent's new id and its own. That makes prefix ids of the second kind, and
only renames the first kind, so it is right for both, and is done unless ``--ids prefix`` says otherwise. If ids
are valid only within a session, the chain of each session begins with the session. One model can't use another's
blocks, so the chains of all models but the first begin with the model.

Python's hash of a tuple of small integers is the same in every process, whatever ``PYTHONHASHSEED`` is.
"""

from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate
from typing import Final

from kv_sim.replay.readers.record import Id

_SMALL: Final = (1 << 61) - 1
"""Integers from 0 to here hash to themselves."""

_SAMPLE_REFERENCES: Final = 1 << 18

_REMEMBERED: Final = 1 << 17
"""Strings whose digests are kept."""


class IdMeaning(Enum):
    """What an id in a file stands for."""

    AUTO = "auto"
    """Unknown: ids are chained, which is right for both."""
    PREFIX = "prefix"
    """The prefix up to the end of the block: ids are used unchanged."""
    BLOCK = "block"
    """The block's tokens alone: ids are chained."""


class IdScope(Enum):
    """Where equal ids mean equal blocks."""

    AUTO = "auto"
    """As the format says."""
    GLOBAL = "global"
    SESSION = "session"


class Naming:
    """Names the blocks of requests."""

    def __init__(self, meaning: IdMeaning, scope: IdScope) -> None:
        self._chains = meaning is not IdMeaning.PREFIX
        self._scope = scope
        self._roots: dict[tuple[bool, str | None, str | None], int | None] = {}
        self._models: list[str | None] = []

    @property
    def models(self) -> list[str]:
        """All models so far, in the order of their first requests."""
        return [model or "none" for model in self._models]

    def name(
        self, ids: Sequence[Id], session: str | None, model: str | None = None, *, is_local: bool
    ) -> Sequence[int]:
        """Ids of prefixes, in 64 bits.

        ``is_local``: the file's own scope of ids, used if the options don't set it.
        """
        if not ids:
            return ()
        numbers = as_numbers(ids)
        if self._scope is not IdScope.AUTO:
            is_local = self._scope is IdScope.SESSION
        root = self._root((is_local, session if is_local else None, model))
        if self._chains:
            chained = accumulate(numbers, _chain, initial=root or 0)
            next(chained)
            return list(chained)
        return numbers if root is None else [hash((root, number)) for number in numbers]

    def _root(self, whose: tuple[bool, str | None, str | None]) -> int | None:
        """The start of the chains of a session, a model or both; None if ids are valid everywhere."""
        if whose not in self._roots:
            is_local, session, model = whose
            if model not in self._models:
                self._models.append(model)
            names = [f"session {session}"] if is_local else []
            names += [f"model {model}"] if model != self._models[0] else []
            self._roots[whose] = digest(" ".join(names)) if names else None
        return self._roots[whose]


class Evidence:
    """Evidence in the first ids about their meaning: a prefix id always has the same id before it."""

    def __init__(self, limit: int = _SAMPLE_REFERENCES) -> None:
        self._before: dict[tuple[str | None, Id], Id | None] = {}
        self._left = limit
        self.conflict: str | None = None

    def add(self, ids: Sequence[Id], session: str | None, where: str) -> None:
        """Look at one request, unless the meaning is known or the sample is full."""
        if self.conflict is not None or self._left <= 0:
            return
        self._left -= len(ids)
        before: Id | None = None
        for one in ids:
            known = self._before.setdefault((session, one), before)
            if known != before:
                self.conflict = (
                    f"id {_short(one)} comes after {_short(known)} and after {_short(before)} ({where})"
                )
                return
            before = one


def as_numbers(ids: Sequence[Id]) -> Sequence[int]:
    """Ids as integers whose Python hash is the integer itself; larger ones and strings are digested."""
    try:
        if min(ids) >= 0 and max(ids) < _SMALL:  # type: ignore[operator]
            return ids  # type: ignore[return-value]
    except TypeError:
        if set(map(type, ids)) == {str}:
            return list(map(_digest_of_text, ids))
    return [one if isinstance(one, int) and 0 <= one < _SMALL else digest(one) for one in ids]


def digest(one: Id) -> int:
    """60 bits of an id."""
    kind = "i" if isinstance(one, int) else "s"
    data = f"{kind}{one}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little") & (_SMALL >> 1)


_digest_of_text = lru_cache(_REMEMBERED)(digest)
"""The same of a string. A trace of text has one a block, and those of a conversation come again in each turn."""


def _chain(parent: int, number: int) -> int:
    return hash((parent, number))


def _short(one: Id | None) -> str:
    if one is None:
        return "the beginning of a prompt"
    text = repr(one)
    return text if len(text) <= 24 else f"{text[:21]}..."
