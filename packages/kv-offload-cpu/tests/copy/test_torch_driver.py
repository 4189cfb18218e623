"""The driver over torch with all methods, on a CPU that pretends to be a GPU: each call is done when it is made.

So nothing is shown of order, which ``test_cuda_methods`` does. Shown is that the driver gives the right bytes in
the right form to torch, to the batched copy and to the kernel.
"""

import ctypes
import sys
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import product
from time import perf_counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kv_offload_cpu_device import move_of
from kv_offload_cpu_layouts import Shape, Tensor, canonical
from kv_offload_cpu_torch import check_jobs

from kv_api import CanonicalKVCacheRef
from kv_offload_cpu import CopyEngineChoice, Direction, HostLayout
from kv_offload_cpu.copy.choose import METHODS, method_maker
from kv_offload_cpu.copy.cuda.methods.batch import OneBatch
from kv_offload_cpu.copy.cuda.methods.page_table import Kernels, Launch, Steps
from kv_offload_cpu.copy.cuda.methods.staged import TwoHalves
from kv_offload_cpu.copy.cuda.trial import TINY, Trial
from kv_offload_cpu.copy.ranges.descriptors import CopyPlan
from kv_offload_cpu.copy.ranges.tensors import TensorPages, device_tensors

pytestmark = pytest.mark.torch

NUM_CHUNKS = 6


class Stream:
    """Has done everything."""

    cuda_stream = 77

    def __init__(self, device=None):
        self.waited_for = []

    def wait_event(self, event):
        assert event.at is not None, "an event that was never recorded"
        self.waited_for.append(event)

    def synchronize(self):
        pass


class Event:
    def __init__(self, enable_timing=False):
        self.at = None
        self.knows_time = enable_timing

    def record(self, stream):
        self.at = perf_counter()

    def query(self):
        return self.at is not None

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        assert self.knows_time and other.knows_time
        return 1000 * (other.at - self.at)


class Registry:
    """CUDA's list of pinned memory, and the kernels that were compiled and launched."""

    def __init__(self):
        self.calls = []
        self.kernels = []
        self.device = None
        self.num_bulk_calls = 0

    @contextmanager
    def on(self, device):
        """While a device is the current one."""
        before, self.device = self.device, device
        yield
        self.device = before

    def bulk_call(self):
        """What makes kernels of bulk copies on the current device."""
        assert self.device is not None, "on whatever device was the current one"
        self.num_bulk_calls += 1
        return SimpleNamespace(kernel=partial(Kernel, self, Kernels.BULK))

    def strided_call(self):
        """The batched copy of rectangles of the current device."""
        assert self.device is not None, "on whatever device was the current one"
        return Rectangles()

    def cudaHostRegister(self, address, size, flags):
        self.calls.append(("register", address, size, flags))
        return 0

    def cudaHostUnregister(self, address):
        self.calls.append(("unregister", address))
        return 0


class Batches:
    """The batched copy, done by C."""

    def __call__(self, stream, batch, begin, end):
        assert stream == Stream.cuda_stream
        for target, source, size in zip(*(column[begin:end].tolist() for column in batch.moves), strict=True):
            ctypes.memmove(target, source, size)


class Rectangles:
    """The batched copy of rectangles, done by C."""

    most_pitch = 1 << 31

    def __call__(self, stream, batch, begin, end):
        assert stream == Stream.cuda_stream
        rows = zip(*(column[begin:end].tolist() for column in batch.columns), strict=True)
        for target, target_pitch, source, source_pitch, width, height in rows:
            for row in range(height):
                ctypes.memmove(target + row * target_pitch, source + row * source_pitch, width)


class Bindings:
    """A copy to the device, done by C."""

    def cuMemcpyAsync(self, target, source, num_bytes, stream):
        assert stream == Stream.cuda_stream
        ctypes.memmove(target, source, num_bytes)
        return (0,)


class Kernel:
    """A kernel of either kind, done by C."""

    def __init__(self, registry, kind, steps, num_steps, *, is_store, word):
        self.kind = kind
        self.steps, self.num_steps, self.word = steps, num_steps, word
        self.direction = Direction.STORE if is_store else Direction.LOAD
        self.launched = []
        self.registry, self.device = registry, registry.device
        assert self.device is not None, "on whatever device was the current one"
        registry.kernels.append(self)

    def launch(self, stream, table, num_rows, rows, programs):
        assert (stream, self.registry.device) == (Stream.cuda_stream, self.device)
        self.launched.append((rows, programs))
        steps = Steps(self.steps.numpy(), self.num_steps, self.word)
        launch = Launch(self.direction, None, num_rows, rows, steps, programs)
        for row, step in product(rows, range(self.num_steps)):
            target, source, size = move_of(launch, table.numpy(), row, step)
            assert target % self.word == source % self.word == size % self.word == 0
            ctypes.memmove(target, source, size)


@pytest.fixture
def registry(monkeypatch):
    import torch

    registry = Registry()
    for name, pretended in {
        "Stream": Stream,
        "Event": Event,
        "stream": lambda stream: nullcontext(),
        "device": registry.on,
        "current_stream": lambda device: Stream(),
        "cudart": lambda: registry,
    }.items():
        monkeypatch.setattr(torch.cuda, name, pretended)
    driver = "kv_offload_cpu.copy.cuda.torch_driver"
    __import__(driver)
    monkeypatch.setattr(f"{driver}.BatchCall", Batches)
    monkeypatch.setattr(f"{driver}.StridedCall", registry.strided_call)
    monkeypatch.setattr(f"{driver}.load_bindings", lambda purpose: Bindings())
    monkeypatch.setattr(f"{driver}.mapped_address", lambda bindings, address: address)
    kernels = SimpleNamespace(Kernel=partial(Kernel, registry, Kernels.GATHER))
    monkeypatch.setattr(f"{driver}.BulkCall", registry.bulk_call)
    monkeypatch.setattr("kv_offload_cpu.copy.cuda.trial.MOST_BYTES", 1 << 10)
    monkeypatch.setattr("kv_offload_cpu.copy.cuda.trial.TIMES", 1)
    monkeypatch.setitem(METHODS, CopyEngineChoice.CUDA_STAGED, partial(TwoHalves, half_bytes=64))
    monkeypatch.setitem(sys.modules, "kv_offload_cpu.copy.cuda.gather_kernel", kernels)
    monkeypatch.setattr("kv_offload_cpu.copy.cuda.gather_kernel", kernels, raising=False)
    return registry


UNITS = {CopyEngineChoice.CUDA_BULK: [16]}
"""In bytes, what all pages are multiples of."""


@pytest.mark.parametrize("choice", [CopyEngineChoice.AUTO, CopyEngineChoice.CUDA_BEST, *METHODS])
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=max(10, settings().max_examples // 2)
)
@given(data=st.data())
def test_what_is_stored_by_a_method_is_what_it_loads(choice, registry, data):
    registry.calls.clear()
    address, num_bytes = check_jobs(data, choice, "cpu", UNITS.get(choice, [1, 16]))
    assert registry.calls == [("register", address, num_bytes, 2), ("unregister", address)]


@pytest.fixture
def make(registry):
    """Makes drivers over one layer of one page."""
    import torch

    from kv_offload_cpu.copy.cuda.torch_driver import TorchDriver

    shape = Shape(1, 1, (Tensor(8),), (((0, 8),),))
    tensors = device_tensors(canonical(shape, [torch.zeros((1, 8), dtype=torch.int8)]))
    memory = np.zeros(8, np.uint8)
    return lambda *, pin_memory=True: TorchDriver(tensors, memory, pin_memory=pin_memory)


def test_batches_of_torch_prove_themselves(make):
    driver = make()
    driver.enable_batches()
    stream = driver.new_stream()
    trial = Trial(driver, stream, TINY)
    assert trial.run(partial(OneBatch, driver, stream)), "nothing was tried"
    trial.close()


def test_memory_is_pinned_and_unpinned_once_and_only_if_wanted(make, registry):
    driver = make()
    assert driver.is_pinned
    driver.shutdown()
    driver.shutdown()
    assert [call[0] for call in registry.calls] == ["register", "unregister"]
    assert not make(pin_memory=False).is_pinned
    assert len(registry.calls) == 2


@pytest.mark.parametrize(
    "choice", [CopyEngineChoice.CUDA_GATHER, CopyEngineChoice.CUDA_BULK, CopyEngineChoice.CUDA_STAGED]
)
def test_kernels_for_both_directions_are_compiled_before_the_first_job(make, registry, choice):
    driver = make()
    plan = CopyPlan([TensorPages(1, 8, 8, 1 << 20)], [[CanonicalKVCacheRef(0, 8)]], HostLayout(1, 1, 8, 1, 8), 0)
    method_maker(driver, choice, plan)(driver.new_stream())
    assert [(kernel.direction, kernel.word, kernel.num_steps) for kernel in registry.kernels] == [
        (direction, 8, 1) for direction in Direction
    ]
    assert [kernel.launched for kernel in registry.kernels] == [[], []]


def test_both_kinds_of_kernels_stand_side_by_side_and_one_is_loaded_once(make, registry):
    driver = make()
    for _ in range(2):
        driver.enable_kernels()
        driver.enable_bulk()
    assert registry.num_bulk_calls == 1
    for kind in Kernels:
        steps = driver.new_steps(np.zeros(5, np.int64), 1, 16, kind)
        assert {kernel.kind for kernel in steps.kernels.values()} == {kind}


def test_as_many_rows_of_a_table_are_uploaded_as_asked(make):
    driver = make()
    driver.enable_kernels()
    table = driver.new_table(4)
    table.numbers[:] = np.arange(12)
    table.on_device.fill_(-1)
    driver.upload(driver.new_stream(), table, 3)
    assert table.on_device.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, -1, -1, -1]


def test_streams_and_events_are_those_of_torch(make):
    driver = make()
    stream = driver.new_stream()
    begin, end = driver.mark_time(stream), driver.mark_time(stream)
    assert not driver.mark(stream).knows_time and not driver.mark_compute().knows_time
    begin.at, end.at = 2.0, 2.5
    assert driver.seconds_between(begin, end) == 0.5
    driver.hold(stream, begin)
    assert stream.waited_for == [begin]
    assert driver.is_reached(begin)
    assert not driver.is_reached(Event())
