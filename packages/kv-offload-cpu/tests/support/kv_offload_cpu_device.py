"""A device that runs nothing until it is told to: streams are lists of what they were given, events are flags."""

import ctypes
from itertools import product
from typing import NamedTuple

import numpy as np

from kv_offload_cpu import Direction
from kv_offload_cpu.copy.cuda.methods.batch import SourceOrder
from kv_offload_cpu.copy.cuda.methods.page_table import COLUMNS, Kernels


class DeviceEvent:
    reached = False
    at = None
    knows_time = False


class DeviceTable:
    """Numbers on the host, and what was uploaded of them."""

    def __init__(self, num_rows):
        self.numbers = np.full(COLUMNS * num_rows, -1, np.int64)
        self.on_device = self.numbers.copy()


class Copy(NamedTuple):
    """A copy of a batch; ``early`` are the bytes of its source, if they were read before its turn."""

    target: int
    source: int
    size: int
    early: bytes | None


def move_of(launch, numbers, row, step):
    """Where a step of a page goes, where it comes from, and its bytes."""
    block, base, offset = numbers[: COLUMNS * launch.num_rows].reshape(COLUMNS, -1)[:, row].tolist()
    address, stride, place, page_bytes, size = launch.steps.on_device.reshape(5, -1)[:, step].tolist()
    on_device, on_host = address + block * stride, base + place + offset * page_bytes
    return (on_host, on_device, size) if launch.direction is Direction.STORE else (on_device, on_host, size)


class FakeDevice:
    """A driver for `CudaCopyEngine` and all its methods, over ``arrays`` of pages and host ``memory``.

    Stream 0 is the compute stream. ``failing`` names methods that raise, and ``asked`` lists the events that were
    asked for. Time is the number of operations done. Addresses are real ones; each is looked up before it is used.
    What the device may do in any order it does in the order of ``random``, or backwards. Until it is told to go, a
    stream has nothing of what it was given; ``gone`` says what went together.
    """

    def __init__(self, arrays, memory, random=None):
        self.flat = [array.reshape(-1).view(np.uint8) for array in arrays]
        self.memory = memory
        self.random = random
        self.stages = []
        self.tables = []
        self.streams = [[]]
        self.lanes = [0]
        self.noted = []
        self.gone = []
        self.failing = set()
        self.asked = []
        self.calls = []
        self.kernels = []
        self.clock = 0
        self.is_shut_down = False
        self.mapped_shift = 0
        self.is_pinned = True
        self.stage_kernels = Kernels.GATHER

    # What a test does

    def compute(self, action):
        """Give the compute stream something to do."""
        self.streams[0].append(("act", action))

    def runnable(self):
        """The streams whose next operation can run now."""
        return [
            index
            for index, stream in enumerate(self.streams)
            if stream and (stream[0][0] != "hold" or stream[0][1].reached)
        ]

    def step(self, index):
        """Do the next operation of a stream."""
        kind, *operands = self.streams[index].pop(0)
        self.clock += 1
        if kind == "act":
            operands[0]()
        elif kind == "mark":
            operands[0].reached, operands[0].at = True, self.clock
        elif kind != "hold":
            getattr(self, f"_{kind}")(*operands)

    def run(self, random=None):
        """Do everything, in an order that ``random`` chooses."""
        while ready := self.runnable():
            self.step(random.choice(ready) if random else ready[0])

    # What the engine asks

    def new_stream(self, beside=None):
        self.lanes.append(len(self.streams) if beside is None else self.lanes[beside])
        self.streams.append([])
        return len(self.streams) - 1

    def go(self, stream):
        self._may_fail("go")
        self._go(stream)

    def _go(self, stream):
        going = [noted for noted in self.noted if self.lanes[noted[0]] == self.lanes[stream]]
        self.noted = [noted for noted in self.noted if self.lanes[noted[0]] != self.lanes[stream]]
        self.gone.append([operation[0] for _, operation in going])
        for to, operation in going:
            self.streams[to].append(operation)

    def mark_compute(self):
        return self.mark(0)

    def mark(self, stream):
        self._may_fail("mark" if stream else "mark_compute")
        event = DeviceEvent()
        self._give(stream, ("mark", event))
        if not stream:  # what the model is given goes at once
            self._go(0)
        return event

    def mark_time(self, stream):
        self._may_fail("mark_time")
        event = self.mark(stream)
        event.knows_time = True
        return event

    def hold(self, stream, event):
        self._may_fail("hold")
        self._give(stream, ("hold", event))

    def is_reached(self, event):
        self._may_fail("is_reached")
        self.asked.append(event)
        return event.reached

    def wait_for(self, event):
        self._may_fail("wait_for")
        while not event.reached:
            self.step(self.runnable()[0])

    def drain(self, stream):
        self._may_fail("drain")
        self._go(stream)
        while self.streams[stream]:
            self.step(self.runnable()[0])

    def seconds_between(self, begin, end):
        assert begin.knows_time and end.knows_time
        return float(end.at - begin.at)

    def shutdown(self):
        self.is_shut_down = True

    # What methods ask

    def copy(self, stream, direction, ranges):
        self._may_fail("copy")
        self._give(stream, ("ranges", direction, [column.tolist() for column in ranges]))

    def copy_batch(self, stream, batch, begin, end):
        self._may_fail("copy_batch")
        assert begin < end, "an empty batch"
        rows = list(zip(*(column[begin:end].tolist() for column in batch.moves), strict=True))
        self.calls.append(("batch", batch.order, len(rows)))
        self._give_copies(stream, batch.order, rows)

    def new_table(self, num_rows):
        self._may_fail("new_table")
        self.tables.append(DeviceTable(num_rows))
        return self.tables[-1]

    def upload(self, stream, table, num_rows):
        self._may_fail("upload")
        self._give(stream, ("upload", table, num_rows))

    def new_steps(self, numbers, count, word, kernels):
        self._may_fail("new_steps")
        self.kernels.append(kernels)
        return numbers.copy()

    def run_kernel(self, stream, launch):
        self._may_fail("run_kernel")
        self.calls.append(
            ("kernel", len(launch.rows) * launch.steps.num_steps, launch.steps.word, launch.programs)
        )
        self._give(stream, ("kernel", launch))

    def new_stage(self, num_bytes):
        self.stages.append(np.full(num_bytes, 0xEE, np.uint8))
        return self.stages[-1].ctypes.data

    def free_stage(self, address):
        self.stages = [stage for stage in self.stages if stage.ctypes.data != address]

    # Operations

    def _give(self, stream, operation):
        self.noted.append((stream, operation))

    def _give_copies(self, stream, order, rows):
        """Copies of targets, sources and sizes. Where the device may read early, it does: now, or later."""
        early = [order is SourceOrder.ANY and (not self.random or self.random.random() < 0.5) for _ in rows]
        copies = [
            Copy(*row, self._read(*row[1:]) if is_early else None)
            for row, is_early in zip(rows, early, strict=True)
        ]
        self._give(stream, ("batch", copies))

    def _ranges(self, direction, ranges):
        for tensor, device, host, size in zip(*ranges, strict=True):
            begin, at = device - self.flat[tensor].ctypes.data, host - self.memory.ctypes.data
            on_device, on_host = self.flat[tensor][begin : begin + size], self.memory[at : at + size]
            if direction is Direction.STORE:
                on_host[:] = on_device
            else:
                on_device[:] = on_host

    def _batch(self, copies):
        for copy in self._any_order(copies):
            self._write(copy.target, copy.early or self._read(copy.source, copy.size))

    def _upload(self, table, num_rows):
        table.on_device[: COLUMNS * num_rows] = table.numbers[: COLUMNS * num_rows]

    def _kernel(self, launch):
        for row, step in self._any_order(list(product(launch.rows, range(launch.steps.num_steps)))):
            target, source, size = move_of(launch, launch.table.on_device, row, step)
            assert target % launch.steps.word == source % launch.steps.word == size % launch.steps.word == 0
            self._write(target, self._read(source, size))

    def _any_order(self, operations):
        if self.random:
            return self.random.sample(operations, len(operations))
        return reversed(operations)

    def _read(self, address, size):
        self._check(address, size)
        return ctypes.string_at(address, size)

    def _write(self, address, data):
        self._check(address, len(data))
        ctypes.memmove(address, data, len(data))

    def _check(self, address, size):
        pinned = [table.numbers.view(np.uint8) for table in self.tables]
        known = [*self.flat, self.memory, *self.stages, *pinned]
        inside = [block.ctypes.data <= address <= block.ctypes.data + len(block) - size for block in known]
        assert size > 0 and any(inside), f"{size} bytes at {address:#x} are nobody's"

    def _may_fail(self, method):
        if method in self.failing:
            raise RuntimeError(f"{method} failed")
