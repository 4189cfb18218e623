"""KV caches on a fake device, with host memory and the CUDA engine between them, by each of its methods."""

import numpy as np
from kv_offload_cpu_device import FakeDevice
from kv_offload_cpu_layouts import Job, make_caches

from kv_api import CanonicalKVCacheRef
from kv_offload_cpu import CopyEngineChoice, Direction, HostLayout, Urgency
from kv_offload_cpu.copy.choose import METHODS
from kv_offload_cpu.copy.cuda.engine import CudaCopyEngine, EachRange
from kv_offload_cpu.copy.cuda.methods.batch import OneBatch
from kv_offload_cpu.copy.cuda.methods.gather import OneKernel
from kv_offload_cpu.copy.cuda.methods.staged import TwoHalves
from kv_offload_cpu.copy.cuda.table import ByTable, Row
from kv_offload_cpu.copy.ranges.descriptors import CopyPlan
from kv_offload_cpu.copy.ranges.pages import page_copies
from kv_offload_cpu.copy.ranges.tensors import TensorPages

NUM_CHUNKS = 6


ALL = (
    Row(Direction.LOAD, 3, 20, CopyEngineChoice.CUDA_GATHER),
    Row(Direction.LOAD, 2, 99, CopyEngineChoice.CUDA_STAGED),
    Row(Direction.STORE, 9, 20, CopyEngineChoice.CUDA_BULK),
    Row(Direction.STORE, 3, 20, CopyEngineChoice.CUDA_STAGED),
    Row(Direction.STORE, 2, 99, CopyEngineChoice.CUDA_BATCH),
)
"""A table by which the jobs of one lane are copied by all methods in turn."""


def staged(driver, stream, plan):
    """With a buffer so small that most jobs take several pieces."""
    return TwoHalves(driver, stream, plan, half_bytes=32)


def by_table(driver, stream, plan):
    makers = {**METHODS, CopyEngineChoice.CUDA_STAGED: staged}
    return ByTable(ALL, {name: make(driver, stream, plan) for name, make in makers.items()}, plan.extent)


WAYS = {
    "each": EachRange,
    "batch": OneBatch,
    "gather": OneKernel,
    "bulk": METHODS[CopyEngineChoice.CUDA_BULK],
    "staged": staged,
    "table": by_table,
}


class Machine:
    """KV caches on a fake device, host memory, and the engine between them, with one of ``WAYS``."""

    def __init__(self, shape, way=EachRange, random=None, slot=0, slots=1):
        slot_bytes = shape.bytes_per_block * shape.blocks_per_chunk
        self.shape = shape
        self.way = way
        self.slot = slot
        self.layout = HostLayout(NUM_CHUNKS, shape.blocks_per_chunk, slot_bytes, slots, slots * slot_bytes)
        self.arrays = side_by_side(make_caches(shape, seed=0)[0])
        self.memory = np.zeros(self.layout.total_bytes, np.uint8)
        self.device = FakeDevice(self.arrays, self.memory, random)
        tensors = [
            TensorPages(shape.num_blocks, t.page_bytes, t.page_bytes + t.gap_bytes, array.ctypes.data)
            for t, array in zip(shape.tensors, self.arrays, strict=True)
        ]
        refs = [[CanonicalKVCacheRef(*ref) for ref in group] for group in shape.groups]
        self.plan = CopyPlan(tensors, refs, self.layout, slot, self.memory.ctypes.data)
        self.methods = []
        self.engine = CudaCopyEngine(self.plan, self.device, self.make_method)

    def make_method(self, stream):
        self.methods.append(self.way(self.device, stream, self.plan))
        return self.methods[-1]

    def submit(self, job_id, direction, job, urgency=Urgency.ORDINARY):
        groups = len(self.shape.groups)
        copies = page_copies("job", job.gpu_spec, job.cpu_spec.block_ids, self.layout, groups)
        self.engine.submit(job_id, direction, copies, urgency=urgency)

    def check(self):
        """Recount jobs and tables; returns the tables that are lent."""
        self.engine.check()
        lent = 0
        for method in self.methods:
            for one in getattr(method, "methods", {None: method}).values():
                if hasattr(one, "tables"):
                    one.tables.check()
                    lent += one.tables._lent
        return lent

    def expected_memory(self, model):
        """Zeros, and the slots of a model."""
        memory = np.zeros_like(self.memory)
        for chunk, slot in model.slots.items():
            begin = chunk * self.layout.row_bytes + self.slot * self.layout.slot_bytes
            memory[begin : begin + len(slot)] = slot.view(np.uint8)
        return memory

    def finished(self):
        self.check()
        return [(result.job_id, result.success) for result in self.engine.poll()]


def side_by_side(arrays):
    """The same arrays, each as far from the one before as all others, as an engine's layers often are."""
    apart = (max(array.nbytes for array in arrays) // 16 + 2) * 16
    room = np.zeros((len(arrays), apart), np.int8)
    found = [row[: array.nbytes].reshape(array.shape) for row, array in zip(room, arrays, strict=True)]
    for place, array in zip(found, arrays, strict=True):
        place[:] = array
    return found


def one_block(block):
    """A job of a block and the chunk of the same number."""
    return Job(((block,),), ((block,),), (0,))
