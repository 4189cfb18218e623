"""Turns messages into text: their text, and parts such as images, tool calls and tool results.

A part that isn't text becomes its JSON with sorted fields, so that the next turn, which repeats it, shares its
blocks. An image, a sound or a file becomes a few characters that stand for it, also within a tool result: as
base64 it would be hundreds of thousands of characters. A client's cache marks are left out, since they move with
each turn.
"""

import json
import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from kv_sim.replay.readers.record import MalformedError

_MEDIA: Final = frozenset(
    (
        *("image", "image_url", "input_image", "image_file", "video", "video_url", "input_video"),
        *("audio", "audio_url", "input_audio", "file", "input_file", "blob", "uri"),
    )
)
"""Types of parts that aren't text."""

_MARK: Final = "cache_control"
_POINT: Final = {"cachePoint"}
"""A client's cache mark: a field of a part (Anthropic), or a separate part (Bedrock)."""

_NOTHING: Final = "step-start"
"""An empty part with which programs of Vercel's AI SDK begin a step."""

_PACKED: Final = re.compile(r"data:[^,\s]*,\S{1000,}|[A-Za-z0-9+/_-]{1000,}={0,2}")
"""Bytes encoded as text: nothing else is so long without a blank."""

_STAND_IN: Final = re.compile(r"<[a-z_]{3,11} [0-9a-f]{16}>")
"""What ``_stands_for`` writes for a part that isn't text."""


def has_media(text: str) -> bool:
    """Whether a text has a stand-in for an image, a sound or a file."""
    return _STAND_IN.search(text) is not None


def said(value: Any, place: str) -> str:
    """The text of a message's content: text itself, or a list of parts."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise MalformedError(f"{place}: expected text or a list of parts, got {type(value).__name__}")
    return "".join(map(_part, value))


def as_json(value: Any) -> str:
    """A value that isn't text, as JSON."""
    try:
        return json.dumps(_lasting(value), sort_keys=True, ensure_ascii=False)
    except RecursionError:
        raise MalformedError("a part of a message is nested too deeply") from None


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return as_json(part)
    if isinstance(part.get("text"), str):
        return str(part["text"])
    if part.get("type") == "text" and isinstance(part.get("content"), str):  # as OpenTelemetry has it
        return str(part["content"])
    if part.keys() == _POINT or part.get("type") == _NOTHING:
        return ""
    kind = part.get("type")
    if isinstance(kind, str) and kind in _MEDIA:
        return _stands_for(kind, json.dumps(_unmarked(part), sort_keys=True))
    return as_json(part)


def _lasting(value: Any) -> Any:
    """The value without cache marks, and with stand-ins for media."""
    if isinstance(value, dict):
        return {name: _lasting(one) for name, one in _unmarked(value).items()}
    if isinstance(value, list):
        return [_lasting(one) for one in value if not (isinstance(one, dict) and one.keys() == _POINT)]
    return _stands_for("data", value) if isinstance(value, str) and _PACKED.fullmatch(value) else value


def _unmarked(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name != _MARK}


def _stands_for(kind: str, what: str) -> str:
    return f"<{kind} {blake2b(what.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}>"
