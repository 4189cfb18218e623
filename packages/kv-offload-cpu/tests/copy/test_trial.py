"""What `cuda-best` finds out about a device whose prices are known, and about one that isn't right."""

import sys
from contextlib import closing
from functools import partial

import numpy as np
import pytest
from kv_offload_cpu_device import FakeDevice, move_of

from kv_api import CanonicalKVCacheRef
from kv_offload_cpu import CopyEngineChoice, Direction, HostLayout, PageCopies
from kv_offload_cpu.copy.choose import METHODS, method_maker
from kv_offload_cpu.copy.cuda import trial as trial_module
from kv_offload_cpu.copy.cuda.engine import EachRange
from kv_offload_cpu.copy.cuda.methods.batch import OneBatch, SourceOrder
from kv_offload_cpu.copy.cuda.methods.gather import OneKernel
from kv_offload_cpu.copy.cuda.methods.page_table import Kernels
from kv_offload_cpu.copy.cuda.nvrtc import WrongDeviceError
from kv_offload_cpu.copy.cuda.table import Row
from kv_offload_cpu.copy.cuda.trial import Shape, Trial
from kv_offload_cpu.copy.ranges.descriptors import CopyPlan
from kv_offload_cpu.copy.ranges.tensors import TensorPages

LOAD, STORE = Direction.LOAD, Direction.STORE
BATCH, GATHER, STAGED = CopyEngineChoice.CUDA_BATCH, CopyEngineChoice.CUDA_GATHER, CopyEngineChoice.CUDA_STAGED
BULK = CopyEngineChoice.CUDA_BULK
ENDLESS = sys.maxsize


class Device(FakeDevice):
    """A batch costs 10 for each small range to load and else 1 for a range, a kernel 200 and 1 for a step.

    The first batch costs 5,000 more. ``lacks`` and ``spoils`` name what it hasn't, and does wrongly; ``idles``
    says for which direction, number and size of steps its kernels do nothing.
    """

    def __init__(self, lacks=(), spoils=(), idles=lambda direction, count, size: False):
        super().__init__([], np.zeros(1, np.uint8))
        self.lacks, self.spoils, self.idles = {*lacks}, {*spoils}, idles
        self.spent = -5000

    def enable_batches(self):
        assert "batches" not in self.lacks, "no batches here"

    def enable_kernels(self):
        assert "kernels" not in self.lacks, "no kernels here"

    def enable_bulk(self):
        raise WrongDeviceError("an old device")

    def enable_stages(self):
        self.enable_kernels()

    def copy_batch(self, stream, batch, begin, end):
        super().copy_batch(stream, batch, begin, end)
        price = 10 if batch.order is SourceOrder.ANY and batch.moves.sizes[begin] < 60 else 1
        self._spend(stream, "batches", (end - begin) * price, int(batch.moves.targets[begin]))

    def run_kernel(self, stream, launch):
        count = len(launch.rows) * launch.steps.num_steps
        if not self.idles(launch.direction, count, int(launch.steps.on_device[-1])):
            super().run_kernel(stream, launch)
        target, *_ = move_of(launch, launch.table.numbers, launch.rows.start, 0)
        self._spend(stream, "kernels", 200 + count, target)

    def _spend(self, stream, kind, price, target):
        def act():
            self.spent = max(self.spent, 0) + price
            if kind in self.spoils:
                self._write(target, bytes([(self._read(target, 1)[0] + 1) % 256]))

        self._give(stream, ("act", act))


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    monkeypatch.setattr(trial_module, "COUNTS", (16, 64, 128))
    monkeypatch.setattr(trial_module, "TIMES", 2)


@pytest.fixture
def clock(monkeypatch):
    """Time is what the device has spent."""
    defaults = Trial.__init__.__defaults__

    def use(device):
        monkeypatch.setattr(Trial.__init__, "__defaults__", (lambda: device.spent,))
        return device

    assert len(defaults) == 1
    return use


def rows_of(method):
    return list(method._table)


def plan_of(size, layers=1):
    """So many layers of pages of one size."""
    tensors = [TensorPages(200, size, size, n << 40) for n in range(1, layers + 1)]
    layout = HostLayout(200, 1, layers * size, 1, layers * size)
    return CopyPlan(tensors, [[CanonicalKVCacheRef(n, size) for n in range(layers)]], layout, 0)


def best(device, range_bytes=16, layers=1, plan=None):
    plan = plan or plan_of(range_bytes, layers)
    return method_maker(device, CopyEngineChoice.CUDA_BEST, plan)(device.new_stream())


def pages(count):
    """A job of the first blocks and chunks."""
    numbers = np.arange(count)
    return PageCopies(0 * numbers, numbers, numbers, 0 * numbers)


def measured(direction, *rows):
    return [Row(direction, least, below, method) for least, below, method in rows]


def test_each_direction_size_and_count_goes_by_what_was_fastest(clock, caplog):
    caplog.set_level("INFO")
    method = best(clock(Device()))
    small, large = [128 * 16, 64 * 16, 0], [128 * 64, 64 * 64, 0]
    assert rows_of(method) == [
        *measured(STORE, *[(least, 32, BATCH) for least in small]),
        *measured(STORE, *[(least, ENDLESS, BATCH) for least in large]),
        *measured(
            LOAD, *[(least, 32, choice) for least, choice in zip(small, (GATHER, GATHER, BATCH), strict=True)]
        ),
        *measured(LOAD, *[(least, ENDLESS, BATCH) for least in large]),
    ]
    lacking, *told = [record.getMessage() for record in caplog.records]
    assert lacking == "copy_engine: 'cuda-best' does without 'cuda-bulk': an old device"
    assert len(told) == 12
    assert told[0] == "cuda-best: a store of 2048 bytes or more in ranges of less than 32 bytes is 'cuda-batch'"
    assert told[-1] == "cuda-best: a load of 0 bytes or more in ranges of any size is 'cuda-batch'"
    picked = {
        (direction, count): type(method.prepare(direction, pages(count))[0])
        for direction, count in [(LOAD, 64), (LOAD, 63), (LOAD, 3), (STORE, 99)]
    }
    assert [*picked.values()] == [OneKernel, OneBatch, EachRange, OneBatch]


def test_a_buffer_wins_where_many_small_ranges_are_one_slot(clock):
    """256 ranges in 16 slots of 256 bytes: 2,560 by themselves, 456 and 16 by way of a buffer, 456 by a kernel."""

    class Slow(Device):
        def run_kernel(self, stream, launch):
            super().run_kernel(stream, launch)
            at = int(launch.table.numbers[launch.num_rows])
            in_buffer = any(stage.ctypes.data <= at < stage.ctypes.data + len(stage) for stage in self.stages)
            self._spend(stream, "link", 0 if in_buffer else 3 * launch.steps.num_steps * len(launch.rows), at)

    assert best(clock(Slow()), layers=16)._table[-1].method is BATCH
    [row] = [
        row for row in best(clock(Slow()), layers=16)._table if (row.direction, row.least_bytes) == (LOAD, 2048)
    ]
    assert row.method is STAGED


class NewDevice(Device):
    """Has bulk copies, of which a kernel costs 40."""

    def __init__(self):
        super().__init__()
        self.of_bulk = []

    def enable_bulk(self):
        pass

    def new_steps(self, numbers, count, word, kernels):
        steps = super().new_steps(numbers, count, word, kernels)
        if kernels is Kernels.BULK:
            assert word == 16, "bulk copies of odd pages"
            self.of_bulk.append(steps)
        return steps

    def run_kernel(self, stream, launch):
        if not any(launch.steps.on_device is steps for steps in self.of_bulk):
            super().run_kernel(stream, launch)
        else:
            FakeDevice.run_kernel(self, stream, launch)
            target, *_ = move_of(launch, launch.table.numbers, launch.rows.start, 0)
            self._spend(stream, "bulk", 40, target)


def test_bulk_copies_are_tried_where_there_are_any(clock):
    """128 ranges and 64 cost as much in a batch as they are, 16 no more than 16."""
    rows = rows_of(best(clock(NewDevice())))
    assert [row.method for row in rows if (row.direction, row.below_bytes) == (STORE, 32)] == [BULK, BULK, BATCH]


def test_bulk_copies_are_not_tried_for_pages_that_lie_where_there_are_none(clock, caplog):
    plan = CopyPlan(
        [TensorPages(200, 16, 24, 1 << 40)], [[CanonicalKVCacheRef(0, 16)]], HostLayout(200, 1, 16, 1, 16), 0
    )
    assert {*best(clock(NewDevice()), plan=plan).methods} == {CopyEngineChoice.CUDA, GATHER, BATCH}
    assert caplog.records == []


KERNELS, BATCHES = {GATHER, STAGED}, {BATCH, STAGED}


@pytest.mark.parametrize(
    ("device", "lost", "reason"),
    [
        (Device(lacks=["kernels"]), KERNELS, "no kernels here"),
        (Device(lacks=["batches"]), BATCHES, "no batches here"),
        (Device(idles=lambda direction, *_: direction is LOAD), KERNELS, "of 16 ranges of 16 bytes, 2"),
        (Device(idles=lambda direction, *_: direction is STORE), KERNELS, "of 16 ranges of 16 bytes, 2"),
        (Device(idles=lambda *job: job == (STORE, 16, 64)), {GATHER}, "of 16 ranges of 64 bytes, 10"),
        (Device(spoils=["kernels"]), KERNELS, "of 16 ranges of 16 bytes"),
        (Device(spoils=["batches"]), BATCHES, "of 16 ranges of 16 bytes"),
    ],
)
def test_a_method_that_is_not_there_or_not_right_gets_no_row(device, lost, reason, clock, caplog):
    method = best(clock(device))
    told = {record.getMessage() for record in caplog.records if record.levelname == "WARNING"}
    for choice in lost:
        start = f"copy_engine: 'cuda-best' does without {choice.value!r}: {reason}"
        assert any(message.startswith(start) for message in told), told
        assert choice not in {row.method for row in rows_of(method)}
    assert {row.method for row in rows_of(method)}
    assert len(told) == 2


def test_without_any_method_ranges_go_one_by_one(clock):
    method = best(clock(Device(lacks=["batches", "kernels"])))
    assert rows_of(method) == []
    assert type(method.prepare(LOAD, pages(100))[0]) is EachRange


@pytest.mark.parametrize(
    ("name", "value", "reason", "left"),
    [
        ("is_pinned", False, "host memory is not pinned", []),
        ("mapped_shift", 4096, "the device sees host memory at other addresses than the host", [BATCH]),
    ],
)
def test_a_kernel_is_tried_only_where_it_finds_host_memory(name, value, reason, left, clock, caplog):
    device = clock(NewDevice())
    setattr(device, name, value)
    assert [*best(device).methods] == [CopyEngineChoice.CUDA, *left]
    told = {record.getMessage() for record in caplog.records}
    kernels = ("cuda-gather", "cuda-bulk", "cuda-staged")
    assert told >= {f"copy_engine: 'cuda-best' does without {kernel!r}: {reason}" for kernel in kernels}


class Hoards(Device):
    """Gives a trial the memory of the one before, as it was left. Kernels leave out what is beyond 4 KiB."""

    def __init__(self):
        super().__init__()
        self.kept_stages, self.kept_tables = [], []

    def new_stage(self, num_bytes):
        address = super().new_stage(num_bytes)
        if num_bytes != 128 * 64:
            return address
        self.kept_stages = self.kept_stages or self.stages[-1:]
        self.stages[-1:] = self.kept_stages
        return self.stages[-1].ctypes.data

    def new_table(self, num_rows):
        if num_rows < 2 * 128 * 64 // 24:
            return super().new_table(num_rows)
        self.kept_tables = self.kept_tables or [super().new_table(num_rows)]
        return self.kept_tables[0]

    def run_kernel(self, stream, launch):
        for row in launch.rows:
            addresses = move_of(launch, launch.table.numbers, row, 0)[:2]
            begin = self.kept_stages[0].ctypes.data
            if not any(4096 <= address - begin < 64 * 128 for address in addresses):
                super().run_kernel(stream, launch._replace(rows=range(row, row + 1)))


def test_bytes_that_another_trial_left_are_not_taken_for_copied(clock, caplog):
    method = best(clock(Hoards()))
    assert {row.method for row in rows_of(method)} == {BATCH}
    told = [record.getMessage() for record in caplog.records]
    for name in ("cuda-gather", "cuda-staged"):
        start = f"copy_engine: 'cuda-best' does without {name!r}: of 128 ranges of 64 bytes, "
        assert any(message.startswith(start) for message in told)


class Once(Device):
    """What kernels wrote in one direction in a job they write in none of another size."""

    def __init__(self, direction):
        super().__init__()
        self.direction, self.written = direction, {}

    def run_kernel(self, stream, launch):
        for row in launch.rows:
            target, *_ = move_of(launch, launch.table.numbers, row, 0)
            size = self.written.setdefault(target, len(launch.rows))
            if launch.direction is not self.direction or size == len(launch.rows):
                super().run_kernel(stream, launch._replace(rows=range(row, row + 1)))


@pytest.mark.parametrize("direction", Direction)
def test_bytes_that_a_smaller_job_left_are_not_taken_for_copied(direction, clock, caplog):
    best(clock(Once(direction)))
    told = [record.getMessage() for record in caplog.records]
    for name in ("cuda-gather", "cuda-staged"):
        start = f"copy_engine: 'cuda-best' does without {name!r}: of 64 ranges of 16 bytes, 2"
        assert any(message.startswith(start) for message in told), told


def test_each_try_sends_other_bytes(clock, caplog, monkeypatch):
    """Since the device still has those of a try before, here even at the same places."""
    monkeypatch.setattr(trial_module, "COUNTS", (16, 16))
    loads = iter(range(1000))
    best(clock(Device(idles=lambda direction, *_: direction is LOAD and next(loads) >= trial_module.TIMES)))
    told = [record.getMessage() for record in caplog.records]
    reason = "of 16 ranges of 16 bytes, 256 bytes came back changed"
    assert f"copy_engine: 'cuda-best' does without 'cuda-gather': {reason}" in told


@pytest.mark.parametrize("failing", ["new_steps", "run_kernel"])
def test_a_method_that_fails_leaves_nothing_that_uses_its_memory(failing, clock):
    """Be it when it is made, or when its upload was given to the stream."""
    device = clock(Device())
    device.failing = {failing}
    method = best(device)
    assert [*method.methods] == [CopyEngineChoice.CUDA, BATCH]
    assert not any(device.streams[1:])
    assert device.stages == []


def test_whoever_wants_to_stop_a_trial_can(clock):
    device = clock(Device())

    def stop():
        raise KeyboardInterrupt

    device.enable_batches = stop
    with pytest.raises(KeyboardInterrupt):
        best(device)


def test_no_more_memory_is_taken_than_is_meant_and_it_is_given_back(clock, monkeypatch):
    monkeypatch.setattr(trial_module, "MOST_BYTES", 64 * 100)
    device = clock(Device())
    method = best(device, 100)
    assert [(row.direction, row.least_bytes, row.below_bytes) for row in rows_of(method)] == [
        (direction, least, below)
        for direction in (STORE, LOAD)
        for least, below in ((6400, 200), (0, 200), (0, ENDLESS))
    ]
    assert 0 <= len(device.tables[0].numbers) * 8 - 2 * 6400 < 24
    assert device.stages == []


@pytest.mark.parametrize(("most", "counts"), [(4 * 16 * 100, [16, 64]), (4 * 16 * 100 - 1, [16])])
def test_what_is_taken_is_of_all_tensors(most, counts, monkeypatch):
    """Sixteen ranges are four pages of four tensors, sixty-four are sixteen pages."""
    monkeypatch.setattr(trial_module, "MOST_BYTES", most)
    device = Device()
    stream = device.new_stream()
    trial = Trial(device, stream, Shape(100, 4), lambda: 0)
    assert [len(stage) for stage in device.stages] == [100 * max(counts)]
    found = trial.run(partial(METHODS[BATCH], device, stream))
    assert sorted({case.num_ranges for case in found if case.size == 100}) == counts


def test_what_was_tried_of_one_size_goes_for_all(clock, monkeypatch):
    monkeypatch.setattr(trial_module, "MOST_BYTES", 16 * 100)
    assert rows_of(best(clock(Device()), 100)) == [
        Row(direction, 0, ENDLESS, BATCH) for direction in (STORE, LOAD)
    ]


def test_pages_too_large_to_be_tried_go_range_by_range(clock, monkeypatch, caplog):
    monkeypatch.setattr(trial_module, "MOST_BYTES", 1000)
    assert rows_of(best(clock(Device()), 100)) == []
    assert caplog.records == [], "nothing failed"


@pytest.mark.parametrize(("layers", "counts"), [(1, [16, 64, 128]), (3, [18, 66, 129]), (80, [16, 64, 128])])
def test_pages_are_tried_in_as_many_tensors_as_they_are_in(layers, counts):
    device = Device()
    stream = device.new_stream()
    trial = Trial(device, stream, Shape(16, layers), lambda: 0)
    found = trial.run(partial(METHODS[BATCH], device, stream))
    assert sorted({case.num_ranges for case in found}) == counts
    assert device.calls[0][2] == counts[0]


def test_what_is_timed_is_all_that_a_job_takes():
    """What the host works out, gives and waits for; not what it takes back."""
    device, spent = Device(), [0]
    stream = device.new_stream()

    class Slow(OneBatch):
        def prepare(self, *job):
            spent[0] += 1
            return super().prepare(*job)

        def give(self, prepared):
            spent[0] += 10
            device.streams[stream].append(("act", lambda: spent.append(spent.pop() + 100)))
            super().give(prepared)

        def take_back(self, prepared):
            spent[0] += 1000

    found = Trial(device, stream, Shape(16, 1), lambda: spent[0]).run(partial(Slow, device, stream))
    assert {*found.values()} == {111}


def test_a_trial_waits_for_compute_that_may_still_use_its_memory():
    device = Device()
    stream = device.new_stream()
    Trial(device, stream, Shape(16, 1), lambda: 0)
    device.go(stream)
    assert [operation[0] for operation in device.streams[stream]] == ["hold"]
    assert device.streams[stream][0][1] is device.streams[0][-1][1]


def test_so_does_every_stream_of_a_method(monkeypatch):
    device = Device()
    runnable, upload, done = device.runnable, device._upload, []
    # The stream that was made last goes first, where it can.
    monkeypatch.setattr(device, "runnable", lambda: runnable()[::-1])
    monkeypatch.setattr(device, "_upload", lambda *table: (done.append("upload"), upload(*table)))
    device.compute(lambda: done.append("compute"))
    stream = device.new_stream()
    Trial(device, stream, Shape(16, 1), lambda: 0).run(partial(METHODS[STAGED], device, stream))
    assert done[:2] == ["compute", "upload"]


@pytest.mark.parametrize("choice", [GATHER, STAGED])
def test_what_a_method_borrowed_is_given_back(choice):
    device = Device()
    stream = device.new_stream()
    made = []

    def make(plan):
        made.append(METHODS[choice](device, stream, plan))
        return made[-1]

    with closing(Trial(device, stream, Shape(16, 1), lambda: 0)) as trial:
        trial.run(make)
        assert len(device.stages) == 1 + sum(len(method.stages) for method in made)
    for method in made:
        method.tables.check()
        assert method.tables._lent == 0
    assert device.stages == []
