"""An engine that computes next to nothing: keys, values and hidden states follow from the tokens before them."""

import socket
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from kv_api import KVTransferConfig

LAYERS, BLOCKS, BLOCK_SIZE, HEADS, HEAD_SIZE, HIDDEN = 3, 12, 4, 2, 5, 7
NUM_SLOTS = BLOCKS * BLOCK_SIZE


def numbers_of(tokens: Sequence[int], *what: int, shape: tuple[int, ...]) -> Any:
    """One row for each token, which depends on all tokens up to it."""
    rows = [np.random.default_rng([*what, *tokens[: n + 1]]).random(shape) for n in range(len(tokens))]
    return np.array(rows, np.float32).reshape(len(tokens), *shape)


def kv_of(tokens: Sequence[int], layer: int, half: int) -> Any:
    return numbers_of(tokens, layer, half, shape=(HEADS, HEAD_SIZE))


def hidden_of(tokens: Sequence[int]) -> Any:
    return numbers_of(tokens, 99, shape=(HIDDEN,))


class TinyEngine:
    """Its caches, a model of what they should hold, and the slots of each prompt of a batch."""

    def __init__(self, seed: int, first_layer: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        shape = (2, BLOCKS, BLOCK_SIZE, HEADS, HEAD_SIZE)
        self.caches = [self.random.random(shape, np.float32) for _ in range(LAYERS)]
        self.model = SimpleNamespace(
            model=SimpleNamespace(start_layer=first_layer, end_layer=first_layer + LAYERS)
        )
        self.expected = [cache.copy() for cache in self.caches]

    def batch(self, prompts: Sequence[Sequence[int]], decodes: Sequence[int] = ()) -> Any:
        """A model input, with slots here and there. ``decodes`` has the length of each sequence that decodes."""
        num_prefill = sum(map(len, prompts))
        slots = self.random.permutation(NUM_SLOTS)[: num_prefill + len(decodes)]
        tokens = [token for prompt in prompts for token in prompt] + [1] * len(decodes)
        return SimpleNamespace(
            input_tokens=np.array(tokens, np.int64),
            attn_metadata=SimpleNamespace(
                seq_lens=[*map(len, prompts), *decodes],
                slot_mapping=slots.astype(np.int64),
                num_prefill_tokens=num_prefill,
            ),
        )

    def prefill(self, prompts: Sequence[Sequence[int]], decodes: Sequence[int] = ()) -> tuple[Any, Any]:
        """Compute a batch: its model input and its hidden states."""
        batch = self.batch(prompts, decodes)
        for prompt, slots in self.slots(batch, prompts):
            self._fill(self.caches, prompt, slots)
        rows = [hidden_of(prompt) for prompt in prompts] + [np.zeros((len(decodes), HIDDEN), np.float32)]
        return batch, np.concatenate(rows)

    def expect(self, batch: Any, prompts: Sequence[Sequence[int]], arrived: Sequence[bool]) -> None:
        """Those prompts of a batch that arrived are in their slots."""
        for (prompt, slots), has_arrived in zip(self.slots(batch, prompts), arrived, strict=True):
            if has_arrived:
                self._fill(self.expected, prompt, slots)

    def check(self) -> None:
        """Every byte of every cache is as expected."""
        for cache, expected in zip(self.caches, self.expected, strict=True):
            np.testing.assert_array_equal(cache, expected)

    def slots(self, batch: Any, prompts: Sequence[Sequence[int]]) -> list[tuple[Sequence[int], Any]]:
        ends = np.cumsum([len(prompt) for prompt in prompts]).tolist()
        mapping = batch.attn_metadata.slot_mapping
        return [(prompt, mapping[end - len(prompt) : end]) for prompt, end in zip(prompts, ends, strict=True)]

    def _fill(self, caches: list[Any], prompt: Sequence[int], slots: Any) -> None:
        for layer, cache in enumerate(caches):
            for half in (0, 1):
                for slot, row in zip(slots, kv_of(prompt, layer, half), strict=True):
                    cache[half, slot // BLOCK_SIZE, slot % BLOCK_SIZE] = row


def free_port(count: int = 1) -> int:
    """A port that was free a moment ago, and the ones after it."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as one:
            port: int = one.getsockname()[1]
        try:
            for number in range(1, count):
                socket.create_server(("127.0.0.1", port + number)).close()
            return port
        except (OSError, OverflowError):
            continue


def config_of(role: str, port: int, **extra: Any) -> Any:
    """An engine's configuration."""
    settings = {"port": port, "connect_seconds": 30, **extra}
    transfer = KVTransferConfig("SimpleConnector", kv_role=role, kv_connector_extra_config=settings)  # type: ignore[arg-type]
    return SimpleNamespace(kv_transfer_config=transfer, parallel_config=SimpleNamespace(rank=0))
