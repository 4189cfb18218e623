"""Operations on numpy arrays and torch tensors, under one name each. Torch is never imported here.

A caller with a torch tensor has imported torch, so this module finds it in ``sys.modules``. Another object, or a
tensor of a type that messages can't name, raises a TensorError with the choices.
"""

import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from kv_api import KVError
from kv_api.engine import Tensor
from kv_api.pages import is_torch

NUMPY: Final = "numpy"
TORCH: Final = "torch"
NUMPY_TYPES: Final = (
    *("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"),
)  # fmt: skip
"""numpy's types: ``dtype.str`` without the byte order."""
TORCH_TYPES: Final = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
)  # fmt: skip


class TensorError(KVError, ValueError):
    """An object is no tensor, or a tensor that can't be used here."""


class Kind(NamedTuple):
    """A tensor's library and type."""

    library: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.library} {self.dtype}"


def kind_of(tensor: Tensor, what: str = "tensor") -> Kind:
    """The kind of a tensor; a TensorError if it can't be sent."""
    if isinstance(tensor, np.ndarray):
        if tensor.dtype.str[1:] in NUMPY_TYPES:
            return Kind(NUMPY, tensor.dtype.str)
        raise TensorError(f"{what}: an array of {tensor.dtype} can't be sent; choices: {', '.join(NUMPY_TYPES)}")
    if not is_torch(tensor):
        raise TensorError(f"{what}: expected a numpy array or a torch tensor, got {type(tensor).__name__}")
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in TORCH_TYPES:
        raise TensorError(f"{what}: a tensor of {name} can't be sent; choices: {', '.join(TORCH_TYPES)}")
    if str(tensor.layout) != "torch.strided":
        raise TensorError(f"{what}: a {tensor.layout} tensor can't be sent; choices: torch.strided")
    return Kind(TORCH, name)


def describe(tensor: Tensor) -> str:
    """The kind and the shape as text."""
    return f"{kind_of(tensor)} {tuple(tensor.shape)}"


def copy_of(tensor: Tensor, what: str = "tensor") -> Tensor:
    """A copy of a tensor, in the same kind of memory."""
    if kind_of(tensor, what).library == NUMPY:
        return np.array(tensor, order="C")
    return tensor.detach().clone()


def on_host(tensor: Tensor) -> Tensor:
    """The tensor in host memory; not copied if it is there already."""
    return tensor if kind_of(tensor).library == NUMPY else tensor.detach().cpu()


def beside(tensor: Tensor, other: Tensor) -> Tensor:
    """The tensor on the device of ``other``, of the same library; not copied if it is there already."""
    return tensor if kind_of(tensor).library == NUMPY else tensor.to(other.device)


def whole_numbers(tensor: Tensor, what: str) -> tuple[int, ...]:
    """The values of a one-dimensional tensor of whole numbers."""
    kind = kind_of(tensor, what)
    letters = kind.dtype[1] if kind.library == NUMPY else kind.dtype[0]
    if letters not in "iu" or len(tensor.shape) != 1:
        raise TensorError(f"{what}: expected whole numbers in one dimension, got {describe(tensor)}")
    return tuple(tensor.tolist())


def truths(tensor: Tensor, what: str) -> tuple[bool, ...]:
    """The values of a one-dimensional mask."""
    kind = kind_of(tensor, what)
    if kind.dtype not in ("|b1", "bool") or len(tensor.shape) != 1:
        raise TensorError(f"{what}: expected a mask in one dimension, got {describe(tensor)}")
    return tuple(tensor.tolist())


def all_true(tensor: Tensor) -> Tensor:
    """A mask of ``tensor``'s library and shape, true everywhere."""
    if kind_of(tensor).library == NUMPY:
        return np.ones(tensor.shape, bool)
    return _torch().ones(tensor.shape, dtype=_torch().bool)


def indices(numbers: Sequence[int], tensor: Tensor) -> Tensor:
    """The numbers as an index for ``tensor``."""
    if kind_of(tensor).library == NUMPY:
        return np.array(numbers, np.int64)
    return _torch().tensor(numbers, dtype=_torch().int64, device=tensor.device)


def stack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors of one kind and shape as one tensor, with one more dimension in front."""
    return np.stack(tensors) if kind_of(tensors[0]).library == NUMPY else _torch().stack(list(tensors))


def concatenate(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors of one kind joined along the first dimension."""
    return np.concatenate(tensors) if kind_of(tensors[0]).library == NUMPY else _torch().cat(list(tensors))


def _torch() -> Any:
    return sys.modules["torch"]
