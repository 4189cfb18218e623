"""What the CUDA engine asks of a device, answered by torch. The only file here that imports torch.

Each range is one ``copy_``, which for pinned host memory is one asynchronous copy of the device. Host memory is
registered with the driver where it will have it; else copies are still right, but slower, and may hold up the
thread that submits them.
"""

from logging import getLogger

import numpy as np
import torch
from numpy.typing import NDArray

from kv_offload_cpu.copy.descriptors import Ranges
from kv_offload_cpu.copy.engine import Direction
from kv_offload_cpu.copy.tensors import DeviceTensor

_log = getLogger("kv_offload_cpu")


class TorchDriver:
    """The device that ``tensors`` are on, and host memory, pinned if ``pin_memory`` is on and the driver will."""

    def __init__(self, tensors: list[DeviceTensor], memory: NDArray[np.uint8], *, pin_memory: bool) -> None:
        self._device = tensors[0].tensor.device
        self._tensors = [_flat_bytes(tensor) for tensor in tensors]
        self._memory = torch.from_numpy(memory).view(torch.int8)
        self._is_pinned = pin_memory and self._pin()

    def new_stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self._device)

    def mark_compute(self) -> torch.cuda.Event:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def mark(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def hold(self, stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
        stream.wait_event(event)

    def copy(self, stream: torch.cuda.Stream, direction: Direction, ranges: Ranges) -> None:
        columns = [column.tolist() for column in ranges]
        with torch.cuda.stream(stream):
            for index, device_begin, host_begin, size in zip(*columns, strict=True):
                device = self._tensors[index][device_begin : device_begin + size]
                host = self._memory[host_begin : host_begin + size]
                target, source = (host, device) if direction is Direction.STORE else (device, host)
                target.copy_(source, non_blocking=True)

    def is_reached(self, event: torch.cuda.Event) -> bool:
        return bool(event.query())

    def wait_for(self, event: torch.cuda.Event) -> None:
        event.synchronize()

    def drain(self, stream: torch.cuda.Stream) -> None:
        stream.synchronize()

    def seconds_between(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return float(begin.elapsed_time(end)) / 1000

    def shutdown(self) -> None:
        if self._is_pinned:
            torch.cuda.cudart().cudaHostUnregister(self._memory.data_ptr())
            self._is_pinned = False
        self._tensors = []
        self._memory = torch.empty(0, dtype=torch.int8)

    def _pin(self) -> bool:
        """Whether the memory was registered. Asked once in a worker's life, so it is logged once."""
        try:
            result = int(torch.cuda.cudart().cudaHostRegister(self._memory.data_ptr(), self._memory.numel(), 0))
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
