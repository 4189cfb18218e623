"""Converts requests to Gemini's API and to Text Generation Inference's into the form of OpenAI's API."""

from collections.abc import Mapping
from typing import Any, Final

PROMPTS: Final = ("messages", "prompt", "input", "contents", "inputs")
"""The fields of a prompt in any of these APIs."""
_SYSTEM: Final = ("systemInstruction", "system_instruction")
KEPT: Final = "cachedContent"
"""The field that names the cached beginning of a prompt, which the request doesn't have."""
_KEPT: Final = (KEPT, "cached_content")
_APART: Final = ("model_parameters", "optional_params", "kwargs")
"""Fields in which LiteLLM's logs and callbacks, and OpenHands', have the other parameters beside ``messages``."""


_RAW: Final = "raw_messages"
"""The field that OpenHands logs where it has put the tools into words, among ``messages``."""


def as_usual(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """The request with ``messages`` or a ``prompt``; other requests are returned unchanged."""
    there = [field for field in PROMPTS if asked.get(field) is not None]
    if there and any(field in asked for field in PROMPTS if field not in there):
        asked = {name: value for name, value in asked.items() if value is not None or name not in PROMPTS}
    if not asked.keys().isdisjoint(("messages", "prompt")):
        return _with_parameters(asked)
    contents = asked.get("contents")
    if isinstance(contents, list) and contents and all(map(_is_content, contents)):
        usual = {**asked, "messages": [*map(_message, contents)]}
        system = next((asked[field] for field in _SYSTEM if asked.get(field) is not None), None)
        kept = next((asked[field] for field in _KEPT if asked.get(field) is not None), None)
        if system is not None:
            usual["system"] = system.get("parts") if isinstance(system, dict) else system
        return usual if kept is None else {**usual, KEPT: kept}
    if isinstance(asked.get("inputs"), (str, list)) and isinstance(asked.get("parameters"), dict):
        return {**asked, "prompt": asked["inputs"]}
    return asked


def _with_parameters(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """The request with its separately logged parameters, such as tools, unless these are among its messages."""
    if _RAW in asked:
        return {name: value for name, value in asked.items() if name != "tools"}
    for field in _APART:
        apart = asked.get(field)
        if isinstance(apart, dict) and (missing := apart.keys() - asked.keys() - {*PROMPTS}):
            return {**{name: apart[name] for name in sorted(missing)}, **asked}
    return asked


def _is_content(content: Any) -> bool:
    return isinstance(content, dict) and isinstance(content.get("parts"), list)


def _message(content: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"role": content.get("role") or "user", "content": content["parts"]}
