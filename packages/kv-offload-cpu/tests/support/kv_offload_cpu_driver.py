"""The functions of a CUDA driver, at addresses, for a device that has done everything as soon as it is told.

They are C functions as far as anybody can see, and may be called from any thread. What a real driver forgives, and
nobody here should do, is an error: to wait for an event that was never recorded, to call in no context.
"""

import ctypes
import threading
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace

import numpy as np

from kv_offload_cpu import Direction
from kv_offload_cpu.copy.cuda.kernel_call import Told
from kv_offload_cpu.copy.cuda.methods.page_table import COLUMNS

CONTEXT = 0xC0
INVALID, NO_CONTEXT, NO_TIME = 1, 201, 400
_WITHOUT_TIME = 2


def moves_of(told):
    """Targets, sources and sizes of a launch, by what the kernel is told."""
    table = np.ctypeslib.as_array((ctypes.c_int64 * (COLUMNS * told.num_rows)).from_address(told.table))
    steps = np.ctypeslib.as_array((ctypes.c_int64 * (5 * told.num_steps)).from_address(told.steps))
    columns, parts = table.reshape(COLUMNS, -1), steps.reshape(5, -1)
    for item in range(told.num_items):
        page, number = divmod(item, told.num_steps)
        block, slot, offset = columns[:, told.begin + page].tolist()
        address, stride, place, page_bytes, size = parts[:, number].tolist()
        in_tensor, in_slot = address + block * stride, slot + place + offset * page_bytes
        yield (in_slot, in_tensor, size) if told.is_store else (in_tensor, in_slot, size)


class Attributes:
    """Of copies, as the bindings have them."""

    def __init__(self):
        self.order = ctypes.c_int(0)

    def __setattr__(self, name, value):
        if name == "srcAccessOrder":
            self.order.value = value
        else:
            super().__setattr__(name, value)

    def getPtr(self):
        return ctypes.addressof(self.order)


class FakeBindings:
    """What is asked of ``cuda.bindings.driver``. ``failing``: how often functions go well before, by name."""

    CUmemcpyAttributes = Attributes
    CUmemcpySrcAccessOrder = SimpleNamespace(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM=1, CU_MEMCPY_SRC_ACCESS_ORDER_ANY=3)

    def __init__(self, lacking=()):
        self.calls = []
        self.threads = []
        self.failing = {}
        self.events = {}
        self.orders = []
        self.kernel = None
        self._lacking = lacking
        self._contexts = threading.local()
        self._found = {}
        self._handles = count(0xE000)

    @contextmanager
    def current(self):
        """While this thread is on the device."""
        before, self._contexts.current = getattr(self._contexts, "current", None), CONTEXT
        yield
        self._contexts.current = before

    # The bindings

    def cuGetProcAddress(self, symbol, version, flags):
        name = symbol.decode()
        if name in self._lacking:
            return 500, 0, 0
        if name not in self._found:
            function = getattr(self, f"_{name}")
            number = function.__code__.co_argcount - 1
            made = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * number)(self._noting(name, function))
            self._found[name] = made, ctypes.cast(made, ctypes.c_void_p).value
        return 0, self._found[name][1], 0

    def cuDriverGetVersion(self):
        return 0, 13000

    def cuMemHostGetDevicePointer(self, address, flags):
        return 0, address

    def _noting(self, name, function):
        def call(*arguments):
            self.calls.append(name)
            self.threads.append(threading.current_thread().name)
            if name in self.failing:
                self.failing[name] -= 1
                if self.failing[name] < 0:
                    return INVALID
            return function(*arguments)

        return call

    def _is_on_device(self):
        return getattr(self._contexts, "current", None) == CONTEXT

    # The functions

    def _cuCtxGetCurrent(self, into):
        ctypes.c_uint64.from_address(into).value = getattr(self._contexts, "current", None) or 0
        return 0

    def _cuCtxSetCurrent(self, context):
        self._contexts.current = context
        return 0

    def _cuEventCreate(self, into, flags):
        if not self._is_on_device():
            return NO_CONTEXT
        handle = next(self._handles)
        self.events[handle] = SimpleNamespace(at=None, on=None, knows_time=not flags & _WITHOUT_TIME)
        ctypes.c_uint64.from_address(into).value = handle
        return 0

    def _cuEventDestroy(self, event):
        del self.events[event]
        return 0

    def _cuEventRecord(self, event, stream):
        if not self._is_on_device():
            return NO_CONTEXT
        self.events[event].at, self.events[event].on = len(self.calls), stream
        return 0

    def _cuEventQuery(self, event):
        return 0

    def _cuEventSynchronize(self, event):
        return 0

    def _cuEventElapsedTime(self, into, begin, end):
        begin, end = self.events[begin], self.events[end]
        if not (begin.knows_time and end.knows_time):
            return NO_TIME
        ctypes.c_float.from_address(into).value = end.at - begin.at
        return 0

    def _cuStreamWaitEvent(self, stream, event, flags):
        return INVALID if self.events[event].at is None else 0

    def _cuStreamSynchronize(self, stream):
        return 0

    def _cuMemcpyAsync(self, target, source, size, stream):
        return self._move([(target, source, size)])

    def _cuMemcpyBatchAsync(self, targets, sources, sizes, count, attributes, firsts, num_attributes, at, stream):
        assert (num_attributes, ctypes.c_size_t.from_address(firsts).value) == (1, 0)
        self.orders.append((ctypes.c_int.from_address(attributes).value, count))
        columns = [(ctypes.c_uint64 * count).from_address(column) for column in (targets, sources, sizes)]
        return self._move(zip(*columns, strict=True))

    def _cuLaunchKernel(self, function, x, y, z, threads, ty, tz, shared, stream, arguments, extra):
        told = Told.from_address(ctypes.c_uint64.from_address(arguments).value)
        self.kernel = (function, (x, y, z), threads, shared, Direction.STORE if told.is_store else Direction.LOAD)
        return self._move(moves_of(told))

    def _move(self, moves):
        if not self._is_on_device():
            return NO_CONTEXT
        for target, source, size in moves:
            ctypes.memmove(target, source, size)
        return 0
