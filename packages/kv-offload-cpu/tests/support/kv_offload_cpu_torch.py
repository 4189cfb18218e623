"""Random jobs over tensors of torch, on a device or on a CPU that pretends to be one, beside the obvious model."""

from contextlib import closing
from types import SimpleNamespace

import numpy as np
from hypothesis import strategies as st
from kv_offload_cpu_layouts import BytesModel, canonical, jobs, make_caches, shapes

from kv_api import CanonicalKVCacheRef
from kv_offload_cpu import CopyEngineChoice, CopySubmission, Direction, HostLayout, Urgency
from kv_offload_cpu.copy.choose import method_maker
from kv_offload_cpu.copy.cuda.engine import CudaCopyEngine
from kv_offload_cpu.copy.cuda.methods.page_table import Kernels
from kv_offload_cpu.copy.ranges.descriptors import CopyPlan
from kv_offload_cpu.copy.ranges.pages import page_copies
from kv_offload_cpu.copy.ranges.tensors import device_tensors
from kv_offload_cpu.memory import MappedMemory

NUM_CHUNKS = 6


def check_jobs(data, choice, submission, device, units):
    """Store and load by a method, pages of bytes in units of one of ``units``; returns the memory that it used."""
    import torch

    from kv_offload_cpu.copy.cuda.torch_driver import TorchDriver

    shape = in_units(data.draw(shapes()), data.draw(st.sampled_from(units)))
    arrays, _ = make_caches(shape, seed=0)
    tensors = [torch.from_numpy(array.copy()).to(device) for array in arrays]
    slot = shape.bytes_per_block * shape.blocks_per_chunk
    layout = HostLayout(NUM_CHUNKS, shape.blocks_per_chunk, slot, 1, slot)
    memory = MappedMemory(layout)
    used = (memory.address, memory.bytes.nbytes)
    on_device = device_tensors(canonical(shape, tensors))
    refs = [[CanonicalKVCacheRef(*ref) for ref in group] for group in shape.groups]
    plan = CopyPlan([tensor.pages for tensor in on_device], refs, layout, 0, memory.address)
    notes = submission is CopySubmission.THREAD
    driver = TorchDriver(on_device, memory.bytes, pin_memory=True, notes=notes)
    assert (driver.is_pinned, driver.notes) == (True, notes)
    with closing(SimpleNamespace(close=lambda: (driver.shutdown(), memory.release()))):
        engine, model = CudaCopyEngine(plan, driver, method_maker(driver, choice, plan)), BytesModel(shape)
        if choice is CopyEngineChoice.CUDA_STAGED:
            assert driver.stage_kernels is (Kernels.PLAIN if notes else Kernels.GATHER)
        for job_id in range(data.draw(st.integers(1, 6))):
            job, direction = data.draw(jobs(shape, NUM_CHUNKS)), data.draw(st.sampled_from(Direction))
            copies = page_copies("job", job.gpu_spec, job.cpu_spec.block_ids, layout, len(refs))
            for block in {block for blocks in job.blocks for block in blocks}:
                for tensor, array in zip(tensors, arrays, strict=True):  # a job comes after what compute wrote
                    tensor[block], array[block] = job_id, job_id
            engine.submit(job_id, direction, copies, urgency=data.draw(st.sampled_from(Urgency)))
            (model.store if direction is Direction.STORE else model.load)(arrays, job)
            engine.wait([job_id])
            assert [(result.job_id, result.success) for result in engine.poll()] == [(job_id, True)]
            assert all(
                np.array_equal(tensor.cpu().numpy(), array) for tensor, array in zip(tensors, arrays, strict=True)
            )
        engine.shutdown()
    return used


def in_units(shape, unit):
    """The same shape with every byte as many."""
    return shape._replace(
        tensors=tuple(type(tensor)(tensor.page_bytes * unit, tensor.gap_bytes * unit) for tensor in shape.tensors),
        groups=tuple(tuple((index, size * unit) for index, size in group) for group in shape.groups),
    )
