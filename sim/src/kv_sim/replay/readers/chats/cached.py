"""How many of a prompt's tokens a server had in its own caches, from the usage of a response.

APIs have it under several names, beside a prompt's length or below it. A missing count doesn't mean 0: many
servers report it only if configured to.
"""

from collections.abc import Iterable
from typing import Any, Final

from kv_sim.replay.readers.extended_json import plain_of

_NAMES: Final = (
    *("cached_tokens", "cache_read_input_tokens", "prompt_cache_hit_tokens", "num_cached_tokens"),
    *("cachedContentTokenCount", "cached_content_token_count", "cacheReadInputTokens", "cached_input_tokens"),
    *("cachedInputTokens", "prompt_cached_tokens"),
)
"""SGLang's and others', Anthropic's, DeepSeek's, vLLM's; Gemini's, Bedrock's, Codex's; Vercel's, Braintrust's."""
_DETAILS: Final = (
    *("prompt_tokens_details", "input_tokens_details", "input_token_details", "prompt_token_details"),
    "inputTokenDetails",
)
_IN_DETAILS: Final = ("cached_tokens", "cache_read", "cacheReadTokens")
"""OpenAI's, LangChain's, Vercel's."""
_LLAMA: Final = "timings"
_IN_LLAMA: Final = ("cache_n",)
_MOST_DIGITS: Final = 9


def cached_among(places: Iterable[Any]) -> int | None:
    """The count of the first object that has one."""
    return next((found for place in places if (found := cached_of(place)) is not None), None)


def cached_of(counts: Any, *names: str) -> int | None:
    """The count in one response's usage; ``names`` are further names of it, in logs that have their own."""
    if not isinstance(counts, dict):
        return None
    places = [(counts, names or _NAMES), *((counts.get(field), _IN_DETAILS) for field in _DETAILS)]
    places.append((counts.get(_LLAMA), _IN_LLAMA))
    return next((found for place, inner in places if (found := _first(place, inner)) is not None), None)


def _first(counts: Any, names: Iterable[str]) -> int | None:
    if not isinstance(counts, dict):
        return None
    return next((found for name in names if (found := _count(plain_of(counts.get(name)))) is not None), None)


def _count(value: Any) -> int | None:
    """A count, in a table as text; None if it is below 0, which means unknown."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= _MOST_DIGITS:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
