"""What the attributes and the events of a span say that a model was asked, as an API is asked it.

Several conventions have it under names of their own: OpenTelemetry's, new and old; OpenInference's, which Phoenix
has; Vercel's; Logfire's.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.asked import inside, json_in
from kv_sim.replay.readers.chat import user
from kv_sim.replay.readers.formats.otlp import Named, SpanOrEvent
from kv_sim.replay.readers.parts import as_json

WHOLE: Final = ("gen_ai.input.messages", "ai.prompt.messages")
"""All messages in one attribute."""
PROMPT: Final = "gen_ai.prompt"
_SAID: Final = "llm.input_messages."
_TOOLS: Final = ("llm.tools.", "llm.request.functions.")
"""The second one is OpenLLMetry's."""
_CALLS: Final = ".tool_calls."
_VALUE: Final = "input.value"
_ASKED: Final = ("messages", "prompt")
_EVENTS: Final = "events"
_CHOICE: Final = "gen_ai.choice"
_DEFINED: Final = (
    ("tools", ("gen_ai.tool.definitions", "ai.prompt.tools")),
    ("system", ("gen_ai.system_instructions",)),
)

_MOST_DIGITS: Final = 10


def asked_of(seen: SpanOrEvent) -> Mapping[str, Any] | None:
    """What was asked, if that is there."""
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
    """None of those of which nothing but their roles was kept."""
    return messages if any(message.keys() - {"role"} and message.get("content") for message in messages) else []


def _is_answer(event: Mapping[str, Any]) -> bool:
    return event.get("event.name") == _CHOICE


def _written(value: Any) -> Any:
    """Messages, or an object with such or a text, as JSON; or what a user says."""
    found = json_in(value)
    if isinstance(found, dict):
        found = next((found[field] for field in _ASKED if field in found), value)
    return user(found)["messages"] if isinstance(found, str) and found else found


def _numbered(named: Named) -> Iterator[Mapping[str, Any]]:
    """Messages whose parts are attributes with numbers in their names."""
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
        called = sorted(calls.get(str(index), ()))  # in whatever order attributes lie
        yield {"role": role, "content": parts if are_parts else content, "tool_calls": called}
        index += 1


def _of_openinference(named: Named) -> list[Mapping[str, Any]]:
    """The same where more than text may be said; what isn't text is its name and its value."""
    found: dict[int, dict[str, Any]] = {}
    for name, value in named.items():
        number, _, field = name.removeprefix(_SAID).partition(".message.")
        if name.startswith(_SAID) and number.isdecimal() and len(number) < _MOST_DIGITS and field:
            found.setdefault(int(number), {})[field] = value
    return [
        {
            "role": message.pop("role", "user"),
            "content": [
                value if field == "content" or field.endswith(".text") else as_json([field, value])
                for field, value in message.items()
                if value is not None
            ],
        }
        for _, message in sorted(found.items())
    ]


def _plain(message: Any) -> Any:
    """A message as an API is asked with it."""
    parts = inside(message, "parts")
    return {**message, "content": [*map(_part, parts)]} if isinstance(parts, list) else message


def _part(part: Any) -> Any:
    """Text that is said; any other part is what it is."""
    if isinstance(inside(part, "content"), str) and part.get("type") == "text":
        return part["content"]
    return part
