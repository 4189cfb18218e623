"""The host-copy worker: which block goes to which slot, against the obvious; tensors on the testbed's memory."""

from random import Random
from types import SimpleNamespace

import pytest

pytest.importorskip("kv_sim")

import numpy as np

from kv_sim.config import WorldConfig
from kv_sim.memory.copies import Direction, Result, State
from kv_sim.memory.device import Device
from kv_sim.memory.shadow import Shadow
from kv_sim.violation import Referee, Violation
from kv_vllm.installed import vllm_version

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def needs_vllm():
    pytest.importorskip("vllm")
    vllm_version()


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
    return Device(0, WorldConfig(num_blocks=6, layers=2), Shadow(1, Referee()))


@pytest.fixture
def make_worker(device):
    """Makes workers for this many chunks of two blocks."""
    from kv_vllm.driver.tensors import device_tensor
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


def test_a_tensor_shows_its_layer_of_the_device(device):
    from kv_vllm.driver.tensors import device_of, device_tensor

    tensor = device_tensor(device, 1)
    device.memory[3, 1] = [7, 8, 9, 10]
    assert tuple(tensor.shape) == (6, 1, 4, 1)
    assert tensor[3, :, 2].tolist() == [[9]]
    assert device_of(tensor) is device


def test_writing_without_a_right_is_found(device):
    import torch

    from kv_vllm.driver.tensors import device_tensor

    tensor = device_tensor(device, 0)
    with pytest.raises(Violation, match=r"block 2 .*: the connector writes it, but no load"):
        tensor[torch.tensor([2]), :, torch.tensor([0])] = torch.tensor([[[1]]])
    device.shadow.load_rights[2] = "r"
    tensor[torch.tensor([2]), :, torch.tensor([0])] = torch.tensor([[[1]]])
    assert device.memory[2, 0, 0] == 1


@pytest.mark.parametrize("index", ["several", "with slots", "all", "a slice"])
def test_every_block_that_is_written_needs_a_right(device, index):
    import torch

    from kv_vllm.driver.tensors import device_tensor

    tensor, some = device_tensor(device, 0), torch.tensor([2, 4])
    of = {"several": some, "with slots": (some, 0, 1), "all": ..., "a slice": slice(2, 5, 2)}[index]
    device.shadow.load_rights |= dict.fromkeys((0, 1, 2, 3, 5), "r")
    with pytest.raises(Violation, match=r"block 4 .*: the connector writes it, but no load"):
        tensor[of] = 1
    assert 1 not in device.memory
    device.shadow.load_rights[4] = "r"
    tensor[of] = 1
    assert (device.memory[2] == 1).any() and (device.memory[4] == 1).any()
    assert device.shadow.last_writer[0][4] == "the connector"


@pytest.mark.parametrize(
    ("direction", "block", "message"),
    [
        (
            Direction.LOAD,
            2,
            "rank 0 block 2 (of nobody): the connector reads it while load copy 0 (begun for nobody)",
        ),
        (Direction.LOAD, 3, None),
        (Direction.STORE, 2, None),
    ],
)
def test_nothing_is_read_while_a_load_writes_it(device, direction, block, message):
    from kv_vllm.driver.tensors import device_tensor

    tensor = device_tensor(device, 0)
    device.copies.open().submit(direction, [(2, device.allocate_host(1))])
    if message is None:
        assert tensor[block].shape == (1, 4, 1)
    else:
        with pytest.raises(Violation) as found:
            tensor[block]
        assert found.value.message.startswith(message)


def test_what_is_not_on_a_device_is_nobodys(device):
    import torch

    from kv_vllm.driver.tensors import DeviceTensor, device_tensor

    tensor, plain = device_tensor(device, 0), torch.zeros(6, 1, 4, 1, dtype=torch.int64)
    device.memory[3, 0] = [7, 8, 9, 10]
    plain[:] = tensor
    assert plain[3, 0, :, 0].tolist() == [7, 8, 9, 10]
    plain.as_subclass(DeviceTensor)[3] = 0
    assert torch.amax(tensor, dim=(1, 2, 3)).tolist()[3] == 10


def test_a_tensor_that_lies_elsewhere_is_refused():
    import torch

    from kv_api import ConfigError
    from kv_vllm.driver.tensors import device_of

    with pytest.raises(
        ConfigError, match=r"^the testbed copies what lies on its own devices, and this tensor doesn't$"
    ):
        device_of(torch.zeros(3))
