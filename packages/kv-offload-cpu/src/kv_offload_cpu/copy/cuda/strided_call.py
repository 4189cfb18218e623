"""The driver's ``cuMemcpy3DBatchAsync``, called with an array of rectangles. As in ``batch_call``, by ctypes.

An operation is a structure of several levels, of words of eight bytes. The bindings make one, and where each of
our numbers is in it is seen by writing them; from then on numpy fills as many as a call takes.
"""

import ctypes
from typing import Any, Final

import numpy as np

from kv_api import ConfigError
from kv_offload_cpu.copy.cuda.batch_call import find_function, load_bindings, source_orders
from kv_offload_cpu.copy.cuda.methods.strided import StridedBatch
from kv_offload_cpu.copy.engine import Numbers

SYMBOL: Final = b"cuMemcpy3DBatchAsync"

OPERATION_WORDS: Final = 14
"""Of two operands of five words, three of an extent, and one of an order and flags."""

_SIGNATURE = ctypes.CFUNCTYPE(
    ctypes.c_int,  # CUresult
    ctypes.c_size_t,  # how many
    ctypes.c_void_p,  # operations
    ctypes.POINTER(ctypes.c_size_t),  # which copy was at fault
    ctypes.c_ulonglong,  # flags, of which there are none
    ctypes.c_void_p,  # stream
)

_MARKS: Final = range(0x1001, 0x1007)
"""Numbers that an operation has nowhere else, one for each column of a batch."""


class StridedCall:
    """The function of this machine's driver; a ConfigError where there is none."""

    def __init__(self) -> None:
        bindings = load_bindings("a copy of rectangles")
        self._call = _SIGNATURE(find_function(bindings, SYMBOL))
        self.most_pitch = _most_pitch(bindings)
        marked = {order: _marked(bindings, value) for order, value in source_orders(bindings).items()}
        self._blank = {order: np.where(np.isin(words, _MARKS), 0, words) for order, words in marked.items()}
        words = next(iter(marked.values())).tolist()
        missing = [mark for mark in _MARKS if words.count(mark) != 1]
        if missing:
            raise ConfigError(
                f"copy_engine: cuda-bindings' CUDA_MEMCPY3D_BATCH_OP is not of the form that is known: {words}; "
                f"use 'cuda-batch'"
            )
        self._places = [words.index(mark) for mark in _MARKS]

    def __call__(self, stream: int, batch: StridedBatch, begin: int, end: int) -> None:
        """Give a stream some copies of a batch."""
        operations = np.tile(self._blank[batch.order], (end - begin, 1))
        for place, column in zip(self._places, batch.columns, strict=True):
            operations[:, place] = column[begin:end]
        wrong = ctypes.c_size_t(0)
        result = self._call(end - begin, operations.ctypes.data, ctypes.byref(wrong), 0, stream)
        if result:
            raise RuntimeError(f"cuMemcpy3DBatchAsync gave error {result}, at copy {wrong.value} of {end - begin}")


def _marked(bindings: Any, order: Any) -> Numbers:
    """The words of an operation between pointers, of one layer, with a mark in the place of each column."""
    operation = bindings.CUDA_MEMCPY3D_BATCH_OP()
    extent = operation.extent
    marks = iter(_MARKS)
    for operand in (operation.dst, operation.src):
        operand.type = bindings.CUmemcpy3DOperandType.CU_MEMCPY_OPERAND_TYPE_POINTER
        place = operand.op.ptr
        place.ptr, place.rowLength, place.layerHeight = bindings.CUdeviceptr(next(marks)), next(marks), 0
    extent.width, extent.height, extent.depth = next(marks), next(marks), 1
    operation.srcAccessOrder = order
    words = ctypes.string_at(int(operation.getPtr()), 8 * OPERATION_WORDS)
    return np.frombuffer(words, np.int64).copy()


def _most_pitch(bindings: Any) -> int:
    """The largest distance between two rows that the current device copies."""
    attribute, pitch = bindings.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_PITCH, 0
    result, device = bindings.cuCtxGetDevice()
    if not int(result):
        result, pitch = bindings.cuDeviceGetAttribute(attribute, device)
    if int(result):
        raise ConfigError(f"copy_engine: the device can't be asked how far apart rows may be: error {int(result)}")
    return int(pitch)
