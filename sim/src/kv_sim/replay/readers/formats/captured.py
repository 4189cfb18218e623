"""Request logs of Amazon's services: SageMaker's data capture, and Bedrock's log of model invocations.

Requests and answers are texts as they were sent, or their base64. An answer may be missing, or not be text; then
its length is unknown.
"""

import base64
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.chats.asked import for_each
from kv_sim.replay.readers.chats.cached import cached_of
from kv_sim.replay.readers.chats.chat import prompts_in
from kv_sim.replay.readers.chats.counts import answered_in, cached_in, count_in, last_of, told_in
from kv_sim.replay.readers.fields import number_or_date, text_of, whole
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.json_values import inside, json_in, object_in
from kv_sim.replay.readers.record import MalformedError, Record
from kv_sim.replay.readers.required import errors_at, object_at, text_at


def _requests(
    asked: Mapping[str, Any],
    place: str,
    *,
    time: int | float,
    answer: int,
    model: str | None,
    said: str | None = None,
    told: int | None = None,
    cached: int | None = None,
) -> Iterator[Record]:
    generates = "inputs" in asked and asked.keys().isdisjoint(("messages", "prompt", "input"))
    try:
        prompts = prompts_in({}, {"prompt": asked["inputs"]} if generates else asked)
    except MalformedError as error:
        reason = str(error).replace("prompt", "inputs", 1) if generates else error
        raise MalformedError(f"{place}.{reason}") from None
    request = Record(time, 0, answer, None, model=model, answer=said, told_tokens=told, cached_tokens=cached)
    yield from for_each(prompts, request)


# -- SageMaker -----------------------------------------------------------------------------------

_INPUT: Final = "captureData.endpointInput"
_OUTPUT: Final = "captureData.endpointOutput"


def _parse_sagemaker(record: Mapping[str, Any]) -> Iterator[Record]:
    metadata = object_at(record["eventMetadata"], "eventMetadata")
    with errors_at("eventMetadata"):
        time = number_or_date(metadata, "inferenceTime")
    captured = record["captureData"]
    sent = _payload(_INPUT, inside(captured, "endpointInput"))
    asked = object_in(sent)
    if asked is None:
        raise MalformedError(f"{_INPUT}.data: expected the JSON of what an API was asked, got {sent!r:.40}")
    answer = _answer(inside(captured, "endpointOutput"))
    tokens, said = _answered(answer)
    yield from _requests(
        asked,
        f"{_INPUT}.data",
        time=time,
        answer=tokens,
        model=text_of(asked, "model"),
        said=said,
        told=told_in({"response": answer}),
        cached=cached_in({"response": answer}),
    )


def _payload(place: str, entry: Any) -> str:
    """The request or the answer, as text."""
    data = text_at(inside(entry, "data"), f"{place}.data")
    encoding = inside(entry, "encoding")
    if encoding == "JSON":
        return data
    if encoding not in (None, "BASE64"):
        raise MalformedError(f"{place}.encoding: expected 'JSON' or 'BASE64', got {encoding!r:.40}")
    try:
        return base64.b64decode(data, validate=True).decode()
    except ValueError:
        raise MalformedError(f"{place}.data: expected base64 of text in UTF-8, got {data!r:.40}") from None


def _answer(entry: Any) -> Any:
    """The answer, if there is one as text."""
    try:
        answer = json_in(_payload(_OUTPUT, entry))
    except MalformedError:
        return None
    if isinstance(answer, str):
        answer = last_of(answer)
    if isinstance(answer, list) and len(answer) == 1:
        [answer] = answer
    return answer


def _answered(answer: Any) -> tuple[int, str | None]:
    """An answer's number of tokens and its text, as far as they are there."""
    try:
        tokens, said = answered_in({"response": answer}), inside(answer, "generated_text")
    except MalformedError as error:
        raise MalformedError(f"{_OUTPUT}.data.{str(error).removeprefix('response.')}") from None
    return tokens or 0, said if tokens is None and isinstance(said, str) else None


SAGEMAKER = Format("sagemaker", Container.JSON, ("captureData", "eventMetadata"), _parse_sagemaker, is_text=True)


# -- Bedrock -------------------------------------------------------------------------------------

_MEDIA: Final = ("image", "document", "video", "audio")
_LOG: Final = "ModelInvocationLog"
_TOLD: Final = ("inputTokenCount", "cacheReadInputTokenCount", "cacheWriteInputTokenCount")
"""Fields with a prompt's tokens: without the cache, read from it, and written to it."""


def _parse_bedrock(record: Mapping[str, Any]) -> Iterator[Record]:
    time, asked = number_or_date(record, "timestamp"), object_in(inside(record["input"], "inputBodyJson"))
    if asked is None:
        got = "what lies elsewhere" if inside(record["input"], "inputBodyS3Path") else "none"
        if count_in(record["input"], _TOLD[0]) is not None:
            got += f"; --columns time=timestamp,input=input.{_TOLD[0]},output=output.outputTokenCount has lengths"
        raise MalformedError(f"input.inputBodyJson: expected what a model was asked, as an object, got {got}")
    asked = _as_usual(asked)
    counts = record.get("output")
    with errors_at("output"):
        answer = whole(counts, "outputTokenCount", usual=0) if isinstance(counts, dict) else 0
    told = sum(count_in(record["input"], field) or 0 for field in _TOLD) or None
    model = text_of(record, "modelId")
    cached = cached_of(record["input"], _TOLD[1])
    yield from _requests(
        asked, "input.inputBodyJson", time=time, answer=answer, model=model, told=told, cached=cached
    )


def _as_usual(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """A request to Converse as other APIs have it: its tools are in a configuration, its parts have no type."""
    tools, messages = inside(asked.get("toolConfig"), "tools"), asked.get("messages")
    if tools is not None:
        asked = {**asked, "tools": tools}
    return {**asked, "messages": [*map(_message, messages)]} if isinstance(messages, list) else asked


def _message(message: Any) -> Any:
    parts = inside(message, "content")
    return {**message, "content": [*map(_part, parts)]} if isinstance(parts, list) else message


def _part(part: Any) -> Any:
    kind = next((kind for kind in _MEDIA if isinstance(inside(part, kind), dict)), None)
    return part if kind is None else {"type": kind, **part}


BEDROCK = Format(
    "bedrock",
    Container.JSON,
    ("schemaType", "timestamp", "input"),
    _parse_bedrock,
    matches=lambda record: record["schemaType"] == _LOG,
    looked_for=f"schemaType {_LOG}",
    is_text=True,
)
