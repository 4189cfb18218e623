"""Tensors as messages: bit for bit, of every type and shape."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kv_p2p.first.pipe.arrays import (
    NUMPY_TYPES,
    TORCH_TYPES,
    TensorError,
    all_true,
    beside,
    concatenate,
    copy_of,
    describe,
    indices,
    kind_of,
    on_host,
    stack,
    truths,
    whole_numbers,
)
from kv_p2p.first.pipe.tensors import decode, encode

SHAPES = [(), (1,), (5,), (0,), (0, 3), (3, 0, 2), (2, 3, 4)]


def through(tensor: Any) -> Any:
    header, parts = encode(tensor)
    return decode(header, [bytearray(memoryview(part).cast("B") if part.size else b"") for part in parts])


def random_array(dtype: str, shape: tuple[int, ...]) -> Any:
    """Any bits at all, NaNs with a payload among them; of a bool only the two there are."""
    num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    bits = np.random.default_rng(7).integers(0, 2 if dtype[1:] == "b1" else 256, num_bytes, np.uint8)
    return bits.view(np.dtype(dtype)).reshape(shape)


def test_all_numbers_that_numpy_has_on_any_machine_can_be_sent() -> None:
    codes = "?" + np.typecodes["AllInteger"] + "efdFD"
    assert {np.dtype(code).str[1:] for code in codes} == {*NUMPY_TYPES}


def test_torch_has_the_same_numbers_and_floats_of_fewer_bits() -> None:
    narrow = {"bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"}
    assert {np.dtype(letters).name for letters in NUMPY_TYPES} | narrow == {*TORCH_TYPES}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("letters", NUMPY_TYPES)
def test_arrays(letters: str, order: str, shape: tuple[int, ...]) -> None:
    array = random_array(order + letters, shape)
    came = through(array)
    assert (came.dtype.str, came.shape) == (array.dtype.str, array.shape)
    assert came.tobytes() == array.tobytes()
    assert came.flags.writeable


def test_arrays_whose_values_dont_lie_together() -> None:
    array = np.arange(24, dtype=np.int32).reshape(4, 6)
    for view in (array[::2, 1::3], array[0, ::4][1:], array.T, array[:, ::-1], np.broadcast_to(array[0], (3, 6))):
        np.testing.assert_array_equal(through(view), view)


def test_none() -> None:
    header, _ = encode(None)
    header["to"] = "the header of this message alone"
    assert encode(None) == ({"library": None}, [])
    assert decode({"library": None}, []) is None


def test_torch_is_not_imported_for_an_array() -> None:
    code = (
        "import sys, numpy; from kv_p2p.first.pipe import tensors; "
        "tensors.encode(numpy.ones(2)); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"


def test_a_torch_tensor_where_there_is_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(TensorError, match=r"^a torch tensor of bfloat16 came, and there is no torch here: "):
        decode({"library": "torch", "dtype": "bfloat16", "shape": [1]}, [bytearray(2)])


HEADER = {"library": "numpy", "dtype": "<f4", "shape": [2]}
TYPES = ", ".join(NUMPY_TYPES)


@pytest.mark.parametrize(
    ("changed", "sizes", "message"),
    [
        ({"library": "jax"}, [8], "a message holds a tensor of 'jax'; known: numpy, torch"),
        ({"dtype": "<f3"}, [8], f"a message holds an array of '<f3'; known: {TYPES}"),
        ({"dtype": "xf4"}, [8], f"a message holds an array of 'xf4'; known: {TYPES}"),
        ({"dtype": "O"}, [8], f"a message holds an array of 'O'; known: {TYPES}"),
        ({"dtype": 4}, [8], f"a message holds an array of 4; known: {TYPES}"),
        ({"shape": [-2]}, [8], "a message holds a tensor of the shape [-2]; expected a list of sizes"),
        ({"shape": 2}, [8], "a message holds a tensor of the shape 2; expected a list of sizes"),
        ({"shape": [True]}, [8], "a message holds a tensor of the shape [True]; expected a list of sizes"),
        ({}, [7], "a tensor of shape (2,) has 8 bytes, and 7 came"),
        ({"shape": [0]}, [4], "a tensor of shape (0,) has 0 bytes, and 4 came"),
        ({}, [], "a message with a tensor has one part, and this one has 0"),
        ({}, [8, 8], "a message with a tensor has one part, and this one has 2"),
        (
            {"library": "torch", "dtype": "load"},
            [8],
            f"a message holds a tensor of 'load'; known: {', '.join(TORCH_TYPES)}",
        ),
    ],
)
def test_messages_that_are_none(changed: dict[str, Any], sizes: list[int], message: str) -> None:
    with pytest.raises(TensorError) as refused:
        decode(HEADER | changed, [bytearray(size) for size in sizes])
    assert str(refused.value) == message


def test_a_torch_tensor_of_too_few_bytes_or_of_a_type_that_torch_does_not_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = SimpleNamespace(__version__="1.0", bfloat16=SimpleNamespace(itemsize=2))
    monkeypatch.setitem(sys.modules, "torch", old)
    header = {"library": "torch", "dtype": "bfloat16", "shape": [2]}
    with pytest.raises(TensorError, match=r"^a tensor of shape \(2,\) has 4 bytes, and 3 came$"):
        decode(header, [bytearray(3)])
    with pytest.raises(TensorError, match=r"^a tensor of uint64 came, which torch 1\.0 does not have$"):
        decode(header | {"dtype": "uint64"}, [bytearray(16)])


class Named(SimpleNamespace):
    """A type or a layout of torch's, which is no text."""

    def __str__(self) -> str:
        return f"torch.{self.name}"


def of_torch(dtype: str, layout: str = "strided") -> Any:
    """What is asked of a tensor of torch's before it is touched; `in_torch` says that it is one."""
    return SimpleNamespace(dtype=Named(name=dtype), layout=Named(name=layout), shape=(2,))


@pytest.fixture
def in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=SimpleNamespace))


@pytest.mark.usefixtures("in_torch")
def test_what_is_asked_of_a_tensor_of_torchs() -> None:
    assert kind_of(of_torch("bfloat16")) == ("torch", "bfloat16")
    assert describe(of_torch("int8")) == "torch int8 (2,)"
    with pytest.raises(TensorError) as refused:
        kind_of(of_torch("bits8"), "roi")
    assert str(refused.value) == f"roi: a tensor of bits8 can't be sent; choices: {', '.join(TORCH_TYPES)}"
    with pytest.raises(TensorError) as refused:
        kind_of(of_torch("int8", "sparse_coo"), "roi")
    assert str(refused.value) == "roi: a torch.sparse_coo tensor can't be sent; choices: torch.strided"
    with pytest.raises(TensorError, match=r"^mask: expected a mask in one dimension, got torch int8 \(2,\)$"):
        truths(of_torch("int8"), "mask")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kind_of([1]), "tensor: expected a numpy array or a torch tensor, got list"),
        (lambda: kind_of(None, "roi"), "roi: expected a numpy array or a torch tensor, got NoneType"),
        (lambda: kind_of(np.array(["a"])), f"tensor: an array of <U1 can't be sent; choices: {TYPES}"),
        (lambda: encode(np.array([{}])), f"tensor: an array of object can't be sent; choices: {TYPES}"),
        (
            lambda: whole_numbers(np.ones(3), "input_tokens"),
            "input_tokens: expected whole numbers in one dimension, got numpy <f8 (3,)",
        ),
        (
            lambda: whole_numbers(np.ones((1, 3), int), "input_tokens"),
            "input_tokens: expected whole numbers in one dimension, got numpy <i8 (1, 3)",
        ),
        (lambda: truths([True], "roi"), "roi: expected a numpy array or a torch tensor, got list"),
        (lambda: truths(np.ones(3), "roi"), "roi: expected a mask in one dimension, got numpy <f8 (3,)"),
        (lambda: truths(np.array(True), "roi"), "roi: expected a mask in one dimension, got numpy |b1 ()"),
    ],
)
def test_what_is_of_no_use(call: Any, message: str) -> None:
    with pytest.raises(TensorError) as refused:
        call()
    assert str(refused.value) == message


def test_a_message_that_says_nothing() -> None:
    with pytest.raises(TensorError) as refused:
        decode({}, [])
    assert str(refused.value) == "a message holds a tensor of ''; known: numpy, torch"


def test_what_is_made_of_arrays() -> None:
    array = np.arange(6).reshape(2, 3)
    made = [all_true(array), indices([4, 1], array), stack([array, array]), concatenate([array, array])]
    wanted = [np.ones((2, 3), bool), np.array([4, 1]), np.array([array, array]), np.array([*array, *array])]
    assert [(one.dtype, one.tolist()) for one in made] == [(one.dtype, one.tolist()) for one in wanted]
    assert on_host(array) is array
    assert beside(array, np.ones(1)) is array


def test_a_copy_is_a_copy() -> None:
    array = np.arange(3)
    copy = copy_of(array)
    array[0] = 9
    assert copy.tolist() == [0, 1, 2]
    view = np.arange(6).reshape(2, 3).T  # a copy lies as one that came in a message
    assert (copy_of(view).tolist(), copy_of(view).strides) == (view.tolist(), through(view).strides)


# -- torch ---------------------------------------------------------------------------------------


def bits(tensor: Any) -> bytes:
    import torch

    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


@pytest.mark.torch
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", TORCH_TYPES)
def test_tensors(name: str, shape: tuple[int, ...]) -> None:
    import torch

    dtype = getattr(torch, name)
    tensor = torch.from_numpy(random_array("|b1" if name == "bool" else "|i1", (64, 16)).copy())
    count = int(np.prod(shape))
    tensor = tensor.reshape(-1)[: count * dtype.itemsize].clone().view(dtype).reshape(shape)
    came = through(tensor)
    assert (came.dtype, came.shape) == (tensor.dtype, tensor.shape)
    assert bits(came) == bits(tensor)


@pytest.mark.torch
def test_tensors_of_all_sorts() -> None:
    import torch

    tensor = torch.arange(24.0, dtype=torch.bfloat16).reshape(4, 6)
    for view in (tensor[::2, 1::3], tensor.T, tensor[0].expand(3, 6)):
        assert torch.equal(through(view), view)
    assert torch.equal(through(torch.nn.Parameter(tensor.float())), tensor.float())
    number = torch.tensor([1 + 2j])
    assert through(number.conj()).tolist() == [1 - 2j]
    assert through(number.conj().imag).tolist() == [-2.0]


@pytest.mark.torch
def test_both_libraries_do_the_same() -> None:
    import torch

    array = np.arange(6, dtype=np.int64)
    tensor = torch.arange(6)
    assert describe(tensor) == "torch int64 (6,)"
    assert whole_numbers(tensor, "") == whole_numbers(array, "") == tuple(range(6))
    assert truths(all_true(tensor), "") == truths(all_true(array), "") == (True,) * 6
    assert tensor[indices([4, 1], tensor)].tolist() == array[indices([4, 1], array)].tolist() == [4, 1]
    assert stack([tensor, tensor]).tolist() == stack([array, array]).tolist() == [list(range(6))] * 2
    assert concatenate([tensor, tensor]).tolist() == concatenate([array, array]).tolist() == [*range(6), *range(6)]
    assert on_host(tensor) is not None
    assert beside(tensor, tensor).tolist() == array.tolist()
    copy = copy_of(tensor)
    tensor[0] = 9
    assert copy.tolist() == list(range(6))


@pytest.mark.torch
def test_what_is_made_beside_a_tensor_of_torchs_is_one_where_that_is() -> None:
    import torch

    there = torch.ones(2, 3, device="meta")
    made = [all_true(torch.ones(2, 3)), indices([], there), indices([1], there), beside(torch.ones(2), there)]
    assert [(type(one), one.dtype, one.device.type, one.shape) for one in made] == [
        (torch.Tensor, torch.bool, "cpu", (2, 3)),
        (torch.Tensor, torch.int64, "meta", (0,)),
        (torch.Tensor, torch.int64, "meta", (1,)),
        (torch.Tensor, torch.float32, "meta", (2,)),
    ]
    weight = torch.nn.Parameter(torch.ones(2))
    assert (on_host(weight).tolist(), on_host(weight).requires_grad) == ([1, 1], False)


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["sparse", "bits"])
def test_tensors_that_are_more_than_their_values(kind: str) -> None:
    import torch

    if kind == "sparse":
        tensor, message = (
            torch.eye(2).to_sparse(),
            "tensor: a torch.sparse_coo tensor can't be sent; choices: torch.strided",
        )
    else:
        choices = ", ".join(TORCH_TYPES)
        tensor = torch.zeros(2, dtype=torch.uint8).view(torch.bits8)
        message = f"tensor: a tensor of bits8 can't be sent; choices: {choices}"
    with pytest.raises(TensorError) as refused:
        encode(tensor)
    assert str(refused.value) == message
