"""The right bytes of a slot: a function of the whole token prefix, images, salt, adapter, layer, group and rank.

``prefix_hashes`` chains 64-bit hashes over tokens, so two slots are equal only if everything before them is. A
slot's value is that hash xor a constant of its layer, group and rank: bytes of another layer or rank never pass
for the right ones, nor do those of a stranger's model. Nothing here depends on Python's own hashing, so the same
seed gives the same bytes everywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Words: TypeAlias = npt.NDArray[np.uint64]

MASK: Final = (1 << 64) - 1
POISON: Final = np.uint64(0xDEAD_BEEF_DEAD_BEEF)
"""The contents of a newly allocated block until it is written."""
ZERO: Final = np.uint64(0)


def mix(value: int) -> int:
    """Scramble 64 bits (splitmix64's finisher): equal only for equal values."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def mix_words(values: Words) -> Words:
    """Many values, mixed."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def hash_text(text: str) -> int:
    """64 bits of a text."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def root_hash(salt: str | None, adapter: str | None) -> int:
    """The hash before the first token."""
    return hash_text(repr((salt, adapter)))


def next_hash(previous: int, token: int) -> int:
    """The hash after one more token."""
    value = (previous * 0x9E3779B97F4A7C15 + token + 1) & MASK
    # As `mix` does; a world hashes so many tokens that a call more for each would be seen.
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def prefix_hashes(root: int, tokens: Sequence[int]) -> list[int]:
    """The hash after each token."""
    hashes = []
    for token in tokens:
        root = next_hash(root, token)
        hashes.append(root)
    return hashes


@dataclass(frozen=True)
class Image:
    """The image that a prompt's placeholder token stands for. The token is the same for any image."""

    name: str
    at: int
    """The position of the token."""


def whole_story(
    root: int, prompt: tuple[int, ...], length: int, image: Image | None = None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens of a request up to some length, and the hash after each."""
    seen = list(prompt)
    if image is not None and image.at < len(seen):
        seen[image.at] = mix(hash_text(image.name) ^ seen[image.at])
    tokens, hashes = list(prompt), prefix_hashes(root, seen)
    while len(hashes) < length:
        tokens.append(sampled_token(hashes[-1]))
        hashes.append(next_hash(hashes[-1], tokens[-1]))
    return tuple(tokens), tuple(hashes)


def sampled_token(prefix_hash: int) -> int:
    """The token that the model samples after a prefix: a function of all of it, as in a real model."""
    return prefix_hash % 50021


def layer_keys(rank: int, layers: Sequence[int], stranger: str = "none") -> list[Words]:
    """The constants of a rank's groups and ``layers``; a stranger has different ones."""
    weights = 0 if stranger == "none" else hash_text(stranger)
    return [
        np.array(
            [mix((rank << 40) ^ (group << 20) ^ (layer + 1) ^ (0x5EED << 48)) ^ weights for layer in range(count)],
            np.uint64,
        )
        for group, count in enumerate(layers)
    ]
