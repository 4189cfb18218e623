"""What each method of the CUDA engine gives to the device: calls, orders, pieces, and failures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_offload_cpu_device import FakeDevice
from kv_offload_cpu_layouts import Job, Shape, Tensor
from kv_offload_cpu_machine import WAYS, Machine

from kv_offload_cpu import Direction
from kv_offload_cpu.copy.addresses import Moves, moves, split, word_bytes
from kv_offload_cpu.copy.cuda_batch import SourceOrder
from kv_offload_cpu.copy.descriptors import Ranges, join_neighbours
from kv_offload_cpu.copy.gather import OneKernel, Tables, longest_piece
from kv_offload_cpu.copy.staged import TwoHalves, cut

STORE, LOAD = Direction.STORE, Direction.LOAD

LAYERS = tuple(Tensor(16) for _ in range(4))
SHAPE = Shape(6, 2, LAYERS, (tuple((index, 16) for index in range(4)),))
"""Four layers, chunks of two blocks: eight pages of 16 bytes fill a slot of 128."""

WHOLE = Job(((5, 0, 3, 1),), ((4, 2),), (0,))
"""Two chunks from blocks that are no neighbours: sixteen pages."""


def numbers(*values):
    return np.array(values, np.int64)


@pytest.fixture
def make():
    """Makes machines, and recounts them after the test."""
    made = []

    def make_one(way, shape=SHAPE):
        made.append(Machine(shape, WAYS.get(way, way)))
        return made[-1]

    yield make_one
    for machine in made:
        machine.check()


@pytest.mark.parametrize(("direction", "order"), [(STORE, SourceOrder.STREAM), (LOAD, SourceOrder.ANY)])
def test_a_batch_is_one_call_in_the_order_its_direction_needs(make, direction, order):
    machine = make("batch")
    machine.submit(1, direction, WHOLE)
    assert machine.device.calls == [("batch", order, 16)]


@pytest.mark.parametrize("direction", Direction)
def test_a_gather_is_one_upload_and_one_kernel(make, direction):
    machine = make("gather")
    machine.submit(1, direction, WHOLE)
    assert len(machine.device.calls) == 1
    kind, rows, word = machine.device.calls[0]
    assert (kind, rows) == ("kernel", 16)
    assert word in (8, 16)  # numpy's arrays begin at multiples of 16, or in old versions of 8
    stream = machine.device.streams[1 if direction is STORE else 2]
    assert [operation[0] for operation in stream] == ["hold", "mark", "upload", "kernel", "mark"]


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("way", WAYS)
def test_a_job_without_pages_asks_nothing_of_the_device_and_ends(make, way, direction):
    machine = make(way)
    machine.submit(1, direction, Job(((),), ((),), (0,)))
    assert (machine.device.calls, machine.device.tables) == ([], [])
    machine.device.run()
    assert machine.finished() == [(1, True)]


@pytest.mark.parametrize("direction", Direction)
def test_staging_copies_whole_slots(make, direction):
    machine = make(lambda driver, stream: TwoHalves(driver, stream, half_bytes=512))
    machine.submit(1, direction, WHOLE)
    kernel, batch = sorted(machine.device.calls, key=lambda call: call[0] == "batch")
    assert kernel[:2] == ("kernel", 16)
    assert batch[0::2] == ("batch", 2)


def test_staging_works_on_one_half_while_the_other_is_copied(make):
    machine = make(lambda driver, stream: TwoHalves(driver, stream, half_bytes=64))
    machine.submit(1, STORE, WHOLE)
    device = machine.device
    copies, kernels = machine.methods[0].streams
    while device.streams[0]:
        device.step(0)
    while device.streams[copies][0][0] != "hold" or device.streams[copies][0][1].reached:
        device.step(copies)
    waiting = len([operation for operation in device.streams[copies] if operation[0] == "batch"])
    done = 0
    while kernels in device.runnable():
        done += device.streams[kernels][0][0] == "kernel"
        device.step(kernels)
    assert waiting > 3
    assert done == 2  # both halves are full, and none was copied
    device.step(copies)
    device.step(copies)  # the first half is
    device.step(copies)
    assert kernels in device.runnable()


def test_a_load_fills_one_half_while_the_other_is_scattered(make):
    machine = make(lambda driver, stream: TwoHalves(driver, stream, half_bytes=64))
    machine.submit(1, LOAD, WHOLE)
    device = machine.device
    while device.streams[0]:
        device.step(0)
    copies, kernels = machine.methods[1].streams
    before = len([operation for operation in device.streams[copies] if operation[0] == "batch"])
    while copies in device.runnable():
        device.step(copies)
    waiting = len([operation for operation in device.streams[copies] if operation[0] == "batch"])
    assert before > 3
    assert before - waiting == 2  # both halves are full, and none was scattered
    while copies not in device.runnable():
        device.step(kernels)
    assert len([operation for operation in device.streams[kernels] if operation[0] == "kernel"]) == before - 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "method", ["mark_compute", "hold", "mark", "copy_batch", "new_table", "upload", "run_kernel"]
)
def test_a_failing_call_is_a_failed_job_and_the_next_one_is_fine(make, way, method):
    machine = make(way)
    machine.device.compute(lambda: machine.arrays[0].fill(7))
    machine.device.failing = {method}
    machine.submit(1, STORE, WHOLE)
    machine.device.failing = set()
    begun = machine.check()
    machine.device.run()
    [(_, success)] = machine.finished()
    if not success:
        assert begun == 0, "a table is lent to nobody"
    machine.submit(2, STORE, WHOLE)
    machine.device.run()
    assert machine.finished() == [(2, True)]
    assert machine.check() == 0
    assert [machine.memory[begin : begin + 16].tolist() for begin in (4 * 128, 2 * 128)] == [[7] * 16] * 2


USES = {
    "each": set(),
    "batch": {"copy_batch"},
    "gather": {"new_table", "upload", "run_kernel"},
    "staged": {"new_table", "upload", "run_kernel", "copy_batch"},
}


@pytest.mark.parametrize("way", USES)
def test_each_call_of_a_method_can_fail_a_job(make, way):
    failed = set()
    for method in ("copy_batch", "new_table", "upload", "run_kernel"):
        machine = make(way)
        machine.device.failing = {method}
        machine.submit(1, LOAD, WHOLE)
        machine.device.run()
        failed |= {method for _, success in machine.finished() if not success}
    assert failed == USES[way]


@pytest.mark.parametrize("method", ["run_kernel", "copy_batch"])
def test_a_job_that_fails_half_way_leaves_no_stream_that_reads_its_table(make, method):
    machine = make("staged")
    machine.device.failing = {method}  # when its upload, or its kernel too, was already given to another stream
    machine.submit(1, STORE, WHOLE)
    assert [machine.device.streams[stream] for stream in machine.methods[0].streams] == [[], []]
    assert machine.check() == 0


def test_a_table_of_a_job_that_cannot_be_drained_serves_nobody_else(make):
    machine = make("gather")
    machine.device.failing = {"run_kernel", "drain"}
    machine.submit(1, STORE, WHOLE)
    machine.device.failing = set()
    machine.submit(2, STORE, WHOLE)
    assert len(machine.device.tables) == 2
    machine.device.run()
    assert machine.finished() == [(1, False), (2, True)]
    assert machine.check() == 1


def test_tables_are_used_again_and_not_before_their_job_ended(make):
    machine = make("gather")
    for job_id in range(3):
        machine.submit(job_id, STORE, WHOLE)
    machine.device.run()
    machine.finished()
    for job_id in range(3, 6):
        machine.submit(job_id, STORE, WHOLE)
    machine.device.run()
    assert machine.finished() == [(3, True), (4, True), (5, True)]
    assert len(machine.device.tables) == 3


def test_tables_grow_in_powers_of_two():
    device = FakeDevice([], np.zeros(1, np.uint8))
    tables = Tables(device)
    sizes = (1, 256, 257, 1000)
    lent = [tables.borrow(Moves(*([np.arange(size)] * 3))) for size in sizes]
    assert [len(table.numbers) for table in lent] == [768, 768, 1536, 3072]
    assert lent[2].numbers[: 3 * 257].tolist() == [*range(257)] * 3
    for table in lent:
        tables.give_back(table)
    tables.check()
    tables._made += 1
    with pytest.raises(AssertionError, match="kept 4 \\+ lent 0 != made 5"):
        tables.check()


def test_addresses_of_both_directions():
    ranges = Ranges(numbers(0, 1), numbers(1008, 2000), numbers(5000, 5040), numbers(8, 4))
    there = moves(ranges, STORE)
    assert [column.tolist() for column in there] == [[5000, 5040], [1008, 2000], [8, 4]]
    back = moves(ranges, LOAD)
    assert [column.tolist() for column in back] == [[1008, 2000], [5000, 5040], [8, 4]]


@given(
    st.lists(st.tuples(*[st.integers(0, 2**47)] * 2, st.integers(1, 2**20)), max_size=5),
    st.sampled_from([1, 8, 16]),
)
def test_the_word_is_the_widest_that_fits_all(rows, factor):
    rows = [[factor * value for value in row] for row in rows]
    found = Moves(*(np.array(column, np.int64) for column in zip(*rows, strict=True))) if rows else None
    found = found or Moves(*[np.empty(0, np.int64)] * 3)
    fitting = [word for word in (1, 2, 4, 8, 16) if all(value % word == 0 for row in rows for value in row)]
    assert word_bytes(found) == fitting[-1]


@st.composite
def host_ranges(draw):
    """Ranges of three tensors, apart on the device, with or without gaps in host memory, in any order."""
    sizes = draw(st.lists(st.integers(1, 70), min_size=1, max_size=12))
    gaps = draw(st.lists(st.sampled_from([0, 0, 1, 30]), min_size=len(sizes), max_size=len(sizes)))
    host = np.cumsum([0, *sizes[:-1]]) + np.cumsum(gaps)
    tensors = draw(st.lists(st.integers(0, 2), min_size=len(sizes), max_size=len(sizes)))
    order = np.array(draw(st.permutations(range(len(sizes)))), np.int64)
    device = 100 * np.arange(len(sizes)) + 10_000 * np.array(tensors)
    return Ranges(np.array(tensors)[order], device[order], host[order], np.array(sizes)[order])


def spread(targets, sources, sizes):
    """From each byte's target to its source."""
    rows = zip(targets.tolist(), sources.tolist(), sizes.tolist(), strict=True)
    return [(target + n, source + n) for target, source, size in rows for n in range(size)]


@given(host_ranges(), st.sampled_from([32, 64, 96, 256]))
def test_cut_pieces_fit_their_half_and_lead_every_byte_to_its_place(ranges, half_bytes):
    stage = cut(ranges, half_bytes)
    assert stage.page_ends[-1] == len(stage.page_sizes)
    assert stage.ends[-1] == len(stage.sizes)
    assert len(stage.page_ends) == len(stage.ends)
    found = []
    for piece in range(len(stage.ends) - 1):
        pages = slice(stage.page_ends[piece], stage.page_ends[piece + 1])
        here = slice(stage.ends[piece], stage.ends[piece + 1])
        gathered = spread(stage.page_stage[pages], stage.device[pages], stage.page_sizes[pages])
        held = dict(gathered)
        assert len(held) == len(gathered) > 0, "two pages at one place"
        half = piece % 2 * half_bytes
        assert min(held) >= half
        assert max(held) < half + half_bytes
        copied = spread(stage.host[here], stage.stage[here], stage.sizes[here])
        assert len(copied) == len(held), "a byte of the half that nobody gathered, or nobody copies"
        found += [(target, held[place]) for target, place in copied]
    wanted = spread(ranges.host, ranges.device, ranges.sizes)
    assert sorted(found) == sorted(wanted)


def test_neighbours_in_host_memory_are_one_stretch():
    ranges = Ranges(numbers(0, 1, 2), numbers(0, 100, 200), numbers(0, 16, 32), numbers(16, 16, 16))
    stage = cut(ranges, 256)
    assert [stage.host.tolist(), stage.stage.tolist(), stage.sizes.tolist()] == [[0], [0], [48]]
    assert len(join_neighbours(ranges).sizes) == 3


@pytest.mark.parametrize("direction", Direction)
def test_a_kernel_finds_host_memory_where_the_device_has_it(direction):
    device = FakeDevice([], np.zeros(1, np.uint8))
    device.mapped_shift = 7000
    method = OneKernel(device, device.new_stream())
    ranges = Ranges(numbers(0, 1), numbers(1008, 2000), numbers(5000, 5040), numbers(8, 4))
    table, num_rows, word = method.prepare(direction, ranges)
    host, on_device = [12_000, 12_040], [1008, 2000]
    expected = [*host, *on_device] if direction is STORE else [*on_device, *host]
    assert table.numbers[:6].tolist() == [*expected, 8, 4]
    assert (num_rows, word) == (2, 4)
    assert ranges.host.tolist() == [5000, 5040]


@pytest.mark.parametrize(("count", "size", "rows"), [(1, 4096, 1), (16, 16 << 10, 64), (3, 1 << 20, 384)])
def test_large_pages_are_cut_until_there_are_enough_pieces_and_small_ones_are_not(count, size, rows):
    device = FakeDevice([], np.zeros(1, np.uint8))
    method = OneKernel(device, device.new_stream())
    begins = np.arange(count) * size
    found = method.prepare(STORE, Ranges(np.zeros(count, np.int64), begins, begins, np.full(count, size)))
    assert found.num_rows == rows


@pytest.mark.parametrize(
    ("num_bytes", "longest"), [(1, 4096), (2 << 20, 4096), ((2 << 20) + 1, 8192), (1 << 30, 2 << 20)]
)
def test_a_piece_is_as_long_as_makes_enough_of_them(num_bytes, longest):
    assert longest_piece(num_bytes) == longest


def test_split_pieces_of_a_large_page_stay_in_order():
    assert [column.tolist() for column in split(numbers(0), numbers(100), numbers(40), 16)] == [
        [0, 16, 32],
        [100, 116, 132],
        [16, 16, 8],
    ]
