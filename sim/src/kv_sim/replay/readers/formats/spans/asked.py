"""The request to a model in a span's attributes and events, in the form of a request to an API.

Conventions differ in the names: OpenTelemetry's, new and old; OpenInference's, which Phoenix uses; Vercel's;
Logfire's.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.chats.chains import BEFORE
from kv_sim.replay.readers.chats.chat import user
from kv_sim.replay.readers.chats.parts import as_json
from kv_sim.replay.readers.formats.spans.otlp import Named, SpanOrEvent
from kv_sim.replay.readers.json_values import inside, json_in, object_in

WHOLE: Final = ("gen_ai.input.messages", "ai.prompt.messages")
"""All messages in one attribute."""
PROMPT: Final = "gen_ai.prompt"
_SAID: Final = "llm.input_messages."
_TOOLS: Final = ("llm.tools.", "llm.request.functions.")
"""The second one is OpenLLMetry's."""
_CALLS: Final = ".tool_calls."
_VALUE: Final = "input.value"
_WHOLE_CALLS: Final = ((_VALUE, "output.value"), ("mlflow.spanInputs", "mlflow.spanOutputs"))
"""Attributes with the whole request and the whole answer, of OpenInference and of MLflow."""
_PARTS: Final = "contents"
_CALLED: Final = "tool_calls"
_NAMES: Final = ("role", "name", "tool_call_id")
"""Fields of a message that aren't its content."""
_TEXTS: Final[Mapping[str, tuple[str, ...]]] = {
    "text": ("content",),
    "tool_call_response": ("response", "result"),
}
"""By a part's type, the fields with its text."""
_ASKED: Final = ("messages", "prompt")
_EVENTS: Final = "events"
_CHOICE: Final = "gen_ai.choice"
_DEFINED: Final = (
    ("tools", ("gen_ai.tool.definitions", "ai.prompt.tools")),
    ("system", ("gen_ai.system_instructions",)),
)

_MOST_DIGITS: Final = 10


def asked_of(seen: SpanOrEvent) -> Mapping[str, Any] | None:
    """The request, if it was captured."""
    named = seen.named
    messages = _messages(seen)
    if messages is None:
        return None
    asked: dict[str, Any] = {"messages": messages}
    if tools := [value for name, value in named.items() if name.startswith(_TOOLS)]:
        asked["tools"] = tools
    if isinstance(messages, list):
        asked["messages"] = [*map(_plain, messages)]
    for field, names in _DEFINED:
        for name in names:
            if name in named:
                value = json_in(named[name])
                are_parts = isinstance(value, list) and field == "system"
                asked[field] = [*map(_part, value)] if are_parts else value
    return asked


def response_in(named: Named) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """A response in the form of a log, and its request, which may continue an earlier response."""
    for name, answered in _WHOLE_CALLS:
        asked, response = object_in(named.get(name)), object_in(named.get(answered))
        if (
            asked is not None
            and "input" in asked
            and (asked.get(BEFORE) is not None or inside(response, "object") == "response")
        ):
            return {"response": response}, asked
    return None


def _messages(seen: SpanOrEvent) -> Any:
    named = seen.named
    for name in WHOLE:
        if name in named:
            return json_in(named[name])
    if f"{PROMPT}.0.content" in named:
        return [*_numbered(named)]
    if found := _of_openinference(named) or _captured(seen.messages):
        return found
    if isinstance(events := json_in(named.get(_EVENTS)), list):
        return [{"role": "user", **one} for one in events if isinstance(one, dict) and not _is_answer(one)]
    return next((found for name in (PROMPT, _VALUE) if (found := _written(named.get(name)))), None)


def _captured(messages: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages of which more than the role was captured."""
    return messages if any(message.keys() - {"role"} and message.get("content") for message in messages) else []


def _is_answer(event: Mapping[str, Any]) -> bool:
    return event.get("event.name") == _CHOICE


def _written(value: Any) -> Any:
    """Messages, or an object with messages or a text, from JSON; or a user's text."""
    found = json_in(value)
    if isinstance(found, dict):
        found = next((found[field] for field in _ASKED if field in found), value)
        found = found[0] if isinstance(found, list) and len(found) == 1 and isinstance(found[0], list) else found
    return user(found)["messages"] if isinstance(found, str) and found else found


def _numbered(named: Named) -> Iterator[Mapping[str, Any]]:
    """Messages from attributes with numbers in their names."""
    calls: dict[str, list[Any]] = {}
    for name, value in named.items():
        number, between, field = name.removeprefix(f"{PROMPT}.").partition(_CALLS)
        if between and name.startswith(PROMPT):
            calls.setdefault(number, []).append([field, value])
    index = 0
    while f"{PROMPT}.{index}.role" in named or f"{PROMPT}.{index}.content" in named:
        role = named.get(f"{PROMPT}.{index}.role", "user")
        content = named.get(f"{PROMPT}.{index}.content")
        parts = json_in(content)
        are_parts = isinstance(parts, list) and all(isinstance(inside(one, "type"), str) for one in parts)
        called = sorted(calls.get(str(index), ()))  # whatever the order of the attributes
        yield {"role": role, "content": parts if are_parts else content, "tool_calls": called}
        index += 1


def _of_openinference(named: Named) -> list[Mapping[str, Any]]:
    """Messages of OpenInference from numbered attributes: parts and tool calls are in pieces, too."""
    found: dict[int, dict[str, Any]] = {}
    for name, value in named.items():
        number, _, field = name.removeprefix(_SAID).partition(".message.")
        if name.startswith(_SAID) and number.isdecimal() and len(number) < _MOST_DIGITS and field:
            found.setdefault(int(number), {})[field] = value
    return [_put_together(fields) for _, fields in sorted(found.items())]


def _put_together(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message from fields with dotted names; an unknown field becomes its name and value."""
    pieces: dict[str, dict[str, dict[str, Any]]] = {_PARTS: {}, _CALLED: {}}
    content: list[Any] = []
    for field, value in fields.items():
        kind, _, inner = field.partition(".")
        number, _, inner = inner.partition(".")
        if kind in pieces and number.isdecimal() and len(number) < _MOST_DIGITS and inner:
            piece = pieces[kind].setdefault(number, {})
            piece[inner.partition(".")[2] or inner] = value
        elif field not in _NAMES and value is not None:
            content.append(value if field == "content" else as_json([field, value]))
    parts, calls = ([one for _, one in sorted(pieces[kind].items(), key=_place)] for kind in pieces)
    role = fields.get("role") or "user"
    return {"role": role, "content": [*content, *parts], **({"tool_calls": calls} if calls else {})}


def _place(numbered: tuple[str, Any]) -> int:
    return int(numbered[0])


def _plain(message: Any) -> Any:
    """A message as an API gets it."""
    parts = inside(message, "parts")
    return {**message, "content": [*map(_part, parts)]} if isinstance(parts, list) else message


def _part(part: Any) -> Any:
    """A part as an API gets it: text, also of a tool result; other parts stay as they are."""
    kind = inside(part, "type")
    said = next((part[field] for field in _TEXTS.get(str(kind), ()) if field in part), None)
    return said if isinstance(said, str) else part
