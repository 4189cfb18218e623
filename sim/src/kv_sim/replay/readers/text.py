"""Prompts as text: from characters to blocks.

There is no tokenizer here, so a token is taken to be four characters (a prompt given as a list is taken for token
ids): a block's id is its characters, and since ids are chained, prompts share blocks as far as their texts agree.
"""

from typing import Final

from kv_sim.replay.readers.record import Id

CHARACTERS_PER_TOKEN: Final = 4
BLOCK_TOKENS: Final = 16
ASSUMED: Final = "four characters are taken for a token"


def blocks_of(prompt: str | list[int]) -> tuple[int, list[Id]]:
    """How many tokens a prompt has, and the ids of their blocks."""
    if isinstance(prompt, str):
        step, tokens = CHARACTERS_PER_TOKEN * BLOCK_TOKENS, tokens_of(prompt)
    else:
        step, tokens = BLOCK_TOKENS, len(prompt)
    parts = (prompt[start : start + step] for start in range(0, len(prompt), step))
    return tokens, [part if isinstance(part, str) else repr(part) for part in parts]


def tokens_of(text: str) -> int:
    """How many tokens a text is taken for."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)
