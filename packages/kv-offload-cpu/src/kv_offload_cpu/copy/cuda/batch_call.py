"""The driver's ``cuMemcpyBatchAsync``, called with arrays, and other uses of cuda-bindings' driver module.

The bindings' own function of that name takes lists, and would make three Python objects for every copy. So only
addresses of functions, layouts of attributes and values of enumerations are taken from the bindings. An address
is that of the function's form in CUDA 12.8, which newer drivers keep.
"""

import ctypes
from importlib import import_module
from typing import Any, Final

from kv_api import ConfigError
from kv_offload_cpu.copy.cuda.methods.batch import Batch, SourceOrder

FUNCTION: Final = "cuMemcpyBatchAsync"

VERSION: Final = 12080
"""CUDA 12.8, as the driver writes it."""

_NUMBER_BYTES: Final = 8


class BatchCall:
    """The arguments of the batched copy; a ConfigError if this machine's driver doesn't have one."""

    def __init__(self) -> None:
        bindings = load_bindings("a batched copy")
        find_function(bindings, FUNCTION.encode())
        orders = source_orders(bindings)
        attributes = {order: _attributes(bindings, value) for order, value in orders.items()}
        self._attributes = {order: (found, int(found.getPtr())) for order, found in attributes.items()}
        self._first, self._wrong = ctypes.c_size_t(0), ctypes.c_size_t(0)
        self._addresses = ctypes.addressof(self._first), 1, ctypes.addressof(self._wrong)

    def arguments(self, stream: int, batch: Batch, begin: int, end: int) -> tuple[int, ...]:
        """Targets, sources, sizes, number; attributes, first copy of each, their number; failed index; stream."""
        columns = [address + begin * _NUMBER_BYTES for address in batch.addresses]
        return *columns, end - begin, self._attributes[batch.order][1], *self._addresses, stream


def load_bindings(purpose: str) -> Any:
    """cuda-bindings' module of the driver; a ConfigError, which names the purpose, if it can't be imported."""
    try:
        return import_module("cuda.bindings.driver")
    except ImportError as error:
        raise ConfigError(
            f"copy_engine: {purpose} needs cuda-bindings, which can't be imported ({error}); "
            f"install kv-offload-cpu[cuda], or use 'cuda'"
        ) from error


def mapped_address(bindings: Any, address: int) -> int:
    """The address at which the device reaches pinned memory that the host has at ``address``."""
    result, mapped = bindings.cuMemHostGetDevicePointer(address, 0)
    if int(result):
        raise ConfigError(f"copy_engine: the device can't reach host memory: error {int(result)}; use 'cuda'")
    return int(mapped)


def find_function(bindings: Any, symbol: bytes) -> int:
    """The address of one of the driver's batched copies."""
    try:
        result, address, _ = bindings.cuGetProcAddress(symbol, VERSION, 0)
        _, version = bindings.cuDriverGetVersion()
    except Exception as error:  # the bindings find the driver at the first call
        raise ConfigError(f"copy_engine: the CUDA driver can't be asked for a batched copy: {error}") from error
    if int(result) or not address:
        raise ConfigError(
            f"copy_engine: the driver is of CUDA {version // 1000}.{version % 1000 // 10} and has no batched "
            f"copy, which came with 12.8; use 'cuda'"
        )
    return int(address)


def source_orders(bindings: Any) -> dict[SourceOrder, Any]:
    """The driver's names of the source orders."""
    names = bindings.CUmemcpySrcAccessOrder
    return {
        SourceOrder.STREAM: names.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
        SourceOrder.ANY: names.CU_MEMCPY_SRC_ACCESS_ORDER_ANY,
    }


def _attributes(bindings: Any, order: Any) -> Any:
    attributes = bindings.CUmemcpyAttributes()
    attributes.srcAccessOrder = order
    return attributes
