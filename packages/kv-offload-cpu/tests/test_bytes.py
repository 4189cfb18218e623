"""Stores and loads of whole workers are byte-exact in every layout; an obvious model says what is right."""

from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_offload_cpu_layouts import BytesModel, Job, jobs, make_caches, offloading_config, shapes

from kv_offload_cpu import CPUOffloadingSpec

FEWER = settings(max_examples=max(10, settings().max_examples // 2))
"""One of these takes long."""

NUM_CHUNKS = 6


def make_workers(shape, num_ranks, folder, replicated, extra):
    """The workers of one engine with their arrays and the models of their slots, which may be one and the same."""
    copies = 1 if replicated else num_ranks
    row = -(-shape.bytes_per_block * shape.blocks_per_chunk * copies // CPUOffloadingSpec.BLOCK_SIZE_ALIGNMENT)
    extra |= {
        "cpu_bytes_to_use": NUM_CHUNKS * row * CPUOffloadingSpec.BLOCK_SIZE_ALIGNMENT,
        "shared_memory_dir": folder,
    }
    workers, arrays, models = [], [], []
    one_model = BytesModel(shape)
    for rank in range(num_ranks):
        config = offloading_config(
            shape.bytes_per_block, shape.blocks_per_chunk, rank, num_ranks, replicated=replicated, **extra
        )
        spec = CPUOffloadingSpec(config)
        assert spec.num_chunks == NUM_CHUNKS
        own, caches = make_caches(shape, seed=0 if replicated else rank)
        workers.append(spec.get_worker(caches))
        arrays.append(own)
        models.append(one_model if replicated else BytesModel(shape))
    return workers, arrays, models


@FEWER
@given(st.data())
def test_what_is_stored_is_what_is_loaded(data):
    shape = data.draw(shapes())
    num_ranks = data.draw(st.integers(1, 4))
    memory = data.draw(st.sampled_from(["auto", "private", "shared"]))
    replicated = data.draw(st.booleans()) and (memory == "shared" or (memory == "auto" and num_ranks > 1))
    engine = data.draw(st.sampled_from(["host", "host-stream"]))
    extra = {"host_memory": memory, "copy_engine": engine, "checksum": data.draw(st.booleans()), "copy_threads": 1}
    with TemporaryDirectory() as folder:
        workers, arrays, models = make_workers(shape, num_ranks, folder, replicated, extra)
        nothing = ((),) * len(shape.groups)
        last_stored = Job(nothing, nothing, (0,) * len(shape.groups))
        try:
            for job_id in range(data.draw(st.integers(1, 6))):
                is_store = data.draw(st.booleans())
                if extra["checksum"] and not is_store:
                    job = last_stored  # with checksums only what was stored can be loaded
                else:
                    job = data.draw(jobs(shape, NUM_CHUNKS))
                    last_stored = job if is_store else last_stored
                expected = [[array.copy() for array in own] for own in arrays]
                for rank, worker in enumerate(workers):
                    if is_store:
                        assert worker.submit_store(job_id, job.gpu_spec, job.cpu_spec)
                        models[rank].store(expected[rank], job)
                    else:
                        assert worker.submit_load(job_id, job.cpu_spec, job.gpu_spec)
                    worker.wait({job_id})
                    [result] = worker.get_finished()
                    assert (result.job_id, result.success) == (job_id, True)
                    if not is_store:
                        models[rank].load(expected[rank], job)
                    worker.check()
                    worker.engine.check()
                for got, wanted in zip(arrays, expected, strict=True):
                    assert all(map(np.array_equal, got, wanted))
        finally:
            for worker in workers:
                worker.shutdown()
                worker.check()
