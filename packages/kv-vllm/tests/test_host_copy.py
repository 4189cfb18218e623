"""The host-copy worker: which block goes to which slot, against the obvious; tensors on the testbed's memory."""

from random import Random

import pytest

pytest.importorskip("kv_sim")

from kv_sim.config import WorldConfig
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


def test_a_tensor_shows_its_layer_of_the_device(device):
    from kv_vllm.tensors import device_of, device_tensor

    tensor = device_tensor(device, 1)
    device.memory[3, 1] = [7, 8, 9, 10]
    assert tuple(tensor.shape) == (6, 1, 4, 1)
    assert tensor[3, :, 2].tolist() == [[9]]
    assert device_of(tensor) is device


def test_writing_without_a_right_is_found(device):
    import torch

    from kv_vllm.tensors import device_tensor

    tensor = device_tensor(device, 0)
    with pytest.raises(Violation, match=r"block 2 .*: the connector writes it, but no load"):
        tensor[torch.tensor([2]), :, torch.tensor([0])] = torch.tensor([[[1]]])
    device.shadow.load_rights[2] = "r"
    tensor[torch.tensor([2]), :, torch.tensor([0])] = torch.tensor([[[1]]])
    assert device.memory[2, 0, 0] == 1


def test_a_tensor_that_lies_elsewhere_is_refused():
    import torch

    from kv_api import ConfigError
    from kv_vllm.tensors import device_of

    with pytest.raises(
        ConfigError, match=r"the testbed copies what lies on its own devices, and this tensor doesn't"
    ):
        device_of(torch.zeros(3))
