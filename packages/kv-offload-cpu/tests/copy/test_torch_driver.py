"""The driver over torch with all methods, on a CPU that pretends to be a GPU: each call is done when it is made.

So nothing is shown of order, which ``test_cuda_methods`` does. Shown is that the driver gives the right bytes in
the right form to torch, to the driver's functions and to the kernel, at once or by threads.
"""

import ctypes
import sys
import weakref
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import product
from logging import INFO
from time import perf_counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kv_offload_cpu_device import move_of
from kv_offload_cpu_driver import FakeBindings
from kv_offload_cpu_layouts import Shape, Tensor, canonical
from kv_offload_cpu_torch import check_jobs

from kv_api import CanonicalKVCacheRef, ConfigError
from kv_offload_cpu import CopyEngineChoice, CopySubmission, Direction, HostLayout
from kv_offload_cpu.copy.choose import METHODS, by_buffer, method_maker
from kv_offload_cpu.copy.compiled import Unavailable
from kv_offload_cpu.copy.cuda.bulk_call import BulkKernel
from kv_offload_cpu.copy.cuda.methods.batch import Batch, OneBatch, SourceOrder
from kv_offload_cpu.copy.cuda.methods.page_table import Kernels, Launch, Steps, columns_of
from kv_offload_cpu.copy.cuda.nvrtc import WrongDeviceError
from kv_offload_cpu.copy.cuda.plain_call import WARPS, PlainKernel
from kv_offload_cpu.copy.cuda.trial import TINY, Trial
from kv_offload_cpu.copy.ranges.addresses import Moves
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


PLAIN_FUNCTION = 0xBF


class Registry:
    """CUDA's list of pinned memory, and the kernels that were compiled and launched."""

    def __init__(self):
        self.calls = []
        self.kernels = []
        self.device = None
        self.num_bulk_calls = self.num_plain_calls = 0
        self.bindings = FakeBindings()

    @contextmanager
    def on(self, device):
        """While a device is the current one."""
        before, self.device = self.device, device
        with self.bindings.current():
            yield
        self.device = before

    def bulk_call(self):
        """What makes kernels of bulk copies on the current device."""
        assert self.device is not None, "on whatever device was the current one"
        self.num_bulk_calls += 1
        return SimpleNamespace(kernel=partial(Kernel, self, Kernels.BULK))

    def plain_call(self):
        """What makes kernels for buffers, whose launches are calls of the driver."""
        assert self.device is not None, "on whatever device was the current one"
        self.num_plain_calls += 1
        return SimpleNamespace(kernel=partial(PlainKernel, PLAIN_FUNCTION))

    def cudaHostRegister(self, address, size, flags):
        self.calls.append(("register", address, size, flags))
        return 0

    def cudaHostUnregister(self, address):
        self.calls.append(("unregister", address))
        return 0


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
    for module in ("batch_call", "streams", "torch_driver"):
        monkeypatch.setattr(f"kv_offload_cpu.copy.cuda.{module}.load_bindings", lambda purpose: registry.bindings)
    kernels = SimpleNamespace(Kernel=partial(Kernel, registry, Kernels.GATHER))
    monkeypatch.setattr(f"{driver}.BulkCall", registry.bulk_call)
    monkeypatch.setattr(f"{driver}.PlainCall", registry.plain_call)
    monkeypatch.setattr("kv_offload_cpu.copy.cuda.trial.MOST_BYTES", 1 << 10)
    monkeypatch.setattr("kv_offload_cpu.copy.cuda.trial.TIMES", 1)
    monkeypatch.setitem(METHODS, CopyEngineChoice.CUDA_STAGED, partial(by_buffer, half_bytes=64))
    monkeypatch.setitem(sys.modules, "kv_offload_cpu.copy.cuda.gather_kernel", kernels)
    monkeypatch.setattr("kv_offload_cpu.copy.cuda.gather_kernel", kernels, raising=False)
    return registry


UNITS = {CopyEngineChoice.CUDA_BULK: [16]}
"""In bytes, what all pages are multiples of."""


@pytest.mark.parametrize("submission", CopySubmission)
@pytest.mark.parametrize("choice", [CopyEngineChoice.AUTO, CopyEngineChoice.CUDA_BEST, *METHODS])
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=max(10, settings().max_examples // 2)
)
@given(data=st.data())
def test_what_is_stored_by_a_method_is_what_it_loads(choice, submission, registry, data):
    registry.calls.clear()
    address, num_bytes = check_jobs(data, choice, submission, "cpu", UNITS.get(choice, [1, 16]))
    assert registry.calls == [("register", address, num_bytes, 2), ("unregister", address)]


@pytest.fixture
def make(registry):
    """Makes drivers over one layer of one page."""
    import torch

    from kv_offload_cpu.copy.cuda.torch_driver import TorchDriver

    shape = Shape(1, 1, (Tensor(8),), (((0, 8),),))
    tensors = device_tensors(canonical(shape, [torch.zeros((1, 8), dtype=torch.int8)]))
    memory = np.zeros(8, np.uint8)
    return lambda *, pin_memory=True, **notes: TorchDriver(tensors, memory, pin_memory=pin_memory, **notes)


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


def test_memory_that_the_driver_does_not_register_is_not_pinned(make, registry, monkeypatch, caplog):
    monkeypatch.setattr(registry, "cudaHostRegister", lambda *told: 2)
    driver = make()
    assert not driver.is_pinned
    assert [record.getMessage() for record in caplog.records] == [
        "host memory is not pinned, copies will be slower: cudaHostRegister returned error 2"
    ]
    driver.shutdown()
    assert registry.calls == []


def test_a_buffer_that_was_given_back_is_let_go_of(make):
    driver = make()
    address, other = driver.new_stage(8), driver.new_stage(8)
    driver.free_stage(address)
    assert [*driver._stages] == [other]


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


def test_kinds_of_kernels_stand_side_by_side_and_one_is_loaded_once(make, registry):
    driver = make()
    for _ in range(2):
        driver.enable_kernels()
        driver.enable_bulk()
    assert registry.num_bulk_calls == 1
    for kind in (Kernels.GATHER, Kernels.BULK):
        steps = driver.new_steps(np.zeros(5, np.int64), 1, 16, kind)
        assert {kernel.kind for kernel in steps.kernels.values()} == {kind}


def test_as_many_rows_of_a_table_are_uploaded_as_asked(make):
    driver = make()
    driver.enable_kernels()
    table = driver.new_table(4)
    table.numbers[:] = np.arange(12)
    table.on_device.fill_(-1)
    stream = driver.new_stream()
    driver.upload(stream, table, 3)
    driver.go(stream)
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


def test_threads_give_what_is_noted_if_that_is_wanted(make, registry):
    assert not make().notes
    driver = make(notes=True)
    assert driver.notes
    driver.enable_kernels()
    table, stream = driver.new_table(4), driver.new_stream()
    driver.upload(stream, table, 3)
    assert "cuMemcpyAsync" not in registry.bindings.calls
    driver.go(stream)
    assert "cuMemcpyAsync" in registry.bindings.calls


def test_what_a_noted_call_reads_is_kept_until_it_was_made(make):
    driver = make(notes=True)
    driver.enable_batches()
    driver.enable_kernels()
    source, target, stream = np.arange(8, dtype=np.uint8), np.zeros(8, np.uint8), driver.new_stream()
    columns = ([target.ctypes.data], [source.ctypes.data], [8])
    table, batch = driver.new_table(4), Batch(Moves(*map(np.array, columns)), SourceOrder.ANY)
    is_there = [weakref.ref(table), weakref.ref(batch)]
    driver.upload(stream, table, 3)
    driver.copy_batch(stream, batch, 0, 1)
    del table, batch
    assert all(one() is not None for one in is_there)
    driver.go(stream)
    assert target.tolist() == source.tolist()
    assert not any(one() is not None for one in is_there)


@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        ("loop", "a native loop for that needs something"),
        ("bindings", "copy_engine: a call of the driver needs cuda-bindings"),
    ],
)
def test_who_cannot_have_threads_gives_at_once_and_the_log_says_why(make, monkeypatch, caplog, lacking, said):
    caplog.set_level(INFO, "kv_offload_cpu")
    if lacking == "loop":
        missing = Unavailable("needs something", "", INFO)
        monkeypatch.setattr("kv_offload_cpu.copy.cuda.torch_driver.find_loop", lambda: missing)
    else:

        def load_bindings(purpose):
            raise ConfigError(f"copy_engine: {purpose} needs cuda-bindings")

        monkeypatch.setattr("kv_offload_cpu.copy.cuda.streams.load_bindings", load_bindings)
    assert not make(notes=True).notes
    assert [record.getMessage() for record in caplog.records] == [
        f"the submitting thread itself issues copies: {said}"
    ]


@pytest.mark.parametrize(("notes", "kernels"), [(False, Kernels.GATHER), (True, Kernels.PLAIN)])
def test_a_buffer_has_short_programs_where_threads_give_them(make, registry, notes, kernels):
    driver = make(notes=notes)
    for _ in range(2):
        driver.enable_stages()
        assert driver.stage_kernels is kernels
    assert registry.num_plain_calls == notes, "loaded once"


def test_a_buffer_has_tritons_kernel_where_there_is_no_compiler(make, monkeypatch, caplog):
    caplog.set_level(INFO, "kv_offload_cpu")

    def plain_call():
        raise ConfigError("no NVRTC here")

    monkeypatch.setattr("kv_offload_cpu.copy.cuda.torch_driver.PlainCall", plain_call)
    driver = make(notes=True)
    driver.enable_stages()
    assert driver.stage_kernels is Kernels.GATHER
    assert [record.getMessage() for record in caplog.records] == [
        "staged copies hold the interpreter for each piece: no NVRTC here"
    ]
    steps = driver.new_steps(np.zeros(5, np.int64), 1, 1, driver.stage_kernels)
    assert {kernel.kind for kernel in steps.kernels.values()} == {Kernels.GATHER}


def test_a_buffer_of_an_old_device_or_odd_pages_has_short_programs_too(make, monkeypatch):
    def bulk_call():
        raise WrongDeviceError("an old device")

    monkeypatch.setattr("kv_offload_cpu.copy.cuda.torch_driver.BulkCall", bulk_call)
    driver = make(notes=True)
    driver.enable_stages()
    steps = driver.new_steps(np.zeros(5, np.int64), 1, 1, driver.stage_kernels)
    assert {type(kernel) for kernel in steps.kernels.values()} == {PlainKernel}


def bulk_call():
    call = SimpleNamespace(function=0xF00, warps={True: 2, False: 3})
    call.kernel = lambda *told, word, **more: BulkKernel(call, *told, **more)
    return call


@pytest.mark.parametrize(
    ("kernels", "word", "seen"),
    [
        (Kernels.BULK, 16, (0xF00, (1, 1, 1), 64)),
        (Kernels.PLAIN, 16, (PLAIN_FUNCTION, (1, 1, 1), 32 * WARPS)),
        (Kernels.PLAIN, 8, (PLAIN_FUNCTION, (1, 2, 1), 32 * WARPS)),
    ],
)
@pytest.mark.parametrize("notes", [False, True])
def test_a_kernel_of_the_drivers_is_a_call(make, registry, monkeypatch, notes, kernels, word, seen):
    """Its addresses are what they should be: bytes arrive."""
    monkeypatch.setattr("kv_offload_cpu.copy.cuda.torch_driver.BulkCall", bulk_call)
    driver = make(notes=notes)
    driver.enable_bulk()
    driver._load(Kernels.PLAIN, registry.plain_call)
    source, target = np.arange(40, dtype=np.uint8), np.zeros(40, np.uint8)
    numbers = np.array([source.ctypes.data, 8, 0, 8, 8], np.int64)
    steps = Steps(driver.new_steps(numbers, 1, word, kernels), 1, word)
    table, stream = driver.new_table(2), driver.new_stream()
    columns_of(table, 2)[:] = [[1, 3], [target.ctypes.data + 16, target.ctypes.data], [0, 1]]
    driver.upload(stream, table, 2)
    driver.run_kernel(stream, Launch(Direction.STORE, table, 2, range(2), steps, 4))
    driver.go(stream)
    assert target.tolist() == [0] * 8 + [*range(24, 32)] + [*range(8, 16)] + [0] * 16
    assert registry.bindings.kernel[:3] == seen
