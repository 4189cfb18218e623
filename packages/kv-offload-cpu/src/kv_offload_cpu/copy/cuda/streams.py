"""Streams and events of a device, in two ways: ``AtOnce`` makes every call at once, ``Noted`` by a giver.

``AtOnce`` needs only torch, except for batched copies and kernels of the driver. ``Noted`` has the addresses of
the driver's own functions, so that a compiled loop can call them (see ``giver``): it needs cuda-bindings, to find
the addresses, and llvmlite.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, NamedTuple, Protocol

from kv_offload_cpu.copy.cuda.batch_call import find_function, load_bindings
from kv_offload_cpu.copy.cuda.call_loop import MOST_ARGUMENTS, CallLoop
from kv_offload_cpu.copy.cuda.giver import Action, Giver

_NOT_READY: Final = 600
_WITHOUT_TIME: Final = 2
"""CU_EVENT_DISABLE_TIMING."""

_SIGNATURES: Final = [
    ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * count) for count in range(MOST_ARGUMENTS + 1)
]
"""The type of a function with that many words as parameters."""


class Functions:
    """The driver's functions by name, to call them or to get their addresses. Each is found when first needed."""

    def __init__(self) -> None:
        self._addresses: dict[str, int] = {}
        self._callable: dict[str, Callable[..., int]] = {}

    def address(self, name: str) -> int:
        """The address of a function; a ConfigError if it can't be found."""
        if name not in self._addresses:
            self._addresses[name] = find_function(load_bindings("a call of the driver"), name.encode())
        return self._addresses[name]

    def name_of(self, address: int) -> str:
        """The name of the function at an address that ``address`` returned."""
        return next(name for name, found in [*self._addresses.items()] if found == address)

    def __call__(self, name: str, *arguments: int) -> None:
        if error := self.result(name, *arguments):
            raise RuntimeError(f"{name} returned error {error}")

    def result(self, name: str, *arguments: int) -> int:
        """Call a function with whole numbers and addresses; returns its error. Their number is always the same."""
        if name not in self._callable:
            self._callable[name] = _SIGNATURES[len(arguments)](self.address(name))
        return self._callable[name](*arguments)


class Torch(Protocol):
    """What is used of torch, which this module doesn't import."""

    def new_stream(self) -> Any:
        """Make a stream."""

    def new_event(self, *, knows_time: bool) -> Any:
        """Make an event."""

    def compute_stream(self) -> Any:
        """The stream that the model computes on."""

    def on_device(self) -> AbstractContextManager[object]:
        """A context in which the device is the current one."""


class AtOnce:
    """Makes every call at once."""

    def __init__(self, torch: Torch, functions: Functions) -> None:
        self._torch = torch
        self._functions = functions

    def new_stream(self, beside: Any = None) -> Any:
        return self._torch.new_stream()

    def of_torch(self, stream: Any) -> Any:
        """The stream as an object of torch."""
        return stream

    def handle(self, stream: Any) -> int:
        """The handle of the stream in the driver."""
        return int(stream.cuda_stream)

    def mark_compute(self) -> Any:
        return self.mark(self._torch.compute_stream())

    def mark(self, stream: Any, *, knows_time: bool = False) -> Any:
        event = self._torch.new_event(knows_time=knows_time)
        event.record(stream)
        return event

    def hold(self, stream: Any, event: Any) -> None:
        stream.wait_event(event)

    def call(self, stream: Any, name: str, arguments: tuple[int, ...], *kept: object, copies: int = 1) -> None:
        """Call a function of the driver."""
        with self._torch.on_device():
            self._functions(name, *arguments)

    def act(self, stream: Any, action: Action, copies: int = 1) -> None:
        """Call a Python function."""
        action()

    def go(self, stream: Any) -> None:
        """Nothing to do: every call was made at once."""

    def is_reached(self, event: Any) -> bool:
        return bool(event.query())

    def wait_for(self, event: Any) -> None:
        event.synchronize()

    def drain(self, stream: Any) -> None:
        stream.synchronize()

    def seconds_between(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end)) / 1000

    def shutdown(self) -> None:
        """Nothing to do: there are no threads."""


class NotedStream(NamedTuple):
    """A stream, and the giver that makes its noted calls."""

    of_torch: Any
    handle: int
    giver: Giver


class Mark:
    """An event that is recorded in a list of a giver. When the mark is garbage, its event is used again."""

    __slots__ = ("giver", "handle", "number", "shelf")

    def __init__(self, handle: int, shelf: list[int], giver: Giver | None, number: int) -> None:
        self.handle = handle
        self.shelf = shelf
        self.giver = giver
        self.number = number

    def __del__(self) -> None:
        self.shelf.append(self.handle)


class Noted:
    """Notes every call for the giver of its lane: of a stream and the streams that were made beside it."""

    def __init__(self, torch: Torch, functions: Functions, loop: CallLoop) -> None:
        self._torch = torch
        self._functions = functions
        self._loop = loop
        self._shelves: dict[bool, list[int]] = {False: [], True: []}
        self._givers: list[Giver] = []
        context = ctypes.c_void_p()
        with torch.on_device():
            functions("cuCtxGetCurrent", ctypes.addressof(context))
        self._context = context.value or 0

    def new_stream(self, beside: NotedStream | None = None) -> NotedStream:
        stream = self._torch.new_stream()
        if beside is not None:
            return NotedStream(stream, stream.cuda_stream, beside.giver)
        giver = Giver(
            self._loop, self._on_device, self._functions.name_of, f"kv-offload-copies-{len(self._givers)}"
        )
        self._givers.append(giver)
        return NotedStream(stream, stream.cuda_stream, giver)

    def of_torch(self, stream: NotedStream) -> Any:
        """The stream as an object of torch."""
        return stream.of_torch

    def handle(self, stream: NotedStream) -> int:
        """The handle of the stream in the driver."""
        return stream.handle

    def mark_compute(self) -> Mark:
        mark = self._new_mark(None, knows_time=False)
        with self._torch.on_device():
            self._functions("cuEventRecord", mark.handle, self._torch.compute_stream().cuda_stream)
        return mark

    def mark(self, stream: NotedStream, *, knows_time: bool = False) -> Mark:
        mark = self._new_mark(stream.giver, knows_time=knows_time)
        self.call(stream, "cuEventRecord", (mark.handle, stream.handle), mark)
        return mark

    def hold(self, stream: NotedStream, event: Mark) -> None:
        self.call(stream, "cuStreamWaitEvent", (stream.handle, event.handle, 0), event)

    def call(
        self, stream: NotedStream, name: str, arguments: tuple[int, ...], *kept: object, copies: int = 1
    ) -> None:
        """Note a call of a function of the driver, and the objects that it reads."""
        stream.giver.note(self._functions.address(name), arguments, *kept, copies=copies)

    def act(self, stream: NotedStream, action: Action, copies: int = 1) -> None:
        """Note a call of a Python function."""
        stream.giver.note_action(action, copies=copies)

    def go(self, stream: NotedStream) -> None:
        stream.giver.go()

    def is_reached(self, event: Mark) -> bool:
        if event.giver is not None and not event.giver.is_given(event.number):
            return False
        result = self._functions.result("cuEventQuery", event.handle)
        if result not in (0, _NOT_READY):
            raise RuntimeError(f"cuEventQuery returned error {result}")
        return not result

    def wait_for(self, event: Mark) -> None:
        if event.giver is not None:
            event.giver.wait_for(event.number)
        self._functions("cuEventSynchronize", event.handle)

    def drain(self, stream: NotedStream) -> None:
        stream.giver.drain(lambda: self._functions("cuStreamSynchronize", stream.handle))

    def seconds_between(self, begin: Mark, end: Mark) -> float:
        milliseconds = ctypes.c_float(0)
        self._functions("cuEventElapsedTime", ctypes.addressof(milliseconds), begin.handle, end.handle)
        return milliseconds.value / 1000

    def shutdown(self) -> None:
        """End all threads."""
        for giver in self._givers:
            giver.end()
        for shelf in self._shelves.values():
            while shelf:
                self._functions.result("cuEventDestroy", shelf.pop())

    def _new_mark(self, giver: Giver | None, *, knows_time: bool) -> Mark:
        shelf = self._shelves[knows_time]
        if shelf:
            handle = shelf.pop()
        else:
            made = ctypes.c_void_p()
            with self._torch.on_device():
                self._functions("cuEventCreate", ctypes.addressof(made), 0 if knows_time else _WITHOUT_TIME)
            handle = made.value or 0
        return Mark(handle, shelf, giver, giver.number if giver else 0)

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        """A context in which the device is current, also in a thread that never used it."""
        with self._torch.on_device():
            self._functions("cuCtxSetCurrent", self._context)
            yield
