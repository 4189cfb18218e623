"""A kernel that runs on the host in some way, beside the copies that a job is made of."""

import numpy as np
from hypothesis import strategies as st
from kv_offload_cpu_layouts import Tensor, jobs, shapes
from kv_offload_cpu_machine import NUM_CHUNKS

from kv_api import CanonicalKVCacheRef
from kv_offload_cpu import Direction, HostLayout
from kv_offload_cpu.copy.cuda.methods.gather import OneKernel
from kv_offload_cpu.copy.ranges.descriptors import CopyPlan
from kv_offload_cpu.copy.ranges.pages import page_copies
from kv_offload_cpu.copy.ranges.tensors import TensorPages


def aligned(count, seed=0):
    """Random bytes that begin at a multiple of 64."""
    whole = np.random.default_rng(seed).integers(0, 256, count + 64, dtype=np.uint8)
    return whole[-whole.ctypes.data % 64 :][:count]


WIDE = {16: [0, 0, 100, 255, 256, 257, 513]}
"""By how many units pages grow, so that some are of several steps."""


def check_a_job(data, driver, direction, units, programs, kernels, wide=WIDE):
    """All bytes after a job of pages whose sizes are in one of ``units``, by a kernel of ``programs`` programs.

    ``driver`` is told its ``places``, which are all that a kernel may touch.
    """
    shape, unit = data.draw(shapes()), data.draw(st.sampled_from(units))
    grow = [data.draw(st.sampled_from(wide.get(unit, [0]))) for _ in shape.tensors]

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
    driver.places = [(array.ctypes.data, array.ctypes.data + array.nbytes) for array in (*arrays, memory)]
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
    method = OneKernel(driver, None, plan, dict.fromkeys(Direction, programs), kernels)
    method.give(method.prepare(direction, copies))
    assert np.array_equal(memory, expected)
    assert all(map(np.array_equal, arrays, expected_arrays))
    assert all(word % unit == 0 for word in driver.launched)
