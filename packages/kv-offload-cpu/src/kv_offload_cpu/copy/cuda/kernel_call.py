"""The launch of a kernel as one call of the driver, which a thread can make without Python's interpreter.

The kernel gets the same numbers of a job as the one in Triton: see ``methods/page_table.py``.
"""

import ctypes
from abc import ABC, abstractmethod
from typing import Any, Final, NamedTuple

MOST_ITEMS: Final = 1 << 31
"""Steps of a launch, at most. Threads count them with 32 bits, and count past the last one."""


class Told(ctypes.Structure):
    """The kernel's argument, laid out as ``Job`` in ``job.h``."""

    _fields_ = (
        ("table", ctypes.c_void_p),
        ("steps", ctypes.c_void_p),
        ("num_rows", ctypes.c_longlong),
        ("begin", ctypes.c_longlong),
        ("num_items", ctypes.c_uint),
        ("num_steps", ctypes.c_uint),
        ("is_store", ctypes.c_int),
    )


class KernelCall(NamedTuple):
    """The arguments of ``cuLaunchKernel``, and the objects that it reads."""

    arguments: tuple[int, ...]
    kept: tuple[object, ...]


class DriverKernel(ABC):
    """A kernel of the driver, for one direction and some steps, which are a tensor on the device."""

    def __init__(
        self, function: Any, steps: Any, num_steps: int, *, is_store: bool, threads: int, shared_bytes: int = 0
    ) -> None:
        self._function = int(function)
        self._steps = steps
        self._num_steps = num_steps
        self._is_store = is_store
        self._shape = (threads, 1, 1, shared_bytes)

    @abstractmethod
    def grid(self, items: int, programs: int) -> tuple[int, int]:
        """The launch's grid for ``items`` steps: columns and rows; ``programs`` is the number set for the job."""

    def call(self, stream: int, table: int, num_rows: int, rows: range, programs: int) -> KernelCall:
        """The launch for some pages of the table at address ``table``; ``stream`` is the stream's handle."""
        items = len(rows) * self._num_steps
        if items > MOST_ITEMS:
            raise RuntimeError(f"a kernel takes {MOST_ITEMS} steps at most, and this job has {items}")
        told = Told(table, self._steps.data_ptr(), num_rows, rows.start, items, self._num_steps, self._is_store)
        where = (ctypes.c_void_p * 1)(ctypes.addressof(told))
        grid = (self._function, *self.grid(items, programs), 1, *self._shape)
        return KernelCall((*grid, stream, ctypes.addressof(where), 0), (told, where, self._steps))
