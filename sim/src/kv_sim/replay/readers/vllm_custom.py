"""vLLM's custom benchmark data: prompts as text, no times.

There is no tokenizer here, so a token is taken to be four characters (a prompt given as a list is taken for token
ids): a block's id is its characters, and since ids are chained, prompts share blocks as far as their texts agree.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.record import Id, MalformedError, Record, whole

CHARACTERS_PER_TOKEN: Final = 4
BLOCK_TOKENS: Final = 16


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    prompt = record["prompt"]
    if isinstance(prompt, str):
        step, tokens = CHARACTERS_PER_TOKEN * BLOCK_TOKENS, -(-len(prompt) // CHARACTERS_PER_TOKEN)
    elif isinstance(prompt, list):
        step, tokens = BLOCK_TOKENS, len(prompt)
        odd = next((one for one in prompt if not isinstance(one, int) or isinstance(one, bool)), None)
        if odd is not None:  # messages of a chat, or several prompts
            raise MalformedError(f"prompt: expected text or a list of token ids, got one of {type(odd).__name__}")
    else:
        raise MalformedError(f"prompt: expected text or a list of token ids, got {type(prompt).__name__}")
    parts = (prompt[start : start + step] for start in range(0, len(prompt), step))
    ids: list[Id] = [part if isinstance(part, str) else repr(part) for part in parts]
    yield Record(None, tokens, whole(record, "output_tokens", usual=0), ids, block_tokens=BLOCK_TOKENS)


VLLM = Format(
    "vllm",
    "vLLM custom JSON lines: prompt, output_tokens; no times; four characters are taken for a token",
    Container.JSON,
    ("prompt",),
    _parse,
)
