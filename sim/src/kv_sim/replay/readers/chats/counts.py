"""How many tokens a log's record counts: of an answer, of a prompt, and of a prompt in the server's caches."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.chats.cached import cached_among, cached_of
from kv_sim.replay.readers.extended_json import plain_of
from kv_sim.replay.readers.fields import spelled, whole
from kv_sim.replay.readers.json_values import events_in, inside, is_stream, json_in, object_in
from kv_sim.replay.readers.record import MalformedError

_COUNTS: Final = spelled(
    *("completion_tokens", "output_tokens", "output_length", "candidates_token_count"),
    *("generated_tokens", "eval_count", "tokens_predicted"),
)
"""The last ones are Ollama's and llama.cpp's; in camelCase they are Gemini's, Bedrock's and Vercel's."""
_THOUGHTS: Final = {
    "candidatesTokenCount": "thoughtsTokenCount",
    "candidates_token_count": "thoughts_token_count",
}
"""Reasoning tokens, which Gemini's counts of answers leave out."""
_TOLD: Final = spelled(
    *("prompt_tokens", "input_tokens", "prompt_token_count", "prompt_eval_count", "tokens_evaluated")
)
_MOST_DIGITS: Final = 9
_ANSWERS: Final = spelled("response_body", "full_response")
_IN_EVENTS: Final = ("response", "message")
"""Fields of a stream's event in which its usage may be."""
_USAGES: Final = (*spelled("usage", "usage_metadata", "token_usage"), "details")
_BESIDE: Final[Mapping[str, tuple[str, ...]]] = {
    "input_tokens": ("cache_read_input_tokens", "cache_creation_input_tokens"),
    "inputTokens": ("cacheReadInputTokens", "cacheWriteInputTokens"),
}
"""Counts of cached tokens that Anthropic's and Bedrock's prompt lengths leave out, unlike other APIs'."""


def answered_in(record: Mapping[str, Any]) -> int | None:
    """The number of the answer's tokens, if the record has it."""
    for place, counts in _counts_of(record):
        field = next((field for field in _COUNTS if inside(counts, field) is not None), None)
        if field is not None:
            try:
                return whole(counts, field) + whole(counts, _THOUGHTS.get(field, ""), usual=0)
            except MalformedError as error:
                raise MalformedError(f"{place}{error}") from None
    return None


def told_in(record: Mapping[str, Any]) -> int | None:
    """The number of the prompt's tokens, if the record has it, preferably from where cached tokens are counted."""
    places = [counts for _, counts in _counts_of(record)]
    told = [(found, counts) for counts in places if (found := _told_of(counts)) is not None]
    return next((found for found, counts in told if cached_of(counts) is not None), told[0][0] if told else None)


def cached_in(record: Mapping[str, Any]) -> int | None:
    """The number of the prompt's tokens that its server had in its caches, if the record has it.

    It relates to the prompt length beside it, if there is one: other lengths may leave out cached tokens.
    """
    places = [counts for _, counts in _counts_of(record)]
    return cached_among((*(counts for counts in places if _told_of(counts) is not None), *places))


def _told_of(counts: Any) -> int | None:
    """The same of one place."""
    for field in _TOLD:
        if inside(counts, field) is not None:
            told = sum(count_in(counts, one) or 0 for one in (field, *counted_beside(field)))
            if told:
                return told
    return None


def counted_beside(column: str) -> list[str]:
    """The columns with the cached tokens that this column leaves out of a prompt's length.

    There are none unless it may be Anthropic's ``input_tokens``, or Bedrock's, which leave them out. A column may
    be in objects (``a.b``).
    """
    outer, dot, name = column.rpartition(".")
    return [f"{outer}{dot}{one}" for one in _BESIDE.get(name, ())]


def count_in(counts: Any, field: str) -> int | None:
    """A count above zero, in a table as text; None if it is none."""
    told = plain_of(inside(counts, field))
    if isinstance(told, str) and told.isascii() and told.isdecimal() and len(told) <= _MOST_DIGITS:
        told = int(told)
    return told if isinstance(told, int) and not isinstance(told, bool) and told > 0 else None


def _counts_of(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The places where counts of tokens may be, as objects or as JSON."""
    response = record.get("response")
    response = last_of(response) if is_stream(response) else object_in(response)
    yield "", record
    yield "info.", record.get("info")
    yield "meta_info.", record.get("meta_info")
    yield "metrics.", record.get("metrics")
    yield "response.", response
    answers = (
        ("", record),
        ("response.", response),
        ("response.body.", object_in(inside(response, "body"))),
        *((f"{field}.", last_of(record.get(field))) for field in _ANSWERS),
    )
    for place, answer in answers:
        for field in _USAGES:
            yield f"{place}{field}.", object_in(inside(answer, field))


def last_of(value: Any) -> Mapping[str, Any] | None:
    """A response, maybe given as JSON; of a stream or a list, the event with the usage."""
    found = json_in(value)
    if isinstance(found, str):
        found = events_in(found)
    if not isinstance(found, list):
        return found if isinstance(found, dict) else None
    last: dict[str, Any] = {}
    for one in (inside(event, field) or event for event in found for field in _IN_EVENTS):
        told = {field: counts for field in _USAGES if isinstance(counts := inside(one, field), dict) and counts}
        if told:  # in Anthropic's streams the first event counts the prompt, the last one the answer
            last = {**one, **{field: {**last.get(field, {}), **_said(counts)} for field, counts in told.items()}}
    return last or None


def _said(counts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Counts without nulls, which later events have for what an earlier one said."""
    return {name: count for name, count in counts.items() if count is not None}
