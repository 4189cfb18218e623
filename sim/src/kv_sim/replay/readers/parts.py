"""What messages say, as text: text, and parts of which some are an image, a tool's call or what it answered.

What isn't text is its JSON, with its fields in order, so that a next turn that has it again shares it. An image, a
sound or a file is a few characters that stand for it, also within what a tool answered: as base64 it would be
hundreds of thousands. Where a client lets a cache begin is no part of a prompt; it moves on with each turn.
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
"""Where a cache begins: a field of a part, as Anthropic has it, or a part of its own, as Bedrock does."""

_NOTHING: Final = "step-start"
"""A part that says nothing, with which programs of Vercel's AI SDK begin anew."""

_PACKED: Final = re.compile(r"data:[^,\s]*,\S{1000,}|[A-Za-z0-9+/_-]{1000,}={0,2}")
"""Bytes as text: nothing else goes on for so long without a blank."""

_STAND_IN: Final = re.compile(r"<[a-z_]{3,11} [0-9a-f]{16}>")
"""What ``_stands_for`` makes of a part that isn't text."""


def has_media(text: str) -> bool:
    """Whether something in it stands for what isn't text."""
    return _STAND_IN.search(text) is not None


def said(value: Any, place: str) -> str:
    """What is said: text, or parts of which some are text."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise MalformedError(f"{place}: expected text or a list of parts, got {type(value).__name__}")
    return "".join(map(_part, value))


def as_json(value: Any) -> str:
    """What isn't text, as text."""
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
    if part.keys() == _POINT or part.get("type") == _NOTHING:
        return ""
    kind = part.get("type")
    if isinstance(kind, str) and kind in _MEDIA:
        return _stands_for(kind, json.dumps(_unmarked(part), sort_keys=True))
    return as_json(part)


def _lasting(value: Any) -> Any:
    """The same without what moves or isn't text."""
    if isinstance(value, dict):
        return {name: _lasting(one) for name, one in _unmarked(value).items()}
    if isinstance(value, list):
        return [_lasting(one) for one in value if not (isinstance(one, dict) and one.keys() == _POINT)]
    return _stands_for("data", value) if isinstance(value, str) and _PACKED.fullmatch(value) else value


def _unmarked(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name != _MARK}


def _stands_for(kind: str, what: str) -> str:
    return f"<{kind} {blake2b(what.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}>"
