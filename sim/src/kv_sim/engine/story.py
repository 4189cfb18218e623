"""``Story``: all tokens that a request can have, and their hashes.

The model is a function, so all are known when a request is made: those of its prompt, those that it will sample,
and the hash after each.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from kv_sim.memory.content import Image, Words, whole_story


class Story(NamedTuple):
    """All tokens and hashes that a request can have in one turn."""

    prompt_tokens: int
    tokens: list[int]
    hashes: Words
    """After each token."""
    block_hashes: list[bytes]


@lru_cache(maxsize=512)
def tell(
    root: int,
    prompt: tuple[int, ...],
    length: int,
    image: Image | None,
    size: int,
    hashes_per_block: int,
    seed: int,
) -> Story:
    """The story of a prompt in blocks of ``size`` tokens. It never changes.

    Cached, since prompts are repeated: by a world, and by shrinking.
    """
    tokens, after = whole_story(root, prompt, length, image)
    hashes: Words = np.zeros(-(-len(after) // size) * size, dtype=np.uint64)
    hashes[: len(after)] = np.array(after, dtype=np.uint64)
    hashes.flags.writeable = False
    part = size // hashes_per_block
    names = [(after[end - 1] ^ seed).to_bytes(8, "big") for end in range(part, len(after) + 1, part)]
    return Story(len(prompt), [*tokens], hashes, names)
