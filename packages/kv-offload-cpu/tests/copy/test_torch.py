"""Tensors of torch: the host engine on CPU tensors of any type, and the driver as far as it goes without a GPU."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_offload_cpu_layouts import BytesModel, canonical, jobs, make_caches, offloading_config, shapes

from kv_api import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor, ConfigError
from kv_offload_cpu import CPUOffloadingSpec, Direction
from kv_offload_cpu.copy.ranges.descriptors import Ranges
from kv_offload_cpu.copy.ranges.tensors import device_tensors

pytestmark = pytest.mark.torch

NUM_CHUNKS = 6


@given(st.data())
def test_what_is_stored_from_tensors_is_what_is_loaded(data):
    import torch

    shape = data.draw(shapes())
    arrays, _ = make_caches(shape, seed=0)
    tensors = [torch.from_numpy(array.copy()) for array in arrays]
    row = -(-shape.bytes_per_block * shape.blocks_per_chunk // 4096) * 4096
    spec = CPUOffloadingSpec(
        offloading_config(shape.bytes_per_block, shape.blocks_per_chunk, cpu_bytes_to_use=NUM_CHUNKS * row)
    )
    worker = spec.get_worker(canonical(shape, tensors))
    model = BytesModel(shape)
    for job_id in range(data.draw(st.integers(1, 6))):
        job = data.draw(jobs(shape, NUM_CHUNKS))
        if data.draw(st.booleans()):
            worker.submit_store(job_id, job.gpu_spec, job.cpu_spec)
            model.store(arrays, job)
        else:
            worker.submit_load(job_id, job.cpu_spec, job.gpu_spec)
            model.load(arrays, job)
        worker.wait({job_id})
        assert [(result.job_id, result.success) for result in worker.get_finished()] == [(job_id, True)]
        assert all(np.array_equal(tensor.numpy(), array) for tensor, array in zip(tensors, arrays, strict=True))
    worker.check()
    worker.shutdown()


def test_tensors_of_any_type_and_stride_are_pages_of_bytes():
    import torch

    packed = torch.zeros((8, 96), dtype=torch.bfloat16)
    layers = [packed[:, :32], packed[:, 32:]]
    caches = CanonicalKVCaches(
        [CanonicalKVCacheTensor(layer, layer.shape[1] * 2) for layer in layers],
        [[CanonicalKVCacheRef(0, 64), CanonicalKVCacheRef(1, 128)]],
    )
    first, second = device_tensors(caches)
    assert first.pages == (8, 64, 192, packed.data_ptr())
    assert second.pages == (8, 128, 192, packed.data_ptr() + 64)
    assert {first.device, second.device} == {"cpu"}


@pytest.mark.parametrize("direction", Direction)
def test_the_driver_copies_ranges_of_bytes(direction, caplog):
    import torch

    from kv_offload_cpu.copy.cuda.torch_driver import TorchDriver

    packed = torch.arange(6 * 24, dtype=torch.int16).reshape(6, 24)
    caches = CanonicalKVCaches([CanonicalKVCacheTensor(packed[:, 8:16], 16)], [[CanonicalKVCacheRef(0, 16)]])
    memory = np.arange(100, 164, dtype=np.uint8)
    driver = TorchDriver(device_tensors(caches), memory, pin_memory=True)
    assert ["host memory is not pinned" in record.message for record in caplog.records] == [True]
    before, stored = packed.numpy().copy().view(np.uint8).reshape(6, 48), memory.copy()
    begin = packed.data_ptr() + 16
    there = memory.ctypes.data
    columns = [[0, 0], [begin + 48, begin + 5 * 48 + 4], [there + 32, there], [16, 12]]
    driver.copy(None, direction, Ranges(*map(np.array, columns)))
    expected_memory, expected = stored.copy(), before.copy()
    if direction is Direction.STORE:
        expected_memory[32:48], expected_memory[:12] = before[1, 16:32], before[5, 20:32]
    else:
        expected[1, 16:32], expected[5, 20:32] = stored[32:48], stored[:12]
    assert np.array_equal(memory, expected_memory)
    assert np.array_equal(packed.numpy().view(np.uint8).reshape(6, 48), expected)
    driver.shutdown()
    driver.shutdown()


def test_the_driver_without_a_device_has_addresses_and_tables_and_refuses_kernels():
    import torch

    from kv_offload_cpu.copy.cuda.torch_driver import TorchDriver

    layers = [torch.zeros((3, 16), dtype=torch.int8) for _ in range(2)]
    caches = CanonicalKVCaches(
        [CanonicalKVCacheTensor(layer, 16) for layer in layers], [[CanonicalKVCacheRef(n, 16) for n in range(2)]]
    )
    memory = np.zeros(96, np.uint8)
    driver = TorchDriver(device_tensors(caches), memory, pin_memory=False)
    table = driver.new_table(4)
    table.numbers[:] = np.arange(12)
    assert table.pinned.tolist() == [*range(12)]
    assert table.addresses == (table.on_device.data_ptr(), table.pinned.data_ptr())
    with pytest.raises(ConfigError) as caught:
        driver.enable_kernels()
    assert str(caught.value) == (
        "copy_engine: a kernel reaches pinned host memory only, and this isn't; use 'cuda'"
    )
    driver.shutdown()
