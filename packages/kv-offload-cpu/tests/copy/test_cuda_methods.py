"""What each method of the CUDA engine gives to the device: calls, orders, tables, pieces, and failures."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_offload_cpu_device import FakeDevice
from kv_offload_cpu_layouts import Job, Shape, Tensor, plan_of_tensors, shapes
from kv_offload_cpu_machine import NUM_CHUNKS, WAYS, Machine

from kv_offload_cpu import Direction, PageCopies
from kv_offload_cpu.copy.cuda.methods import staged
from kv_offload_cpu.copy.cuda.methods.batch import SourceOrder
from kv_offload_cpu.copy.cuda.methods.gather import BULK_PROGRAMS, PROGRAMS, OneKernel
from kv_offload_cpu.copy.cuda.methods.page_table import Kernels, Tables, columns_of, group_steps
from kv_offload_cpu.copy.cuda.methods.pieces import Cutter
from kv_offload_cpu.copy.cuda.methods.staged import TwoHalves
from kv_offload_cpu.copy.ranges.addresses import moves, widest_word
from kv_offload_cpu.copy.ranges.descriptors import Ranges
from kv_offload_cpu.copy.ranges.tensors import TensorPages

STORE, LOAD = Direction.STORE, Direction.LOAD

LAYERS = tuple(Tensor(16) for _ in range(4))
SHAPE = Shape(6, 2, LAYERS, (tuple((index, 16) for index in range(4)),))
"""Four layers, chunks of two blocks: eight pages of 16 bytes fill a slot of 128."""

MANY = Shape(6, 1, LAYERS, (tuple((index, 16) for index in range(4)),))
ALL = Job(((5, 0, 3, 1, 2, 4),), ((4, 2, 0, 5, 1, 3),), (0,))
"""Six chunks of a block, of which a small half of a buffer has room for one."""

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
@pytest.mark.parametrize(
    ("way", "kernels", "most"), [("gather", Kernels.GATHER, PROGRAMS), ("bulk", Kernels.BULK, BULK_PROGRAMS)]
)
def test_a_gather_is_one_upload_and_one_kernel_of_its_kind(make, way, kernels, most, direction):
    machine = make(way)
    assert machine.device.kernels == [kernels] * 3, "of one group, in each lane"
    machine.submit(1, direction, WHOLE)
    assert len(machine.device.calls) == 1
    kind, steps, word, programs = machine.device.calls[0]
    assert (kind, steps, programs) == ("kernel", 16, most[direction])
    assert word in (8, 16)  # numpy's arrays begin at multiples of 16, or in old versions of 8
    stream = machine.device.streams[1 if direction is STORE else 2]
    assert [operation[0] for operation in stream] == ["hold", "mark", "upload", "kernel", "mark"]


def test_pages_of_several_groups_are_a_kernel_each(make):
    groups = (((0, 16), (1, 16)), ((2, 16),), ((3, 16), (0, 16), (1, 16)))
    machine = make("gather", Shape(6, 2, LAYERS, groups))
    machine.submit(1, STORE, Job(((5, 0), (3,), (1, 2)), ((4,), (2,), (0,)), (0, 0, 0)))
    assert [call[:2] for call in machine.device.calls] == [("kernel", 4), ("kernel", 1), ("kernel", 6)]


@pytest.mark.parametrize(("direction", "lane"), [(STORE, 0), (LOAD, 1)])
@pytest.mark.parametrize("pages", [WHOLE, Job(((),), ((),), (0,))])
@pytest.mark.parametrize("way", WAYS)
def test_a_job_begins_and_ends_on_the_stream_of_its_lane(make, way, pages, direction, lane):
    machine = make(way)
    lanes = [method.streams[0] for method in machine.methods]
    machine.submit(1, direction, pages)
    operations = [operation[0] for operation in machine.device.streams[lanes[lane]]]
    assert operations[:2] == ["hold", "mark"]
    assert operations[-1] == "mark"
    assert operations.count("mark") >= 2


@pytest.mark.parametrize("direction", Direction)
def test_a_kernel_has_as_many_programs_as_its_direction_is_given(make, direction):
    machine = make(lambda *machine: OneKernel(*machine, programs={LOAD: 11, STORE: 13}))
    machine.submit(1, direction, WHOLE)
    assert [call[3] for call in machine.device.calls] == [11 if direction is LOAD else 13]


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("way", WAYS)
def test_a_job_without_pages_asks_nothing_of_the_device_and_ends(make, way, direction):
    machine = make(way)
    machine.submit(1, direction, Job(((),), ((),), (0,)))
    assert (machine.device.calls, machine.device.tables) == ([], [])
    machine.device.run()
    assert machine.finished() == [(1, True)]


@pytest.mark.parametrize(("direction", "order"), [(STORE, SourceOrder.STREAM), (LOAD, SourceOrder.ANY)])
def test_staging_copies_whole_slots_in_the_order_its_direction_needs(make, direction, order):
    machine = make(lambda *machine: TwoHalves(*machine, half_bytes=2048))
    machine.submit(1, direction, WHOLE)
    kernel, batch = sorted(machine.device.calls, key=lambda call: call[0] == "batch")
    assert kernel[:2] == ("kernel", 16)
    assert kernel[3] == staged.PROGRAMS
    assert batch == ("batch", order, 2)


@pytest.mark.parametrize("way", WAYS)
def test_a_group_may_hold_nothing(make, way):
    machine = make(way, Shape(6, 2, LAYERS, ((), ((1, 16),))))
    machine.submit(1, STORE, Job(((), (5, 3)), ((), (4,)), (0, 0)))
    machine.device.run()
    assert machine.finished() == [(1, True)]
    pages = machine.memory[4 * machine.layout.row_bytes :][:32].view(np.int8)
    assert np.array_equal(pages, machine.arrays[1][[5, 3]].ravel())


@pytest.mark.parametrize("way", WAYS)
def test_pages_whose_layers_other_workers_have_are_nothing_to_copy(make, way):
    machine = make(way, Shape(6, 2, LAYERS, ((), ((1, 16),))))
    machine.submit(1, LOAD, Job(((2, 4), ()), ((5,), ()), (0, 0)))
    assert machine.device.calls == []
    machine.device.run()
    assert machine.finished() == [(1, True)]


@pytest.mark.parametrize("direction", Direction)
def test_staging_copies_slots_that_follow_each_other_at_once(make, direction):
    machine = make(lambda *machine: TwoHalves(*machine, half_bytes=2048))
    machine.submit(1, direction, WHOLE._replace(chunks=((2, 3),)))
    assert [call[2] for call in machine.device.calls if call[0] == "batch"] == [1]


def test_staging_begins_with_small_pieces_and_goes_on_with_whole_halves(make):
    small = Shape(40, 2, (Tensor(16),), (((0, 16),),))
    machine = make(lambda *machine: TwoHalves(*machine, half_bytes=8 * 32), small)
    pages = numbers(*range(40))
    copies = PageCopies(0 * pages, pages, pages // 2 % NUM_CHUNKS, pages % 2)
    device, given = machine.device, []
    new_table = device.new_table
    device.new_table = lambda num_rows: given.append(len(device.calls)) or new_table(num_rows)
    machine.engine.submit(1, STORE, copies)
    assert [call[1] for call in device.calls if call[0] == "kernel"] == [2, 4, 8, 16, 10]
    assert given == [0, 6], "what follows is worked out when the first kernels and copies were given"


@pytest.mark.parametrize(("half_bytes", "slots"), [(1, 1), (127, 1), (256, 2), (383, 2)])
def test_half_a_buffer_has_room_for_one_slot_at_least(make, half_bytes, slots):
    machine = make(lambda *machine: TwoHalves(*machine, half_bytes=half_bytes))
    assert [len(stage) for stage in machine.device.stages] == [2 * slots * 128] * 3


def test_staging_works_on_one_half_while_the_other_is_copied(make):
    machine = make("staged", MANY)
    machine.submit(1, STORE, ALL)
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
    for operation in ("hold", "batch", "mark"):
        assert kernels not in device.runnable()
        assert device.streams[copies][0][0] == operation
        device.step(copies)
    assert kernels in device.runnable()  # the first half is copied


def test_a_load_fills_one_half_while_the_other_is_scattered(make):
    machine = make("staged", MANY)
    machine.submit(1, LOAD, ALL)
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


def test_what_is_worked_out_of_a_job_goes_before_the_rest_is(make):
    machine = make("staged", MANY)
    machine.submit(1, STORE, ALL)
    assert [gone.count("kernel") for gone in machine.device.gone if "kernel" in gone] == [1, 2, 3]


def test_each_job_begins_with_the_half_that_was_not_used_last(make):
    machine = make("staged", MANY)
    used = []
    for job_id in range(4):
        machine.submit(job_id, STORE, Job(((job_id,),), ((job_id,),), (0,)))
        method = machine.methods[0]
        *_, (_, launch) = (step for step in machine.device.streams[method.streams[1]] if step[0] == "kernel")
        slot = int(columns_of(launch.table, launch.num_rows)[1, launch.rows.start])
        used.append((slot - method.stages[0]) // method._cutter.half_bytes)
    assert used == [0, 1, 0, 1]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "method",
    [
        *("mark_compute", "hold", "mark", "mark_time", "go"),
        *("copy_batch", "new_table", "upload", "run_kernel"),
    ],
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
    "bulk": {"new_table", "upload", "run_kernel"},
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


def test_a_table_of_a_job_whose_end_cannot_be_asked_for_serves_nobody_else(make):
    machine = make("gather")
    machine.submit(1, STORE, WHOLE)
    machine.device.failing = {"is_reached", "drain"}
    assert machine.finished() == [(1, False)]
    machine.device.failing = set()
    machine.submit(2, STORE, WHOLE)
    assert len(machine.device.tables) == 2
    machine.device.run()
    assert machine.finished() == [(2, True)]
    assert machine.check() == 1


def test_a_table_of_a_job_that_failed_serves_others_once_its_stream_is_idle(make):
    machine = make("gather")
    machine.submit(1, STORE, WHOLE)
    machine.device.failing = {"is_reached"}
    assert machine.finished() == [(1, False)]
    assert not any(machine.device.streams[stream] for stream in machine.methods[0].streams)
    assert machine.check() == 0


@pytest.mark.parametrize("direction", Direction)
def test_the_first_piece_goes_before_the_others_are_given(make, direction):
    machine = make("staged")
    machine.submit(1, direction, WHOLE)
    kernels = [gone.count("kernel") for gone in machine.device.gone if "batch" in gone]
    assert kernels == [1, 1]


@pytest.mark.parametrize("way", ["gather", "staged"])
def test_a_table_that_is_taken_anew_is_not_touched_before_compute_that_may_still_use_it(make, way):
    machine = make(way)
    device = machine.device
    new_table = device.new_table
    device.new_table = lambda num_rows: device.compute(lambda: None) or new_table(num_rows)
    machine.submit(1, STORE, WHOLE._replace(blocks=((5, 0),), chunks=((4,),)))
    [act, mark] = device.streams[0]
    assert (act[0], mark[0]) == ("act", "mark")
    assert {device.streams[stream][0] for stream in machine.methods[0].streams} == {("hold", mark[1])}


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
    lent = [tables.borrow(size) for size in (1, 256, 257, 1000)]
    assert [len(table.numbers) for table in lent] == [768, 768, 1536, 3072]
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


@given(st.lists(st.integers(0, 2**47), max_size=9), st.sampled_from([1, 8, 16]))
def test_the_word_is_the_widest_that_fits_all(numbers, factor):
    numbers = [factor * number for number in numbers]
    fitting = [word for word in (1, 2, 4, 8, 16) if all(number % word == 0 for number in numbers)]
    columns = [np.array(part, np.int64) for part in (numbers[:2], numbers[2:])]
    assert widest_word(columns) == fitting[-1]


@pytest.mark.parametrize("direction", Direction)
def test_a_kernel_finds_host_memory_where_the_device_has_it(make, direction):
    machine = make("each")
    machine.device.mapped_shift = 7000
    method = OneKernel(machine.device, machine.device.new_stream(), machine.plan)
    copies = PageCopies(*(numbers(*column) for column in ([0, 0], [5, 1], [4, 2], [1, 0])))
    job = method.prepare(direction, copies)
    rows = columns_of(job.table, job.num_rows).tolist()
    assert rows == [[5, 1], [machine.memory.ctypes.data + 7000 + 128 * chunk for chunk in (4, 2)], [1, 0]]


class Numbers:
    """A driver that keeps what it is told of steps."""

    def new_steps(self, numbers, count, word, kernels):
        assert len(numbers) == 5 * count
        return numbers.reshape(5, count).T.tolist()


def test_large_pages_are_cut_into_steps_and_small_ones_are_not():
    plan = plan_of_tensors(TensorPages(4, 9000, 9600, 1 << 30), TensorPages(4, 64, 64, 1 << 20), slot=1)
    [steps] = group_steps(Numbers(), plan, 1 << 50, 64)
    assert steps.num_steps == 4
    assert steps.word == 8
    begin = plan.layout.slot_bytes
    assert steps.on_device == [
        [1 << 30, 9600, begin, 9000, 4096],
        [(1 << 30) + 4096, 9600, begin + 4096, 9000, 4096],
        [(1 << 30) + 8192, 9600, begin + 8192, 9000, 808],
        [1 << 20, 64, begin + 18_000, 64, 64],
    ]


@pytest.mark.parametrize(("at", "apart", "word"), [(1 << 50, 64, 16), ((1 << 50) + 4, 64, 4), (1 << 50, 72, 8)])
def test_words_fit_the_slots_too(at, apart, word):
    [steps] = group_steps(Numbers(), plan_of_tensors(TensorPages(4, 64, 64, 1 << 20)), at, apart)
    assert steps.word == word


@pytest.mark.parametrize(("page_bytes", "apart"), [(1, 16), (8, 16), (9, 32), (16, 32)])
def test_slots_of_a_buffer_begin_where_wide_words_can(page_bytes, apart):
    cutter = Cutter(plan_of_tensors(TensorPages(4, page_bytes, page_bytes, 1 << 20)), 100)
    assert (cutter.slots_apart, cutter.slots, cutter.half_bytes) == (apart, 100 // apart, 100 // apart * apart)


@given(st.data())
def test_pieces_fit_their_half_whatever_the_job(data):
    """Pages in an order that no scheduler gives: runs of one page, chunks again and again."""
    shape = data.draw(shapes())
    half = data.draw(st.sampled_from([16, 64, 256, 1024]))
    machine = Machine(shape, lambda *machine: TwoHalves(*machine, half_bytes=half))
    count = data.draw(st.integers(1, 40))
    columns = (len(shape.groups), shape.num_blocks, NUM_CHUNKS, shape.blocks_per_chunk)
    drawn = [[data.draw(st.integers(0, limit - 1)) for _ in range(count)] for limit in columns]
    # A page of host memory once at most, so that it doesn't matter who comes last; and a chunk is of one group.
    pages = {(chunk, offset): (group, block) for group, block, chunk, offset in zip(*drawn, strict=True)}
    group_of = {chunk: group for (chunk, _), (group, _) in pages.items()}
    rows = [(group_of[chunk], block, chunk, offset) for (chunk, offset), (_, block) in pages.items()]
    copies = PageCopies(*np.array(rows, np.int64).T)
    [method, *_] = machine.methods
    [stage], room = method.stages, method._cutter.slots
    machine.engine.submit(1, STORE, copies)
    kernels = [operation[1] for operation in machine.device.streams[method.streams[1]] if operation[0] == "kernel"]
    used = []
    for launch in kernels:
        slots = columns_of(launch.table, launch.num_rows)[1, launch.rows.start : launch.rows.stop]
        halves = (slots - stage) // method._cutter.half_bytes
        assert len(set(halves.tolist())) == 1
        used.append(int(halves[0]))
        assert len(set(slots.tolist())) <= room
    # A piece whose layers other workers have takes its turn, and no kernel.
    assert not all(shape.groups) or all(half == 1 - before for before, half in pairwise(used))
    expected = machine.memory.copy()
    for group, block, chunk, offset in rows:
        one = [np.array([number]) for number in (group, block, chunk, offset)]
        for index, device, host, size in zip(
            *map(np.ndarray.tolist, machine.plan.ranges(PageCopies(*one))), strict=True
        ):
            begin = device - machine.device.flat[index].ctypes.data
            at = host - machine.memory.ctypes.data
            expected[at : at + size] = machine.device.flat[index][begin : begin + size]
    machine.device.run()
    assert machine.finished() == [(1, True)]
    assert np.array_equal(machine.memory, expected)
