"""The host-copy worker: which block goes to which slot, against the obvious."""

from random import Random
from types import SimpleNamespace

import pytest

pytest.importorskip("kv_sim")

import numpy as np

from kv_sim.config import WorldConfig
from kv_sim.memory.copy import Result, State
from kv_sim.memory.shadow import Shadow
from kv_sim.violation import Referee
from kv_vllm.driver.surroundings.device import TensorDevice

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("a_vllm")]


def obvious(groups, factor):
    """Write every block of every group into a table of chunks, sub-block by sub-block."""
    pairs = []
    for blocks, first, chunks in groups:
        table = [chunk * factor + part for chunk in chunks for part in range(factor)]
        pairs += list(zip(blocks, table[first % factor :], strict=False))
    return pairs


def test_pairs_are_the_obvious_ones():
    from kv_vllm.host_copy import pairs_of

    random = Random(1)
    for _ in range(300):
        factor, groups, free = random.choice([1, 2, 3]), [], iter(range(100))
        for _ in range(random.choice([1, 2])):
            size, first = random.randint(0, 7), random.randint(0, 6)
            needed = -(-(first % factor + size) // factor) if size else 0
            groups.append(
                ([random.randint(1, 50) for _ in range(size)], first, [next(free) for _ in range(needed)])
            )
        blocks = [block for group in groups for block in group[0]]
        chunks = [chunk for group in groups for chunk in group[2]]
        sizes, firsts = [len(group[0]) for group in groups], [group[1] for group in groups]
        assert pairs_of(blocks, sizes, firsts, chunks, factor) == obvious(groups, factor)


def test_blocks_and_chunks_that_do_not_match_are_a_bug():
    from kv_vllm.host_copy import pairs_of

    with pytest.raises(AssertionError, match="2 of 2 blocks, 1 of 2 chunks"):
        pairs_of([1, 2], [2], [0], [5, 6], 2)


@pytest.fixture
def device():
    return TensorDevice(0, WorldConfig(num_blocks=6, layers=2), Shadow(1, Referee()))


@pytest.fixture
def make_worker(device):
    """Makes workers for this many chunks of two blocks."""
    from kv_vllm.driver.surroundings.tensors import device_tensor
    from kv_vllm.host_copy import HostCopyWorker

    caches = SimpleNamespace(tensors=[SimpleNamespace(tensor=device_tensor(device, 0))])
    return lambda chunks: HostCopyWorker(caches, chunks, 2)


def of_gpu(*blocks, first=0):
    return SimpleNamespace(block_ids=np.array(blocks), group_sizes=[len(blocks)], block_indices=[first])


def of_host(*chunks):
    return SimpleNamespace(block_ids=np.array(chunks))


def test_each_worker_has_chunks_of_its_own(device, make_worker):
    before, first, second = len(device.host), make_worker(3), make_worker(4)
    assert len(device.host) == before + 6 + 8
    for worker in (first, second):
        assert worker.submit_store(7, of_gpu(1, 2, 3), of_host(0, 2))
    assert [copy.pairs for copy in device.copies.running.values()] == [
        tuple((block, start + slot) for block, slot in ((1, 0), (2, 1), (3, 4))) for start in (before, before + 6)
    ]


def test_only_expedited_loads_overtake(device, make_worker):
    worker = make_worker(3)
    worker.submit_store(1, of_gpu(1), of_host(0))
    worker.submit_load(2, of_host(1), of_gpu(2))
    worker.submit_load(3, of_host(1), of_gpu(3))
    worker.submit_store(4, of_gpu(4), of_host(2))
    worker.submit_load(5, of_host(1), of_gpu(5, first=1), expedited=True)
    copies = [*device.copies.running.values()]
    assert [copy.direction.value for copy in copies] == ["store", "load", "load", "store", "load"]
    assert [place + 1 for place, copy in enumerate(copies) if copy in device.copies.startable()] == [1, 2, 5]


def test_the_end_of_a_copy_is_heard_once(device, make_worker):
    worker = make_worker(3)
    for job_id in (1, 2):
        worker.submit_store(job_id, of_gpu(job_id), of_host(job_id))
    done, failed = device.copies.running.values()
    worker.wait({1, 9})
    device.copies.fail(failed)
    for copy in (done, failed):
        worker._queue.report(Result(copy.copy_id, success=True))
    assert [(result.job_id, result.success) for result in worker.get_finished()] == [(1, True), (2, False)]
    assert worker.get_finished() == []
    assert not worker._copy_of and not worker._job_of


def test_a_copy_that_never_ends_is_named(device, make_worker):
    worker = make_worker(3)
    worker.submit_store(5, of_gpu(1), of_host(0))
    (copy,) = device.copies.running.values()
    copy.state = State.LOST
    with pytest.raises(
        AssertionError, match=rf"copies \[{copy.copy_id}\] never end, and this worker has no timeout"
    ):
        worker.wait({5})
