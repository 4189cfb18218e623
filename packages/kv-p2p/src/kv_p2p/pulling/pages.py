"""``CachePages``: the bytes of blocks, out of a worker's KV caches and into them.

What is sent of some blocks is a part for each layer: their pages, one after the other. Two workers can exchange
blocks if their ``layout`` is the same, that is, if their layers have the same names, types and sizes.
"""

import sys
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from kv_api import KVCaches
from kv_api.pages import Pages, is_torch, pages_of


class CachePages:
    """The layers of one worker. Layers that alias the same memory are one."""

    def __init__(self, kv_caches: KVCaches, num_blocks: int) -> None:
        pages: dict[tuple[int, int], Pages] = {}
        described = []
        for name, cache in kv_caches.items():
            found = pages_of(name, cache, num_blocks)
            pages.setdefault((found.address, found.stride_bytes), _as_array(found))
            described.append((name, str(cache.dtype), found.page_bytes))
        self._layers = list(pages.values())
        self.bytes_per_block = sum(layer.page_bytes for layer in self._layers)
        self.layout = blake2b(repr(described).encode(), digest_size=16).hexdigest()

    def gather(self, blocks: Sequence[int], memory: memoryview) -> list[Any]:
        """The bytes of some blocks, as they are when the device has finished what it was given.

        They may lie in ``memory``, which has room for them; then they are good until it is used again.
        """
        _synchronize(self._layers)
        parts, begin = [], 0
        for layer in self._layers:
            end = begin + len(blocks) * layer.page_bytes
            parts.append(_rows(layer.tensor, list(blocks), memory[begin:end]))
            begin = end
        return parts

    def scatter(self, blocks: Sequence[int], parts: Sequence[memoryview]) -> None:
        """Overwrite some blocks; they are written when this returns."""
        expected = [len(blocks) * layer.page_bytes for layer in self._layers]
        if [len(part) for part in parts] != expected:
            raise ValueError(f"{len(blocks)} blocks are {expected} bytes, got {[len(part) for part in parts]}")
        for layer, part in zip(self._layers, parts, strict=True):
            layer.tensor[list(blocks)] = _like(layer.tensor, part).reshape(len(blocks), layer.page_bytes)
        _synchronize(self._layers)


def _as_array(pages: Pages) -> Pages:
    """The same, as a numpy array where it is in host memory: numpy copies rows several times faster than torch."""
    is_array = is_torch(pages.tensor) and pages.tensor.device.type == "cpu"
    return pages._replace(tensor=pages.tensor.numpy()) if is_array else pages


def _rows(tensor: Any, rows: list[int], memory: memoryview) -> Any:
    """Some rows in host memory: in ``memory``, unless numpy would copy the whole tensor for that."""
    if is_torch(tensor):
        return tensor[rows].cpu().numpy()
    if not tensor.flags.c_contiguous:
        return tensor[rows]
    if not 0 <= min(rows) <= max(rows) < len(tensor):
        raise IndexError(f"blocks {rows} of {len(tensor)}")
    there = _like(tensor, memory).reshape(len(rows), -1)
    # Else numpy looks at each number once more, and into memory of its own.
    return tensor.take(rows, 0, there, "clip")


def _like(tensor: Any, part: memoryview) -> Any:
    """Bytes as what a layer's pages are."""
    if is_torch(tensor):
        torch = sys.modules["torch"]
        return torch.frombuffer(part, dtype=torch.int8).to(tensor.device)
    numpy = sys.modules["numpy"]
    return numpy.frombuffer(part, dtype=numpy.int8)


def _synchronize(layers: Sequence[Pages]) -> None:
    """Let a GPU finish what it was given. Elsewhere there is nothing to wait for."""
    if layers and getattr(layers[0].tensor, "is_cuda", False):
        sys.modules["torch"].cuda.synchronize(layers[0].tensor.device)
