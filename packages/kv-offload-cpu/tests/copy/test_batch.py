"""The method of the driver's batched copy: how a job is worked out in parts, and given in calls that grow."""

import ctypes
from itertools import islice, repeat

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_offload_cpu_layouts import plan_of_tensors

from kv_api import CanonicalKVCacheRef
from kv_offload_cpu import Direction, HostLayout, PageCopies
from kv_offload_cpu.copy.cuda.methods.batch import (
    CALL_BYTES,
    CALL_COPIES,
    Batch,
    OneBatch,
    SourceOrder,
    growing,
    portions,
)
from kv_offload_cpu.copy.ranges.addresses import Moves
from kv_offload_cpu.copy.ranges.descriptors import CopyPlan
from kv_offload_cpu.copy.ranges.tensors import TensorPages

STORE, LOAD = Direction.STORE, Direction.LOAD


class Calls:
    """A driver that notes its batches."""

    def __init__(self):
        self.made = []
        self.gone = []

    def copy_batch(self, stream, batch, begin, end):
        self.made.append((stream, begin, end, int(batch.moves.sizes[begin:end].sum())))

    def go(self, stream):
        assert stream == 7
        self.gone.append(len(self.made))


def sized(sizes):
    begins = np.arange(len(sizes)) << 40
    return Batch(Moves(begins, begins, np.array(sizes, np.int64)), SourceOrder.ANY)


@given(st.lists(st.integers(1, 40 << 20), max_size=40), st.integers(1, 9), st.data())
def test_calls_are_of_few_copies_and_bytes_and_leave_nothing_out(sizes, most, data):
    batch = sized(sizes)
    begin = data.draw(st.integers(0, len(sizes)))
    end = data.draw(st.integers(begin, len(sizes)))
    calls = list(batch.calls(begin, end, repeat(most)))
    assert [number for call in calls for number in range(*call)] == list(range(begin, end))
    for first, last in calls:
        num_bytes = sum(sizes[first:last])
        assert 0 < last - first <= most
        assert num_bytes <= CALL_BYTES or last - first == 1
        assert last == end or last - first == most or num_bytes + sizes[last] > CALL_BYTES


def test_a_call_may_be_of_just_as_many_bytes_as_there_can_be():
    assert [*sized([CALL_BYTES // 2] * 4).calls(0, 4, repeat(4))] == [(0, 2), (2, 4)]


def test_each_call_is_of_as_many_copies_as_it_may_be():
    assert [*sized([1] * 14).calls(2, 14, iter([1, 4, 2, 8]))] == [(2, 3), (3, 7), (7, 9), (9, 14)]


@pytest.mark.parametrize(
    ("most", "copies"), [(CALL_COPIES, [32, 64, 128, 256, 512, 512]), (100, [32, 64, 100, 100]), (16, [16, 16])]
)
def test_the_first_calls_of_a_job_are_small(most, copies):
    assert [*islice(growing(most), len(copies))] == copies


def test_a_batch_is_where_its_columns_are_without_gaps():
    rows = np.arange(12, dtype=np.int64).reshape(4, 3)
    batch = Batch(Moves(*rows.T), SourceOrder.STREAM)
    assert len(batch) == 4
    for address, column in zip(batch.addresses, rows.T, strict=True):
        assert np.array_equal(np.ctypeslib.as_array((ctypes.c_int64 * 4).from_address(address)), column)


LARGE = [512, 1024, 2048, *[4096] * 4, 32]
"""The copies of what is worked out at once, for 5,000 pages in four layers."""


@pytest.mark.parametrize("most", [CALL_COPIES, 100])
def test_a_large_job_is_worked_out_bit_by_bit(most):
    plan = plan_of_tensors(*[TensorPages(5000, 64, 64, n << 30) for n in range(1, 5)])
    plan = CopyPlan(
        plan.tensors, [[CanonicalKVCacheRef(n, 64) for n in range(4)]], HostLayout(5000, 1, 256, 1, 256), 0
    )
    pages = np.random.default_rng(0).permutation(5000)
    zeros = np.zeros_like(pages)
    driver = Calls()
    way = OneBatch(driver, 7, plan, most)
    way.give(way.prepare(STORE, PageCopies(zeros, pages, pages[::-1].copy(), zeros)))
    assert {call[0] for call in driver.made} == {7}
    assert sum(call[3] for call in driver.made) == 5000 * 256
    assert max(end - begin for _, begin, end, _ in driver.made) == most
    assert [call[1:3] for call in driver.made[:2]] == [(0, 32), (32, 96)]
    sizes = [end - begin for _, begin, end, _ in driver.made]
    begins = [*(begin for _, begin, _, _ in driver.made), 0]
    smaller = {index for index, size in enumerate(sizes) if size < most and index > sizes.index(most)}
    assert {begins[index + 1] for index in smaller} == {0}, (
        "only the first ones are smaller, and those that end a part"
    )
    lasts = [index for index in range(len(driver.made)) if begins[index + 1] == 0]
    assert [driver.made[index][2] for index in lasts] == LARGE
    assert driver.gone == [1, *(index + 1 for index in lasts)], "the first call at once, then all of a part"


class Keeps(Calls):
    """Has the batches that it was given, and what was in them then."""

    def copy_batch(self, stream, batch, begin, end):
        self.made.append((batch, [column.copy() for column in batch.moves]))


def test_the_numbers_of_a_batch_are_its_own_until_nobody_has_it():
    pages, zeros = np.random.default_rng(0).permutation(5000), np.zeros(5000, np.int64)
    driver = Keeps()
    way = OneBatch(driver, 7, plan_of_tensors(TensorPages(5000, 64, 64, 1 << 30)))
    for job in range(2):
        way.give(way.prepare(STORE, PageCopies(zeros, pages, np.roll(pages, 1 + job), zeros)))
    for batch, before in driver.made:
        assert all(map(np.array_equal, batch.moves, before))
    num_batches = len({id(batch) for batch, _ in driver.made})
    assert way._shelf == []
    driver.made.clear()
    del batch, before
    assert len(way._shelf) == num_batches, "whose memory is used again"
    way.give(way.prepare(STORE, PageCopies(zeros, pages, pages, zeros)))
    assert len(way._shelf) == num_batches - len({id(batch) for batch, _ in driver.made})


@pytest.mark.parametrize(
    ("pages", "ranges", "sizes"),
    [
        (10, 40, [10]),
        (1024, 4096, [128, 256, 512, 128]),
        (40_000, 40_000, [512, 1024, 2048, *[4096] * 8, 3648]),
        (3, 9000, [1, 1, 1]),
    ],
)
def test_portions_grow(pages, ranges, sizes):
    numbers = np.arange(pages)
    parts = list(portions(PageCopies(*[numbers] * 4), ranges))
    assert [len(part) for part in parts] == sizes
    columns = [(part.groups, part.blocks, part.chunks, part.offsets) for part in parts]
    assert all(np.array_equal(np.concatenate(column), numbers) for column in zip(*columns, strict=True))
