"""Layers of the testbed's memory as tensors: what they look like, and what touching them asks for."""

from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("kv_sim")

from kv_api import ConfigError, Direction
from kv_sim.config import WorldConfig
from kv_sim.memory.launched import LaunchedStep
from kv_sim.memory.shadow import Shadow
from kv_sim.violation import Referee, Violation
from kv_vllm.driver.surroundings.device import TensorDevice

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("a_vllm")]


@pytest.fixture
def device():
    return TensorDevice(0, WorldConfig(num_blocks=6, layers=2), Shadow(1, Referee()))


def test_a_tensor_shows_its_layer_of_the_device(device):
    import torch

    from kv_vllm.driver.surroundings.tensors import device_of, device_tensor

    tensor = device_tensor(device, 1)
    device.memory[3, 1] = [7, 8, 9, 10]
    assert tuple(tensor.shape) == (6, 1, 4, 2)
    assert tensor[3, :, 2].view(torch.int64).tolist() == [[9]]
    assert (tensor.is_contiguous(), tensor.element_size()) == (True, 4)
    assert device_of(tensor) is device


def test_a_stranger_may_have_numbers_of_another_type():
    """It is told so of its model, of its caches and by its tensors; what they take is the same."""
    import torch
    from vllm.config import KVTransferConfig

    from kv_vllm.driver.surroundings.tensors import device_tensor
    from kv_vllm.vllm_world import kv_cache_config, vllm_config

    world, seen = WorldConfig(num_blocks=6, engines=2, stranger="dtype"), []
    for config in (world.at(0), world.at(1)):
        tensor = device_tensor(TensorDevice(0, config, Shadow(1, Referee())), 0)
        spec = kv_cache_config(config).kv_cache_groups[0].kv_cache_spec
        model = vllm_config(config, KVTransferConfig()).model_config
        assert model.dtype == spec.dtype == tensor.dtype
        assert spec.page_size_bytes == config.page_bytes == tensor[0].numel() * tensor.element_size()
        seen.append(tensor.dtype)
    assert seen == [torch.float32, torch.bfloat16]


def test_writing_without_a_right_is_found(device):
    import torch

    from kv_vllm.driver.surroundings.tensors import device_tensor

    tensor = device_tensor(device, 0).view(torch.int64)
    with pytest.raises(Violation, match=r"block 2 .*: the connector writes it, but no load"):
        tensor[torch.tensor([2]), :, torch.tensor([0])] = torch.tensor([[[1]]])
    device.shadow.load_rights[2] = "r"
    tensor[torch.tensor([2]), :, torch.tensor([0])] = torch.tensor([[[1]]])
    assert device.memory[2, 0, 0] == 1


@pytest.mark.parametrize("index", ["several", "with slots", "all", "a slice"])
def test_every_block_that_is_written_needs_a_right(device, index):
    import torch

    from kv_vllm.driver.surroundings.tensors import device_tensor

    tensor, some = device_tensor(device, 0).view(torch.int64), torch.tensor([2, 4])
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
            "rank 0 block 2 (of no request): the connector reads it while load copy 0 (begun for no request)",
        ),
        (Direction.LOAD, 3, None),
        (Direction.STORE, 2, None),
    ],
)
def test_nothing_is_read_while_a_load_writes_it(device, direction, block, message):
    import torch

    from kv_vllm.driver.surroundings.tensors import device_tensor

    tensor = device_tensor(device, 0).view(torch.int64)
    device.copies.open().submit(direction, [(2, device.allocate_host(1))])
    if message is None:
        assert tensor[block].shape == (1, 4, 1)
    else:
        with pytest.raises(Violation) as found:
            tensor[block]
        assert found.value.message.startswith(message)


@pytest.mark.parametrize("writes", [False, True])
def test_the_device_first_finishes_what_it_was_given(device, writes):
    from kv_sim.memory.launched import LaunchedStep
    from kv_vllm.driver.surroundings.tensors import device_tensor

    tensor = device_tensor(device, 0)
    device.shadow.load_rights[3] = "r"
    device.launch(LaunchedStep(1, [], [4], [], 4, (None,)))
    shape = tensor.unbind(0)[3].shape
    assert (device.retired_steps, len(device.queue)) == (0, 1), "a view touches nothing"
    if writes:
        tensor.unbind(0)[3].fill_(1)
    else:
        assert tensor[3].shape == shape
    assert (device.retired_steps, len(device.queue)) == (1, 0)


# -- a thread of the connector's own ------------------------------------------------------------


def in_a_thread(call):
    with ThreadPoolExecutor(1, thread_name_prefix="of-its-own") as pool:
        return pool.submit(call).result()


def test_nothing_is_touched_while_the_engine_sleeps(device):
    from kv_vllm.driver.surroundings.tensors import device_tensor

    tensor = device_tensor(device, 0)
    device.shadow.load_rights[2] = "r"
    device.sleep()
    with pytest.raises(Violation, match=r"block 2 .*: the connector uses it while the engine sleeps"):
        tensor[2].clone()
    with pytest.raises(Violation, match=r"block 2 .*: the connector uses it while the engine sleeps"):
        tensor[2] = 1
    with ThreadPoolExecutor(1) as own:
        device.is_read_by_address = True
        with pytest.raises(
            Violation, match=r"block 2 .*: the connector's thread .* uses it while the engine sleeps"
        ):
            own.submit(tensor.__setitem__, 2, 1).result()
    device.wake()
    tensor[2] = 1


def test_a_thread_of_its_own_finds_what_is_there_and_moves_nothing(device):
    from kv_vllm.driver.surroundings.tensors import device_tensor

    device.is_read_by_address = True
    tensor, step = device_tensor(device, 0), LaunchedStep(1, [], [], [], 4, (0,))
    device.queue.append(step)  # as while it is launched, on the world's own thread
    device.memory[3, 0] = 7
    assert in_a_thread(lambda: tensor[3].clone().view(torch_int64()).reshape(-1).tolist()) == [7] * 4
    assert list(device.queue) == [step]


def test_a_thread_of_its_own_writes_what_it_has_a_right_to(device):
    from kv_vllm.driver.surroundings.tensors import device_tensor

    device.is_read_by_address = True
    tensor = device_tensor(device, 0).view(torch_int64())
    device.queue.append(LaunchedStep(1, [], [], [], 4, (0,)))
    with pytest.raises(Violation, match=r"block 2 .*: the connector's thread of-its-own_0 writes it, but no load"):
        in_a_thread(lambda: tensor[2].fill_(1))
    device.shadow.load_rights[2] = "r"
    in_a_thread(lambda: tensor[2].fill_(1))
    assert (device.memory[2, 0].tolist(), len(device.queue)) == ([1] * 4, 1)
    assert device.shadow.last_writer[0][2] == "the connector's thread of-its-own_0"


def test_a_thread_cannot_wait_for_steps_of_a_device_that_is_copied_through(device):
    from kv_vllm.driver.surroundings.tensors import device_of, device_tensor

    tensor = device_tensor(device, 0)
    device_of(tensor)
    with pytest.raises(
        ConfigError, match=r"Tensor.clone was called by the thread 'of-its-own_0': the testbed's memory"
    ):
        in_a_thread(tensor.clone)
    with pytest.raises(ConfigError):
        device.launch(LaunchedStep(1, [], [], [], 4, (0,)))


def torch_int64():
    import torch

    return torch.int64


def test_what_is_not_on_a_device_is_nobodys(device):
    import torch

    from kv_vllm.driver.surroundings.tensors import DeviceTensor, device_tensor

    tensor, plain = device_tensor(device, 0).view(torch.int64), torch.zeros(6, 1, 4, 1, dtype=torch.int64)
    device.memory[3, 0] = [7, 8, 9, 10]
    plain[:] = tensor
    assert plain[3, 0, :, 0].tolist() == [7, 8, 9, 10]
    plain.as_subclass(DeviceTensor)[3] = 0
    assert torch.amax(tensor, dim=(1, 2, 3)).tolist()[3] == 10


def test_a_tensor_that_lies_elsewhere_is_refused():
    import torch

    from kv_api import ConfigError
    from kv_vllm.driver.surroundings.tensors import device_of

    with pytest.raises(
        ConfigError, match=r"^the testbed can copy only tensors on its own devices, and this tensor is on another$"
    ):
        device_of(torch.zeros(3))


def test_what_is_told_of_the_memory_is_what_it_is():
    """A layer's pages lie together, as the configuration of the caches says; groups share them."""
    from kv_sim.config import GroupConfig
    from kv_vllm.driver.surroundings.tensors import device_tensor
    from kv_vllm.vllm_world import kv_cache_config

    world = WorldConfig(num_blocks=6, layers=2, block_size=4, groups=(GroupConfig(), GroupConfig(8)))
    device = TensorDevice(0, world, Shadow(1, Referee()))
    layers = [device_tensor(device, layer) for layer in range(2)]
    first = layers[0].data_ptr()
    told = kv_cache_config(world).kv_cache_tensors
    assert [tensor.layers for tensor in told] == [[f"group{g}.layers.{n}" for n in range(2)] for g in range(2)]
    for tensor in told:
        assert tensor.size == layers[0].untyped_storage().nbytes()
        assert [layer.data_ptr() - first for layer in layers] == [n * tensor.layer_stride for n in range(2)]
        assert {layer.stride(0) * layer.element_size() for layer in layers} == {tensor.block_stride}


def test_a_layer_looks_as_vllm_would_allocate_it():
    """That of states is one tensor of bytes, whose parts are its layer's business."""
    import torch
    from vllm.config import KVTransferConfig
    from vllm.v1.worker.utils import allocate_kv_cache

    from kv_sim.config import STATE, GroupConfig
    from kv_vllm.driver.surroundings.tensors import device_tensor, state_tensor
    from kv_vllm.vllm_world import kv_cache_config, layer_name, vllm_config

    groups = (GroupConfig(), GroupConfig("sliding", 8), STATE)
    world = WorldConfig(num_blocks=6, layers=2, block_size=4, groups=groups)
    layout = vllm_config(world, KVTransferConfig()).cache_config.get_resolved_kv_cache_layout()
    theirs = allocate_kv_cache(kv_cache_config(world), torch.device("cpu"), layout, [4] * len(groups))
    device = TensorDevice(0, world, Shadow(1, Referee()))
    ours = {
        layer_name(place, layer): (state_tensor if group == STATE else device_tensor)(device, layer)
        for place, group in enumerate(groups)
        for layer in range(2)
    }

    def looks(caches):
        return {
            name: (one.shape, one.stride(), one.dtype, one.storage_offset(), one.untyped_storage().nbytes())
            for name, one in caches.items()
        }

    assert looks(ours) == looks(theirs)


def test_the_model_is_as_large_as_the_memory():
    """So who computes the bytes of a block from the model gets what a block has."""
    from vllm.config import KVTransferConfig

    from kv_sim.config import GroupConfig
    from kv_vllm.vllm_world import vllm_config

    world = WorldConfig(num_blocks=6, layers=3, block_size=4, tp_size=2, groups=(GroupConfig(), GroupConfig(8)))
    config = vllm_config(world, KVTransferConfig())
    model, parallel = config.model_config, config.parallel_config
    assert model.get_num_layers(parallel) == 6
    words = model.get_num_kv_heads(parallel) * model.get_head_size() * 2 * model.dtype.itemsize
    assert words * world.block_size == world.page_bytes


WAYS_TO_WRITE = {
    "copy into a view": lambda torch, kv: kv[3].copy_(torch.ones_like(kv[3])),
    "a view of a view": lambda torch, kv: kv.transpose(1, 2)[3, 0].fill_(1),
    "index_copy_": lambda torch, kv: kv.index_copy_(0, torch.tensor([3]), torch.ones(1, 1, 4, 2)),
    "index_fill_": lambda torch, kv: kv.index_fill_(0, torch.tensor([3]), 1),
    "index_put_": lambda torch, kv: kv.index_put_((torch.tensor([3]),), torch.ones(1, 1, 4, 2)),
    "index_copy_ by keywords": lambda torch, kv: kv.index_copy_(
        source=torch.ones(1, 1, 4, 2), index=torch.tensor([3]), dim=0
    ),
    "index_fill_ by a keyword": lambda torch, kv: kv.index_fill_(0, value=1, index=torch.tensor([3])),
    "index_put_ by keywords": lambda torch, kv: kv.index_put_(
        values=torch.ones(1, 1, 4, 2), indices=[torch.tensor([3])]
    ),
    "out": lambda torch, kv: torch.add(torch.zeros(1, 4, 2), 1, out=kv[3]),
    "several out": lambda torch, kv: torch.max(
        torch.ones(1, 4, 2, 5), 3, out=(kv[3], torch.zeros(1, 4, 2, dtype=torch.int64))
    ),
    "a list": lambda torch, kv: torch._foreach_copy_(
        [torch.zeros(2), kv[3]], [torch.ones(2), torch.ones(1, 4, 2)]
    ),
    "one of several": lambda torch, kv: kv.unbind(0)[3].zero_(),
    "scatter_": lambda torch, kv: kv.scatter_(0, torch.full((1, 1, 4, 2), 3), torch.ones(1, 1, 4, 2)),
    "masked_fill_": lambda torch, kv: kv.masked_fill_((torch.arange(6) == 3)[:, None, None, None], 1),
    "masked_fill_ by keywords": lambda torch, kv: kv.masked_fill_(
        value=1, mask=(torch.arange(6) == 3)[:, None, None, None]
    ),
}


@pytest.mark.parametrize("way", WAYS_TO_WRITE)
def test_however_it_is_written_it_needs_a_right(device, way):
    import torch

    from kv_vllm.driver.surroundings.tensors import device_tensor

    tensor = device_tensor(device, 0)
    before = device.memory.copy()
    with pytest.raises(Violation, match=r"block 3 .*: the connector writes it, but no load"):
        WAYS_TO_WRITE[way](torch, tensor)
    assert (device.memory == before).all()
    device.shadow.load_rights[3] = "r"
    WAYS_TO_WRITE[way](torch, tensor)
    assert (device.memory[3, 0] != before[3, 0]).any()
    assert device.shadow.last_writer[0] == {3: "the connector"}


def test_other_blocks_are_written_while_a_load_is_under_way(device):
    from kv_vllm.driver.surroundings.tensors import device_tensor

    tensor = device_tensor(device, 0)
    device.copies.open().submit(Direction.LOAD, [(2, device.allocate_host(1))])
    device.shadow.load_rights[3] = "r"
    tensor[3] = 1
    assert device.shadow.last_writer[0] == {3: "the connector"}


WAYS_TO_READ = {
    "a part": lambda torch, kv: kv[torch.tensor([1, 3])],
    "index_select": lambda torch, kv: kv.index_select(0, torch.tensor([3])),
    "torch.index_select": lambda torch, kv: torch.index_select(kv, 0, torch.tensor([3])),
    "index_select, out": lambda torch, kv: torch.index_select(
        kv, 0, torch.tensor([3]), out=torch.zeros(1, 1, 4, 2)
    ),
    "gather": lambda torch, kv: kv.gather(0, torch.full((1, 1, 4, 2), 3)),
    "take": lambda torch, kv: kv.take(torch.tensor([3 * 8])),
    "select": lambda torch, kv: kv.select(0, 3),
    "narrow": lambda torch, kv: kv.narrow(0, 3, 1),
    "by keywords": lambda torch, kv: torch.index_select(index=torch.tensor([3]), dim=0, input=kv),
    "a view": lambda torch, kv: kv.view(torch.int64).transpose(0, 2)[..., 3, :].clone(),
    "into another": lambda torch, kv: torch.zeros(4, 1, 4, 2).copy_(kv[2:]),
    "in a list": lambda torch, kv: torch.cat([torch.zeros(1, 1, 4, 2), kv]),
    "out": lambda torch, kv: torch.add(kv[3:], 1, out=torch.zeros(3, 1, 4, 2)),
}


@pytest.mark.parametrize("way", WAYS_TO_READ)
def test_however_it_is_read_no_load_may_be_under_way(device, way):
    import torch

    from kv_vllm.driver.surroundings.tensors import device_tensor

    tensor = device_tensor(device, 0)
    queue, host = device.copies.open(), device.allocate_host(2)
    queue.submit(Direction.LOAD, [(0, host)])
    if way != "in a list":
        WAYS_TO_READ[way](torch, tensor)
    queue.submit(Direction.LOAD, [(3, host + 1)])
    with pytest.raises(Violation, match=r"block [03] .*: the connector reads it while load copy"):
        WAYS_TO_READ[way](torch, tensor)


def test_looking_at_a_tensor_touches_nothing(device):
    from kv_vllm.driver.surroundings.tensors import device_of, device_tensor

    tensor = device_tensor(device, 1)
    device.copies.open().submit(Direction.LOAD, [(3, device.allocate_host(1))])
    views = [*tensor.split(2), tensor.unsqueeze(0), tensor.detach(), tensor.permute(1, 0, 2, 3)]
    views += [
        *tensor.chunk(3),
        *tensor.tensor_split(2),
        tensor.swapaxes(0, 1),
        tensor.movedim(0, 1),
        tensor.view_as(tensor),
    ]
    assert all(device_of(view) is device for view in views)
    assert (tensor.storage_offset(), tensor.ndimension(), tensor.numel(), tensor.is_pinned()) == (48, 4, 48, False)
    assert (len(tensor), tensor.dim(), tensor.is_contiguous(), tensor.is_cuda) == (6, 4, True, False)
    assert tensor.numpy().shape == (6, 1, 4, 2)
