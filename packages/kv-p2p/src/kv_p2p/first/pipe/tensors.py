"""Encodes tensors as messages, and back: a JSON header, and the bytes of the values as they are in memory.

A numpy array arrives as a numpy array, a torch tensor as a torch tensor in host memory, for which the receiver
needs torch. Both arrive bit for bit: values of a type that numpy doesn't have are handled as bytes.
"""

from collections.abc import Mapping
from importlib import import_module
from math import prod
from typing import Any, Final

import numpy as np

from kv_api.engine import Tensor
from kv_p2p.first.pipe.arrays import NUMPY, NUMPY_TYPES, TORCH, TORCH_TYPES, TensorError, kind_of

NONE: Final[Mapping[str, Any]] = {"library": None}
"""The header of a message that stands for None."""


def encode(tensor: Tensor | None) -> tuple[dict[str, Any], list[Any]]:
    """The header and the parts of a message."""
    if tensor is None:
        return dict(NONE), []
    library, dtype = kind_of(tensor)
    header = {"library": library, "dtype": dtype, "shape": list(tensor.shape)}
    if library == NUMPY:
        return header, [np.ascontiguousarray(tensor).reshape(-1).view(np.uint8)]
    torch: Any = import_module("torch")
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    if plain.stride(0) != 1:  # one value alone counts as contiguous with any stride, but not to `view`
        plain = plain.clone(memory_format=torch.contiguous_format)
    return header, [plain.view(torch.uint8).numpy()]


def decode(header: Mapping[str, Any], parts: list[memoryview]) -> Tensor | None:
    """The tensor of a message. It shares the part's memory."""
    library = header.get("library", "")
    if library is None:
        return None
    if library not in (NUMPY, TORCH):
        raise TensorError(f"a message holds a tensor of {library!r}; known: {NUMPY}, {TORCH}")
    shape = _shape(header.get("shape"))
    if len(parts) != 1:
        raise TensorError(f"a message with a tensor has one part, and this one has {len(parts)}")
    make = _numpy_array if library == NUMPY else _torch_tensor
    return make(header.get("dtype"), shape, parts[0])


def _numpy_array(dtype: Any, shape: tuple[int, ...], part: memoryview) -> Tensor:
    if not isinstance(dtype, str) or dtype[:1] not in ("<", ">", "|") or dtype[1:] not in NUMPY_TYPES:
        raise TensorError(f"a message holds an array of {dtype!r}; known: {', '.join(NUMPY_TYPES)}")
    numpy_dtype = np.dtype(dtype)
    _require_bytes(part, shape, numpy_dtype.itemsize)
    return np.frombuffer(part, numpy_dtype).reshape(shape) if part else np.empty(shape, numpy_dtype)


def _torch_tensor(dtype: Any, shape: tuple[int, ...], part: memoryview) -> Tensor:
    if dtype not in TORCH_TYPES:
        raise TensorError(f"a message holds a tensor of {dtype!r}; known: {', '.join(TORCH_TYPES)}")
    try:
        torch: Any = import_module("torch")
    except ImportError as error:
        raise TensorError(f"a torch tensor of {dtype} came, and there is no torch here: {error}") from error
    torch_dtype = getattr(torch, dtype, None)
    if torch_dtype is None:
        raise TensorError(f"a tensor of {dtype} came, which torch {torch.__version__} does not have")
    _require_bytes(part, shape, torch_dtype.itemsize)
    if not part:
        return torch.empty(shape, dtype=torch_dtype)
    return torch.frombuffer(part, dtype=torch.uint8).view(torch_dtype).reshape(shape)


def _shape(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(size) is not int or size < 0 for size in value):
        raise TensorError(f"a message holds a tensor of the shape {value!r}; expected a list of sizes")
    return tuple(value)


def _require_bytes(part: memoryview, shape: tuple[int, ...], item_bytes: int) -> None:
    wanted = prod(shape) * item_bytes
    if len(part) != wanted:
        raise TensorError(f"a tensor of shape {shape} has {wanted} bytes, and {len(part)} came")
