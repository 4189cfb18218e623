"""``CachePages``: reads the bytes of blocks from a worker's KV caches, and writes them there.

Blocks are sent as one part for each layer: the blocks' pages, one after the other. Two workers can exchange blocks
if their ``layout`` is the same, that is, if their layers have the same names, types and sizes.

All KV cache groups share one pool of block ids, and layers of different groups may share memory. So
``WorkerPages`` has one ``CachePages`` for each group, with that group's layers only.
"""

import sys
from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import Any

from kv_api import ConfigError, KVCacheConfig, KVCaches
from kv_api.pages import Pages, is_torch, pages_of


class CachePages:
    """The layers of one group of one worker. Layers that alias the same memory count as one."""

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
        """The bytes of some blocks, after the device has finished the work that it was given.

        They may be in ``memory``, which has room for them; then they are valid until it is used again.
        """
        _synchronize(self._layers)
        parts, begin = [], 0
        for layer in self._layers:
            end = begin + len(blocks) * layer.page_bytes
            parts.append(_rows(layer.tensor, list(blocks), memory[begin:end]))
            begin = end
        return parts

    def gather_into(self, blocks: Sequence[int], memory: memoryview) -> int:
        """Copy the bytes of some blocks to ``memory``, for all kinds of layers; returns their number."""
        begin = 0
        for part in self.gather(blocks, memory):
            bytes_of = memoryview(part).cast("B")
            end = begin + len(bytes_of)
            if _address_of(bytes_of) != _address_of(memory[begin:end]):
                memory[begin:end] = bytes_of
            begin = end
        return begin

    def split(self, blocks: int, memory: memoryview) -> list[memoryview]:
        """The parts of ``blocks`` blocks that are one after the other in ``memory``."""
        sizes = [blocks * layer.page_bytes for layer in self._layers]
        if sum(sizes) != len(memory):
            raise ValueError(f"{blocks} blocks are {sum(sizes)} bytes, got {len(memory)}")
        ends = accumulate(sizes)
        return [memory[end - size : end] for size, end in zip(sizes, ends, strict=True)]

    def scatter(self, blocks: Sequence[int], parts: Sequence[memoryview]) -> None:
        """Write the parts to some blocks; they are written when this returns."""
        expected = [len(blocks) * layer.page_bytes for layer in self._layers]
        if [len(part) for part in parts] != expected:
            raise ValueError(f"{len(blocks)} blocks are {expected} bytes, got {[len(part) for part in parts]}")
        for layer, part in zip(self._layers, parts, strict=True):
            layer.tensor[list(blocks)] = _like(layer.tensor, part).reshape(len(blocks), layer.page_bytes)
        _synchronize(self._layers)


class WorkerPages:
    """The layers of one worker, by KV cache group."""

    def __init__(self, by_group: Sequence[CachePages]) -> None:
        self.by_group = tuple(by_group)
        layouts = [pages.layout for pages in self.by_group]
        self.layout = blake2b(repr(layouts).encode(), digest_size=16).hexdigest()

    @classmethod
    def of(cls, kv_caches: KVCaches, kv_cache_config: KVCacheConfig) -> "WorkerPages":
        """The pages of an engine's layers. If there is one group, it has all layers, whatever their names."""
        groups, blocks = kv_cache_config.kv_cache_groups, kv_cache_config.num_blocks
        if len(groups) == 1:
            return cls([CachePages(kv_caches, blocks)])
        by_group = [{name: _cache_of(kv_caches, name) for name in group.layer_names} for group in groups]
        known = {name for caches in by_group for name in caches}
        lie_there = {pages_of(name, kv_caches[name], blocks).address for name in known}
        for name in kv_caches:  # one in no group may share the KV cache of another
            if name not in known and pages_of(name, kv_caches[name], blocks).address not in lie_there:
                raise ConfigError(f"register_kv_caches: layer {name!r} is in none of the {len(groups)} groups")
        return cls([CachePages(caches, blocks) for caches in by_group])


def _cache_of(kv_caches: KVCaches, name: str) -> Any:
    if name not in kv_caches:
        known = ", ".join(sorted(kv_caches)) or "none"
        raise ConfigError(f"register_kv_caches: there is no tensor of layer {name!r}; known: {known}")
    return kv_caches[name]


def _as_array(pages: Pages) -> Pages:
    """The pages as a numpy array if they are in host memory: numpy copies rows several times faster than torch."""
    is_array = is_torch(pages.tensor) and pages.tensor.device.type == "cpu"
    return pages._replace(tensor=pages.tensor.numpy()) if is_array else pages


def _rows(tensor: Any, rows: list[int], memory: memoryview) -> Any:
    """Copy some rows to host memory: to ``memory``, unless numpy would copy the whole tensor for that."""
    if is_torch(tensor):
        return tensor[rows].cpu().numpy()
    if not tensor.flags.c_contiguous:
        return tensor[rows]
    if not 0 <= min(rows) <= max(rows) < len(tensor):
        raise IndexError(f"blocks {rows} of {len(tensor)}")
    there = _like(tensor, memory).reshape(len(rows), -1)
    # With other modes numpy checks each index once more, and buffers the result in memory of its own.
    return tensor.take(rows, 0, there, "clip")


def _like(tensor: Any, part: memoryview) -> Any:
    """The bytes as an array of the type of a layer's pages."""
    if is_torch(tensor):
        torch = sys.modules["torch"]
        return torch.frombuffer(part, dtype=torch.int8).to(tensor.device)
    numpy = sys.modules["numpy"]
    return numpy.frombuffer(part, dtype=numpy.int8)


def _address_of(memory: memoryview) -> int:
    return int(sys.modules["numpy"].frombuffer(memory, dtype="u1").ctypes.data)


def _synchronize(layers: Sequence[Pages]) -> None:
    """Wait until a GPU has finished the work that it was given. In host memory there is nothing to wait for."""
    if layers and getattr(layers[0].tensor, "is_cuda", False):
        sys.modules["torch"].cuda.synchronize(layers[0].tensor.device)
