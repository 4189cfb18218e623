"""The driver over torch with all methods, on a CPU that pretends to be a GPU: each call is done when it is made.

So nothing is shown of order, which ``test_cuda_methods`` does. Shown is that the driver gives the right bytes in
the right form to torch, to the batched copy and to the kernel.
"""

import ctypes
import sys
from contextlib import nullcontext
from time import perf_counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kv_offload_cpu_layouts import BytesModel, Shape, Tensor, canonical, jobs, make_caches, shapes

from kv_api import CanonicalKVCacheRef
from kv_offload_cpu import CopyEngineChoice, Direction, HostLayout
from kv_offload_cpu.copy.choose import METHODS, method_maker
from kv_offload_cpu.copy.cuda import CudaCopyEngine
from kv_offload_cpu.copy.cuda_batch import OneBatch
from kv_offload_cpu.copy.descriptors import CopyPlan
from kv_offload_cpu.copy.pages import page_copies
from kv_offload_cpu.copy.tensors import device_tensors
from kv_offload_cpu.copy.trial import TINY, Trial

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

    def record(self, stream):
        self.at = perf_counter()

    def query(self):
        return self.at is not None

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        return 1000 * (other.at - self.at)


class Registry:
    """CUDA's list of pinned memory, and the kernels that were launched, which C does."""

    def __init__(self):
        self.calls = []
        self.launched = []

    def launch(self, table, num_rows, rows, word):
        self.launched.append((num_rows, rows, word))
        columns = table.numpy()[: 3 * num_rows].reshape(3, num_rows)[:, rows]
        assert not (columns % word).any()
        for target, source, size in columns.T.tolist():
            ctypes.memmove(target, source, size)

    def cudaHostRegister(self, address, size, flags):
        self.calls.append(("register", address, size, flags))
        return 0

    def cudaHostUnregister(self, address):
        self.calls.append(("unregister", address))
        return 0


class Batches:
    """The batched copy, done by C."""

    def __call__(self, stream, found, order):
        assert stream == Stream.cuda_stream
        for target, source, size in zip(*(column.tolist() for column in found), strict=True):
            ctypes.memmove(target, source, size)


@pytest.fixture
def registry(monkeypatch):
    import torch

    registry = Registry()
    for name, pretended in {
        "Stream": Stream,
        "Event": Event,
        "stream": lambda stream: nullcontext(),
        "device": lambda device: nullcontext(),
        "current_stream": lambda device: Stream(),
        "cudart": lambda: registry,
    }.items():
        monkeypatch.setattr(torch.cuda, name, pretended)
    driver = "kv_offload_cpu.copy.torch_driver"
    __import__(driver)
    monkeypatch.setattr(f"{driver}.BatchCall", Batches)
    monkeypatch.setattr(f"{driver}.load_bindings", lambda purpose: purpose)
    monkeypatch.setattr(f"{driver}.mapped_address", lambda bindings, address: address)
    kernels = SimpleNamespace(launch=registry.launch)
    monkeypatch.setattr("kv_offload_cpu.copy.trial.MOST_BYTES", 1 << 10)
    monkeypatch.setitem(sys.modules, "kv_offload_cpu.copy.gather_kernel", kernels)
    monkeypatch.setattr("kv_offload_cpu.copy.gather_kernel", kernels, raising=False)
    return registry


@pytest.mark.parametrize("choice", [CopyEngineChoice.AUTO, CopyEngineChoice.CUDA_BEST, *METHODS])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_is_stored_by_a_method_is_what_it_loads(choice, registry, data):
    import torch

    from kv_offload_cpu.copy.torch_driver import TorchDriver

    registry.calls.clear()
    shape = data.draw(shapes())
    arrays, _ = make_caches(shape, seed=0)
    tensors = [torch.from_numpy(array.copy()) for array in arrays]
    slot = shape.bytes_per_block * shape.blocks_per_chunk
    layout = HostLayout(NUM_CHUNKS, shape.blocks_per_chunk, slot, 1, slot)
    memory = np.zeros(layout.total_bytes, np.uint8)
    on_device = device_tensors(canonical(shape, tensors))
    refs = [[CanonicalKVCacheRef(*ref) for ref in group] for group in shape.groups]
    plan = CopyPlan([tensor.pages for tensor in on_device], refs, layout, 0, memory.ctypes.data)
    driver = TorchDriver(on_device, memory, pin_memory=True)
    engine, model = CudaCopyEngine(plan, driver, method_maker(driver, choice, plan.range_bytes)), BytesModel(shape)
    for job_id in range(data.draw(st.integers(1, 6))):
        job, direction = data.draw(jobs(shape, NUM_CHUNKS)), data.draw(st.sampled_from(Direction))
        copies = page_copies("job", job.gpu_spec, job.cpu_spec.block_ids, layout, len(refs))
        engine.submit(job_id, direction, copies)
        (model.store if direction is Direction.STORE else model.load)(arrays, job)
        engine.wait([job_id])
        assert [(result.job_id, result.success) for result in engine.poll()] == [(job_id, True)]
        assert all(np.array_equal(tensor.numpy(), array) for tensor, array in zip(tensors, arrays, strict=True))
    engine.shutdown()
    assert registry.calls == [
        ("register", memory.ctypes.data, memory.nbytes, 2),
        ("unregister", memory.ctypes.data),
    ]


@pytest.fixture
def make(registry):
    """Makes drivers over one layer of one page."""
    import torch

    from kv_offload_cpu.copy.torch_driver import TorchDriver

    shape = Shape(1, 1, (Tensor(8),), (((0, 8),),))
    tensors = device_tensors(canonical(shape, [torch.zeros((1, 8), dtype=torch.int8)]))
    memory = np.zeros(8, np.uint8)
    return lambda *, pin_memory=True: TorchDriver(tensors, memory, pin_memory=pin_memory)


def test_batches_of_torch_prove_themselves(make):
    driver = make()
    driver.enable_batches()
    stream = driver.new_stream()
    trial = Trial(driver, stream, TINY)
    assert trial.run(OneBatch(driver, stream)), "nothing was tried"
    trial.close()


def test_memory_is_pinned_and_unpinned_once_and_only_if_wanted(make, registry):
    driver = make()
    assert driver.is_pinned
    driver.shutdown()
    driver.shutdown()
    assert [call[0] for call in registry.calls] == ["register", "unregister"]
    assert not make(pin_memory=False).is_pinned
    assert len(registry.calls) == 2


def test_a_kernel_is_compiled_when_it_is_chosen(make, registry):
    make().enable_kernels()
    assert registry.launched == [(0, range(0), 16)]


def test_streams_and_events_are_those_of_torch(make):
    driver = make()
    stream = driver.new_stream()
    begin, end = driver.mark(stream), driver.mark(stream)
    begin.at, end.at = 2.0, 2.5
    assert driver.seconds_between(begin, end) == 0.5
    driver.hold(stream, begin)
    assert stream.waited_for == [begin]
    assert driver.is_reached(begin)
    assert not driver.is_reached(Event())
