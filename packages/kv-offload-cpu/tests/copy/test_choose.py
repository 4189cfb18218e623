"""Which engine and method a configuration gives, by what the machine has; the table, and who follows it."""

import logging
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from kv_offload_cpu_device import FakeDevice
from kv_offload_cpu_layouts import LikeTorchs

from kv_api import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor, ConfigError
from kv_offload_cpu import CopyEngineChoice, CopySubmission, Direction, HostLayout, Options, PageCopies
from kv_offload_cpu.copy.checksum import ChecksummingEngine
from kv_offload_cpu.copy.choose import METHODS, fitting_device, make_copy_engine, method_maker
from kv_offload_cpu.copy.cuda import trial
from kv_offload_cpu.copy.cuda.engine import CudaCopyEngine, EachRange
from kv_offload_cpu.copy.cuda.methods.batch import OneBatch, SourceOrder
from kv_offload_cpu.copy.cuda.methods.gather import OneKernel
from kv_offload_cpu.copy.cuda.methods.page_table import Kernels
from kv_offload_cpu.copy.cuda.methods.staged import TwoHalves
from kv_offload_cpu.copy.cuda.nvrtc import WrongDeviceError
from kv_offload_cpu.copy.cuda.table import TABLE, ByTable, Row, fitting, pick
from kv_offload_cpu.copy.ranges.descriptors import CopyPlan, Extent
from kv_offload_cpu.copy.ranges.tensors import DeviceTensor, TensorPages
from kv_offload_cpu.memory import MappedMemory

AUTO, HOST, CUDA = CopyEngineChoice.AUTO, CopyEngineChoice.HOST, CopyEngineChoice.CUDA
BATCH, GATHER, STAGED = CopyEngineChoice.CUDA_BATCH, CopyEngineChoice.CUDA_GATHER, CopyEngineChoice.CUDA_STAGED
BULK = CopyEngineChoice.CUDA_BULK


def on(*devices):
    return [DeviceTensor(TensorPages(1, 1, 1), device, None) for device in devices]


@pytest.mark.parametrize("asked", [AUTO, HOST, CopyEngineChoice.HOST_STREAM])
def test_host_memory_has_two(asked):
    assert fitting_device(asked, on("cpu", "cpu")) == "cpu"


@pytest.mark.parametrize("asked", [AUTO, *METHODS])
def test_a_device_has_several(asked):
    assert fitting_device(asked, on("cuda")) == "cuda"


WRONG = {
    "KV caches are in memory of ['cpu', 'cuda']; there are copy engines for ['cpu', 'cuda']": (
        AUTO,
        on("cpu", "cuda"),
    ),
    "KV caches are in memory of ['xpu']; there are copy engines for ['cpu', 'cuda']": (CUDA, on("xpu")),
    "copy_engine: 'cuda-gather' can't copy KV caches in cpu memory; use 'host' or 'host-stream'": (
        GATHER,
        on("cpu"),
    ),
    "copy_engine: 'host' can't copy KV caches in cuda memory; use 'cuda' or 'cuda-batch' or "
    "'cuda-gather' or 'cuda-bulk' or 'cuda-staged' or 'cuda-best'": (HOST, on("cuda")),
}


@pytest.mark.parametrize(("message", "given"), WRONG.items(), ids=range(len(WRONG)))
def test_what_cannot_be_is_refused(message, given):
    with pytest.raises(ConfigError) as caught:
        fitting_device(*given)
    assert str(caught.value) == message


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    monkeypatch.setattr(trial, "COUNTS", (16, 64))
    monkeypatch.setattr(trial, "TIMES", 1)


class Enabled(FakeDevice):
    """Notes what it was asked to find on this machine."""

    def __init__(self):
        super().__init__([np.zeros((1, 1), np.int8)], np.zeros(1, np.uint8))
        self.found = set()

    def enable_batches(self):
        self.found.add("batches")

    def enable_kernels(self):
        self.found.add("kernels")

    def enable_bulk(self):
        self.found.add("bulk")

    def enable_stages(self):
        self.enable_kernels()


@pytest.mark.parametrize(
    ("choice", "method", "found"),
    [
        (CUDA, EachRange, set()),
        (BATCH, OneBatch, {"batches"}),
        (GATHER, OneKernel, {"kernels"}),
        (BULK, OneKernel, {"bulk"}),
        (STAGED, TwoHalves, {"batches", "kernels"}),
    ],
)
def test_a_method_asks_the_machine_only_for_what_it_needs(choice, method, found):
    driver = Enabled()
    assert type(method_maker(driver, choice, plan_of())(driver.new_stream())) is method
    assert driver.found == found


@pytest.mark.parametrize("kernels", [Kernels.GATHER, Kernels.PLAIN])
def test_a_buffer_has_the_kernels_that_the_driver_has_for_it(kernels):
    driver = Enabled()
    driver.stage_kernels = kernels
    method_maker(driver, STAGED, plan_of())(driver.new_stream())
    assert driver.kernels == [kernels]


KIB, MIB = 1 << 10, 1 << 20


def plan_of(size=1 << 20, layers=1, slots=1):
    """Blocks 0 to 4095 and as many chunks, of so many layers with pages of one size, for so many workers."""
    tensors = [TensorPages(4096, size, size, n << 40) for n in range(1, layers + 1)]
    layout = HostLayout(4096, 1, layers * size, slots, slots * layers * size)
    return CopyPlan(tensors, [[CanonicalKVCacheRef(n, size) for n in range(layers)]], layout, 0)


def auto(driver, table=TABLE, plan=None):
    return method_maker(driver, AUTO, plan or plan_of(4 * KIB, 64), table)(driver.new_stream())


def used(method):
    """The methods by which jobs may go."""
    return list(method.methods)


JOBS = [
    (64 * MIB, 4 * KIB, STAGED),
    (64 * MIB - 1, 4 * KIB, BULK),
    (64 * MIB, 64 * KIB - 16, STAGED),
    (64 * MIB - 1, 64 * KIB - 16, BULK),
    (64 * MIB, 64 * KIB, BATCH),
    (1 * MIB, 64 * KIB, BATCH),
    (1 << 40, 1 << 30, BATCH),
]


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(("num_bytes", "size", "method"), JOBS)
def test_auto_goes_by_what_was_measured(direction, num_bytes, size, method):
    assert pick(TABLE, direction, Extent(-(-num_bytes // size), num_bytes)) is method


@pytest.mark.parametrize("direction", Direction)
def test_a_few_ranges_go_one_by_one(direction):
    assert pick(TABLE, direction, Extent(3, 12 * KIB)) is CUDA
    assert pick(TABLE, direction, Extent(4, 16 * KIB)) is BULK


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize(("layers", "method"), [(64, STAGED), (63, BULK), (4096, STAGED), (4097, BULK)], ids=str)
def test_slots_that_are_small_or_do_not_fit_the_buffer_are_not_staged(layers, direction, method, slots):
    rows = fitting(TABLE, plan_of(4 * KIB, layers, slots))
    assert pick(rows, direction, Extent(1 << 14, 1 << 26)) is method


@pytest.mark.parametrize(
    ("sizes", "methods"),
    [
        ([64 * KIB] * 8, {BATCH}),
        ([64 * KIB] * 8 + [64 * KIB - 16] * 8, {BATCH, BULK, STAGED}),
        ([64 * KIB] * 8 + [64 * KIB - 8] * 8, {BATCH, GATHER, STAGED}),
        ([8 * KIB, 120 * KIB], {BATCH}),
        ([8 * KIB, 119 * KIB], {BATCH, BULK}),
    ],
)
def test_rows_for_smaller_ranges_than_there_are_do_not_count(sizes, methods):
    tensors = [TensorPages(8, size, size, n << 40) for n, size in enumerate(sizes, 1)]
    layout = HostLayout(8, 1, sum(sizes), 1, sum(sizes))
    plan = CopyPlan(tensors, [[CanonicalKVCacheRef(n, size) for n, size in enumerate(sizes)]], layout, 0)
    assert {row.method for row in fitting(TABLE, plan)} == methods


def test_the_group_with_the_smallest_ranges_counts():
    tensors = [TensorPages(8, 4 * KIB, 4 * KIB, 1 << 40), TensorPages(8, 1 * MIB, 1 * MIB, 2 << 40)]
    refs = [[CanonicalKVCacheRef(1, 1 * MIB)], [], [CanonicalKVCacheRef(0, 4 * KIB)]]
    slot_bytes = 4 * KIB + 1 * MIB
    plan = CopyPlan(tensors, refs, HostLayout(8, 1, slot_bytes, 1, slot_bytes), 0)
    assert plan.least_range_bytes == 4 * KIB
    assert {row.method for row in fitting(TABLE, plan)} == {BATCH, BULK, STAGED}


@pytest.mark.parametrize(
    "odd",
    [
        {"page_bytes": 4 * KIB + 8},
        {"stride_bytes": 4 * KIB + 8},
        {"address": (1 << 40) + 8},
        {"host_address": 8},
        {"slot": 8},
    ],
    ids=str,
)
def test_pages_that_are_no_multiples_of_16_bytes_are_gathered(odd):
    pages = TensorPages(8, 4 * KIB, 8 * KIB, 1 << 40)._replace(
        **{name: number for name, number in odd.items() if name in TensorPages._fields}
    )
    slot_bytes = 64 * KIB + odd.get("slot", 0)
    layout = HostLayout(8, 1, slot_bytes, 1, slot_bytes)
    refs = [[CanonicalKVCacheRef(0, pages.page_bytes)]]
    for host_address, method in ((odd.get("host_address", 0), GATHER), (0, BULK)):
        plan = CopyPlan([pages], refs, layout, 0, host_address)
        assert {row.method for row in fitting(TABLE, plan)} == {BATCH, method}
        pages, layout = TensorPages(8, 4 * KIB, 8 * KIB, 1 << 40), HostLayout(8, 1, 64 * KIB, 1, 64 * KIB)
        refs = [[CanonicalKVCacheRef(0, 4 * KIB)]]


def test_one_odd_group_is_enough():
    tensors = [TensorPages(8, size, 8 * KIB, n << 40) for n, size in enumerate((4 * KIB, 4 * KIB + 8), 1)]
    refs = [[CanonicalKVCacheRef(n, tensor.page_bytes)] for n, tensor in enumerate(tensors)]
    plan = CopyPlan(tensors, refs, HostLayout(8, 1, 64 * KIB, 1, 64 * KIB), 0)
    assert {row.method for row in fitting(TABLE, plan)} == {BATCH, GATHER}


def test_auto_tries_no_kernel_for_large_pages():
    driver = Enabled()
    assert used(auto(driver, plan=plan_of(64 * KIB, 8))) == [CUDA, BATCH]
    assert driver.found == {"batches"}
    assert driver.stages == []


def test_auto_uses_all_that_prove_themselves():
    driver = Enabled()
    method = auto(driver)
    assert used(method) == [CUDA, STAGED, BULK, BATCH]
    assert driver.found == {"batches", "kernels", "bulk"}
    assert len(driver.stages) == 1, "the trials' memory was given back, this lane's buffer is left"
    assert list(method.stages) == [driver.stages[0].ctypes.data]
    pages = np.arange(4)
    job = PageCopies(*[pages * 0, pages, pages, pages * 0])
    assert type(method.prepare(Direction.LOAD, job)[0]) is OneKernel
    assert type(method.prepare(Direction.LOAD, job.part(0, 0))[0]) is EachRange


def test_auto_uses_no_buffer_that_small_slots_would_not_fill():
    driver = Enabled()
    method = auto(driver, plan=plan_of(4 * KIB, 2))
    assert used(method) == [CUDA, BULK, BATCH]
    assert driver.found == {"batches", "bulk"}
    assert driver.stages == []


def test_auto_copies_range_by_range_where_no_row_fits():
    driver = Enabled()
    method = auto(driver, [])
    assert (used(method), driver.found, driver.calls) == ([CUDA], set(), [])


def test_auto_enables_what_its_rows_need():
    driver = Enabled()
    assert used(auto(driver, [TABLE[1]])) == [CUDA, BULK]
    assert driver.found == {"bulk"}


class Spoils(Enabled):
    """Changes a byte of what it copies to the host, or of what it copies from there."""

    def __init__(self, order):
        super().__init__()
        self.order = order

    def copy_batch(self, stream, batch, begin, end):
        super().copy_batch(stream, batch, begin, end)
        if batch.order is self.order:
            target = int(batch.moves.targets[end - 1])
            change = lambda: self._write(target, bytes([self._read(target, 1)[0] ^ 1]))  # noqa: E731
            self._give(stream, ("act", change))


class Idles(Enabled):
    """Copies nothing."""

    def copy_batch(self, stream, batch, begin, end):
        pass


class Lacks(Enabled):
    """Has no batched copy."""

    def enable_batches(self):
        raise ConfigError("no batched copy here")


class Pageable(Enabled):
    """Host memory isn't pinned."""

    def __init__(self):
        super().__init__()
        self.is_pinned = False


class Fails(Enabled):
    """Refuses what it is asked for."""

    def __init__(self, method):
        super().__init__()
        self.failing = {method}


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        (Lacks(), "no batched copy here"),
        (Pageable(), "host memory is not pinned"),
        (Idles(), "of 16 ranges of 16 bytes, 2"),
        (Spoils(SourceOrder.ANY), "of 16 ranges of 16 bytes, 1 bytes came back changed"),
        (Spoils(SourceOrder.STREAM), "of 16 ranges of 16 bytes, 1 bytes came back changed"),
        *[
            (Fails(name), name)
            for name in ("copy_batch", "new_table", "hold", "mark_compute", "mark", "go", "wait_for", "drain")
        ],
    ],
)
def test_auto_uses_no_batch_that_does_not_prove_itself(driver, reason, caplog):
    method = auto(driver, [row for row in TABLE if row.method is BATCH])
    assert used(method) == [CUDA]
    [record] = caplog.records
    assert record.getMessage().startswith(f"copy_engine: 'auto' does without 'cuda-batch': {reason}")
    assert driver.failing == {"drain"} or driver.stages == []


@pytest.fixture
def make_engine(monkeypatch):
    """Makes the engine of a device with another driver than torch's, and says what that was told."""
    memory = MappedMemory(HostLayout(2, 1, 64, 1, 64))
    caches = CanonicalKVCaches([CanonicalKVCacheTensor(LikeTorchs(), 64)], [[CanonicalKVCacheRef(0, 64)]])
    told = []

    def make(driver, **options):
        def made(tensors, memory_bytes, *, pin_memory, notes):
            told.append(([tensor.pages for tensor in tensors], memory_bytes is memory.bytes, pin_memory, notes))
            return driver

        module = SimpleNamespace(TorchDriver=made)
        monkeypatch.setitem(sys.modules, "kv_offload_cpu.copy.cuda.torch_driver", module)
        return make_copy_engine(caches, memory, Options(1, **options)), told

    yield make
    memory.release()


@pytest.mark.parametrize("pin_memory", [True, False])
@pytest.mark.parametrize("submission", CopySubmission)
def test_a_device_gets_the_engine_of_its_driver(make_engine, pin_memory, submission):
    driver = Enabled()
    wishes = {"pin_memory": pin_memory, "copy_submission": submission}
    engine, told = make_engine(driver, copy_engine=BATCH, **wishes)
    assert (type(engine), driver.found, driver.is_shut_down) == (CudaCopyEngine, {"batches"}, False)
    notes = submission is CopySubmission.THREAD
    assert told == [([TensorPages(8, 64, 64, 4096)], True, pin_memory, notes)]
    engine.shutdown()
    assert driver.is_shut_down


def test_a_device_has_checksums_too(make_engine):
    engine, _ = make_engine(Enabled(), copy_engine=CUDA, checksum=True)
    assert (type(engine), type(engine.inner)) == (ChecksummingEngine, CudaCopyEngine)
    engine.shutdown()


def test_a_driver_that_lacks_what_was_asked_for_is_let_go(make_engine):
    driver = Lacks()
    with pytest.raises(ConfigError, match="no batched copy here"):
        make_engine(driver, copy_engine=BATCH)
    assert driver.is_shut_down


@pytest.mark.parametrize(
    ("lacking", "without", "left"),
    [
        (["kernels"], {STAGED}, [BULK, BATCH]),
        (["batches"], {STAGED, BATCH}, [BULK]),
        (["bulk"], {BULK}, [STAGED, GATHER, BATCH]),
        (["bulk", "kernels"], {STAGED, BULK, GATHER}, [BATCH]),
    ],
)
def test_auto_does_without_what_a_machine_lacks(lacking, without, left, caplog):
    driver = Enabled()

    def lacks():
        raise ConfigError("not here")

    for name in lacking:
        setattr(driver, f"enable_{name}", lacks)
    assert used(auto(driver)) == [CUDA, *left]
    told = {record.getMessage().split(" does without ")[1] for record in caplog.records}
    assert told == {f"{name.value!r}: not here" for name in without}
    assert len(driver.stages) == (STAGED in left)


def test_what_no_installation_would_mend_is_told_as_information(caplog):
    caplog.set_level(logging.INFO)
    driver = Enabled()

    def lacks():
        raise WrongDeviceError("an old one")

    driver.enable_bulk = lacks
    assert used(auto(driver)) == [CUDA, STAGED, GATHER, BATCH]
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "copy_engine: 'auto' does without 'cuda-bulk': an old one")
    ]


def test_the_first_row_that_fits_counts_and_rows_have_edges():
    table = [
        Row(Direction.LOAD, 1000, 100, GATHER),
        Row(Direction.LOAD, 500, 200, BATCH),
    ]
    expected = {
        (11, 1000): GATHER,
        (10, 1000): BATCH,
        (11, 999): BATCH,
        (5, 500): BATCH,
        (5, 499): CUDA,
        (5, 1000): CUDA,
        (3, 500): CUDA,
    }
    assert {key: pick(table, Direction.LOAD, Extent(*key)) for key in expected} == expected
    assert pick(table, Direction.STORE, Extent(11, 1000)) is CUDA
    assert pick(table, Direction.LOAD, Extent(0, 0)) is CUDA
    assert fitting(table, plan_of(16)) == tuple(table)


def test_methods_of_one_lane_share_its_stream():
    driver, plan = FakeDevice([], np.zeros(1, np.uint8)), plan_of()
    stream = driver.new_stream()
    made = {CUDA: EachRange(driver, stream, plan), STAGED: TwoHalves(driver, stream, plan)}
    method = ByTable((), made, plan.extent)
    assert method.streams == [1, 2]
    assert list(method.stages) == [driver.stages[0].ctypes.data]
