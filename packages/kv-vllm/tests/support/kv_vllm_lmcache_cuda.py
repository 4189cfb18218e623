"""What LMCache has of CUDA, here without a GPU: streams, events, copies, and what is done after a copy.

Copies and events are those of ``kv_vllm_gpu``. A copy is what LMCache gives to its copy engine: so many blocks
of an object in its memory, layer by layer. What LMCache has a driver's thread do after a copy is done when
somebody asks next.
"""

import copy
import itertools
import warnings
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace

from kv_vllm_gpu import CARDS, COMPUTE, Event, Stream

from kv_api import Direction

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its logging makes something of OpenTelemetry's that is deprecated
    from lmcache import device_ops
    from lmcache.lmcache_native import TransferDirection
    from lmcache.v1.platform.devices.cpu.cache_context import CPUCacheContext

CURRENT = SimpleNamespace(stream=COMPUTE, server=None)
"""The stream in which something is launched; the server that is at work."""


@contextmanager
def current(stream):
    """Launch in that one."""
    before, CURRENT.stream = CURRENT.stream, stream
    try:
        yield
    finally:
        CURRENT.stream = before


class Device:
    """``torch.cuda``, for a module of LMCache's."""

    stream = staticmethod(current)

    def device(self, device=None):
        """There is one."""
        return nullcontext()

    def current_stream(self, device=None):
        """That in which something is launched now."""
        return CURRENT.stream

    def synchronize(self, device=None):
        """What this process has launched has run: its steps, and nothing of another process's."""
        device = COMPUTE.card.device
        device.retire_until(device.copies.launched_steps)

    def empty_cache(self):
        """Nothing is kept."""


class Events:
    """Fits ``EventIPCBackend``. What another process gets of an event is its number."""

    device_type = "cpu"

    def __init__(self):
        self._numbers, self._events = itertools.count(1), {}

    def check_event_support(self, device):
        """They can be given to others."""

    def create_event(self, device):
        """One that hasn't been recorded."""
        return Event()

    def export_event(self, event, device):
        """What is said of it to another process: that which it stands for now."""
        number = next(self._numbers).to_bytes(8, "big")
        self._events[number] = copy.copy(event)
        return number

    def import_event(self, handle, device):
        """That one."""
        return self._events[handle]

    def record_event(self, event, stream):
        """It happens when all that is in the stream now has."""
        event.record(stream)

    def wait_event(self, event, stream):
        """What comes next in the stream comes after it."""
        stream.wait_event(event)

    def query_event(self, event):
        """Whether it has happened."""
        return event.query()

    def synchronize_event(self, event, device):
        """Let it happen."""
        event.synchronize()


EVENTS = Events()

# -- copies ------------------------------------------------------------------------------------


@dataclass
class Group:
    """Fits ``DirectCopyGroupSpec``: where its layers begin, and the blocks of all chunks."""

    layers: list
    shape: object
    kv_format: object
    slots: int
    offset: int
    blocks: list


@dataclass
class Object:
    """Fits ``DirectCopyObject``: some memory for a chunk."""

    address: int
    offset: int
    size: int
    chunk: int
    skipped: list


class Operations:
    """LMCache's for a device, with a copy engine."""

    DirectCopyGroupSpec, DirectCopyObject = Group, Object

    def __getattr__(self, name):
        return getattr(device_ops, name)

    def direct_copy_format_supported(self, kv_format):
        """Pages are copied as they are."""
        return True

    def execute_direct_copy_transfer(self, direction, device, pinned, groups, objects):
        """Begin to copy, in the current stream. A null block is nobody's, and isn't copied."""
        card = next(card for card in CARDS.values() if card.has(groups[0].layers[0]))
        size, pages = card.page_bytes, []
        for one in objects:
            for group, skipped in zip(groups, one.skipped, strict=True):
                count = group.slots // group.shape.bs
                assert group.offset + len(group.layers) * count * size <= one.size, "more than an object holds"
                for at, block in enumerate(group.blocks[one.chunk * count :][:count]):
                    if at < skipped or not block:
                        continue
                    found = [card.page_at(layer + block * size) for layer in group.layers]
                    assert [layer for layer, _ in found] == [*range(card.device.config.layers)], found
                    first = one.address + group.offset + at * size
                    places = tuple(first + layer * count * size for layer in range(len(found)))
                    pages.append((found[0][1], places))
        if pages:
            way = Direction.LOAD if direction == TransferDirection.H2D else Direction.STORE
            card.submit(way, pages, CURRENT.stream, in_order=True)


class Callbacks:
    """Fits ``DeviceHostFuncDispatcher``: what is to be done when a stream has come to it."""

    def __init__(self):
        self._functions, self._waiting = {}, []

    def register(self, kind, handler, payload_type):
        """What is done with that kind."""
        self._functions[kind] = handler

    def start(self):
        """Nothing is under way."""

    stop = start

    def add(self, stream, kind, payload):
        """When all that is in the stream now has happened."""
        event = Event()
        event.record(stream)
        self._waiting.append((event, kind, payload))

    def run(self):
        """What can be done, is."""
        ready = [one for one in self._waiting if one[0].query()]
        self._waiting = [one for one in self._waiting if one not in ready]
        for _, kind, payload in ready:
            self._functions[kind](payload)


def create_cache_context(*said, **named):
    """LMCache's for a CPU, with streams in which something may be under way."""
    context = CPUCacheContext(*said, **named)
    context.cuda_stream_ = context.cupy_stream_ = stream = Stream()
    stream.card = next(card for card in CARDS.values() if card.has(context.kv_pointers[0].item()))
    return context


def add_callback(stream, kind, payload):
    """Have something done when the stream has come to it."""
    CURRENT.server.callbacks.add(stream, kind, payload)
