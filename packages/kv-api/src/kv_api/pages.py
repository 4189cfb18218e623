"""From one layer of an engine's KV cache to pages: a ``(num_blocks, page bytes)`` int8 view of the same memory.

A layer's tensor has blocks as its first dimension, maybe some for each block of the engine, and whatever its
attention backend made of the rest, as long as the bytes of one block lie together. Nothing is copied, and neither
torch nor numpy is imported here: the caller, who has a tensor, has imported it. A subclass of a numpy array stays
one.
"""

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from kv_api.errors import ConfigError


class Pages(NamedTuple):
    """Where the blocks of one layer are, and how many bytes each takes."""

    address: int
    stride_bytes: int
    """From block to block."""
    page_bytes: int
    tensor: Any


def is_torch(value: object) -> bool:
    """Whether it is a torch tensor. If it is, torch has been imported, and is among the loaded modules."""
    tensor_class = getattr(sys.modules.get("torch"), "Tensor", None)  # no class yet: torch is being imported
    return tensor_class is not None and isinstance(value, tensor_class)


def lie_in_one(one: Any, other: Any) -> bool:
    """Whether two views belong to one allocation, so that the bytes between them belong to it, too.

    They don't if they are torch tensors with separate storages, or of a subclass, which may watch its reads.
    """
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if type(one) is type(other) is getattr(torch, "Tensor", None):
        return bool(one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr())
    return type(one) is type(other) is getattr(numpy, "ndarray", None)


def pages_of(name: str, cache: Any, num_blocks: int, page_bytes: int = 0) -> Pages:
    """The pages of one layer.

    ``page_bytes`` is used for a layer that has several tensors, each a part of a page.
    """
    if isinstance(cache, list | tuple) and cache and page_bytes and all(map(is_torch, cache)):
        first = min(cache, key=lambda part: part.data_ptr())
        stride = first.stride(0) * first.element_size()
        return _torch_pages(first, num_blocks, stride, page_bytes)
    if is_torch(cache):
        size = cache.element_size()
        strides = [size * stride for stride in cache.stride()]
        stride, page = _measure(name, cache.shape, strides, size, num_blocks)
        return _torch_pages(cache, num_blocks, stride, page)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(cache, numpy.ndarray):
        stride, page = _measure(name, cache.shape, cache.strides, cache.itemsize, num_blocks)
        return _numpy_pages(cache, num_blocks, stride, page)
    raise ConfigError(
        f"register_kv_caches: layer {name!r} is a {type(cache).__name__}; expected a torch tensor or a numpy array"
    )


def widened(pages: Pages, page_bytes: int) -> Pages:
    """The same blocks with pages of ``page_bytes``, each of which begins where the block's page begins now."""
    size = (pages.tensor.shape[0], page_bytes)
    if is_torch(pages.tensor):
        return pages._replace(page_bytes=page_bytes, tensor=pages.tensor.as_strided(size, (pages.stride_bytes, 1)))
    numpy: Any = sys.modules["numpy"]
    view = numpy.lib.stride_tricks.as_strided(pages.tensor, size, (pages.stride_bytes, 1))
    return pages._replace(page_bytes=page_bytes, tensor=view)


def _measure(
    name: str, shape: Sequence[int], strides: Sequence[int], item_bytes: int, num_blocks: int
) -> tuple[int, int]:
    """The distance between two blocks, and the bytes of a block, whose bytes must be contiguous."""
    described = f"layer {name!r} has shape {tuple(shape)} with strides of {tuple(strides)} bytes"
    if not shape or num_blocks < 1 or shape[0] < num_blocks or shape[0] % num_blocks:
        raise ConfigError(
            f"register_kv_caches: {described}; its first dimension should be the number of blocks, "
            f"{num_blocks}, or a multiple of it"
        )
    page = item_bytes
    for stride, count in sorted(zip(strides[1:], shape[1:], strict=True)):
        if count > 1 and stride != page:
            raise ConfigError(f"register_kv_caches: {described}; the bytes of a block should be contiguous")
        page *= count
    parts = shape[0] // num_blocks
    if parts > 1 and strides[0] != page:
        raise ConfigError(f"register_kv_caches: {described}; the {parts} parts of each block should be contiguous")
    stride = strides[0] if shape[0] > 1 else page
    if stride < page:
        raise ConfigError(f"register_kv_caches: {described}; blocks of {page} bytes should not overlap")
    return stride * parts, page * parts


def _torch_pages(cache: Any, num_blocks: int, stride: int, page: int) -> Pages:
    torch: Any = sys.modules["torch"]
    view = torch.empty(0, dtype=torch.int8, device=cache.device)
    offset = cache.storage_offset() * cache.element_size()
    view = view.set_(cache.untyped_storage(), offset, (num_blocks, page), (stride, 1))
    return Pages(cache.data_ptr(), stride, page, view)


def _numpy_pages(cache: Any, num_blocks: int, stride: int, page: int) -> Pages:
    inner = sorted(range(1, cache.ndim), key=lambda axis: (-cache.strides[axis], axis))
    flat = cache.transpose([0, *inner]).reshape(cache.shape[0], -1).view("int8").reshape(num_blocks, page)
    address: int = cache.__array_interface__["data"][0]
    assert flat.__array_interface__["data"][0] == address, f"a view of {cache.shape}, {cache.strides} was a copy"
    return Pages(address, stride, page, flat)
