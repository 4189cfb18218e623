"""Whether a later turn of a session has its whole prompt, or only what it adds to the turn before.

Traces in Mooncake's fields may be either. If turns add, a prompt is the turn before, its answer, and what is new.
Its blocks are cut again, since an answer rarely ends where a block does. A block that is also one of the file's
keeps its id; any other gets its id from its parts: parts of the file's blocks, and answers, which belong to one
session only.

The last prompt of each session is kept in memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kv_sim.replay.readers.record import Id, Record
from kv_sim.replay.readers.requests.naming import digest

TURN_SECONDS: Final = 60
"""The time that is assumed between two turns, if the trace doesn't say it."""


class _Part(NamedTuple):
    """Consecutive tokens of one of the file's blocks, or of an answer."""

    source: Id | tuple[str, str, int]
    begin: int
    end: int


@dataclass
class _Prompt:
    """A session's whole prompt so far."""

    tokens: int = 0
    full: list[Id] = field(default_factory=list)
    """Its full blocks."""
    tail: list[_Part] = field(default_factory=list)
    """The parts in its last, partial block."""
    turns: int = 0

    def add(self, source: Id | tuple[str, str, int], tokens: int, block_tokens: int) -> None:
        """Append ``tokens`` tokens of a source."""
        done = 0
        while done < tokens:
            step = min(tokens - done, block_tokens - self.tokens % block_tokens)
            self.tail.append(_Part(source, done, done + step))
            done, self.tokens = done + step, self.tokens + step
            if not self.tokens % block_tokens:
                self.full.append(_name(self.tail))
                self.tail = []


class GrowingPrompts:
    """Builds whole prompts from turns that have only what they add."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._prompts: dict[str, _Prompt] = {}

    def extend(self, record: Record, ids: Sequence[Id]) -> tuple[int, list[Id]]:
        """The length and the blocks of a turn's whole prompt; ``ids`` are those of its new part."""
        session, size = record.session, self._block_tokens
        if session is None:
            return record.input_tokens, list(ids)
        prompt = self._prompts.setdefault(session, _Prompt())
        left = record.input_tokens
        for one in ids:
            prompt.add(one, min(size, left), size)
            left -= min(size, left)
        prompt.add(("unnamed", session, prompt.turns), left, size)
        whole = [*prompt.full, *([_name(prompt.tail)] if prompt.tail else [])]
        tokens = prompt.tokens
        prompt.add(("answer", session, prompt.turns), record.output_tokens, size)
        prompt.turns += 1
        return tokens, whole


def have_later_turns(records: Sequence[Record]) -> bool:
    """Whether some session has several turns."""
    sessions = [record.session for record in records if record.session is not None]
    return len(sessions) > len(set(sessions))


def look_added(records: Sequence[Record]) -> bool:
    """Whether most later turns begin with another block than the turn before, so they have only what is new."""
    before: dict[str, Id] = {}
    turns = added = 0
    for record in records:
        if record.session is None or not record.ids:
            continue
        if record.session in before:
            turns += 1
            added += before[record.session] != record.ids[0]
        before[record.session] = record.ids[0]
    return 2 * added > turns


def look_apart(records: Sequence[Record]) -> bool:
    """Whether sessions have later turns, none of which begins with the prompt of the turn before.

    Text or token ids are compared, in both directions, since logs may have the newest turn first.
    """
    before: dict[str, str | Sequence[int]] = {}
    turns = 0
    for record in records:
        asked = record.tokens if record.text is None else "".join(record.text)
        if record.session is None or not asked:
            continue
        last = before.get(record.session)
        if last is not None:
            turns += 1
            short, long = sorted((last, asked), key=len)
            if long[: len(short)] == short:
                return False
        before[record.session] = asked
    return turns > 0


def _name(parts: Sequence[_Part]) -> Id:
    [first, *more] = parts
    if not more and not first.begin and not isinstance(first.source, tuple):
        return first.source
    return digest(repr([tuple(part) for part in parts]))
