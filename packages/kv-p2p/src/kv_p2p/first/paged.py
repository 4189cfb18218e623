"""The paged KV caches of one worker: reads a prompt's keys and values from them, and writes them.

Each layer's cache is (2, blocks, block size, heads, head size), keys and then values. A prompt's keys, or
values, are (layers, tokens, heads, head size). If any part doesn't fit, nothing is written.
"""

from collections.abc import Sequence
from typing import Any

from kv_api.engine import Tensor
from kv_p2p.first.model_input import ModelExecutable, ModelInputError
from kv_p2p.first.pipe.arrays import TensorError, beside, describe, indices, kind_of, on_host, stack

KEYS = 0
VALUES = 1


class PagedCaches:
    """The caches of the layers that a worker has."""

    def __init__(self, model_executable: ModelExecutable, kv_caches: Sequence[Tensor]) -> None:
        layers = model_executable.model
        num_layers = layers.end_layer - layers.start_layer
        if not 0 < num_layers <= len(kv_caches):
            raise ModelInputError(
                f"kv_caches: {len(kv_caches)} of them for the layers {layers.start_layer} to {layers.end_layer}"
            )
        self._caches = list(kv_caches[:num_layers])
        first = self._caches[0]
        for layer, cache in enumerate(self._caches):
            kind = kind_of(cache, f"kv_caches[{layer}]")
            if len(cache.shape) != 5 or cache.shape[0] != 2:
                wanted = "(2, blocks, block size, heads, head size)"
                raise ModelInputError(f"kv_caches[{layer}]: expected {wanted}, got {tuple(cache.shape)}")
            if (kind, cache.shape) != (kind_of(first), first.shape):
                raise ModelInputError(
                    f"kv_caches[{layer}]: {describe(cache)}, and that of the first layer is {describe(first)}"
                )
        self._num_blocks, self._block_size = (int(size) for size in first.shape[1:3])

    def read(self, slots: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The keys and the values in these slots of all layers, in host memory."""
        place = self._place(slots)
        keys, values = (on_host(stack([cache[half][place] for cache in self._caches])) for half in (KEYS, VALUES))
        return keys, values

    def write(self, slots: Sequence[int], keys: Tensor, values: Tensor) -> None:
        """Write what ``read`` returned, in another engine, to these slots."""
        place = self._place(slots)
        first = self._caches[0]
        shape = (len(self._caches), len(slots), *first.shape[3:])
        for name, tensor in (("keys", keys), ("values", values)):
            if kind_of(tensor, name) != kind_of(first) or tuple(tensor.shape) != shape:
                raise TensorError(
                    f"{name}: {describe(tensor)} came, and the caches here take {kind_of(first)} {shape}; "
                    "both engines need the same model, cut in the same way"
                )
        for half, tensor in ((KEYS, keys), (VALUES, values)):
            there = beside(tensor, first)
            for layer, cache in enumerate(self._caches):
                cache[half][place] = there[layer]

    def beside(self, tensor: Tensor) -> Tensor:
        """The tensor in the kind of memory that the caches are in; copied if it is elsewhere."""
        if kind_of(tensor).library != kind_of(self._caches[0]).library:
            raise TensorError(f"{describe(tensor)} came, and the caches here are of {kind_of(self._caches[0])}")
        return beside(tensor, self._caches[0])

    def _place(self, slots: Sequence[int]) -> tuple[Any, Any]:
        """The slots as blocks and places within them."""
        num_slots = self._num_blocks * self._block_size
        for slot in slots:
            if not 0 <= slot < num_slots:
                raise ModelInputError(
                    f"attn_metadata.slot_mapping: expected slots from 0 to {num_slots - 1}, got {slot}"
                )
        blocks = indices([slot // self._block_size for slot in slots], self._caches[0])
        offsets = indices([slot % self._block_size for slot in slots], self._caches[0])
        return blocks, offsets
