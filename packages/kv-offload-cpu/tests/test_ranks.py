"""Workers in processes of their own: they see one another's chunks, and what is left when all have ended."""

import subprocess
import sys

import numpy as np
from kv_offload_cpu_layouts import Job, Shape, Tensor, make_caches, offloading_config

from kv_offload_cpu import CPUOffloadingSpec

SHAPE = Shape(6, 2, (Tensor(64), Tensor(16, 3)), (((0, 64), (1, 15)),))
STORED = Job(((4, 1, 3),), ((2, 0),), (1,))

CHILD = """
import sys
sys.path[:0] = {path}
import numpy as np
from kv_offload_cpu_layouts import Job, Shape, Tensor, make_caches, offloading_config
from kv_offload_cpu import CPUOffloadingSpec
shape = Shape(6, 2, (Tensor(64), Tensor(16, 3)), (((0, 64), (1, 15)),))
stored = Job(((4, 1, 3),), ((2, 0),), (1,))
arrays, caches = make_caches(shape, 0)
config = offloading_config(
    shape.bytes_per_block, 2, 1, 2, replicated=True, cpu_bytes_to_use=4 * 4096,
    shared_memory_dir={folder!r}, checksum=True,
)
worker = CPUOffloadingSpec(config).get_worker(caches)
print("attached", flush=True)
for line in sys.stdin:
    for array in arrays:
        array[:] = 0
    worker.submit_load(1, stored.cpu_spec, stored.gpu_spec)
    worker.wait({{1}})
    [result] = worker.get_finished()
    print(result.success, *(array.tobytes().hex() for array in arrays), flush=True)
"""


def start_reader(folder):
    code = CHILD.format(path=sys.path, folder=str(folder))
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )


def loaded_by(reader):
    reader.stdin.write("load\n")
    success, *arrays = reader.stdout.readline().split()
    return success, [np.frombuffer(bytes.fromhex(array), np.int8) for array in arrays]


def test_only_rank_0_writes_what_all_hold(tmp_path):
    workers = []
    for rank in (0, 1):
        caches = make_caches(SHAPE, 0)[1]
        extra = {"cpu_bytes_to_use": 4 * 4096, "shared_memory_dir": str(tmp_path)}
        config = offloading_config(SHAPE.bytes_per_block, 2, rank, 2, replicated=True, **extra)
        workers.append(CPUOffloadingSpec(config).get_worker(caches))
    for rank in (1, 0):
        workers[rank].submit_store(1, STORED.gpu_spec, STORED.cpu_spec)
        workers[rank].wait({1})
        [result] = workers[rank].get_finished()
        assert result.success
        assert [bool(worker._memory.bytes.any()) for worker in workers] == [rank == 0] * 2
    for worker in workers:
        worker.check()
        worker.shutdown()


def test_ranks_that_hold_different_things_write_to_their_own_part(tmp_path):
    workers = []
    for rank in range(3):
        extra = {"cpu_bytes_to_use": 8 * 4096, "shared_memory_dir": str(tmp_path)}
        config = offloading_config(SHAPE.bytes_per_block, 2, rank, 3, **extra)
        workers.append(CPUOffloadingSpec(config).get_worker(make_caches(SHAPE, rank)[1]))
    whole = workers[0]._memory.bytes
    seen = whole.copy()
    for rank in (2, 0, 1):
        workers[rank].submit_store(1, STORED.gpu_spec, STORED.cpu_spec)
        workers[rank].wait({1})
        written = np.flatnonzero(whole != seen) % workers[rank]._memory.layout.row_bytes
        size = workers[rank]._memory.layout.slot_bytes
        assert {*(written // size).tolist()} == {rank}
        seen = whole.copy()
    del whole
    for worker in workers:
        worker.check()
        worker.shutdown()


def test_another_process_loads_what_the_one_writer_stored(tmp_path):
    arrays, caches = make_caches(SHAPE, 0)
    config = offloading_config(
        SHAPE.bytes_per_block,
        2,
        0,
        2,
        replicated=True,
        cpu_bytes_to_use=4 * 4096,
        shared_memory_dir=str(tmp_path),
        checksum=True,
    )
    worker = CPUOffloadingSpec(config).get_worker(caches)
    with start_reader(tmp_path) as reader:
        assert reader.stdout.readline() == "attached\n"
        assert list(tmp_path.iterdir()) == []
        worker.submit_store(1, STORED.gpu_spec, STORED.cpu_spec)
        worker.wait({1})
        assert [result.success for result in worker.get_finished()] == [True]
        expected = [np.zeros_like(array) for array in arrays]
        for _, block, _, _ in STORED.pages(2):
            expected[0][block, :64] = arrays[0][block, :64]
            expected[1][block, :15] = arrays[1][block, :15]
        success, got = loaded_by(reader)
        assert success == "True"
        assert [array.tolist() for array in got] == [array.reshape(-1).tolist() for array in expected]
        worker._memory.bytes[:] += 1
        success, got = loaded_by(reader)
        assert success == "False"
        assert not any(array.any() for array in got)
        reader.kill()
    worker.check()
    worker.shutdown()
    assert list(tmp_path.iterdir()) == []
