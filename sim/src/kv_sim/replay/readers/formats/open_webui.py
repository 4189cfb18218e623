"""Chats exported by Open WebUI: a chat a record, whose messages name their parent; seconds.

Each answer is a request, whose prompt are the messages above it; a regenerated answer, or one of several models,
is another request. It arrives when its message was made. Thoughts aren't sent again.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.chats.cached import cached_among
from kv_sim.replay.readers.chats.chat import ANSWERS, chat
from kv_sim.replay.readers.chats.counts import counted_beside
from kv_sim.replay.readers.chats.messages import names_above
from kv_sim.replay.readers.fields import number_or_date, text_of, whole
from kv_sim.replay.readers.format import kept_chats
from kv_sim.replay.readers.json_values import inside, objects_in
from kv_sim.replay.readers.record import Record
from kv_sim.replay.readers.required import errors_at, object_at

_THOUGHT: Final = re.compile(r'<details type="reasoning".*?</details>\s*', re.DOTALL)
_PROMPT: Final = ("prompt_tokens", "input_tokens", "prompt_eval_count")
_LLAMA: Final = ("prompt_n", "cache_n")
"""llama.cpp's counts: prompt tokens that it computed, and that it found in its cache."""
_ANSWER: Final = ("completion_tokens", "output_tokens", "eval_count")
"""Ollama's names come last."""


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    messages = object_at(_messages_of(record), "chat.history.messages")
    system = inside(inside(record["chat"], "params"), "system")
    for name in messages:
        place = f"chat.history.messages.{name}"
        message = object_at(messages[name], place)
        above = [_sent(messages[one]) for one in names_above(messages, name, "parentId")]
        if message.get("role") == ANSWERS and above:
            with errors_at(place):
                yield _request(message, chat({"system": system, "messages": above}), record)


def _messages_of(record: Mapping[str, Any]) -> Any:
    return inside(inside(record["chat"], "history"), "messages")


def _sent(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message as an API gets it."""
    said, files = message.get("content"), objects_in(message, "files") if message.get("files") else []
    images = [file.get("url") for file in files if file.get("type") == "image"]
    content = _THOUGHT.sub("", said) if message.get("role") == ANSWERS and isinstance(said, str) else said
    return {"role": message.get("role"), "content": content, "images": images}


def _request(message: Mapping[str, Any], text: list[str], record: Mapping[str, Any]) -> Record:
    usage = message["usage"] if isinstance(message.get("usage"), dict) else {}
    tokens, told = _count(usage, _ANSWER), _told(usage)
    said, models = message.get("content"), inside(record["chat"], "models")
    model = text_of(message, "model")
    if model is None and isinstance(models, list) and len(models) == 1:
        model = str(models[0])
    return Record(
        number_or_date(message, "timestamp"),
        0,
        tokens or 0,
        None,
        session=text_of(record, "id"),
        model=model,
        text=text,
        answer=said if tokens is None and isinstance(said, str) else None,
        told_tokens=told,
        cached_tokens=cached_among((usage, {"timings": usage})),
        has_failed=bool(message.get("error")),
    )


def _told(usage: Mapping[str, Any]) -> int | None:
    """The prompt's length in tokens."""
    if usage.get(_PROMPT[0]) is None and usage.get(_LLAMA[0]) is not None:
        return sum(whole(usage, name, usual=0) for name in _LLAMA)
    name = _first(usage, _PROMPT)
    return None if name is None else sum(whole(usage, one, usual=0) for one in (name, *counted_beside(name)))


def _count(usage: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    name = _first(usage, names)
    return None if name is None else whole(usage, name)


def _first(usage: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if usage.get(name) is not None), None)


OPEN_WEBUI = kept_chats(
    "open-webui",
    ("chat",),
    _parse,
    matches=lambda record: isinstance(_messages_of(record), dict),
    looked_for="history of messages in it",
    assumes="what Open WebUI asks besides (titles, tags, searches) and adds (tools, documents) is not counted",
)
