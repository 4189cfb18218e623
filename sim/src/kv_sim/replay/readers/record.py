"""``Record``: one request as a file has it. ``fields`` has the functions that read and check its fields."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from kv_sim.replay.trace import EngineMemory

Id: TypeAlias = int | str
Prompt: TypeAlias = tuple[list[str] | None, list[int] | None]
"""Text in pieces, or token ids."""

MOST_TOKENS: Final = 100_000_000
"""A request with more tokens is taken as a mistake, since naming its blocks would take all memory."""


class MalformedError(ValueError):
    """A record that can't be a request; says why, not where."""


class Moment(float):
    """A time that is a date: seconds since 1970, whatever the file's unit is."""


@dataclass(slots=True)
class Record:
    """One request. ``time`` is in the file's unit, or a `Moment`; None where the format has no times."""

    time: int | float | None
    input_tokens: int
    output_tokens: int
    ids: Sequence[Id] | None
    """None if the format has no ids."""
    session: str | None = None
    block_tokens: int | None = None
    """The block size, if the record says it."""
    is_session_local: bool | None = None
    """Whether ids are valid only within their session, if the record says it."""
    engine: EngineMemory | None = None
    """The engine that computed it, if the record says it."""
    model: str | None = None
    """The model, if the record says it. Another model can't use its blocks."""
    parent: str | None = None
    """The session that this one continues."""
    text: Sequence[str] | None = None
    """Its prompt as text in pieces, if it is there as text; tokens and ids are made of it later."""
    tokens: Sequence[int] | None = None
    """Its prompt as token ids, if it is there as such."""
    answer: str | None = None
    """The text of the answer, whose tokens are counted later."""
    told_tokens: int | None = None
    """The prompt's tokens as the log counted them."""
    name: str | None = None
    """The request's id in the log, if it has one."""
    has_failed: bool = False
    """Whether the log says that the request failed."""
    answers_within: int = 0
    """How many answers its prompt has, if the record might be a whole conversation instead of a request."""
    ends_with_answer: bool = False
    """Whether a prompt that might be a whole conversation ends with an answer."""
    salt: str | None = None
    """vLLM's ``cache_salt``: prompts with different salts share no blocks."""
    beside: str | None = None
    """A field beside its prompt that may be a part of the prompt, too."""
    cached_tokens: int | None = None
    """How many tokens of the prompt its server had in its own caches, as the log counted them."""
    loaded_tokens: int | None = None
    """How many of these a connector loaded."""
    left_out: str | None = None
    """Why it is left out, if the log says that no model generated for it."""


@dataclass(slots=True)
class DelayedRecord(Record):
    """A record with a delay after the turn before if ``time`` is None; ``delay`` may be None, too."""

    delay: int | float | None = None
