"""vLLM's custom benchmark data: prompts as text or as token ids, without times; a log of such prompts has times.

TensorRT-LLM's data differ only in the name of token ids; vLLM's offline results, with ``outputs``, are read, too.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.chats.answered import answer_in
from kv_sim.replay.readers.chats.asked import for_each, own_request
from kv_sim.replay.readers.chats.chat import are_messages, behind_system, chat
from kv_sim.replay.readers.chats.counts import answered_in
from kv_sim.replay.readers.fields import as_tokens, number, prompts_of, text_of
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.json_values import json_in, objects_in
from kv_sim.replay.readers.record import MalformedError, Prompt, Record

_TOKENS: Final = ("prompt_token_ids", "input_ids")
_CAME: Final = ("output_token_ids", "output_ids", "completion_token_ids", "response_token_ids")
"""The same of an answer."""
_BESIDE: Final = ("history", "chat_history", "context", "previous_messages", "suffix")
"""Fields that may be part of the prompt, in an unknown form."""


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    field = next((field for field in _TOKENS if record.get(field) is not None), "")
    tokens = record.get(field)
    request = own_request(record)
    if not answered_in(record):
        outputs = objects_in(record, "outputs")
        there = (*(one.get("token_ids") for one in outputs), *(as_tokens(record.get(field)) for field in _CAME))
        came = [found for found in there if isinstance(found, list)]
        said = "".join(text_of(one, "text") or "" for one in outputs) or answer_in(record)
        request.output_tokens, request.answer = sum(map(len, came)), None if came else said
    metrics = record.get("metrics")
    if request.time is None and isinstance(metrics, dict) and metrics.get("arrival_time") is not None:
        request.time = number(metrics, "arrival_time")
    if tokens is None and are_messages(messages := json_in(record.get("prompt"))):
        prompts: list[Prompt] = [(chat({**record, "messages": messages}), None)]
    elif tokens is None:
        request.beside = next((field for field in _BESIDE if record.get(field)), None)
        prompts = behind_system(record, prompts_of(record))
    else:
        tokens = as_tokens(tokens)
        if isinstance(tokens, str):
            raise MalformedError(f"{field}: expected token ids, got {tokens!r:.60}")
        prompts = prompts_of({"prompt": tokens})
    yield from for_each(prompts, request)


def _is_custom(record: Mapping[str, Any]) -> bool:
    """Whether it has a prompt; beside messages, as in UltraChat, only token ids count as one."""
    if isinstance(record.get("prompt"), dict):
        return False
    if record.get("prompt_token_ids") is not None:
        return True
    if record.get("prompt") is not None:
        return not are_messages(record.get("messages"))
    if isinstance(record.get("input_ids"), list) and "output_tokens" in record:
        return True
    return "prompt" in record and "messages" not in record


VLLM = Format(
    "vllm",
    Container.JSON,
    (),
    _parse,
    matches=_is_custom,
    looked_for="prompt or prompt_token_ids",
    is_text=True,
    may_add=True,
)
