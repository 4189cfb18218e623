"""vLLM's custom benchmark data: prompts as text or as token ids. It has no times; a log of such prompts does."""

from collections.abc import Iterator, Mapping
from typing import Any

from kv_sim.replay.readers.asked import for_each, own_request
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.record import Record, prompts_of
from kv_sim.replay.readers.text import ASSUMED


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    yield from for_each(prompts_of(record), own_request(record))


VLLM = Format(
    "vllm",
    f"vLLM custom JSON lines: prompt (text, or token ids), output_tokens, maybe timestamp; {ASSUMED}",
    Container.JSON,
    ("prompt",),
    _parse,
    matches=lambda record: record["prompt"] is not None or "messages" not in record,
    is_text=True,
)
