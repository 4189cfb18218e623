"""The text of an answer, for logs that have the text but not its number of tokens.

It may be a text beside the request, an API's response, or a stream of a response's events. Reasoning and tool
calls are parts of it.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.chats.parts import as_json
from kv_sim.replay.readers.fields import spelled
from kv_sim.replay.readers.json_values import events_in, inside, is_stream, json_in

_FIELDS: Final = spelled(
    *("response", "response_body", "full_response", "completion", "output", "generated_text", "answer"),
    *("response_text", "output_text"),
)
"""Fields that may have an answer, as text or as an object."""
_SENT: Final = spelled("response_body", "full_response")
"""Fields that have it as it was sent over HTTP."""
_TEXTS: Final = ("reasoning_content", "reasoning", "thinking", "content", "text", "generated_text", "output_text")
"""Fields with the text of a message, or of a part of one."""
_CALLS: Final = ("tool_calls", "function_call", "functionCall")
_WITHIN: Final = ("body", "choices", "message", "delta", "candidates", "parts", "output", "summary", "response")
"""Fields within a response in which the text may be."""
_OF_CALLS: Final = ("tool_use", "function_call")
_PARTIAL: Final = ("partial_json", "arguments")
_DEEPEST: Final = 8


def answer_in(record: Mapping[str, Any]) -> str | None:
    """The text of the answer; None: the log doesn't have it."""
    for field in _FIELDS:
        found = record.get(field)
        if isinstance(found, str) and is_stream(found):
            return "".join(text for event in events_in(found) for text in _of_event(event)) or None
        value = json_in(found)
        text = value if isinstance(value, str) else "".join(_said(value, 0))
        if not text and isinstance(found, str) and field not in _SENT:
            text = found  # the answer itself is JSON, as the request asked
        if text:
            return text
    return "".join(_said(record["choices"], 0)) or None if isinstance(record.get("choices"), list) else None


def _said(value: Any, depth: int) -> Iterator[str]:
    """The texts of a response, a message or a part."""
    if isinstance(value, list) and depth < _DEEPEST:
        for one in value:
            yield from _said(one, depth + 1)
    if not isinstance(value, dict) or depth >= _DEEPEST:
        return
    if value.get("type") in _OF_CALLS:
        yield as_json({name: value[name] for name in ("name", "input", "arguments") if name in value})
        return
    for field in _TEXTS:
        found = value.get(field)
        if isinstance(found, str):
            yield found
        else:
            yield from _said(found, depth + 1)
    yield from (as_json(value[field]) for field in _CALLS if value.get(field))
    for field in _WITHIN:
        if not isinstance(value.get(field), str):
            yield from _said(value.get(field), depth + 1)


def _of_event(event: Mapping[str, Any]) -> Iterator[str]:
    """The text that an event of a stream adds. Events that repeat the whole answer add nothing."""
    kind = str(event.get("type"))
    if isinstance(event.get("delta"), str) and kind.startswith("response."):
        yield event["delta"]
        return
    delta = event.get("delta")
    if kind == "content_block_delta" and isinstance(delta, dict):
        yield from (delta[field] for field in (*_TEXTS, *_PARTIAL) if isinstance(delta.get(field), str))
    elif "choices" in event or "candidates" in event:
        yield from _said({name: inside(event, name) for name in ("choices", "candidates")}, 0)
