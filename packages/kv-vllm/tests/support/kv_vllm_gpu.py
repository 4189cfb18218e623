"""What a connector of vLLM's needs of a GPU, over the copies of a testbed's device: streams, events and copies.

A copy runs when the world says, after what its stream waits for and after nothing else, and an event has happened
when all before it has. Threads of the connector's own are real, and take turns with the world's: one runs when it
is told to (``let_threads_work``), until it has nothing to do, or waits for an event. So histories repeat.

Host memory is the connector's own. The testbed has an image of each page of it, which a copy moves from and to.
"""

import ctypes
import itertools
import queue
import threading
import warnings
import weakref
from types import SimpleNamespace

import numpy as np
import torch

from kv_api import Direction

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM compiles something when it is imported
    import vllm.forward_context  # noqa: F401 - which is where it does so

    from kv_vllm.driver.surroundings.tensors import device_of

HANDLES = itertools.count(1)
STREAMS = weakref.WeakValueDictionary()
"""Handle -> stream."""
CARDS = weakref.WeakValueDictionary()
"""Address of the memory of a device -> its card."""
MINE = threading.local()
"""Of a thread of a connector's: the jobs that it works at."""
STREAM_ORDER = 1
"""``CU_MEMCPY_SRC_ACCESS_ORDER_STREAM``: the source is read when the copy's turn has come, and not before."""


class Card:
    """A device as one who copies by addresses knows it."""

    may_fail = False
    """Whether who copies hears of a copy that failed; a GPU's own don't."""

    def __init__(self, tensor):
        self.device = device = device_of(tensor)
        self.copies = device.copies.open()
        self.base = device.memory.__array_interface__["data"][0]
        self.page_bytes = device.config.page_bytes
        self._slots = {}
        """Where the layers of a page lie in the host's memory -> the number of its image."""
        self._put = {}
        """Number of an image -> what it was when it was last made of the page, or the page of it."""
        self._stores = {}
        """Stores under way -> where in the host's memory their pages go, by image."""
        self.failed = set()
        """Copies that did."""
        CARDS[self.base] = self

    def has(self, address):
        """Whether it is an address of the device's memory."""
        return self.base <= address < self.base + self.device.memory.nbytes

    def run_out(self, let_threads_work):
        """Let threads work and copies end, until there are none but such as never will."""
        let_threads_work()
        lost = set()
        while running := [copy for copy in self.device.copies.running if copy not in lost]:
            lost |= self.copies.wait(running)
            let_threads_work()

    def page_at(self, address):
        """Layer and block of an address."""
        page, rest = divmod(address - self.base, self.page_bytes)
        assert rest == 0, f"{rest} bytes into a page"
        return divmod(page, self.device.config.num_blocks)

    def submit(self, direction, pages, stream, *, in_order):
        """Begin a copy of ``pages``: (block, addresses of its layers in the host's memory)."""
        pairs = [(block, self._slot(places)) for block, places in pages]
        copy = self.copies.submit(direction, pairs, after_compute=False, stream=f"stream {stream.cuda_stream}")
        if in_order:
            self.device.copies.running[copy].after_step = stream.step
        if direction is Direction.STORE:
            self._stores[copy] = {slot: places for (_, places), (_, slot) in zip(pages, pairs, strict=True)}
        else:
            for (_, places), (_, slot) in zip(pages, pairs, strict=True):
                self._take_over(slot, places)
        stream.card, stream.copy = self, copy

    def _slot(self, places):
        if places not in self._slots:
            self._slots[places] = self.device.allocate_host(1)
        return self._slots[places]

    def _take_over(self, slot, places):
        """What somebody else wrote into the host's memory is what is loaded."""
        page = b"".join(ctypes.string_at(place, self.page_bytes) for place in places)
        if self._put.get(slot) != page:
            self.device.host[slot] = np.frombuffer(page, np.uint64).reshape(self.device.host[slot].shape)
            self._put[slot] = page

    def deliver(self):
        """What was stored by now is in the host's memory."""
        for result in self.copies.poll():
            if not result.success:
                assert self.may_fail, "a copy of a GPU's doesn't fail"
                self.failed.add(result.copy_id)
                self._stores.pop(result.copy_id, None)
            for slot, places in self._stores.pop(result.copy_id, {}).items():
                self._put[slot] = page = self.device.host[slot].tobytes()
                for layer, place in enumerate(places):
                    begin = layer * self.page_bytes
                    ctypes.memmove(place, page[begin : begin + self.page_bytes], self.page_bytes)


class Stream:
    """A queue of copies. It knows what the next one has to wait for, and the last one."""

    def __init__(self, *args, **kwargs):
        self.cuda_stream = next(HANDLES)
        self.step, self.card, self.copy = 0, None, None
        STREAMS[self.cuda_stream] = self

    @staticmethod
    def priority_range():
        """Least and greatest."""
        return (0, 0)

    def wait_event(self, event):
        """What comes next comes after a step of the device that computes."""
        assert event.copy is None, "one stream of copies that waits for another isn't known here"
        self.step = max(self.step, event.step)


class ComputeStream:
    """That of the rank that is at work. It is the device's own queue of steps."""

    card = copy = None

    @property
    def step(self):
        """The last step that was launched."""
        return self.card.device.copies.launched_steps


COMPUTE = ComputeStream()


class Event:
    """A place in a stream."""

    def __init__(self, *args, **kwargs):
        self.step, self.card, self.copy = 0, None, None

    def record(self, stream):
        """It happens when all that is in the stream now has."""
        self.step, self.card, self.copy = stream.step, stream.card, stream.copy

    def query(self):
        """Whether it has happened."""
        if self.card is None:
            return True
        self.card.deliver()
        device = self.card.device
        return self.step <= device.retired_steps and self.copy not in device.copies.running

    def synchronize(self):
        """Wait for it: a thread of a connector's until it is so, the world's by letting it happen now."""
        jobs = getattr(MINE, "jobs", None)
        if jobs is not None:
            while not self.query():
                jobs.rest()
        elif self.card is not None:
            self.card.device.retire_until(self.step)
            assert self.copy is None or not self.card.copies.wait([self.copy]), "it never happens"
            self.card.deliver()


def copy_batch(to, from_, sizes, count, attributes, first, number, failed, handle):
    """Fits ``cuMemcpyBatchAsync``: from addresses to addresses, so many bytes each; layer by layer, all pages."""
    targets, sources, lengths = ((ctypes.c_uint64 * count).from_address(array)[:] for array in (to, from_, sizes))
    card = next(card for card in CARDS.values() if card.has(targets[0]) or card.has(sources[0]))
    assert set(lengths) == {card.page_bytes}, f"pages of {set(lengths)} bytes"
    direction = Direction.LOAD if card.has(targets[0]) else Direction.STORE
    gpu, host = (targets, sources) if direction is Direction.LOAD else (sources, targets)
    layers = card.device.config.layers
    pages = []
    for number_in_layer in range(count // layers):
        places = [card.page_at(gpu[index]) for index in range(number_in_layer, count, count // layers)]
        [block] = {block for _, block in places}
        assert [layer for layer, _ in places] == [*range(layers)], f"layers of a page: {places}"
        pages.append((block, tuple(host[number_in_layer :: count // layers])))
    order = ctypes.c_uint.from_address(attributes).value
    card.submit(direction, pages, STREAMS[handle], in_order=order == STREAM_ORDER or direction is Direction.LOAD)
    return 0


class Jobs:
    """A ``SimpleQueue`` of what a thread does, which gets a job when it is its turn."""

    def __init__(self):
        self._jobs = queue.SimpleQueue()
        self._turn = threading.Condition()
        self._is_threads = False
        self.has_ended = False

    def put(self, job):
        """For later."""
        self._jobs.put(job)
        if job is None:  # it is told to end
            self.let_thread_work()

    def get(self):
        """The next job, when there is one and it is the thread's turn."""
        MINE.jobs = self
        self._wait_for_turn()
        while self._jobs.empty():
            self.rest()
        return self._jobs.get()

    def rest(self):
        """It is the world's turn."""
        self._give_turn(thread=False)
        self._wait_for_turn()

    def _wait_for_turn(self):
        with self._turn:
            self._turn.wait_for(lambda: self._is_threads)

    def _give_turn(self, *, thread):
        with self._turn:
            self._is_threads = thread
            self._turn.notify_all()

    def let_thread_work(self):
        """Until it rests, or has ended."""
        if not self.has_ended:
            self._give_turn(thread=True)
            with self._turn:
                assert self._turn.wait_for(lambda: not self._is_threads, timeout=60), "it neither rests nor ends"

    def end(self):
        """Its thread has come to an end, however."""
        self.has_ended = True
        self._give_turn(thread=False)


class Thread(threading.Thread):
    """One that works at jobs, and says when it ends."""

    def run(self):
        try:
            super().run()
        finally:
            MINE.jobs.end()


class Torch:
    """torch, for a module that has a GPU."""

    Event = Event

    def __init__(self, register):
        self.cuda = SimpleNamespace(
            Stream=Stream,
            Event=Event,
            current_stream=lambda: COMPUTE,
            cudart=lambda: SimpleNamespace(cudaHostRegister=register),
        )

    def __getattr__(self, name):
        return getattr(torch, name)


def registered(address, size, flags):
    """Memory of the host's that a GPU may copy from and to; all of it may."""
    return SimpleNamespace(value=0)


TORCH = Torch(registered)
QUEUE = SimpleNamespace(SimpleQueue=Jobs)
THREADING = SimpleNamespace(Thread=Thread)
