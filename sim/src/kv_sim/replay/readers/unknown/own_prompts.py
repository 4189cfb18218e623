"""Reads a column that the user named as a prompt or a conversation, in any of several shapes."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.chats.chat import chat, in_turn, prompts_in
from kv_sim.replay.readers.chats.usual import PROMPTS, as_usual
from kv_sim.replay.readers.fields import number_or_date, prompts_of, text_of
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.formats.conversations import CONVERSATIONS
from kv_sim.replay.readers.formats.dated import DATED
from kv_sim.replay.readers.json_values import is_printed, json_in, object_in
from kv_sim.replay.readers.record import MalformedError, Prompt, Record

_PLACE: Final = re.compile("prompt|messages|conversations")
"""How other formats' errors begin: with their own name of the field."""


def prompts_in_column(found: Mapping[str, Any], column: str, told: Mapping[str, Any]) -> list[Prompt]:
    """The prompts in a column; a completion may have several. What is ``told`` beside counts before messages."""
    value = json_in(found[column])
    if isinstance(value, list) and len(value) == 1 and _are_objects(alone := json_in(value[0])):
        value = alone
    if is_printed(value):
        raise MalformedError(
            f"{column}: expected text or JSON, got what was printed of it: {value!r:.40}; json.dumps writes JSON"
        )
    try:
        if isinstance(value, dict):
            return _asked(value)
        if _are_objects(value):
            return [(chat({**told, "messages": value}), None)]
        return prompts_of({"prompt": value if isinstance(value, list) else found[column]})
    except MalformedError as error:
        raise MalformedError(_PLACE.sub(lambda _: column, str(error), count=1)) from None


def answers_of(found: Mapping[str, Any], column: str) -> str:
    """The answer in a column, which must be text."""
    answer = found[column]
    if not isinstance(answer, str):
        raise MalformedError(f"{column}: expected text, got {type(answer).__name__}; output=COLUMN is a length")
    return answer


def conversation_format(
    name: str,
    container: Container,
    columns: Mapping[str, str],
    find: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    told_beside: Callable[[Mapping[str, Any], str], Mapping[str, Any]],
) -> Format:
    """The format of a column of conversations: the dated one if the conversations have a time."""
    usual = DATED if "time" in columns else CONVERSATIONS

    def parse(record: Mapping[str, Any]) -> Iterator[Record]:
        found = find(record)
        spoken = messages_of(found[columns["conversation"]])
        said = {**told_beside(record, columns["conversation"]), "conversations": spoken}
        if "time" in columns:
            said["timestamp"] = number_or_date(found, columns["time"])
        if "model" in columns:
            said["model"] = text_of(found, columns["model"])
        try:
            yield from usual.parse(said)
        except MalformedError as error:
            raise MalformedError(_PLACE.sub(lambda _: columns["conversation"], str(error), count=1)) from None

    return Format(
        name,
        container,
        (),
        parse,
        merges_sessions=usual.merges_sessions,
        overlaps=usual.overlaps,
        is_text=True,
        assumes=usual.assumes,
    )


def messages_of(value: Any) -> Any:
    """Messages as objects; plain texts are taken as those of a user and a model in turn."""
    return in_turn(json_in(value))


def _asked(value: Mapping[str, Any]) -> list[Prompt]:
    """The prompts of a request to an API."""
    body = object_in(value.get("body"))
    asked = value if body is None or body.keys().isdisjoint(PROMPTS) else body
    if asked.keys().isdisjoint(PROMPTS):
        raise MalformedError(f"prompt: expected a request with {', '.join(PROMPTS)}, got {', '.join(asked):.60}")
    return prompts_in({}, as_usual(asked))


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)
