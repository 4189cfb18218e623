"""The device of the CUDA engine and its methods, by torch. The only module here that imports torch.

A single range is copied by ``copy_``, which for pinned host memory is one asynchronous copy. Host memory is pinned
by registering it with the driver; torch's allocator, which would round its size up, isn't used. If the driver
refuses, copies are still right, but slower, and may block the thread that submits them. A kernel can't reach
memory that isn't pinned, so ``enable_kernels`` and ``enable_bulk`` raise a ConfigError.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from logging import getLogger
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from kv_api import ConfigError, Direction
from kv_offload_cpu.copy.compiled import Unavailable
from kv_offload_cpu.copy.cuda import batch_call
from kv_offload_cpu.copy.cuda.batch_call import BatchCall, load_bindings, mapped_address
from kv_offload_cpu.copy.cuda.bulk_call import BulkCall
from kv_offload_cpu.copy.cuda.call_loop import find_loop
from kv_offload_cpu.copy.cuda.kernel_call import DriverKernel
from kv_offload_cpu.copy.cuda.methods.batch import Batch
from kv_offload_cpu.copy.cuda.methods.page_table import COLUMNS, Kernels, Launch, Table
from kv_offload_cpu.copy.cuda.plain_call import PlainCall
from kv_offload_cpu.copy.cuda.streams import AtOnce, Functions, Noted
from kv_offload_cpu.copy.engine import Numbers
from kv_offload_cpu.copy.ranges.descriptors import Ranges
from kv_offload_cpu.copy.ranges.tensors import DeviceTensor

_log = getLogger("kv_offload_cpu")

_MAPPED = 2
"""CUDA's cudaHostRegisterMapped."""


class TorchTable:
    """The numbers of a job's pages for a kernel: pinned on the host, and on the device."""

    def __init__(self, num_rows: int, device: torch.device) -> None:
        self.pinned = torch.empty(COLUMNS * num_rows, dtype=torch.int64, pin_memory=device.type == "cuda")
        self.on_device = torch.empty(COLUMNS * num_rows, dtype=torch.int64, device=device)
        self.numbers: Numbers = self.pinned.numpy()
        self.addresses = (self.on_device.data_ptr(), self.pinned.data_ptr())


class TorchSteps(NamedTuple):
    """The steps of a group's pages on the device, and the kernel that moves them, for either direction."""

    numbers: torch.Tensor
    kernels: dict[Direction, Any]


class TorchStreams:
    """Torch's streams and events, and its choice of the current device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def new_stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self._device)

    def new_event(self, *, knows_time: bool) -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=knows_time)

    def compute_stream(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._device)

    def on_device(self) -> AbstractContextManager[object]:
        current: AbstractContextManager[object] = torch.cuda.device(self._device)
        return current


def _streams(device: torch.device, *, notes: bool) -> AtOnce | Noted:
    """``Noted`` if it is wanted and possible, else ``AtOnce``."""
    functions, of_torch = Functions(), TorchStreams(device)
    if not notes:
        return AtOnce(of_torch, functions)
    loop = find_loop()
    if isinstance(loop, Unavailable):
        _log.log(loop.level, "the submitting thread itself issues copies: a native loop for that %s", loop.reason)
        return AtOnce(of_torch, functions)
    try:
        return Noted(of_torch, functions, loop)
    except ConfigError as error:
        _log.info("the submitting thread itself issues copies: %s", error)
        return AtOnce(of_torch, functions)


class TorchDriver:
    """The device that ``tensors`` are on, and host memory, pinned if ``pin_memory`` is on and the driver agrees.

    ``notes``: whether threads make the calls of the driver, where that is possible; else they are made at once.

    ``copy_batch`` works after ``enable_batches``; tables and kernels after ``enable_kernels`` or ``enable_bulk``,
    and stages after ``enable_stages``.
    """

    def __init__(
        self, tensors: list[DeviceTensor], memory: NDArray[np.uint8], *, pin_memory: bool, notes: bool = False
    ) -> None:
        self._device = tensors[0].tensor.device
        self._tensors = [_flat_bytes(tensor) for tensor in tensors]
        self._memory = torch.from_numpy(memory).view(torch.int8)
        self._streams = _streams(self._device, notes=notes)
        self.notes = isinstance(self._streams, Noted)
        """Whether threads make the calls of the driver."""
        self.is_pinned = pin_memory and self._pin()
        self._stages: dict[int, torch.Tensor] = {}
        self._batch_call: BatchCall | None = None
        self._make_kernel: dict[Kernels, Callable[..., Any]] = {}
        self._addresses = [tensor.pages.address for tensor in tensors]
        self._host_address = self._memory.data_ptr()
        self.mapped_shift = 0
        self.stage_kernels = Kernels.GATHER

    def enable_batches(self) -> None:
        """Find the driver's batched copy; a ConfigError if the driver has none."""
        if self._batch_call is None:
            self._batch_call = BatchCall()

    def enable_kernels(self) -> None:
        """Prepare for Triton's kernel; a ConfigError if this machine can't run it."""
        self._map_memory()
        try:
            from kv_offload_cpu.copy.cuda import gather_kernel
        except ImportError as error:
            raise ConfigError(
                f"copy_engine: a kernel needs Triton, which can't be imported ({error}); "
                f"install kv-offload-cpu[cuda], or use 'cuda'"
            ) from error
        self._make_kernel[Kernels.GATHER] = gather_kernel.Kernel

    def enable_bulk(self) -> None:
        """Prepare for the kernel of bulk copies; a ConfigError if this machine can't run it."""
        self._load(Kernels.BULK, BulkCall)

    def enable_stages(self) -> None:
        """Prepare for the kernels that work on a buffer; a ConfigError if this machine can't run them.

        Launching Triton's kernel needs Python's interpreter. So where threads without it make the calls, the
        kernel of short programs is used, if it can be compiled.
        """
        if self.notes:
            try:
                self._load(Kernels.PLAIN, PlainCall)
            except ConfigError as error:
                _log.info("staged copies hold the interpreter for each piece: %s", error)
            else:
                self.stage_kernels = Kernels.PLAIN
                return
        self.enable_kernels()

    # Streams and events

    def new_stream(self, beside: Any = None) -> Any:
        return self._streams.new_stream(beside)

    def mark_compute(self) -> Any:
        return self._streams.mark_compute()

    def mark(self, stream: Any) -> Any:
        return self._streams.mark(stream)

    def mark_time(self, stream: Any) -> Any:
        return self._streams.mark(stream, knows_time=True)

    def hold(self, stream: Any, event: Any) -> None:
        self._streams.hold(stream, event)

    def go(self, stream: Any) -> None:
        self._streams.go(stream)

    def is_reached(self, event: Any) -> bool:
        return self._streams.is_reached(event)

    def wait_for(self, event: Any) -> None:
        self._streams.wait_for(event)

    def drain(self, stream: Any) -> None:
        self._streams.drain(stream)

    def seconds_between(self, begin: Any, end: Any) -> float:
        return self._streams.seconds_between(begin, end)

    # What moves bytes

    def copy(self, stream: Any, direction: Direction, ranges: Ranges) -> None:
        columns = [column.tolist() for column in ranges]  # copied, since the next job overwrites the arrays
        action = partial(self._copy, self._streams.of_torch(stream), direction, columns)
        self._streams.act(stream, action, copies=10 * len(ranges.sizes))

    def _copy(self, stream: torch.cuda.Stream, direction: Direction, columns: list[list[int]]) -> None:
        with torch.cuda.stream(stream):
            for index, device_begin, host_begin, size in zip(*columns, strict=True):
                begin = device_begin - self._addresses[index]
                device = self._tensors[index][begin : begin + size]
                begin = host_begin - self._host_address
                host = self._memory[begin : begin + size]
                target, source = (host, device) if direction is Direction.STORE else (device, host)
                target.copy_(source, non_blocking=True)

    def copy_batch(self, stream: Any, batch: Batch, begin: int, end: int) -> None:
        assert self._batch_call is not None, "enable_batches was not called"
        arguments = self._batch_call.arguments(self._streams.handle(stream), batch, begin, end)
        self._streams.call(stream, batch_call.FUNCTION, arguments, batch, copies=end - begin)

    def new_table(self, num_rows: int) -> TorchTable:
        return TorchTable(num_rows, self._device)

    def upload(self, stream: Any, table: Table, num_rows: int) -> None:
        assert isinstance(table, TorchTable), f"a table of another driver: {type(table).__name__}"
        num_bytes = COLUMNS * num_rows * table.numbers.itemsize
        arguments = (*table.addresses, num_bytes, self._streams.handle(stream))
        self._streams.call(stream, "cuMemcpyAsync", arguments, table)

    def new_steps(self, numbers: Numbers, count: int, word: int, kernels: Kernels) -> TorchSteps:
        stream = torch.cuda.Stream(self._device)
        with torch.cuda.stream(stream):
            steps = torch.from_numpy(numbers).to(self._device)
        stream.synchronize()
        with torch.cuda.device(self._device):
            make = self._make_kernel[kernels]
            made = {way: make(steps, count, is_store=way is Direction.STORE, word=word) for way in Direction}
        return TorchSteps(steps, made)

    def run_kernel(self, stream: Any, launch: Launch) -> None:
        direction, table, num_rows, rows, steps, programs = launch
        assert isinstance(table, TorchTable), f"a table of another driver: {type(table).__name__}"
        kernel, handle = steps.on_device.kernels[direction], self._streams.handle(stream)
        if isinstance(kernel, DriverKernel):
            arguments, kept = kernel.call(handle, table.on_device.data_ptr(), num_rows, rows, programs)
            self._streams.call(stream, "cuLaunchKernel", arguments, *kept)
        else:
            told = (handle, table.on_device, num_rows, rows, programs)
            self._streams.act(stream, partial(self._launch, kernel, *told))

    def _launch(self, kernel: Any, *told: Any) -> None:
        with torch.cuda.device(self._device):
            kernel.launch(*told)

    def new_stage(self, num_bytes: int) -> int:
        stage = torch.empty(num_bytes, dtype=torch.int8, device=self._device)
        address = int(stage.data_ptr())
        self._stages[address] = stage
        return address

    def free_stage(self, address: int) -> None:
        del self._stages[address]

    def shutdown(self) -> None:
        self._streams.shutdown()
        if self.is_pinned:
            torch.cuda.cudart().cudaHostUnregister(self._memory.data_ptr())
            self.is_pinned = False
        self._tensors = []
        self._stages = {}
        self._memory = torch.empty(0, dtype=torch.int8)

    def _load(self, kernels: Kernels, call: Callable[[], BulkCall | PlainCall]) -> None:
        """Load kernels that NVRTC compiles."""
        self._map_memory()
        if kernels not in self._make_kernel:
            with torch.cuda.device(self._device):
                self._make_kernel[kernels] = call().kernel

    def _map_memory(self) -> None:
        """Find the address at which kernels reach host memory."""
        if not self.is_pinned:
            raise ConfigError("copy_engine: a kernel reaches pinned host memory only, and this isn't; use 'cuda'")
        with torch.cuda.device(self._device):
            mapped = mapped_address(load_bindings("a kernel"), self._host_address)
        self.mapped_shift = mapped - self._host_address

    def _pin(self) -> bool:
        """Register the memory with the driver; returns whether that worked. Called, and so logged, once."""
        try:
            result = int(
                torch.cuda.cudart().cudaHostRegister(self._memory.data_ptr(), self._memory.numel(), _MAPPED)
            )
        except Exception as error:  # noqa: BLE001 - whatever the reason, there is a way without
            _log.warning("host memory is not pinned, copies will be slower: %s: %s", type(error).__name__, error)
            return False
        if result:
            _log.warning(
                "host memory is not pinned, copies will be slower: cudaHostRegister returned error %d", result
            )
        return not result


def _flat_bytes(tensor: DeviceTensor) -> torch.Tensor:
    """All pages of a tensor as one row of bytes, sharing its memory."""
    pages, whole = tensor.pages, tensor.tensor
    begin = whole.storage_offset() * whole.element_size()
    flat = torch.empty(0, dtype=torch.int8, device=whole.device)
    return flat.set_(whole.untyped_storage(), begin, (pages.span_bytes,), (1,))
