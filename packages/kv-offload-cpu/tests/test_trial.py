"""What `cuda-best` finds out about a device whose prices are known, and about one that isn't right."""

import sys

import numpy as np
import pytest
from kv_offload_cpu_device import FakeDevice

from kv_offload_cpu import CopyEngineChoice, Direction
from kv_offload_cpu.copy import trial as trial_module
from kv_offload_cpu.copy.choose import METHODS, method_maker
from kv_offload_cpu.copy.cuda import EachRange
from kv_offload_cpu.copy.cuda_batch import OneBatch, SourceOrder
from kv_offload_cpu.copy.descriptors import Ranges
from kv_offload_cpu.copy.gather import OneKernel
from kv_offload_cpu.copy.table import Basis, Row
from kv_offload_cpu.copy.trial import Trial

LOAD, STORE = Direction.LOAD, Direction.STORE
BATCH, GATHER = CopyEngineChoice.CUDA_BATCH, CopyEngineChoice.CUDA_GATHER
ENDLESS = sys.maxsize


class Device(FakeDevice):
    """A batch costs 10 for each small range to load and else 1 for a range, a kernel 200 and 1 for a range.

    The first batch costs 5,000 more. ``lacks`` and ``spoils`` name what it hasn't, and does wrongly; ``idles``
    says for which direction, count and size of ranges its kernels do nothing.
    """

    def __init__(self, lacks=(), spoils=(), idles=lambda direction, count, size: False):
        super().__init__([], np.zeros(1, np.uint8))
        self.lacks, self.spoils, self.idles = {*lacks}, {*spoils}, idles
        self.spent = -5000

    def enable_batches(self):
        assert "batches" not in self.lacks, "no batches here"

    def enable_kernels(self):
        assert "kernels" not in self.lacks, "no kernels here"

    def copy_batch(self, stream, found, order):
        super().copy_batch(stream, found, order)
        price = 10 if order is SourceOrder.ANY and found.sizes[0] < 60 else 1
        self._spend(stream, "batches", len(found.sizes) * price, int(found.targets[0]))

    def run_kernel(self, stream, table, num_rows, rows, word):
        target = int(table.numbers[0])
        is_load = any(stage.ctypes.data <= target < stage.ctypes.data + len(stage) for stage in self.stages)
        if not self.idles(LOAD if is_load else STORE, num_rows, int(table.numbers[2 * num_rows])):
            super().run_kernel(stream, table, num_rows, rows, word)
        self._spend(stream, "kernels", 200 + len(rows), target)

    def _spend(self, stream, kind, price, target):
        def act():
            self.spent = max(self.spent, 0) + price
            if kind in self.spoils:
                self._write(target, bytes([(self._read(target, 1)[0] + 1) % 256]))

        self.streams[stream].append(("act", act))


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


def best(device, range_bytes=16):
    return method_maker(device, CopyEngineChoice.CUDA_BEST, range_bytes)(device.new_stream())


def ranges(count, size):
    return Ranges(*(np.full(count, value) for value in (0, 0, 0, size)))


def measured(direction, *rows):
    return [Row(direction, least, below, method, Basis.MEASURED) for least, below, method in rows]


def test_each_direction_size_and_count_goes_by_what_was_fastest(clock, caplog):
    caplog.set_level("INFO")
    method = best(clock(Device()))
    assert rows_of(method) == [
        *measured(STORE, *[(least, 32, BATCH) for least in (128, 64, 4)]),
        *measured(STORE, *[(least, ENDLESS, BATCH) for least in (128, 64, 4)]),
        *measured(LOAD, (128, 32, GATHER), (64, 32, GATHER), (4, 32, BATCH)),
        *measured(LOAD, *[(least, ENDLESS, BATCH) for least in (128, 64, 4)]),
    ]
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 12
    assert told[0] == "cuda-best: a store of 128 ranges or more of less than 32 bytes is 'cuda-batch'"
    assert told[-1] == "cuda-best: a load of 4 ranges or more of any size is 'cuda-batch'"
    picked = {
        (direction, count, size): type(method.prepare(direction, ranges(count, size))[0])
        for direction, count, size in [
            (LOAD, 64, 31),
            (LOAD, 64, 32),
            (LOAD, 63, 16),
            (LOAD, 3, 16),
            (STORE, 99, 16),
        ]
    }
    assert [*picked.values()] == [OneKernel, OneBatch, OneBatch, EachRange, OneBatch]


@pytest.mark.parametrize(
    ("device", "left", "reason"),
    [
        (Device(lacks=["kernels"]), BATCH, "does without 'cuda-gather': no kernels here"),
        (Device(lacks=["batches"]), GATHER, "does without 'cuda-batch': no batches here"),
        (
            Device(idles=lambda direction, *_: direction is LOAD),
            BATCH,
            "does without 'cuda-gather': of 16 ranges of 16 bytes 2",
        ),
        (
            Device(idles=lambda direction, *_: direction is STORE),
            BATCH,
            "does without 'cuda-gather': of 16 ranges of 16 bytes 2",
        ),
        (
            Device(idles=lambda *job: job == (STORE, 16, 64)),
            BATCH,
            "does without 'cuda-gather': of 16 ranges of 64 bytes 1024 bytes",
        ),
        (Device(spoils=["kernels"]), BATCH, "does without 'cuda-gather': of 16 ranges of 16 bytes 1 bytes came"),
        (Device(spoils=["batches"]), GATHER, "does without 'cuda-batch': of 16 ranges of 16 bytes 1 bytes came"),
    ],
)
def test_a_method_that_is_not_there_or_not_right_gets_no_row(device, left, reason, clock, caplog):
    method = best(clock(device))
    assert {row.method for row in rows_of(method)} == {left}
    assert [*method.methods] == [CopyEngineChoice.CUDA, left]
    [warning] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert warning.getMessage().startswith(f"copy_engine: 'cuda-best' {reason}")


def test_without_any_method_ranges_go_one_by_one(clock):
    method = best(clock(Device(lacks=["batches", "kernels"])))
    assert rows_of(method) == []
    assert type(method.prepare(LOAD, ranges(1000, 16))[0]) is EachRange


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("is_pinned", False, "host memory is not pinned"),
        ("mapped_shift", 4096, "the device has host memory at other addresses"),
    ],
)
def test_a_kernel_is_tried_only_where_it_finds_host_memory(name, value, reason, clock, caplog):
    device = clock(Device())
    setattr(device, name, value)
    assert GATHER not in best(device).methods
    assert caplog.records[-1].getMessage() == f"copy_engine: 'cuda-best' does without 'cuda-gather': {reason}"


class Hoards(Device):
    """Gives a trial the memory of the one before, as it was left. Kernels leave out what is beyond 4 KiB."""

    def __init__(self):
        super().__init__()
        self.kept_stages, self.kept_tables = [], []

    def new_stage(self, num_bytes):
        super().new_stage(num_bytes)
        self.kept_stages = self.kept_stages or self.stages[-1:]
        self.stages[-1:] = self.kept_stages
        return self.stages[-1].ctypes.data

    def new_table(self, num_rows):
        if num_rows < 64 * 128 // 24:
            return super().new_table(num_rows)
        if len(self.kept_tables) < 2:
            self.kept_tables.append(super().new_table(num_rows))
            return self.kept_tables[-1]
        self.kept_tables.reverse()
        return self.kept_tables[1]

    def run_kernel(self, stream, table, num_rows, rows, word):
        sides = [self.stages[0], *(kept.numbers for kept in self.kept_tables)]
        for row in rows:
            addresses = table.numbers[[row, num_rows + row]]
            offsets = [address - side.ctypes.data for address in addresses for side in sides]
            if sum(4096 <= offset < 64 * 128 for offset in offsets) < 2:
                super().run_kernel(stream, table, num_rows, [row], word)


def test_bytes_that_another_trial_left_are_not_taken_for_copied(clock, caplog):
    method = best(clock(Hoards()))
    assert {row.method for row in rows_of(method)} == {BATCH}
    start = "copy_engine: 'cuda-best' does without 'cuda-gather': of 128 ranges of 64 bytes "
    assert caplog.records[-1].getMessage().startswith(start)


def test_a_method_that_fails_leaves_nothing_that_uses_its_memory(clock):
    device = clock(Device())
    device.failing = {"run_kernel"}  # when its upload was given to the stream
    assert GATHER not in best(device).methods
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
    assert [(row.direction, row.least_ranges, row.below_bytes) for row in rows_of(method)] == [
        (direction, least, below)
        for direction in (STORE, LOAD)
        for least, below in ((64, 200), (4, 200), (4, ENDLESS))
    ]
    assert [len(table.numbers) * 8 for table in device.tables[:2]] == [6408, 6408]
    assert device.stages == []


def test_what_was_tried_of_one_size_goes_for_all(clock, monkeypatch):
    monkeypatch.setattr(trial_module, "MOST_BYTES", 16 * 100)
    assert rows_of(best(clock(Device()), 100)) == [
        Row(direction, 4, ENDLESS, BATCH, Basis.MEASURED) for direction in (STORE, LOAD)
    ]


def test_pages_too_large_to_be_tried_go_range_by_range(clock, monkeypatch):
    monkeypatch.setattr(trial_module, "MOST_BYTES", 1000)
    assert rows_of(best(clock(Device()), 100)) == []


def test_a_trial_waits_for_compute_that_may_still_use_its_memory():
    device = Device()
    stream = device.new_stream()
    Trial(device, stream, 16, lambda: 0)
    assert [operation[0] for operation in device.streams[stream]] == ["hold"]
    assert device.streams[stream][0][1] is device.streams[0][-1][1]


def test_what_a_method_borrowed_is_given_back():
    device = Device()
    stream = device.new_stream()
    method = METHODS[GATHER](device, stream)
    Trial(device, stream, 16, lambda: 0).run(method)
    method.tables.check()
    assert method.tables._lent == 0
