"""A device that runs nothing until it is told to: streams are lists of what they were given, events are flags."""

import numpy as np

from kv_offload_cpu import Direction


class DeviceEvent:
    reached = False
    at = None


class FakeDevice:
    """A driver for `CudaCopyEngine`, over ``arrays`` of pages and host ``memory``.

    Stream 0 is the compute stream. ``failing`` names methods that raise, and ``asked`` lists the events that were
    asked for. Time is the number of operations done.
    """

    def __init__(self, arrays, memory):
        self.flat = [array.reshape(-1).view(np.uint8) for array in arrays]
        self.memory = memory
        self.streams = [[]]
        self.failing = set()
        self.asked = []
        self.clock = 0
        self.is_shut_down = False

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
        elif kind == "copy":
            self._copy(*operands)

    def run(self, random=None):
        """Do everything, in an order that ``random`` chooses."""
        while ready := self.runnable():
            self.step(random.choice(ready) if random else ready[0])

    # What the engine asks

    def new_stream(self):
        self.streams.append([])
        return len(self.streams) - 1

    def mark_compute(self):
        return self.mark(0)

    def mark(self, stream):
        self._may_fail("mark" if stream else "mark_compute")
        event = DeviceEvent()
        self.streams[stream].append(("mark", event))
        return event

    def hold(self, stream, event):
        self._may_fail("hold")
        self.streams[stream].append(("hold", event))

    def copy(self, stream, direction, ranges):
        self._may_fail("copy")
        self.streams[stream].append(("copy", direction, ranges))

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
        while self.streams[stream]:
            self.step(self.runnable()[0])

    def seconds_between(self, begin, end):
        return float(end.at - begin.at)

    def shutdown(self):
        self.is_shut_down = True

    def _copy(self, direction, ranges):
        for tensor, device, host, size in zip(*(column.tolist() for column in ranges), strict=True):
            on_device, on_host = self.flat[tensor][device : device + size], self.memory[host : host + size]
            if direction is Direction.STORE:
                on_host[:] = on_device
            else:
                on_device[:] = on_host

    def _may_fail(self, method):
        if method in self.failing:
            raise RuntimeError(f"{method} failed")
