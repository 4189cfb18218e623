"""Requests to an API, a record each: messages, an input or a prompt, alone or in a log."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from kv_sim.replay.readers.chats.answered import answer_in
from kv_sim.replay.readers.chats.asked import SALT, asked_in, for_each, has_failed, left_out_of, without_request
from kv_sim.replay.readers.chats.chains import Chains
from kv_sim.replay.readers.chats.chat import ANSWERS, is_request, prompts_in, role_of
from kv_sim.replay.readers.chats.counts import answered_in, cached_in, told_in
from kv_sim.replay.readers.fields import name_of, session_of, text_of, time_of
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.record import MalformedError, Record

_OF_REQUESTS: Final = frozenset(("max_tokens", "max_completion_tokens", "temperature", "stream", "response"))
"""Fields of a request, or of a log of it, that a conversation doesn't have."""


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    return requests_in(record, Chains())


def _look_through(records: Iterable[Mapping[str, Any]]) -> Callable[[Mapping[str, Any]], Iterator[Record]]:
    """The parser of records that may continue earlier ones; it doesn't read them beforehand."""
    return partial(requests_in, chains=Chains())


def requests_in(record: Mapping[str, Any], chains: Chains) -> Iterator[Record]:
    """The requests of one record, which may continue earlier ones (``chains``)."""
    if (why := left_out_of(record)) is not None:
        yield Record(None, 0, 0, None, left_out=why)
        return
    asked, answer, tokens = asked_in(record), answer_in(record), answered_in(record)
    if asked is record and (field := without_request(record)) is not None:
        raise MalformedError(f"{field}: expected the JSON of what an API was asked, got {record[field]!r:.40}")
    asked, chain = chains.whole(record, asked)
    if tokens:  # who counts none, of an answer that is there, didn't count
        answer = None
    elif isinstance(record.get("request"), str) and isinstance(record.get("response"), str):
        answer = None  # it is the request as it was sent
    prompts, answers = prompts_in(record, asked), _answers_within(record)
    request = Record(
        time_of(record),
        0,
        tokens or 0,
        None,
        session=session_of(record) or chain,
        model=text_of(asked, "model") or text_of(record, "model") or _adapter_of(asked),
        answer=answer,
        told_tokens=told_in(record),
        cached_tokens=cached_in(record),
        name=name_of(record),
        has_failed=has_failed(record),
        salt=text_of(asked, SALT),
        answers_within=0 if tokens is not None else len(answers),
        ends_with_answer=tokens is None
        and bool(answers)
        and answers[-1] == len(record.get("messages", record.get("input"))) - 1,
    )
    yield from for_each(prompts, request)


def _adapter_of(asked: Mapping[str, Any]) -> str | None:
    """The adapter that a request to Text Generation Inference names."""
    parameters = asked.get("parameters")
    return text_of(parameters, "adapter_id") if isinstance(parameters, dict) else None


def _answers_within(record: Mapping[str, Any]) -> list[int]:
    """The positions of answers in a prompt that has no other fields beside it."""
    messages = record.get("messages", record.get("input"))
    if not isinstance(messages, list) or not _OF_REQUESTS.isdisjoint(record):
        return []
    return [place for place, one in enumerate(messages) if isinstance(one, dict) and role_of(one) == ANSWERS]


OPENAI = Format(
    "openai",
    Container.JSON,
    (),
    _parse,
    look_through=_look_through,
    matches=is_request,
    looked_for="messages, input or prompt, maybe in a body",
    is_text=True,
    may_add=True,
)
