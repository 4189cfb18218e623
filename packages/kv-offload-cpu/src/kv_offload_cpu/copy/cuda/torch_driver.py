"""What the CUDA engine and its methods ask of a device, answered by torch. The only file here that imports torch.

A range copied by itself is one ``copy_``, which for pinned host memory is one asynchronous copy of the device.
Host memory is registered with the driver where it will have it, as it is, so that no allocator rounds it up. Else
copies are still right, but slower, and may hold up the thread that submits them; a kernel couldn't reach it, so
``enable_kernels`` and ``enable_bulk`` refuse.
"""

from collections.abc import Callable
from logging import getLogger
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from kv_api import ConfigError, Direction
from kv_offload_cpu.copy.cuda.batch_call import BatchCall, copy_to_device, load_bindings, mapped_address
from kv_offload_cpu.copy.cuda.bulk_call import BulkCall
from kv_offload_cpu.copy.cuda.methods.batch import Batch
from kv_offload_cpu.copy.cuda.methods.page_table import COLUMNS, Kernels, Launch, Table
from kv_offload_cpu.copy.cuda.methods.strided import StridedBatch
from kv_offload_cpu.copy.cuda.strided_call import StridedCall
from kv_offload_cpu.copy.engine import Numbers
from kv_offload_cpu.copy.ranges.descriptors import Ranges
from kv_offload_cpu.copy.ranges.tensors import DeviceTensor

_log = getLogger("kv_offload_cpu")

_MAPPED = 2
"""CUDA's cudaHostRegisterMapped."""


class TorchTable:
    """The numbers that a kernel is told its pages by: pinned on the host, and on the device."""

    def __init__(self, num_rows: int, device: torch.device) -> None:
        self.pinned = torch.empty(COLUMNS * num_rows, dtype=torch.int64, pin_memory=device.type == "cuda")
        self.on_device = torch.empty(COLUMNS * num_rows, dtype=torch.int64, device=device)
        self.numbers: Numbers = self.pinned.numpy()
        self.addresses = (self.on_device.data_ptr(), self.pinned.data_ptr())


class TorchSteps(NamedTuple):
    """What a kernel knows of a group's pages, and that kernel for either direction."""

    numbers: torch.Tensor
    kernels: dict[Direction, Any]


class TorchDriver:
    """The device that ``tensors`` are on, and host memory, pinned if ``pin_memory`` is on and the driver will.

    ``copy_batch`` works after ``enable_batches``, ``copy_strided`` and ``most_pitch`` after ``enable_strided``;
    tables, kernels and stages after ``enable_kernels`` or ``enable_bulk``.
    """

    def __init__(self, tensors: list[DeviceTensor], memory: NDArray[np.uint8], *, pin_memory: bool) -> None:
        self._device = tensors[0].tensor.device
        self._tensors = [_flat_bytes(tensor) for tensor in tensors]
        self._memory = torch.from_numpy(memory).view(torch.int8)
        self.is_pinned = pin_memory and self._pin()
        self._stages: dict[int, torch.Tensor] = {}
        self._batch_call: BatchCall | None = None
        self._strided_call: StridedCall | None = None
        self._make_kernel: dict[Kernels, Callable[..., Any]] = {}
        self._addresses = [tensor.pages.address for tensor in tensors]
        self._host_address = self._memory.data_ptr()
        self.mapped_shift = 0

    def enable_batches(self) -> None:
        """Find the driver's batched copy; a ConfigError where it has none."""
        if self._batch_call is None:
            self._batch_call = BatchCall()

    def enable_strided(self) -> None:
        """Find the driver's batched copy of rectangles; a ConfigError where it has none."""
        if self._strided_call is None:
            with torch.cuda.device(self._device):
                self._strided_call = StridedCall()

    def enable_kernels(self) -> None:
        """Find what a kernel of Triton's needs; a ConfigError where that can't be."""
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
        """Find what a kernel of bulk copies needs; a ConfigError where that can't be."""
        self._map_memory()
        if Kernels.BULK not in self._make_kernel:
            with torch.cuda.device(self._device):
                self._make_kernel[Kernels.BULK] = BulkCall().kernel

    # Streams and events

    def new_stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self._device)

    def mark_compute(self) -> torch.cuda.Event:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def mark(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        event = torch.cuda.Event()
        event.record(stream)
        return event

    def mark_time(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def hold(self, stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
        stream.wait_event(event)

    def is_reached(self, event: torch.cuda.Event) -> bool:
        return bool(event.query())

    def wait_for(self, event: torch.cuda.Event) -> None:
        event.synchronize()

    def drain(self, stream: torch.cuda.Stream) -> None:
        stream.synchronize()

    def seconds_between(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return float(begin.elapsed_time(end)) / 1000

    # What moves bytes

    def copy(self, stream: torch.cuda.Stream, direction: Direction, ranges: Ranges) -> None:
        columns = [column.tolist() for column in ranges]
        with torch.cuda.stream(stream):
            for index, device_begin, host_begin, size in zip(*columns, strict=True):
                begin = device_begin - self._addresses[index]
                device = self._tensors[index][begin : begin + size]
                begin = host_begin - self._host_address
                host = self._memory[begin : begin + size]
                target, source = (host, device) if direction is Direction.STORE else (device, host)
                target.copy_(source, non_blocking=True)

    def copy_batch(self, stream: torch.cuda.Stream, batch: Batch, begin: int, end: int) -> None:
        assert self._batch_call is not None, "enable_batches was not called"
        with torch.cuda.device(self._device):
            self._batch_call(stream.cuda_stream, batch, begin, end)

    @property
    def most_pitch(self) -> int:
        assert self._strided_call is not None, "enable_strided was not called"
        return self._strided_call.most_pitch

    def copy_strided(self, stream: torch.cuda.Stream, batch: StridedBatch, begin: int, end: int) -> None:
        assert self._strided_call is not None, "enable_strided was not called"
        with torch.cuda.device(self._device):
            self._strided_call(stream.cuda_stream, batch, begin, end)

    def new_table(self, num_rows: int) -> TorchTable:
        return TorchTable(num_rows, self._device)

    def upload(self, stream: torch.cuda.Stream, table: Table, num_rows: int) -> None:
        assert isinstance(table, TorchTable), f"a table of another driver: {type(table).__name__}"
        num_bytes = COLUMNS * num_rows * table.numbers.itemsize
        with torch.cuda.device(self._device):
            copy_to_device(self._bindings, *table.addresses, num_bytes, stream.cuda_stream)

    def new_steps(self, numbers: Numbers, count: int, word: int, kernels: Kernels) -> TorchSteps:
        stream = self.new_stream()
        with torch.cuda.stream(stream):
            steps = torch.from_numpy(numbers).to(self._device)
        stream.synchronize()
        with torch.cuda.device(self._device):
            make = self._make_kernel[kernels]
            made = {way: make(steps, count, is_store=way is Direction.STORE, word=word) for way in Direction}
        return TorchSteps(steps, made)

    def run_kernel(self, stream: torch.cuda.Stream, launch: Launch) -> None:
        direction, table, num_rows, rows, steps, programs = launch
        assert isinstance(table, TorchTable), f"a table of another driver: {type(table).__name__}"
        with torch.cuda.device(self._device):
            kernel = steps.on_device.kernels[direction]
            kernel.launch(stream.cuda_stream, table.on_device, num_rows, rows, programs)

    def new_stage(self, num_bytes: int) -> int:
        stage = torch.empty(num_bytes, dtype=torch.int8, device=self._device)
        address = int(stage.data_ptr())
        self._stages[address] = stage
        return address

    def free_stage(self, address: int) -> None:
        del self._stages[address]

    def shutdown(self) -> None:
        if self.is_pinned:
            torch.cuda.cudart().cudaHostUnregister(self._memory.data_ptr())
            self.is_pinned = False
        self._tensors = []
        self._stages = {}
        self._memory = torch.empty(0, dtype=torch.int8)

    def _map_memory(self) -> None:
        """Find host memory from the device, for kernels."""
        if not self.is_pinned:
            raise ConfigError("copy_engine: a kernel reaches pinned host memory only, and this isn't; use 'cuda'")
        self._bindings = load_bindings("a kernel")
        with torch.cuda.device(self._device):
            mapped = mapped_address(self._bindings, self._host_address)
        self.mapped_shift = mapped - self._host_address

    def _pin(self) -> bool:
        """Whether the memory was registered. Asked once in a worker's life, so it is logged once."""
        try:
            result = int(
                torch.cuda.cudart().cudaHostRegister(self._memory.data_ptr(), self._memory.numel(), _MAPPED)
            )
        except Exception as error:  # noqa: BLE001 - whatever the reason, there is a way without
            _log.warning("host memory is not pinned, copies will be slower: %s: %s", type(error).__name__, error)
            return False
        if result:
            _log.warning(
                "host memory is not pinned, copies will be slower: cudaHostRegister gave error %d", result
            )
        return not result


def _flat_bytes(tensor: DeviceTensor) -> torch.Tensor:
    """All pages of a tensor as one row of bytes, sharing its memory."""
    pages, whole = tensor.pages, tensor.tensor
    begin = whole.storage_offset() * whole.element_size()
    flat = torch.empty(0, dtype=torch.int8, device=whole.device)
    return flat.set_(whole.untyped_storage(), begin, (pages.span_bytes,), (1,))
