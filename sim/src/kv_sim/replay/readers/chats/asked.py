"""Finds the request to an API in a log's record, and the length of its answer.

The request is the record itself, or one of its fields: an object, or an object as JSON. In there it may be in a
``body``, beside headers and the like.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from kv_sim.replay.readers.chats.cached import cached_among, cached_of
from kv_sim.replay.readers.chats.usual import PROMPTS, as_usual
from kv_sim.replay.readers.extended_json import plain_of
from kv_sim.replay.readers.fields import name_of, session_of, spelled, text_of, time_of, whole
from kv_sim.replay.readers.record import MalformedError, Prompt, Record

SALT: Final = "cache_salt"
"""vLLM's field that keeps a request's blocks apart from those with another salt."""
_BODIES: Final = spelled(
    *("body", "request_body", "proxy_server_request", "request", "request_args", "params", "full_request")
)
_STATUSES: Final = spelled("status", "status_code", "response_code", "response_status", "response_status_code")
_FAILED: Final = re.compile("[45][0-9][0-9]|failure|failed|error", re.IGNORECASE)
PATHS: Final = ("url", "uri", "path", "endpoint", "request_uri", "request")
"""Fields in which a log has the path of the API."""
_COUNTS_ONLY: Final = re.compile("(/count_tokens|:countTokens|/(de)?tokenize)(?![A-Za-z_])")
"""Paths that only count the tokens of a prompt."""
_OTHER_CALLS: Final = ("embedding", "rerank", "moderation", "image_", "transcription", "speech", "video")
"""Values of LiteLLM's ``call_type`` for calls that generate no text."""
_FROM_CACHE: Final = re.compile("(SEMANTIC )?HIT")
"""Values of Portkey's ``cache_status`` for requests that its own cache answered."""
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
_PRINTED: Final = re.compile(r"\s*\[?\s*\{\s*'")
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


def asked_in(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The request to the API."""
    for field in _BODIES:
        outer = object_in(record.get(field))
        for body in (outer, object_in(inside(outer, "body"))):
            if body and not body.keys().isdisjoint(PROMPTS):
                return as_usual(body)
    return as_usual(record)


def without_request(record: Mapping[str, Any]) -> str | None:
    """The field that should have the request but has something else, such as a truncated body."""
    if not record.keys().isdisjoint(PROMPTS):
        return None
    return next((field for field in _BODIES if isinstance(record.get(field), str)), None)


def object_in(value: Any) -> Mapping[str, Any] | None:
    """An object, maybe given as JSON; None if it is something else."""
    found = json_in(value)
    return found if isinstance(found, dict) else None


def json_in(value: Any) -> Any:
    """The value of a text that is a list or object in JSON, or as Python prints it.

    Other values are returned unchanged.
    """
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return value
    with suppress(ValueError, RecursionError):
        return json.loads(value)
    if is_printed(value):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return ast.literal_eval(value.strip())
    return value


def is_printed(value: Any) -> bool:
    """Whether a text begins like a dict, or a list of dicts, that Python has printed."""
    return isinstance(value, str) and _PRINTED.match(value) is not None


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


def has_failed(record: Mapping[str, Any]) -> bool:
    """Whether its status, or an error in it, says that it was refused or failed."""
    told = (record, object_in(record.get("response")) or {})
    states = (str(one[field]) for one in told for field in _STATUSES if field in one)
    return bool(record.get("error")) or _is_false(record.get("success")) or any(map(_FAILED.fullmatch, states))


def _is_false(value: Any) -> bool:
    return value is False or (isinstance(value, str) and value.lower() == "false")


def path_in(record: Mapping[str, Any]) -> str | None:
    """The path of the API that a log has."""
    return next((path for field in PATHS if isinstance(path := record.get(field), str)), None)


def left_out_of(record: Mapping[str, Any]) -> str | None:
    """Why no model generated for this record of a gateway's log; None: a model did."""
    if any(isinstance(path := record.get(field), str) and _COUNTS_ONLY.search(path) for field in PATHS):
        return "asked only how many tokens a prompt has (count_tokens, tokenize)"
    call = record.get("call_type")
    if isinstance(call, str):
        if any(other in call for other in _OTHER_CALLS):
            return "another call than one for text (call_type)"
        if str(record.get("cache_hit")).lower() == "true":
            return "answered by the gateway's own cache (cache_hit)"
    kind = inside(record.get("span_attributes"), "type")
    if kind is not None and kind != "llm":
        return "a span that is no request to a model (span_attributes)"
    if _FROM_CACHE.fullmatch(str(record.get("cache_status")).upper()):
        return "answered by the gateway's own cache (cache_status)"
    if str(record.get("cached")).lower() == "true":
        return "answered by the gateway's own cache (cached)"
    return None


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


def is_stream(value: Any) -> bool:
    """Whether it is the raw text of a stream of events."""
    return isinstance(value, str) and value.lstrip().startswith(("data:", "event:"))


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


def events_in(stream: str) -> list[Mapping[str, Any]]:
    """The events of a stream."""
    events = (object_in(line.removeprefix("data:").strip()) for line in stream.splitlines())
    return [event for event in events if event]


def inside(value: Any, name: str) -> Any:
    """A field of an object; None if it is none."""
    return value.get(name) if isinstance(value, dict) else None


def objects_in(within: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
    """The objects of a list in a field; empty if there is no such field."""
    value = within.get(field, [])
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise MalformedError(f"{field}: expected a list of objects, got {type(value).__name__}")
    return value


def own_request(record: Mapping[str, Any]) -> Record:
    """The request that a record describes, without its prompt."""
    return Record(
        time_of(record),
        0,
        answered_in(record) or 0,
        None,
        session=session_of(record),
        model=text_of(record, "model"),
        told_tokens=told_in(record),
        cached_tokens=cached_in(record),
        name=name_of(record),
        salt=text_of(record, SALT),
    )


def for_each(prompts: Sequence[Prompt], record: Record) -> Iterator[Record]:
    """A record for each of several prompts. Each gets about the same part of the answers' known sum of tokens."""
    each, rest = divmod(record.output_tokens, len(prompts))
    if len(prompts) > 1:
        # which are of all
        record = replace(record, told_tokens=None, cached_tokens=None, name=None, answer=None)
    for number, (text, tokens) in enumerate(prompts):
        yield replace(record, output_tokens=each + (number < rest), text=text, tokens=tokens)
