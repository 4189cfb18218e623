"""What an API was asked, and how long its answer was, wherever a log keeps them.

The request is the record itself, or lies in one of its fields: as an object, or as the JSON of one; there it may
lie behind what else was sent with it, in a ``body`` of its own.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from kv_sim.replay.readers.cached import cached_among, cached_of
from kv_sim.replay.readers.extended_json import plain_of
from kv_sim.replay.readers.record import (
    MalformedError,
    Prompt,
    Record,
    name_of,
    session_of,
    text_of,
    time_of,
    whole,
)
from kv_sim.replay.readers.usual import PROMPTS, as_usual

SALT: Final = "cache_salt"
"""Where vLLM is told what keeps a request's blocks apart."""
_BODIES: Final = (
    *("body", "request_body", "proxy_server_request", "request"),
    *("request_args", "params", "full_request"),
)
_STATUSES: Final = ("status", "status_code", "response_code", "response_status", "response_status_code")
_FAILED: Final = re.compile("[45][0-9][0-9]|failure|failed|error", re.IGNORECASE)
PATHS: Final = ("url", "uri", "path", "endpoint", "request_uri", "request")
"""Where a log says what of an API was asked."""
_COUNTS_ONLY: Final = re.compile("(/count_tokens|:countTokens|/(de)?tokenize)(?![A-Za-z_])")
"""Where a server is asked how many tokens a prompt has, and no more."""
_OTHER_CALLS: Final = ("embedding", "rerank", "moderation", "image_", "transcription", "speech", "video")
"""What LiteLLM's ``call_type`` says of what no text is answered to."""
_FROM_CACHE: Final = re.compile("(SEMANTIC )?HIT")
"""What Portkey's ``cache_status`` says of what its own cache answered."""
_COUNTS: Final = (
    *("completion_tokens", "output_tokens", "output_length", "candidatesTokenCount", "candidates_token_count"),
    *("generated_tokens", "eval_count", "tokens_predicted", "outputTokens"),
)
"""The last ones are Ollama's, llama.cpp's, and Bedrock's or Vercel's."""
_THOUGHTS: Final = {
    "candidatesTokenCount": "thoughtsTokenCount",
    "candidates_token_count": "thoughts_token_count",
}
"""What Gemini's answers leave out: what came before them, which is computed, too."""
_TOLD: Final = (
    "prompt_tokens",
    "input_tokens",
    "promptTokenCount",
    "prompt_token_count",
    "prompt_eval_count",
    "tokens_evaluated",
    "inputTokens",
)
_PRINTED: Final = re.compile(r"\s*\[?\s*\{\s*'")
_MOST_DIGITS: Final = 9
_ANSWERS: Final = ("response_body", "full_response")
_IN_EVENTS: Final = ("response", "message")
"""Where an event of a stream may have its usage, if not in itself."""
_USAGES: Final = ("usage", "usageMetadata", "usage_metadata", "details")
_BESIDE: Final[Mapping[str, tuple[str, ...]]] = {
    "input_tokens": ("cache_read_input_tokens", "cache_creation_input_tokens"),
    "inputTokens": ("cacheReadInputTokens", "cacheWriteInputTokens"),
}
"""What Anthropic's and Bedrock's counts leave out, and no other's that is called so."""


def asked_in(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the API was asked."""
    for field in _BODIES:
        outer = object_in(record.get(field))
        for body in (outer, object_in(inside(outer, "body"))):
            if body and not body.keys().isdisjoint(PROMPTS):
                return as_usual(body)
    return as_usual(record)


def without_request(record: Mapping[str, Any]) -> str | None:
    """The field in which the request of a log should be, where something else is, as a body that was cut off."""
    if not record.keys().isdisjoint(PROMPTS):
        return None
    return next((field for field in _BODIES if isinstance(record.get(field), str)), None)


def object_in(value: Any) -> Mapping[str, Any] | None:
    """An object, maybe written as JSON; None if it is none."""
    found = json_in(value)
    return found if isinstance(found, dict) else None


def json_in(value: Any) -> Any:
    """What a text says, if it is the JSON of a list or of an object, or what Python prints of them.

    Everything else is what it is.
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
    """Whether a text begins as what Python prints of an object, or of a list of such."""
    return isinstance(value, str) and _PRINTED.match(value) is not None


def answered_in(record: Mapping[str, Any]) -> int | None:
    """The tokens of the answer, where the record says how many."""
    for place, counts in _counts_of(record):
        field = next((field for field in _COUNTS if inside(counts, field) is not None), None)
        if field is not None:
            try:
                return whole(counts, field) + whole(counts, _THOUGHTS.get(field, ""), usual=0)
            except MalformedError as error:
                raise MalformedError(f"{place}{error}") from None
    return None


def told_in(record: Mapping[str, Any]) -> int | None:
    """The tokens of the prompt, where the record says how many: who says what a cache had of it knows it best."""
    places = [counts for _, counts in _counts_of(record)]
    told = [(found, counts) for counts in places if (found := _told_of(counts)) is not None]
    return next((found for found, counts in told if cached_of(counts) is not None), told[0][0] if told else None)


def cached_in(record: Mapping[str, Any]) -> int | None:
    """What of the prompt its server had in its caches, where the record says how much.

    It is of the length that is said beside it, if one is: another one may leave out what a cache had.
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
    """The columns that have what this one leaves out of a prompt's length; a column may lie in objects (``a.b``).

    They are none, unless it may be Anthropic's ``input_tokens``, or Bedrock's: only these leave out what a cache
    had.
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
    """Whether its status, or an error, says that it was refused, or that it broke."""
    told = (record, object_in(record.get("response")) or {})
    states = (str(one[field]) for one in told for field in _STATUSES if field in one)
    return bool(record.get("error")) or any(map(_FAILED.fullmatch, states))


def path_in(record: Mapping[str, Any]) -> str | None:
    """What of an API a log says was asked."""
    return next((path for field in PATHS if isinstance(path := record.get(field), str)), None)


def left_out_of(record: Mapping[str, Any]) -> str | None:
    """Why a gateway's log says that no model had to go on with it, if it does."""
    if any(isinstance(path := record.get(field), str) and _COUNTS_ONLY.search(path) for field in PATHS):
        return "asked only how many tokens a prompt has (count_tokens, tokenize)"
    call = record.get("call_type")
    if isinstance(call, str):
        if any(other in call for other in _OTHER_CALLS):
            return "another call than one for text (call_type)"
        if str(record.get("cache_hit")).lower() == "true":
            return "answered by a gateway's own cache (cache_hit)"
    kind = inside(record.get("span_attributes"), "type")
    if kind is not None and kind != "llm":
        return "a span that is no request to a model (span_attributes)"
    if _FROM_CACHE.fullmatch(str(record.get("cache_status")).upper()):
        return "answered by a gateway's own cache (cache_status)"
    if str(record.get("cached")).lower() == "true":
        return "answered by a gateway's own cache (cached)"
    return None


def _counts_of(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Where they may be, as objects or as the JSON of such."""
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
    """Whether it is the text of a stream of events, and not what they say."""
    return isinstance(value, str) and value.lstrip().startswith(("data:", "event:"))


def last_of(value: Any) -> Mapping[str, Any] | None:
    """What was answered, maybe as JSON; of a stream, or a list, what says the usage of it."""
    found = json_in(value)
    if isinstance(found, str):
        found = events_in(found)
    if not isinstance(found, list):
        return found if isinstance(found, dict) else None
    last: dict[str, Any] = {}
    for one in (inside(event, field) or event for event in found for field in _IN_EVENTS):
        told = {field: counts for field in _USAGES if isinstance(counts := inside(one, field), dict) and counts}
        if told:  # of a stream of Anthropic's the first event says what was read, the last what was written
            last = {**one, **{field: {**last.get(field, {}), **_said(counts)} for field, counts in told.items()}}
    return last or None


def _said(counts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without what isn't known any more in a later event."""
    return {name: count for name, count in counts.items() if count is not None}


def events_in(stream: str) -> list[Mapping[str, Any]]:
    """The events of a stream."""
    events = (object_in(line.removeprefix("data:").strip()) for line in stream.splitlines())
    return [event for event in events if event]


def inside(value: Any, name: str) -> Any:
    """A field of an object; None if it is none."""
    return value.get(name) if isinstance(value, dict) else None


def objects_in(within: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
    """The objects of a list, which need not be there."""
    value = within.get(field, [])
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise MalformedError(f"{field}: expected a list of objects, got {type(value).__name__}")
    return value


def own_request(record: Mapping[str, Any]) -> Record:
    """What a record itself says of a request, but for its prompt."""
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
    """The record of each of several prompts; of their answers, of which the sum is known, about equal parts."""
    each, rest = divmod(record.output_tokens, len(prompts))
    if len(prompts) > 1:
        # which are of all
        record = replace(record, told_tokens=None, cached_tokens=None, name=None, answer=None)
    for number, (text, tokens) in enumerate(prompts):
        yield replace(record, output_tokens=each + (number < rest), text=text, tokens=tokens)
