"""What was answered, as text, where a log has that and doesn't say how long it was.

It may be a text beside what was asked, an answer as an API gives it, or a stream of the events of one. Thoughts
and calls of tools are parts of it.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.asked import events_in, inside, is_stream, json_in
from kv_sim.replay.readers.parts import as_json

_FIELDS: Final = (
    *("response", "response_body", "full_response", "completion", "output", "generated_text", "answer"),
    *("response_text", "output_text"),
)
"""Where an answer may be, as a text or an object."""
_SENT: Final = ("response_body", "full_response")
"""Where it is as it went over the wire."""
_TEXTS: Final = ("reasoning_content", "reasoning", "thinking", "content", "text", "generated_text", "output_text")
"""What a message, or a part of one, says."""
_CALLS: Final = ("tool_calls", "function_call", "functionCall")
_WITHIN: Final = ("body", "choices", "message", "delta", "candidates", "parts", "output", "summary", "response")
"""Where what was said may lie in an answer."""
_OF_CALLS: Final = ("tool_use", "function_call")
_PARTIAL: Final = ("partial_json", "arguments")
_DEEPEST: Final = 8


def answer_in(record: Mapping[str, Any]) -> str | None:
    """What was answered; None: the log doesn't say it."""
    for field in _FIELDS:
        found = record.get(field)
        if isinstance(found, str) and is_stream(found):
            return "".join(text for event in events_in(found) for text in _of_event(event)) or None
        value = json_in(found)
        text = value if isinstance(value, str) else "".join(_said(value, 0))
        if not text and isinstance(found, str) and field not in _SENT:
            text = found  # which is JSON, since it was asked for
        if text:
            return text
    return "".join(_said(record["choices"], 0)) or None if isinstance(record.get("choices"), list) else None


def _said(value: Any, depth: int) -> Iterator[str]:
    """What an answer, a message or a part of it says."""
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
    """What an event of a stream adds. Events that tell the whole answer come besides."""
    kind = str(event.get("type"))
    if isinstance(event.get("delta"), str) and kind.startswith("response."):
        yield event["delta"]
        return
    delta = event.get("delta")
    if kind == "content_block_delta" and isinstance(delta, dict):
        yield from (delta[field] for field in (*_TEXTS, *_PARTIAL) if isinstance(delta.get(field), str))
    elif "choices" in event or "candidates" in event:
        yield from _said({name: inside(event, name) for name in ("choices", "candidates")}, 0)
