"""Rectangles: the same bytes as ranges, in as few as the layout allows."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_offload_cpu_layouts import jobs, shapes
from kv_offload_cpu_machine import NUM_CHUNKS, Machine

from kv_api import CanonicalKVCacheRef
from kv_offload_cpu import HostLayout, PageCopies
from kv_offload_cpu.copy.ranges.descriptors import CopyPlan
from kv_offload_cpu.copy.ranges.pages import page_copies
from kv_offload_cpu.copy.ranges.rectangles import RectanglePlan, regular
from kv_offload_cpu.copy.ranges.tensors import TensorPages

FAR = 1 << 31
HOST = 1 << 50


def plan_of(tensors, groups=None, blocks_per_chunk=1):
    """Tensors of pages, and groups of their numbers; slots have room for all of them."""
    slot = blocks_per_chunk * sum(tensor.page_bytes for tensor in tensors)
    refs = [
        [CanonicalKVCacheRef(index, tensors[index].page_bytes) for index in group]
        for group in groups or [range(len(tensors))]
    ]
    return CopyPlan(tensors, refs, HostLayout(NUM_CHUNKS, blocks_per_chunk, slot, 1, slot), 0, HOST)


def layers(count, size=64, distance=4096, stride=64, begin=1 << 40):
    """As many tensors, as far apart."""
    return [TensorPages(8, size, stride, begin + number * distance) for number in range(count)]


def pages(*rows):
    """Pages by group, block, chunk and offset."""
    return PageCopies(*np.array(rows, np.int64).T)


def rows_of(found):
    """One by one, what each rectangle is."""
    return list(zip(*map(np.ndarray.tolist, found), strict=True))


def test_layers_that_follow_each_other_are_one_rectangle_a_page():
    plan = RectanglePlan(plan_of(layers(5)), FAR)
    copies = pages((0, 7, 2, 0), (0, 3, 0, 0))
    assert plan.count(copies) == 2
    assert rows_of(plan.rectangles(copies)) == [
        ((1 << 40) + 7 * 64, HOST + 2 * 320, 4096, 64, 64, 5),
        ((1 << 40) + 3 * 64, HOST, 4096, 64, 64, 5),
    ]


def test_planes_of_layers_are_two_rectangles_a_page():
    """Keys of all layers, then values, as where a layer is two tensors."""
    tensors = layers(3) + layers(3, begin=(1 << 40) + 2048)
    found = RectanglePlan(plan_of(tensors), FAR).rectangles(pages((0, 1, 0, 0)))
    assert [row[4:] for row in rows_of(found)] == [(64, 3), (64, 3)]


@pytest.mark.parametrize(
    ("tensors", "heights"),
    [
        (layers(4), [4]),
        (layers(2) + layers(2, distance=8192, begin=1 << 41), [2, 2]),
        (layers(2) + layers(1, size=32, begin=(1 << 40) + 8192), [2, 1]),
        (layers(2) + layers(1, stride=128, begin=(1 << 40) + 8192), [2, 1]),
        (layers(3)[::-1], [1, 1, 1]),
        (layers(3, distance=63), [1, 1, 1]),
        (layers(3, distance=64, stride=192), [3]),
        (layers(3, distance=FAR), [3]),
        (layers(3, distance=FAR + 1), [1, 1, 1]),
        (layers(2, distance=100) + layers(1, begin=(1 << 40) + 4096), [2, 1]),
        ([], []),
    ],
    ids=[
        *("all", "two pairs", "another size", "another stride", "backwards", "overlapping", "side by side"),
        *("far", "too far", "another distance", "none"),
    ],
)
def test_what_lies_at_one_distance_is_one(tensors, heights):
    plan = plan_of([*tensors, TensorPages(8, 1, 1, 1)], [range(len(tensors))])
    found = regular(plan.parts[0], FAR)
    assert found.heights.tolist() == heights
    assert [bool(pitch) for pitch in found.device_pitches] == [height > 1 for height in heights]


def test_blocks_that_follow_each_other_widen_a_rectangle():
    plan = RectanglePlan(plan_of(layers(2), blocks_per_chunk=4), FAR)
    copies = pages(*[(0, 2 + offset, 1, offset) for offset in range(3)], (0, 7, 1, 3))
    assert plan.count(copies) == 4
    assert rows_of(plan.rectangles(copies)) == [
        ((1 << 40) + 2 * 64, HOST + 512, 4096, 256, 192, 2),
        ((1 << 40) + 7 * 64, HOST + 512 + 192, 4096, 256, 64, 2),
    ]


def test_what_is_one_row_is_joined_as_ranges_are():
    """Of one layer, and of two sizes side by side in every block."""
    copies = pages(*[(0, 2 + offset, 1, offset) for offset in range(3)])
    found = RectanglePlan(plan_of(layers(1), blocks_per_chunk=4), FAR).rectangles(copies)
    assert rows_of(found) == [((1 << 40) + 2 * 64, HOST + 256, 0, 0, 192, 1)]
    beside = [TensorPages(8, 32, 128, 1 << 40), TensorPages(8, 64, 128, (1 << 40) + 32)]
    found = RectanglePlan(plan_of(beside), FAR).rectangles(pages((0, 3, 1, 0)))
    assert rows_of(found) == [((1 << 40) + 3 * 128, HOST + 96, 0, 0, 96, 1)]


def test_a_row_beside_a_rectangle_is_not_part_of_it():
    tensors = [TensorPages(8, 32, 128, 1 << 40), *layers(2, stride=128, begin=(1 << 40) + 32)]
    found = RectanglePlan(plan_of(tensors), FAR).rectangles(pages((0, 0, 0, 0)))
    assert rows_of(found) == [(1 << 40, HOST, 0, 0, 32, 1), ((1 << 40) + 32, HOST + 32, 4096, 64, 64, 2)]


def test_rows_are_not_widened_until_they_overlap():
    """Layers one after the other by block, and blocks that are somehow no longer than one."""
    plan = RectanglePlan(plan_of(layers(2, distance=128), blocks_per_chunk=4), FAR)
    found = plan.rectangles(pages(*[(0, offset, 1, offset) for offset in range(3)]))
    assert [row[4:] for row in rows_of(found)] == [(64, 2)] * 3


def bytes_of(rows):
    """From each byte on the device to its byte on the host, of ranges."""
    return sorted((device + n, host + n) for device, host, size in rows for n in range(size))


@given(st.data())
def test_rectangles_are_the_bytes_of_ranges(data):
    shape = data.draw(shapes())
    machine = Machine(shape)
    most_pitch = data.draw(st.sampled_from([FAR, 64, 0]))
    plan = RectanglePlan(machine.plan, most_pitch)
    job = data.draw(jobs(shape, NUM_CHUNKS))
    copies = page_copies("job", job.gpu_spec, job.cpu_spec.block_ids, machine.layout, len(shape.groups))
    ranges = machine.plan.ranges(copies)
    if not len(copies):
        assert plan.count(copies) == 0
        return
    found = plan.rectangles(copies)
    assert len(found.widths) <= plan.count(copies) <= machine.plan.extent(copies).num_ranges
    assert found.sizes.sum() == ranges.num_bytes
    rows = []
    for device, host, device_pitch, host_pitch, width, height in rows_of(found):
        rows += [(device + n * device_pitch, host + n * host_pitch, width) for n in range(height)]
        if height > 1:
            assert width <= min(device_pitch, host_pitch)
            assert max(device_pitch, host_pitch - width * shape.blocks_per_chunk) <= most_pitch
        else:
            assert (device_pitch, host_pitch) == (0, 0)
    expected = list(zip(*map(np.ndarray.tolist, ranges[1:]), strict=True))
    assert bytes_of(rows) == bytes_of(expected)


@pytest.mark.parametrize("count", [2, 16, 80])
def test_no_layer_costs_a_rectangle(count):
    plan = RectanglePlan(plan_of(layers(count)), FAR)
    copies = pages(*[(0, block, chunk, 0) for block, chunk in product(range(3), range(2))])
    assert plan.count(copies) == 6
