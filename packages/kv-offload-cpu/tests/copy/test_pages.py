"""From specs to pages, and from pages to byte ranges, against obvious loops."""

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_offload_cpu_layouts import Job, Shape, Tensor, jobs, shapes

from kv_api import CanonicalKVCacheRef, GPULoadStoreSpec, KVError
from kv_offload_cpu import HostLayout, PageCopies
from kv_offload_cpu.copy.ranges.descriptors import CopyPlan, Ranges, Scratch, by_group, join_neighbours
from kv_offload_cpu.copy.ranges.pages import page_copies
from kv_offload_cpu.copy.ranges.stretches import SlotStretches, runs_of
from kv_offload_cpu.copy.ranges.tensors import TensorPages

FEWER = settings(max_examples=max(10, settings().max_examples // 2))
"""One of these takes long."""

NUM_CHUNKS = 6


def layout_of(shape, slots=1):
    slot_bytes = shape.bytes_per_block * shape.blocks_per_chunk
    return HostLayout(NUM_CHUNKS, shape.blocks_per_chunk, slot_bytes, slots, slots * slot_bytes + 5)


def plan_of(shape, slot=0, slots=1):
    tensors = [TensorPages(shape.num_blocks, t.page_bytes, t.page_bytes + t.gap_bytes) for t in shape.tensors]
    refs = [[CanonicalKVCacheRef(*ref) for ref in group] for group in shape.groups]
    return CopyPlan(tensors, refs, layout_of(shape, slots), slot)


def pages_of(job, shape):
    return page_copies("job", job.gpu_spec, job.cpu_spec.block_ids, layout_of(shape), len(shape.groups))


@FEWER
@given(st.data())
def test_pages_are_those_of_a_loop_over_blocks(data):
    shape = data.draw(shapes())
    job = data.draw(jobs(shape, NUM_CHUNKS))
    copies = pages_of(job, shape)
    columns = (copies.groups, copies.blocks, copies.chunks, copies.offsets)
    assert all(column.dtype == np.int64 for column in columns)
    assert list(zip(*(c.tolist() for c in columns), strict=True)) == list(job.pages(shape.blocks_per_chunk))


@FEWER
@given(st.data())
def test_ranges_cover_each_byte_once_as_a_loop_over_pages_says(data):
    shape = data.draw(shapes())
    slots = data.draw(st.integers(1, 3))
    slot = data.draw(st.integers(0, slots - 1))
    job = data.draw(jobs(shape, NUM_CHUNKS))
    layout = layout_of(shape, slots)
    ranges = plan_of(shape, slot, slots).ranges(pages_of(job, shape))
    expected = {}
    for group, block, chunk, offset in job.pages(shape.blocks_per_chunk):
        for tensor, size, begin in shape.places(group, offset):
            host = chunk * layout.row_bytes + slot * layout.slot_bytes + begin
            for byte in range(size):
                expected[tensor, block * sum(shape.tensors[tensor]) + byte] = host + byte
    got = [
        ((tensor, device + byte), host + byte)
        for tensor, device, host, size in zip(*(column.tolist() for column in ranges), strict=True)
        for byte in range(size)
    ]
    assert len(got) == len(dict(got)) == ranges.num_bytes
    assert dict(got) == expected


@given(st.data())
def test_a_job_is_as_large_as_a_loop_over_pages_says(data):
    shape = data.draw(shapes())
    job = data.draw(jobs(shape, NUM_CHUNKS))
    plan, copies = plan_of(shape), pages_of(job, shape)
    tensors = [{tensor for tensor, _ in shape.groups[group]} for group, *_ in job.pages(shape.blocks_per_chunk)]
    assert plan.extent(copies) == (sum(map(len, tensors)), plan.ranges(copies).num_bytes)


@FEWER
@given(st.data())
def test_ranges_go_through_each_slot_from_its_begin_to_its_end(data):
    shape = data.draw(shapes())
    job = data.draw(jobs(shape, NUM_CHUNKS))
    layout = layout_of(shape)
    host = plan_of(shape).ranges(pages_of(job, shape)).host.tolist()
    slots = [(chunk, list(begins)) for chunk, begins in groupby(host, lambda begin: begin // layout.row_bytes)]
    assert [begins for _, begins in slots] == [sorted(begins) for _, begins in slots]
    assert len(slots) == sum(len(chunks) for chunks, held in zip(job.chunks, shape.groups, strict=True) if held)


@given(st.data())
def test_memory_that_is_used_again_gives_the_same_ranges(data):
    shape = data.draw(shapes())
    plan, scratch = plan_of(shape), Scratch()
    for _ in range(3):
        copies = pages_of(data.draw(jobs(shape, NUM_CHUNKS)), shape)
        wanted, got = plan.ranges(copies), plan.checked_ranges(copies, scratch)
        assert [column.tolist() for column in got] == [column.tolist() for column in wanted]


@given(st.data())
def test_stretches_are_joined_as_a_loop_over_the_pages_of_a_run_says(data):
    shape = data.draw(shapes())
    copies = pages_of(data.draw(jobs(shape, NUM_CHUNKS)), shape)
    plan = plan_of(shape)
    for group, chosen in by_group(copies.groups):
        chunks, offsets = copies.chunks[chosen], copies.offsets[chosen]
        runs, parts = runs_of(chunks, offsets), plan.parts[group]
        assert runs.tolist() == [number for number, (_, run) in enumerate(groupby(chunks)) for _ in run]
        expected = []
        for run in range(runs[-1] + 1):
            joined = []
            for begin, size in zip(parts.host_begins.tolist(), parts.sizes.tolist(), strict=True):
                for offset in offsets[runs == run].tolist():
                    at = begin + offset * size
                    if joined and sum(joined[-1][1:]) == at:
                        joined[-1][2] += size
                    else:
                        joined.append([run, at, size])
            expected += joined
        pages, begins, sizes = SlotStretches(parts, shape.blocks_per_chunk).find(runs, offsets)
        assert np.all(np.diff(pages) >= 0)
        found = zip(runs[pages].tolist(), begins.tolist(), sizes.tolist(), strict=True)
        assert [*found] == [*map(tuple, expected)]


@pytest.mark.parametrize(
    ("groups", "pages"),
    [
        ([], []),
        ([2, 2], [(2, [0, 1])]),
        ([0, 0, 2], [(0, [0, 1]), (2, [2])]),
        ([2, 0, 2], [(0, [1]), (2, [0, 2])]),
    ],
)
def test_the_pages_of_a_job_by_group(groups, pages):
    places = np.arange(len(groups))
    assert [(group, places[chosen].tolist()) for group, chosen in by_group(np.array(groups, int))] == pages


def test_stretches_of_a_page_stay_in_their_order_in_a_large_job():
    [parts] = plan_of(Shape(1, 2, (Tensor(4), Tensor(8)), (((0, 4), (1, 8)),))).parts
    runs = np.repeat(np.arange(100), [1, 2] * 50)
    offsets = np.array([0, 0, 1] * 50)
    pages, begins, sizes = SlotStretches(parts, 2).find(runs, offsets)
    assert runs[pages].tolist() == np.repeat(np.arange(100), [2, 1] * 50).tolist()
    assert begins.tolist() == [0, 8, 0] * 50
    assert sizes.tolist() == [4, 8, 24] * 50


@pytest.mark.parametrize("offsets", [[0, 1, 0, 1], [0, 1, 0]])
def test_a_group_whose_layers_other_ranks_have_has_no_stretches(offsets):
    _, parts = plan_of(Shape(1, 2, (Tensor(4),), (((0, 4),), ()))).parts
    runs = np.array([0, 0, 1, 1][: len(offsets)])
    found = SlotStretches(parts, 2).find(runs, np.array(offsets))
    assert [column.tolist() for column in found] == [[], [], []]


@pytest.mark.parametrize(
    ("chunks", "offsets", "runs"),
    [
        ([7, 7, 8, 8], [0, 1, 0, 1], [0, 0, 1, 1]),
        ([7, 7, 7, 7], [0, 1, 0, 1], [0, 0, 1, 1]),
        ([7, 7, 7, 7], [3, 3, 2, 1], [0, 1, 2, 3]),
        ([7, 8, 7, 7], [0, 1, 2, 3], [0, 1, 2, 2]),
    ],
)
def test_a_run_is_of_one_chunk_and_rises(chunks, offsets, runs):
    assert runs_of(np.array(chunks), np.array(offsets)).tolist() == runs


def test_memory_is_used_again_as_long_as_it_suffices():
    scratch = Scratch()
    first = scratch.columns(4, 100)
    assert first.shape == (4, 100)
    assert np.shares_memory(scratch.columns(4, 128), first)
    assert not np.shares_memory(scratch.columns(4, 129), first)
    assert scratch.columns(3, 0).shape == (3, 0)
    assert Scratch().columns(3, 171).shape == (3, 171)  # one more than a power of two


def test_a_plan_knows_how_large_its_ranges_are():
    tensors = [TensorPages(8, size, size) for size in (64, 32, 100)]
    refs = [[CanonicalKVCacheRef(0, 64), CanonicalKVCacheRef(1, 30)], [CanonicalKVCacheRef(2, 100)]]
    layout = HostLayout(2, 1, 196, 1, 196)
    assert CopyPlan(tensors, refs, layout, 0).range_bytes == (64 + 30 + 100) // 3
    assert CopyPlan(tensors, [], layout, 0).range_bytes == 1


def test_pages_are_in_as_many_tensors_as_those_of_the_group_with_the_most():
    tensors = [TensorPages(8, 16, 16) for _ in range(4)]
    refs = [[CanonicalKVCacheRef(index, 16) for index in range(count)] for count in (1, 3, 2)]
    layout = HostLayout(2, 1, 96, 1, 96)
    assert [CopyPlan(tensors, refs[:count], layout, 0).num_ranges_a_page for count in range(4)] == [1, 1, 3, 3]
    assert CopyPlan(tensors, refs[::-1], layout, 0).num_ranges_a_page == 3


def test_a_slot_is_one_of_a_row():
    for slot in (-1, 2):
        with pytest.raises(KVError, match=f"^slot {slot}: a row has 2$"):
            CopyPlan([TensorPages(8, 64, 64)], [], HostLayout(4, 2, 128, 2, 256), slot)


def test_a_slot_has_room_for_the_largest_group_and_each_group_begins_where_it_does():
    """Of tensors that other groups have, a chunk holds nothing."""
    tensors = [TensorPages(8, size, 200) for size in (64, 32, 96)]
    refs = [
        [CanonicalKVCacheRef(0, 64)],
        [CanonicalKVCacheRef(2, 90), CanonicalKVCacheRef(1, 6)],
        [CanonicalKVCacheRef(2, 96)],
    ]
    plan = CopyPlan(tensors, refs, HostLayout(4, 2, 192, 2, 400), 1)
    found = [plan.host_begins(group, np.array([0, 3]), np.array([1, 0])).tolist() for group in range(3)]
    assert found == [[[192 + 64], [1392]], [[192 + 6, 204 + 90], [1392, 1404]], [[192 + 96], [1392]]]
    with pytest.raises(
        KVError, match=r"^group 1: pages of \[6, 91\] bytes × 2 blocks don't fit a slot of 192 bytes$"
    ):
        CopyPlan(tensors, [refs[0], [*refs[1], CanonicalKVCacheRef(2, 91)]], HostLayout(4, 2, 192, 2, 400), 1)


def test_a_block_is_in_all_tensors_of_its_group():
    refs = [[CanonicalKVCacheRef(0, 32), CanonicalKVCacheRef(1, 32)]]
    plan = CopyPlan([TensorPages(8, 32, 32), TensorPages(5, 32, 32)], refs, HostLayout(4, 1, 64, 1, 64), 0)
    assert len(plan.ranges(PageCopies(*map(np.array, ([0], [4], [0], [0])))).sizes) == 2
    with pytest.raises(KVError, match="page 0 of the job: block 5, expected 0 to 4"):
        plan.ranges(PageCopies(*map(np.array, ([0], [5], [0], [0]))))


def test_tensors_and_host_memory_are_where_the_plan_says():
    plan = CopyPlan(
        [TensorPages(8, 64, 80, 1000), TensorPages(8, 32, 32, 9000)],
        [[CanonicalKVCacheRef(1, 32), CanonicalKVCacheRef(0, 48)]],
        HostLayout(4, 2, 192, 1, 200),
        0,
        70_000,
    )
    job = Job(((3, 5, 4),), ((2, 0),), (0,))
    copies = page_copies("job", job.gpu_spec, job.cpu_spec.block_ids, plan.layout, 1)
    assert list(zip(*(column.tolist() for column in plan.ranges(copies)), strict=True)) == [
        (0, 1240, 70_400, 48),
        (0, 1400, 70_448, 48),
        (1, 9096, 70_496, 32),
        (1, 9160, 70_528, 32),
        (0, 1320, 70_000, 48),
        (1, 9128, 70_096, 32),
    ]


def test_neighbours_on_both_sides_become_one_range():
    # The second follows the first; the third only on the device, the fourth only in the host; the last elsewhere.
    # Those are of another tensor, and join with each other.
    device, host = [0, 8, 16, 40, 48, 56], [100, 108, 200, 208, 216, 224]
    ranges = Ranges(*map(np.array, ([0, 0, 0, 0, 1, 1], device, host, [8] * 6)))
    joined = [column.tolist() for column in join_neighbours(ranges)]
    assert joined == [[0, 0, 0, 1], [0, 16, 40, 48], [100, 200, 208, 216], [16, 8, 8, 16]]


@given(
    st.lists(st.tuples(st.sampled_from([0, 0, 1]), *[st.sampled_from([0, 0, 8])] * 2, st.sampled_from([8, 16])))
)
def test_ranges_are_joined_as_one_by_one(steps):
    """Of each range: another tensor or not, gaps before it on the device and on the host, its size."""
    ranges, joined, tensor, device, host = [], [], 0, 0, 0
    for is_other, device_gap, host_gap, size in steps:
        tensor, device, host = tensor + is_other, device + device_gap, host + host_gap
        ranges.append((tensor, device, host, size))
        if joined and not (is_other or device_gap or host_gap):
            joined[-1][3] += size
        else:
            joined.append([tensor, device, host, size])
        device, host = device + size, host + size
    found = join_neighbours(Ranges(*np.array(ranges, np.int64).reshape(-1, 4).T))
    assert np.array(found).T.tolist() == joined


def test_a_group_may_hold_nothing():
    plan = CopyPlan([TensorPages(8, 64, 64)], [[], [CanonicalKVCacheRef(0, 64)]], LAYOUT, 0)
    copies = [PageCopies(*(np.array([number]) for number in (group, 0, 1, 1))) for group in (1, 0)]
    assert [column.tolist() for column in plan.ranges(copies[0])] == [[0], [0], [192], [64]]
    assert [column.tolist() for column in plan.ranges(copies[1])] == [[], [], [], []]
    with pytest.raises(KVError, match="page 0 of the job: chunk 99, expected 0 to "):
        plan.ranges(PageCopies(*(np.array([number]) for number in (0, 0, 99, 1))))
    both = PageCopies(*(np.array(numbers) for numbers in ((0, 1), (9, 0), (0, 1), (0, 1))))
    assert [column.tolist() for column in plan.ranges(both)] == [[0], [0], [192], [64]]


def test_blocks_in_order_are_one_range_a_tensor():
    shape_pages = [TensorPages(8, 64, 64)]
    plan = CopyPlan(shape_pages, [[CanonicalKVCacheRef(0, 64)]], HostLayout(2, 4, 256, 1, 256), 0)
    job = Job(((0, 1, 2, 3, 4, 5),), ((0, 1),), (0,))
    copies = page_copies("job", job.gpu_spec, job.cpu_spec.block_ids, plan.layout, 1)
    assert [column.tolist() for column in plan.ranges(copies)] == [[0], [0], [0], [384]]


LAYOUT = HostLayout(4, 2, 128, 1, 128)
WRONG_JOBS = [
    (
        GPULoadStoreSpec([1, 2], [1, 1], [0, 0]),
        [0],
        "job: group_sizes [1, 1] are of 2 groups, the KV caches have 1",
    ),
    (
        GPULoadStoreSpec([1, 2], [2], [3]),
        [0],
        "job: 1 chunks given; groups of [2] blocks from block [3] on fill [2] chunks of 2",
    ),
    (
        GPULoadStoreSpec([], [0], [3]),
        [0],
        "job: 1 chunks given; groups of [0] blocks from block [3] on fill [0] chunks of 2",
    ),
    (GPULoadStoreSpec([1, 2, 3], [3], [0]), [0, 4], "job: chunk ids from 0 to 4, there are 0 to 3"),
    (GPULoadStoreSpec([1, 2, 3], [3], [0]), [-1, 2], "job: chunk ids from -1 to 2, there are 0 to 3"),
]


@pytest.mark.parametrize(("blocks", "chunks", "message"), WRONG_JOBS)
def test_jobs_that_make_no_sense_are_refused(blocks, chunks, message):
    with pytest.raises(KVError) as caught:
        page_copies("job", blocks, chunks, LAYOUT, 1)
    assert str(caught.value) == message


WRONG_PAGES = [
    ([[1], [0], [0], [0]], "page 0 of the job: group 1, expected 0 to 0"),
    ([[-1], [0], [0], [0]], "page 0 of the job: group -1, expected 0 to 0"),
    ([[0, 0], [7, 8], [0, 1], [0, 0]], "page 1 of the job: block 8, expected 0 to 7"),
    ([[0], [-1], [0], [0]], "page 0 of the job: block -1, expected 0 to 7"),
    ([[0, 0], [7, -1], [0, 1], [0, 0]], "page 1 of the job: block -1, expected 0 to 7"),
    ([[0], [0], [4], [0]], "page 0 of the job: chunk 4, expected 0 to 3"),
    ([[0], [0], [-1], [0]], "page 0 of the job: chunk -1, expected 0 to 3"),
    ([[0], [0], [0], [2]], "page 0 of the job: offset 2, expected 0 to 1"),
    ([[0], [0], [0], [-1]], "page 0 of the job: offset -1, expected 0 to 1"),
]


@pytest.mark.parametrize(("columns", "message"), WRONG_PAGES)
def test_pages_that_would_lie_outside_are_refused(columns, message):
    plan = CopyPlan([TensorPages(8, 64, 64)], [[CanonicalKVCacheRef(0, 64)]], LAYOUT, 0)
    with pytest.raises(KVError) as caught:
        plan.ranges(PageCopies(*map(np.array, columns)))
    assert str(caught.value) == message
