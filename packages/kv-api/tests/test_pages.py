"""Engine tensors as pages, without a copy."""

import sys
from itertools import product
from types import ModuleType

import numpy as np
import pytest

from kv_api import ConfigError
from kv_api.pages import is_torch, lie_in_one, pages_of, widened


class Marked(np.ndarray):
    """An array of a testbed's, which views must keep."""


def test_pages_are_views():
    memory = np.zeros((8, 4), dtype=np.uint64)
    pages = pages_of("a", memory, 8)
    assert (pages.tensor.shape, pages.tensor.dtype, pages.stride_bytes) == ((8, 32), np.int8, 32)
    memory[3, 2] = 0x0102
    assert pages.tensor[3, 16:18].tolist() == [2, 1]
    pages.tensor[5, 0] = 7
    assert memory[5, 0] == 7


def test_layers_of_one_memory_with_larger_strides():
    memory = np.arange(8 * 2 * 4, dtype=np.uint64).reshape(8, 2, 4)
    memory.flags.writeable = False
    first, second = (pages_of("a", memory[:, layer].view(Marked), 8) for layer in range(2))
    assert (second.address - first.address, second.stride_bytes, second.page_bytes) == (32, 64, 32)
    assert isinstance(second.tensor, Marked)
    assert second.tensor[3].tobytes() == memory[3, 1].tobytes()


def test_heads_before_tokens_and_the_other_way():
    memory = np.arange(4 * 2 * 3 * 5, dtype=np.int16).reshape(4, 2, 3, 5)
    for cache in (memory, memory.transpose(0, 2, 1, 3)):
        assert pages_of("a", cache, 4).tensor[2].tobytes() == memory[2].tobytes()


def test_several_kernel_blocks_in_one():
    memory = np.arange(12 * 4, dtype=np.int32).reshape(12, 4)
    pages = pages_of("a", memory, 4)
    assert (pages.page_bytes, pages.tensor[1].tobytes()) == (48, memory[3:6].tobytes())
    assert pages.stride_bytes == 48


def test_a_dimension_of_one_has_any_stride():
    memory = np.arange(4 * 8, dtype=np.int8)
    cache = np.lib.stride_tricks.as_strided(memory, (4, 1, 8), (8, 999, 1))
    pages = pages_of("a", cache, 4)
    assert (pages.stride_bytes, pages.page_bytes, pages.tensor.tobytes()) == (8, 8, memory.tobytes())


def test_what_lies_behind_each_page_can_be_its_own_too():
    memory = np.arange(4 * 24, dtype=np.int8).reshape(4, 24)
    narrow = pages_of("l", memory[:, 2:6], 4)
    wide = widened(narrow, 22)
    assert wide._replace(tensor=None) == (narrow.address, 24, 22, None)
    assert [row.tobytes() for row in wide.tensor] == [row[2:].tobytes() for row in memory]
    wide.tensor[3, 21] = 7
    assert memory[3, 23] == 7


HAS = "has shape {} with strides of {} bytes; {}"
FIRST = "its first dimension should be the number of blocks, 4, or a multiple of it"

WRONG = [
    (np.zeros((), np.int8), (), (), FIRST),
    (np.zeros((3, 4), np.int8)[:0], (0, 4), (4, 1), FIRST),
    (np.zeros((3, 4), np.int8), (3, 4), (4, 1), FIRST),
    (np.zeros((6, 4), np.int8), (6, 4), (4, 1), FIRST),
    (np.zeros((2, 4, 3), np.int8), (2, 4, 3), (12, 3, 1), FIRST),
    (np.zeros((4, 8), np.int8)[:, ::2], (4, 4), (8, 2), "the bytes of a block should be contiguous"),
    (np.zeros((4, 4), np.int8)[:, ::2], (4, 2), (4, 2), "the bytes of a block should be contiguous"),
    (np.zeros((8, 8), np.int8)[:, :4], (8, 4), (8, 1), "the 2 parts of each block should be contiguous"),
    (np.broadcast_to(np.zeros(4, np.int8), (4, 4)), (4, 4), (0, 1), "blocks of 4 bytes should not overlap"),
]


@pytest.mark.parametrize(("cache", "shape", "strides", "wish"), WRONG)
def test_what_can_not_be_expressed(cache, shape, strides, wish):
    with pytest.raises(ConfigError) as raised:
        pages_of("l", cache, 4)
    assert str(raised.value) == f"register_kv_caches: layer 'l' {HAS.format(shape, strides, wish)}"


def test_one_block_is_enough():
    for rows in (1, 3):  # the stride of a single block means nothing
        pages = pages_of("l", np.zeros((rows, 8), np.int8)[:1, :4], 1)
        assert (pages.stride_bytes, pages.page_bytes, pages.tensor.shape) == (4, 4, (1, 4))
    with pytest.raises(
        ConfigError, match="its first dimension should be the number of blocks, 0, or a multiple of it"
    ):
        pages_of("l", np.zeros((1, 4), np.int8), 0)


def test_the_second_of_two_blocks_is_where_its_stride_says():
    memory = np.arange(2 * 8, dtype=np.int8).reshape(2, 8)
    pages = pages_of("l", memory[:, :4], 2)
    assert (pages.stride_bytes, pages.page_bytes, pages.tensor.tolist()) == (8, 4, memory[:, :4].tolist())


def test_what_is_no_tensor():
    with pytest.raises(ConfigError) as raised:
        pages_of("l", [[0]], 4, page_bytes=4)
    expected = "register_kv_caches: layer 'l' is a list; expected a torch tensor or a numpy array"
    assert str(raised.value) == expected


class Size(tuple):
    """Stands for a shape of torch's, which says its class."""

    def __repr__(self):
        return f"torch.Size({list(self)})"


class Tensor:
    """Stands for a torch tensor: records how it is viewed."""

    device = "cuda:1"

    def __init__(self, shape, strides, offset=0):
        self.shape, self._strides, self._offset = Size(shape), strides, offset

    def stride(self, dim=None):
        return self._strides if dim is None else self._strides[dim]

    def element_size(self):
        return 2

    def storage_offset(self):
        return self._offset

    def data_ptr(self):
        return 1000 + 2 * self._offset

    def untyped_storage(self):
        return "storage"

    def set_(self, *view):
        return view

    def as_strided(self, *view):
        return ("of the same", *view)


@pytest.fixture
def torch(monkeypatch):
    module = ModuleType("torch")
    module.Tensor, module.int8 = Tensor, "int8"
    module.empty = lambda size, dtype, device: Tensor((0,), (1,)) if (size, dtype) == (0, "int8") else None
    monkeypatch.setitem(sys.modules, "torch", module)


def test_what_is_a_torch_tensor(torch, monkeypatch):
    assert [is_torch(value) for value in (Tensor((), ()), np.zeros(1), [Tensor((), ())], None)] == [True] + 3 * [
        False
    ]
    monkeypatch.delattr(sys.modules["torch"], "Tensor")  # as while it is being imported
    assert not is_torch(Tensor((), ()))


def test_what_lies_in_one_memory(torch, monkeypatch):
    class Watched(Tensor):
        pass

    class Storage(str):
        data_ptr = str.__str__

    first, second = Tensor((), ()), Tensor((), ())
    monkeypatch.setattr(Tensor, "untyped_storage", lambda self: Storage("one"))
    assert lie_in_one(first, second)
    second.untyped_storage = lambda: Storage("another")
    assert not lie_in_one(first, second)
    guarded = Watched((), ())
    array = np.zeros(2)
    assert lie_in_one(array[:1], array[1:])
    watched = array.view(Marked)
    for one, other in (*product((array, watched), (watched,)), *product((first, guarded), (guarded,))):
        assert not lie_in_one(one, other) and not lie_in_one(other, one)
    assert not lie_in_one(array, first) and not lie_in_one(None, None)


def test_wider_pages_of_torch(torch):
    pages = pages_of("l", Tensor((4, 5), (50, 1), offset=3), 4)._replace(tensor=Tensor((4, 10), (100, 1), 3))
    assert widened(pages, 80) == (1006, 100, 80, ("of the same", (4, 80), (100, 1)))


def test_torch_tensors_are_viewed_in_their_storage(torch):
    cache = Tensor((4, 2, 3, 5), (60, 15, 5, 1), offset=30)  # the second of two layers in each block
    assert pages_of("l", cache, 4) == (1060, 120, 60, ("storage", 60, (4, 60), (120, 1)))


def test_what_torch_can_not_express_is_named(torch):
    with pytest.raises(ConfigError) as raised:
        pages_of("l", Tensor((3, 5), (5, 1)), 4)
    assert str(raised.value) == f"register_kv_caches: layer 'l' {HAS.format((3, 5), (10, 2), FIRST)}"


def test_states_of_several_tensors_are_parts_of_a_page(torch):
    parts = [Tensor((4, 6), (50, 1), offset=44), Tensor((4, 44), (50, 1))]
    assert pages_of("l", parts, 4, page_bytes=100) == (1000, 100, 100, ("storage", 0, (4, 100), (100, 1)))
    for wrong, page_bytes in ((parts, 0), ([], 100), ([*parts, None], 100)):
        with pytest.raises(ConfigError, match="layer 'l' is a list; expected a torch tensor or a numpy array"):
            pages_of("l", wrong, 4, page_bytes)
    with pytest.raises(ConfigError, match="layer 'l' is a list; expected"):
        pages_of("l", parts, 4)  # a layer is one tensor, unless something else is said


def test_without_any_library_nothing_is_a_tensor(monkeypatch):
    for library in ("torch", "numpy"):
        monkeypatch.delitem(sys.modules, library, raising=False)
    with pytest.raises(ConfigError, match="layer 'l' is a bytes; expected a torch tensor or a numpy array"):
        pages_of("l", b"", 4)
    assert not is_torch(b"")
    assert not lie_in_one(b"", b"")
