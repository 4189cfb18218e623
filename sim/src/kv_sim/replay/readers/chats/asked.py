"""Finds the request to an API in a log's record, and what the log says became of it.

The request is the record itself, or one of its fields: an object, or an object as JSON. In there it may be in a
``body``, beside headers and the like.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from kv_sim.replay.readers.chats.counts import answered_in, cached_in, told_in
from kv_sim.replay.readers.chats.usual import PROMPTS, as_usual
from kv_sim.replay.readers.fields import name_of, session_of, spelled, text_of, time_of
from kv_sim.replay.readers.json_values import inside, object_in
from kv_sim.replay.readers.record import Prompt, Record

SALT: Final = "cache_salt"
"""vLLM's field that keeps a request's blocks apart from those with another salt."""
_BODIES: Final = spelled(
    *("body", "request_body", "proxy_server_request", "request", "request_args", "params", "full_request")
)
_STATUSES: Final = spelled("status", "status_code", "response_code", "response_status", "response_status_code")
_FAILED: Final = re.compile("[45][0-9][0-9]|failure|failed|error", re.IGNORECASE)
_PATHS: Final = ("url", "uri", "path", "endpoint", "request_uri", "request")
"""Fields in which a log has the path of the API."""
_PATH: Final = re.compile(r"(?:[A-Za-z]+ )?[^\s{\[\"]\S*(?: HTTP/[\d.]+)?")
"""A path, also in the first line of HTTP. Anything else under these names is text, with any paths in it."""
_COUNTS_ONLY: Final = re.compile("(/count_tokens|:countTokens|/(de)?tokenize)(?![A-Za-z_])")
"""Paths that only count the tokens of a prompt."""
_OTHER_CALLS: Final = ("embedding", "rerank", "moderation", "image_", "transcription", "speech", "video")
"""Values of LiteLLM's ``call_type`` for calls that generate no text."""
_FROM_CACHE: Final = re.compile("(SEMANTIC )?HIT")
"""Values of Portkey's ``cache_status`` for requests that its own cache answered."""


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


def has_failed(record: Mapping[str, Any]) -> bool:
    """Whether its status, or an error in it, says that it was refused or failed."""
    told = (record, object_in(record.get("response")) or {})
    states = (str(one[field]) for one in told for field in _STATUSES if field in one)
    is_told = bool(record.get("error") or record.get("exception"))
    return is_told or _is_false(record.get("success")) or any(map(_FAILED.fullmatch, states))


def _is_false(value: Any) -> bool:
    return value is False or (isinstance(value, str) and value.lower() == "false")


def paths_in(record: Mapping[str, Any]) -> Iterator[str]:
    """The paths of the API that a log has, also in an object of the request."""
    for field in _PATHS:
        value = record.get(field)
        if isinstance(value, dict):
            yield from paths_in(value)
        elif isinstance(value, str) and _PATH.fullmatch(value.strip()):
            yield value


def left_out_of(record: Mapping[str, Any]) -> str | None:
    """Why no model generated for this record of a gateway's log; None: a model did."""
    if any(map(_COUNTS_ONLY.search, paths_in(record))):
        return "asked only how many tokens a prompt has (count_tokens, tokenize)"
    call = record.get("call_type")
    if isinstance(call, str):
        if any(other in call for other in _OTHER_CALLS):
            return "another call than one for text (call_type)"
        if str(record.get("cache_hit")).lower() == "true":
            return "answered by the gateway's own cache (cache_hit)"
    kind = inside(object_in(record.get("span_attributes")), "type")
    if kind is not None and kind != "llm":
        return "a span that is no request to a model (span_attributes)"
    if _FROM_CACHE.fullmatch(str(record.get("cache_status")).upper()):
        return "answered by the gateway's own cache (cache_status)"
    if str(record.get("cached")).lower() == "true":
        return "answered by the gateway's own cache (cached)"
    return None


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
