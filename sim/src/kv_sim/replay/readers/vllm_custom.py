"""vLLM's custom benchmark data: prompts as text or as token ids. It has no times; a log of such prompts does."""

from collections.abc import Iterator, Mapping
from typing import Any

from kv_sim.replay.readers.asked import answered_in, shares_of
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.record import Record, prompts_of, session_of, text_of, time_of
from kv_sim.replay.readers.text import ASSUMED


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    prompts = prompts_of(record)
    for (text, tokens), share in zip(prompts, shares_of(answered_in(record) or 0, len(prompts)), strict=True):
        yield Record(
            time_of(record),
            0,
            share,
            None,
            session=session_of(record),
            model=text_of(record, "model"),
            text=text,
            tokens=tokens,
        )


VLLM = Format(
    "vllm",
    f"vLLM custom JSON lines: prompt (text, or token ids), output_tokens, maybe timestamp; {ASSUMED}",
    Container.JSON,
    ("prompt",),
    _parse,
    is_text=True,
)
