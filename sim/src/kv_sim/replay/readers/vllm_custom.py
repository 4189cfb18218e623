"""vLLM's custom benchmark data: prompts as text or as token ids. It has no times; a log of such prompts does."""

from collections.abc import Iterator, Mapping
from typing import Any

from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.record import MalformedError, Record, session_of, text_of, time_of, whole
from kv_sim.replay.readers.text import ASSUMED


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    prompt = record["prompt"]
    if isinstance(prompt, list):
        odd = next((one for one in prompt if not isinstance(one, int) or isinstance(one, bool)), None)
        if odd is not None:  # messages of a chat, or several prompts
            raise MalformedError(f"prompt: expected text or a list of token ids, got one of {type(odd).__name__}")
    elif not isinstance(prompt, str):
        raise MalformedError(f"prompt: expected text or a list of token ids, got {type(prompt).__name__}")
    yield Record(
        time_of(record),
        0,
        whole(record, "output_tokens", usual=0),
        None,
        session=session_of(record),
        model=text_of(record, "model"),
        text=[prompt] if isinstance(prompt, str) else None,
        tokens=prompt if isinstance(prompt, list) else None,
    )


VLLM = Format(
    "vllm",
    f"vLLM custom JSON lines: prompt (text, or token ids), output_tokens, maybe timestamp; {ASSUMED}",
    Container.JSON,
    ("prompt",),
    _parse,
    is_text=True,
)
