"""vLLM's custom benchmark data: prompts as text or as token ids. It has no times; a log of such prompts does."""

from collections.abc import Iterator, Mapping
from typing import Any

from kv_sim.replay.readers.asked import for_each, own_request
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.record import Record, prompts_of
from kv_sim.replay.readers.text import ASSUMED


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    tokens = record.get("prompt_token_ids")
    yield from for_each(prompts_of(record if tokens is None else {"prompt": tokens}), own_request(record))


def _is_custom(record: Mapping[str, Any]) -> bool:
    """Whether it has a prompt; one that is null isn't there beside messages."""
    if record.get("prompt_token_ids") is not None or record.get("prompt") is not None:
        return True
    return "prompt" in record and "messages" not in record


VLLM = Format(
    "vllm",
    f"vLLM custom JSON lines: prompt (text, or token ids), output_tokens, maybe timestamp; {ASSUMED}",
    Container.JSON,
    (),
    _parse,
    matches=_is_custom,
    looked_for="prompt or prompt_token_ids",
    is_text=True,
)
