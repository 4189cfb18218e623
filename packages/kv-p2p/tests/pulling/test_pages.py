"""`CachePages`: the bytes of blocks, out of caches and into them."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_api import ConfigError
from kv_p2p.pulling.pages import CachePages
from kv_p2p.pulling.pages import _rows as real
from kv_p2p.pulling.tcp.server import VERSION

BLOCKS = 6


def random_bytes(shape, seed):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def plain(seed):
    """Two layers of different types and sizes."""
    return {
        "layer0": random_bytes((BLOCKS, 2, 12), seed).view(np.uint32),
        "layer1": random_bytes((BLOCKS, 10), seed + 1).view(np.float16),
    }


def in_one_storage(seed):
    """Layers whose blocks take turns in one array: those of a layer do not lie together."""
    storage = random_bytes((BLOCKS, 3, 2, 4), seed)
    return {f"layer{index}": storage[:, index] for index in range(3)}


def heads_first(seed):
    """The dimensions of a block are in another order in memory."""
    return {"layer0": random_bytes((BLOCKS, 3, 2, 4), seed).transpose(0, 2, 1, 3)}


def several_each(seed):
    """Each block of the engine is two of the layer's."""
    return {"layer0": random_bytes((2 * BLOCKS, 5), seed)}


def aliased(seed):
    """The same memory under two names, and under a third as another type."""
    layer = random_bytes((BLOCKS, 8), seed)
    return {
        "layer0": layer,
        "layer1": layer,
        "layer2": layer.view(np.uint16),
        "layer3": random_bytes((BLOCKS, 3), 1),
    }


KINDS = [plain, in_one_storage, heads_first, several_each, aliased]


def blocks_of(cache):
    """The bytes of each block, as they lie in memory."""
    order = sorted(range(1, cache.ndim), key=lambda axis: -cache.strides[axis])
    flat = np.ascontiguousarray(cache.transpose(0, *order)).view(np.uint8)
    return flat.reshape(BLOCKS, -1)


def gather(pages, blocks):
    """What is gathered into memory that has exactly enough room."""
    return pages.gather(blocks, memoryview(bytearray(len(blocks) * pages.bytes_per_block)))


def as_parts(gathered):
    return [bytearray(memoryview(part).cast("B")) for part in gathered]


@pytest.mark.parametrize("kind", KINDS)
@given(pairs=st.lists(st.tuples(*[st.integers(0, BLOCKS - 1)] * 2), min_size=1, unique_by=lambda pair: pair[1]))
def test_blocks_arrive_bit_for_bit(kind, pairs):
    there, here = kind(7), kind(70)
    expected = {name: blocks_of(cache).copy() for name, cache in here.items()}
    for name, cache in there.items():
        for source, target in pairs:
            expected[name][target] = blocks_of(cache)[source]
    sender, receiver = CachePages(there, BLOCKS), CachePages(here, BLOCKS)
    assert sender.layout == receiver.layout
    gathered = gather(sender, [source for source, _ in pairs])
    assert sum(len(part) for part in as_parts(gathered)) == len(pairs) * sender.bytes_per_block
    receiver.scatter([target for _, target in pairs], as_parts(gathered))
    for name, cache in here.items():
        assert (blocks_of(cache) == expected[name]).all(), name
    for name, cache in there.items():
        assert (blocks_of(cache) == blocks_of(kind(7)[name])).all()


def test_a_part_for_each_layer_and_block_after_block():
    caches = in_one_storage(3)
    first, second, third = as_parts(gather(CachePages(caches, BLOCKS), [4, 1]))
    for part, name in ((first, "layer0"), (second, "layer1"), (third, "layer2")):
        assert bytes(part) == caches[name][4].tobytes() + caches[name][1].tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_which_blocks_may_be_told_as_a_tuple(kind):
    """As those of a hold and of a pull are; to numpy and torch a tuple is a place in several dimensions."""
    pages, whole = CachePages(kind(3), BLOCKS), CachePages(kind(3), BLOCKS)
    gathered = as_parts(gather(pages, (4, 1)))
    assert gathered == as_parts(gather(whole, [4, 1]))
    pages.scatter((2, 5), gathered)
    assert as_parts(gather(pages, [2, 5])) == gathered


def test_what_was_gathered_is_a_copy():
    caches = plain(3)
    pages = CachePages(caches, BLOCKS)
    gathered = gather(pages, [1])
    before = as_parts(gathered)
    pages.scatter([1], [bytearray(len(part)) for part in before])
    assert as_parts(gathered) == before != as_parts(gather(pages, [1]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("blocks", [[0], [4, 1], [5, 0, 3, 2]])
def test_gathered_into_one_memory_they_are_what_they_are_as_parts(kind, blocks):
    pages = CachePages(kind(3), BLOCKS)
    expected = b"".join(as_parts(gather(pages, blocks)))
    memory = memoryview(bytearray(b"\xee" * (len(expected) + 5)))
    assert pages.gather_into(blocks, memory) == len(expected)
    assert bytes(memory) == expected + b"\xee" * 5
    parts = pages.split(len(blocks), memory[: len(expected)])
    assert [bytes(part) for part in parts] == [bytes(part) for part in as_parts(gather(pages, blocks))]
    other = CachePages(kind(70), BLOCKS)
    other.scatter(blocks, parts)
    assert b"".join(as_parts(gather(other, blocks))) == expected


def test_what_is_gathered_where_it_belongs_is_not_copied_again(monkeypatch):
    pages, memory = CachePages(plain(3), BLOCKS), bytearray(2 * (24 + 20) * 8)
    taken = []
    monkeypatch.setattr(
        "kv_p2p.pulling.pages._rows",
        lambda tensor, rows, there: taken.append(real(tensor, rows, there)) or taken[-1],
    )
    pages.gather_into([4, 1], memoryview(memory))
    memory[0] ^= 0xFF
    assert memoryview(taken[0]).cast("B")[0] == memory[0]


def test_memory_of_another_size_is_not_split():
    pages = CachePages(plain(3), BLOCKS)
    with pytest.raises(ValueError, match=f"2 blocks are {2 * pages.bytes_per_block} bytes, got 7"):
        pages.split(2, memoryview(bytearray(7)))


def test_layers_that_are_the_same_memory_are_sent_once():
    pages = CachePages(aliased(3), BLOCKS)
    assert pages.bytes_per_block == 8 + 3
    assert [len(part) for part in as_parts(gather(pages, [0, 1]))] == [16, 6]


def test_layers_that_only_begin_at_the_same_place_are_two():
    storage = random_bytes((2 * BLOCKS, 4), 5)
    pages = CachePages({"layer0": storage[:BLOCKS], "layer1": storage[::2]}, BLOCKS)
    assert pages.bytes_per_block == 8


def test_no_layers_at_all():
    pages = CachePages({}, BLOCKS)
    assert (pages.bytes_per_block, gather(pages, [1, 2])) == (0, [])
    pages.scatter([1, 2], [])


def zeros(dtype=np.uint8, shape=(BLOCKS, 4), name="layer0"):
    return {name: np.zeros(shape, dtype)}


def layout(caches, blocks=BLOCKS):
    return CachePages(caches, blocks).layout


def test_layouts_are_equal_where_blocks_can_be_exchanged():
    assert layout(zeros()) == layout(zeros(shape=(BLOCKS, 2, 2))) == layout(zeros(shape=(3, 4)), 3)
    assert layout(in_one_storage(1)) == layout(
        {name: np.ascontiguousarray(cache) for name, cache in in_one_storage(2).items()}
    )


def test_layouts_differ_by_name_type_size_number_and_order():
    two = {**zeros(), **zeros(name="layer1")}
    all_of_them = [
        zeros(),
        zeros(name="layer1"),
        zeros(np.int8),
        zeros(shape=(BLOCKS, 5)),
        two,
        dict(reversed(two.items())),
        {},
    ]
    assert len({layout(caches) for caches in all_of_them}) == len(all_of_them)
    assert layout(zeros(np.float16, (BLOCKS, 2))) != layout(zeros(np.uint16, (BLOCKS, 2)))


def test_a_layout_is_the_same_in_every_release_that_speaks_a_version_of_the_protocol():
    """Else workers of two releases would refuse each other's blocks; whoever changes it raises ``VERSION``."""
    assert (VERSION, layout(plain(1))) == (2, "0946249cab6ed8f2354154b1e97aad86")


def test_parts_of_a_wrong_size_change_nothing():
    caches = plain(3)
    pages = CachePages(caches, BLOCKS)
    right = as_parts(gather(pages, [1, 2]))
    for wrong, sizes in (
        ([right[0], right[1][:-1]], [48, 19]),
        ([bytearray(49), right[1]], [49, 20]),
        ([right[1], right[0]], [20, 48]),
        ([right[0]], [48]),
        ([*right, bytearray()], [48, 20, 0]),
        ([], []),
    ):
        with pytest.raises(ValueError, match="2 blocks are") as raised:
            pages.scatter([3, 4], wrong)
        assert str(raised.value) == f"2 blocks are [48, 20] bytes, got {sizes}"
    assert all((blocks_of(cache) == blocks_of(plain(3)[name])).all() for name, cache in caches.items())


class OnDevice(np.ndarray):
    """What of a tensor on a GPU is asked before it is copied."""

    is_cuda = True
    device = "cuda:1"


@pytest.fixture
def on_device(monkeypatch):
    """Makes the layers of some pages ones of a GPU, and returns what it is to do when somebody waits for it."""

    def put(pages, device_does):
        pages._layers = [layer._replace(tensor=layer.tensor.view(OnDevice)) for layer in pages._layers]
        cuda = SimpleNamespace(synchronize=device_does)
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))

    return put


def test_blocks_are_gathered_when_their_device_has_computed_them(on_device):
    caches, waited = zeros(), []
    pages = CachePages(caches, BLOCKS)

    def compute(device):
        waited.append(device)
        caches["layer0"][:] = 2

    on_device(pages, compute)
    assert (as_parts(gather(pages, [1])), waited) == ([b"\2\2\2\2"], ["cuda:1"])


def test_blocks_are_scattered_when_their_device_has_written_them(on_device):
    caches, seen = {**zeros(), **zeros(name="layer1")}, []
    pages = CachePages(caches, BLOCKS)
    on_device(pages, lambda device: seen.append((device, [int(cache[2, 0]) for cache in caches.values()])))
    pages.scatter([2], [memoryview(b"1" * 4), memoryview(b"2" * 4)])
    assert seen == [("cuda:1", [ord("1"), ord("2")])]


def test_what_is_no_cache():
    with pytest.raises(ConfigError) as raised:
        CachePages({"layer0": [1, 2]}, BLOCKS)
    said = "register_kv_caches: layer 'layer0' is a list; expected a torch tensor or a numpy array"
    assert str(raised.value) == said
    with pytest.raises(ConfigError, match="its first dimension should be the number of blocks, 7"):
        CachePages(plain(1), 7)


@pytest.mark.parametrize("block", [BLOCKS, -1])
def test_blocks_that_are_not_there(block):
    with pytest.raises(IndexError, match=rf"^blocks \[0, {block}\] of {BLOCKS}$"):
        gather(CachePages(zeros(), BLOCKS), [0, block])


def test_where_blocks_are_gathered():
    """In the memory that is given; but numpy would copy all of a tensor whose blocks don't lie side by side."""
    pages = CachePages(
        {"wide": random_bytes((BLOCKS, 6), 1)[:, :4], **zeros(), "last": np.ones((BLOCKS, 2))}, BLOCKS
    )
    memory = bytearray(b"x" * (2 * pages.bytes_per_block + 3))
    wide, zero, last = pages.gather([2, 1], memoryview(memory))
    assert [np.shares_memory(part, np.frombuffer(memory, np.int8)) for part in (wide, zero, last)] == [
        False,
        True,
        True,
    ]
    assert memory == b"x" * 8 + bytes(8) + np.ones(4).tobytes() + b"xxx"
    assert np.array_equal(wide.view(np.uint8), random_bytes((BLOCKS, 6), 1)[[2, 1], :4])


def test_arrays_need_no_torch():
    if "torch" not in sys.modules:
        gather(CachePages(plain(1), BLOCKS), [0])
        assert "torch" not in sys.modules


@pytest.mark.torch
def test_what_torch_has_in_host_memory_is_copied_by_numpy():
    import torch

    tensor = torch.zeros(BLOCKS, 4, dtype=torch.bfloat16)
    pages = CachePages({"layer0": tensor}, BLOCKS)
    (layer,) = pages._layers
    assert isinstance(layer.tensor, np.ndarray)
    assert layer.tensor.ctypes.data == tensor.data_ptr()


@pytest.mark.torch
def test_what_torch_has_on_a_device_is_left_to_torch():
    import torch

    (layer,) = CachePages({"layer0": torch.zeros(BLOCKS, 4, device="meta")}, BLOCKS)._layers
    assert isinstance(layer.tensor, torch.Tensor)
    assert layer.tensor.device.type == "meta"


@pytest.fixture(params=["in host memory", "on a device"])
def where(request, monkeypatch):
    """Tensors are in host memory here; but what is done with those of a device can be done with them, too."""
    if request.param == "on a device":
        monkeypatch.setattr("kv_p2p.pulling.pages._as_array", lambda pages: pages)


@pytest.mark.torch
@pytest.mark.usefixtures("where")
class TestTorch:
    @pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "uint8", "float8_e4m3fn"])
    @pytest.mark.parametrize("seed", range(3))
    def test_blocks_arrive_bit_for_bit(self, dtype, seed):
        import torch

        def made(seed):
            storage = torch.from_numpy(random_bytes((BLOCKS, 3, 2, 16), seed)).view(getattr(torch, dtype))
            alone = torch.from_numpy(random_bytes((BLOCKS, 8), seed + 1)).view(getattr(torch, dtype))
            layers = {f"layer{index}": storage[:, index] for index in range(3)}
            return {**layers, "alias": storage[:, 1], "alone": alone}

        def raw(cache, block):
            return bytes(cache[block].contiguous().view(torch.uint8).numpy())

        there, here, before = made(seed), made(seed + 50), made(seed + 50)
        sender, receiver = CachePages(there, BLOCKS), CachePages(here, BLOCKS)
        assert sender.layout == receiver.layout
        assert sender.bytes_per_block == 3 * 32 + 8
        pairs = [(3, 0), (1, 4), (3, 2), (5, 1)]
        parts = as_parts(gather(sender, [source for source, _ in pairs]))
        receiver.scatter([target for _, target in pairs], parts)
        sources = {target: source for source, target in pairs}
        for name, cache in here.items():
            for block in range(BLOCKS):
                expected = raw(there[name], sources[block]) if block in sources else raw(before[name], block)
                assert raw(cache, block) == expected, (name, block)

    def test_the_type_is_part_of_the_layout(self):
        import torch

        def tensor(dtype):
            return {"layer0": torch.zeros(BLOCKS, 4, dtype=dtype)}

        assert layout(tensor(torch.bfloat16)) != layout(tensor(torch.float16))
        assert layout(tensor(torch.bfloat16)) == layout(tensor(torch.bfloat16))

    def test_the_dimensions_of_a_block_in_another_order(self):
        import torch

        cache = torch.from_numpy(random_bytes((BLOCKS, 3, 2, 4), 9)).permute(0, 2, 1, 3)
        pages = CachePages({"layer0": cache}, BLOCKS)
        (part,) = as_parts(gather(pages, [5]))
        assert bytes(part) == bytes(cache.permute(0, 2, 1, 3)[5].contiguous().numpy())
        pages.scatter([0], [part])
        assert torch.equal(cache[0], cache[5])

    def test_parts_of_a_wrong_size(self):
        import torch

        pages = CachePages({"layer0": torch.zeros(BLOCKS, 4)}, BLOCKS)
        with pytest.raises(ValueError, match=r"1 blocks are \[16\] bytes, got \[15\]"):
            pages.scatter([0], [bytearray(15)])
