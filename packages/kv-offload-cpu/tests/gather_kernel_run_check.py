"""The gathering kernel under Triton's interpreter, on the host: which bytes go where.

``nox -s kernel`` runs it, and sets TRITON_INTERPRET=1. It isn't named like a test file, so that no other run
collects it: Triton takes a gigabyte.
"""

import os
from types import SimpleNamespace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_offload_cpu_layouts import Tensor, jobs, shapes
from kv_offload_cpu_machine import NUM_CHUNKS

import kv_offload_cpu.copy.cuda.gather_kernel as gather_kernel
from kv_api import CanonicalKVCacheRef
from kv_offload_cpu import Direction, HostLayout
from kv_offload_cpu.copy.cuda.methods.gather import OneKernel
from kv_offload_cpu.copy.cuda.methods.page_table import COLUMNS
from kv_offload_cpu.copy.ranges.descriptors import CopyPlan
from kv_offload_cpu.copy.ranges.pages import page_copies
from kv_offload_cpu.copy.ranges.tensors import TensorPages

settings.register_profile("kernel", max_examples=60, deadline=None)
settings.load_profile("kernel")

if os.environ.get("TRITON_INTERPRET") != "1":
    raise RuntimeError("set TRITON_INTERPRET=1")


def aligned(count, seed=0):
    """Random bytes that begin at a multiple of 64."""
    whole = np.random.default_rng(seed).integers(0, 256, count + 64, dtype=np.uint8)
    return whole[-whole.ctypes.data % 64 :][:count]


class Driver:
    """Tables on the host, and kernels on it."""

    def __init__(self):
        self.mapped_shift = 0
        self.launched = []

    def new_table(self, num_rows):
        return SimpleNamespace(numbers=np.zeros(COLUMNS * num_rows, np.int64))

    def new_steps(self, numbers, count, word):
        return torch.from_numpy(numbers)

    def upload(self, stream, table, num_rows):
        table.on_device = torch.from_numpy(table.numbers[: COLUMNS * num_rows].copy())

    def run_kernel(self, stream, launch):
        steps = launch.steps
        self.launched.append(steps.word)
        told = gather_kernel.arguments(
            launch.table.on_device,
            launch.num_rows,
            launch.rows,
            steps.on_device,
            steps.num_steps,
            is_store=launch.direction is Direction.STORE,
            word=steps.word,
        )
        count = gather_kernel.num_programs(len(launch.rows) * steps.num_steps, steps.word, launch.programs)
        gather_kernel.move_pages[(count,)](*told)


@given(st.sampled_from([1, 2, 4, 8, 16]), shapes(), st.integers(1, 3), st.sampled_from(Direction), st.data())
def test_the_kernel_moves_what_the_job_is_made_of(unit, shape, programs, direction, data):
    wide = st.sampled_from([0, 0, 100, 255, 256, 257, 513]) if unit == 16 else st.just(0)
    grow = [data.draw(wide) for _ in shape.tensors]

    def sized(index, num_bytes):
        return unit * (num_bytes + grow[index])

    tensors = tuple(Tensor(sized(n, t.page_bytes), unit * t.gap_bytes) for n, t in enumerate(shape.tensors))
    groups = tuple(tuple((n, sized(n, size)) for n, size in group) for group in shape.groups)
    shape = shape._replace(tensors=tensors, groups=groups)
    slot = shape.bytes_per_block * shape.blocks_per_chunk
    layout = HostLayout(NUM_CHUNKS, shape.blocks_per_chunk, slot, 1, slot)
    arrays = [
        aligned(shape.num_blocks * (t.page_bytes + t.gap_bytes), n).view(np.int8).reshape(shape.num_blocks, -1)
        for n, t in enumerate(tensors)
    ]
    memory = aligned(layout.total_bytes, 99)
    pages = [
        TensorPages(shape.num_blocks, t.page_bytes, t.page_bytes + t.gap_bytes, array.ctypes.data)
        for t, array in zip(tensors, arrays, strict=True)
    ]
    refs = [[CanonicalKVCacheRef(*ref) for ref in group] for group in groups]
    plan = CopyPlan(pages, refs, layout, 0, memory.ctypes.data)
    job = data.draw(jobs(shape, NUM_CHUNKS))
    copies = page_copies("job", job.gpu_spec, job.cpu_spec.block_ids, layout, len(groups))
    expected_arrays, expected = [array.copy() for array in arrays], memory.copy()
    whole = plan.ranges(copies)
    for index, device, host, size in zip(*(column.tolist() for column in whole), strict=True):
        on_device = expected_arrays[index].reshape(-1).view(np.uint8)[device - arrays[index].ctypes.data :][:size]
        on_host = expected[host - memory.ctypes.data :][:size]
        target, source = (on_host, on_device) if direction is Direction.STORE else (on_device, on_host)
        target[:] = source
    driver = Driver()
    method = OneKernel(driver, None, plan, dict.fromkeys(Direction, programs))
    method.give(method.prepare(direction, copies))
    assert np.array_equal(memory, expected)
    assert all(map(np.array_equal, arrays, expected_arrays))
    assert all(word % unit == 0 for word in driver.launched)


def test_as_many_programs_as_have_something_to_do():
    height = gather_kernel.TILES[16].height
    expected = {0: 1, 1: 1, height: 1, height + 1: 2, 3 * height: 3, 100 * height: 4}
    assert {items: gather_kernel.num_programs(items, 16, 4) for items in expected} == expected
