"""The driver's ``cuMemcpyBatchAsync``, called with arrays. The only file here that imports cuda-bindings.

The bindings' own function of that name takes lists, and would make three Python objects of every copy. So they are
asked for the function's address, for what attributes look like and for the values of their enumerations, and the
call is made by ctypes, which lets go of the interpreter's lock meanwhile. The address is that of CUDA 12.8's form
of the function, which newer drivers keep.
"""

import ctypes
from importlib import import_module
from typing import Any, Final

import numpy as np

from kv_api import ConfigError
from kv_offload_cpu.copy.addresses import Moves
from kv_offload_cpu.copy.cuda_batch import SourceOrder

SYMBOL: Final = b"cuMemcpyBatchAsync"

VERSION: Final = 12080
"""CUDA 12.8, as the driver writes it."""

_SIGNATURE = ctypes.CFUNCTYPE(
    ctypes.c_int,  # CUresult
    ctypes.c_void_p,  # targets
    ctypes.c_void_p,  # sources
    ctypes.c_void_p,  # sizes
    ctypes.c_size_t,  # how many
    ctypes.c_void_p,  # attributes
    ctypes.c_void_p,  # the first copy of each attribute
    ctypes.c_size_t,  # how many attributes
    ctypes.POINTER(ctypes.c_size_t),  # which copy was at fault
    ctypes.c_void_p,  # stream
)


class BatchCall:
    """The function of this machine's driver; a ConfigError where there is none."""

    def __init__(self) -> None:
        bindings = load_bindings("a batched copy")
        self._call = _SIGNATURE(_address(bindings))
        names = bindings.CUmemcpySrcAccessOrder
        orders = {
            SourceOrder.STREAM: names.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
            SourceOrder.ANY: names.CU_MEMCPY_SRC_ACCESS_ORDER_ANY,
        }
        self._attributes = {order: _attributes(bindings, value) for order, value in orders.items()}

    def __call__(self, stream: int, found: Moves, order: SourceOrder) -> None:
        """Give a stream copies."""
        columns = [np.ascontiguousarray(column, np.int64) for column in found]
        first, wrong = ctypes.c_size_t(0), ctypes.c_size_t(0)
        result = self._call(
            *(column.ctypes.data for column in columns),
            len(columns[0]),
            int(self._attributes[order].getPtr()),
            ctypes.addressof(first),
            1,
            ctypes.byref(wrong),
            stream,
        )
        if result:
            raise RuntimeError(
                f"cuMemcpyBatchAsync gave error {result}, at copy {wrong.value} of {len(columns[0])}"
            )


def load_bindings(purpose: str) -> Any:
    """The module of the driver's functions."""
    try:
        return import_module("cuda.bindings.driver")
    except ImportError as error:
        raise ConfigError(
            f"copy_engine: {purpose} needs cuda-bindings, which can't be imported ({error}); "
            f"install kv-offload-cpu[cuda], or use 'cuda'"
        ) from error


def mapped_address(bindings: Any, address: int) -> int:
    """Where the device itself finds pinned memory that the host has at ``address``."""
    result, mapped = bindings.cuMemHostGetDevicePointer(address, 0)
    if int(result):
        raise ConfigError(f"copy_engine: the device can't reach host memory: error {int(result)}; use 'cuda'")
    return int(mapped)


def _address(bindings: Any) -> int:
    try:
        result, address, _ = bindings.cuGetProcAddress(SYMBOL, VERSION, 0)
        _, version = bindings.cuDriverGetVersion()
    except Exception as error:  # the bindings find the driver at the first call
        raise ConfigError(f"copy_engine: the CUDA driver can't be asked for a batched copy: {error}") from error
    if int(result) or not address:
        raise ConfigError(
            f"copy_engine: the driver is of CUDA {version // 1000}.{version % 1000 // 10} and has no batched "
            f"copy, which came with 12.8; use 'cuda'"
        )
    return int(address)


def _attributes(bindings: Any, order: Any) -> Any:
    attributes = bindings.CUmemcpyAttributes()
    attributes.srcAccessOrder = order
    return attributes
