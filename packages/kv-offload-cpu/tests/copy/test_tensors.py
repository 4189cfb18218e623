"""Where the pages of an engine's tensors are, by their shape and strides, and which tensors have none."""

import numpy as np
import pytest
from kv_offload_cpu_layouts import LikeTorchs

from kv_api import CanonicalKVCaches, CanonicalKVCacheTensor, KVError
from kv_offload_cpu.copy.ranges.tensors import TensorPages, device_tensors


@pytest.mark.parametrize(
    ("array", "page_bytes", "message"),
    [
        (np.zeros((4, 2, 3, 5), np.int16).swapaxes(2, 3), 60, "the bytes of a block don't lie together"),
        (np.zeros((4, 2, 6), np.int16)[:, :, ::2], 12, "the bytes of a block don't lie together"),
        (np.zeros(4, np.int16), 2, "shape [4] with 2 bytes an element has no pages of 2 bytes"),
        (np.zeros((4, 3), np.int16), 7, "shape [4, 3] with 2 bytes an element has no pages of 7 bytes"),
        (np.zeros((4, 3), np.int16), 0, "shape [4, 3] with 2 bytes an element has no pages of 0 bytes"),
    ],
)
def test_a_tensor_without_such_pages_is_refused(array, page_bytes, message):
    caches = CanonicalKVCaches([CanonicalKVCacheTensor(array, page_bytes)], [[]])
    with pytest.raises(KVError) as caught:
        device_tensors(caches)
    assert message in str(caught.value)


def test_the_dimensions_of_a_block_may_be_many_and_blocks_apart():
    array = np.zeros((4, 9, 3, 5), np.int16)[:, 2:4]
    [tensor] = device_tensors(CanonicalKVCaches([CanonicalKVCacheTensor(array, 60)], [[]]))
    assert tensor.pages == (4, 60, 270, array.ctypes.data)
    assert (tensor.device, tensor.tensor is array) == ("cpu", True)
    assert (tensor.pages.span_bytes, TensorPages(0, 60, 270).span_bytes) == (3 * 270 + 60, 0)
    [least] = device_tensors(CanonicalKVCaches([CanonicalKVCacheTensor(np.zeros((4, 1), np.int8), 1)], [[]]))
    assert least.pages[:3] == (4, 1, 1)


def test_a_dimension_of_one_may_have_any_stride():
    array = np.lib.stride_tricks.as_strided(np.zeros(96, np.int16), (4, 1, 6), (48, 7, 2))
    [tensor] = device_tensors(CanonicalKVCaches([CanonicalKVCacheTensor(array, 12)], [[]]))
    assert tensor.pages == (4, 12, 48, array.ctypes.data)


def test_a_tensor_of_torch_counts_in_elements():
    tensor = LikeTorchs(shape=(4, 2, 6), strides=(20, 6, 1), element_bytes=2)
    [found] = device_tensors(CanonicalKVCaches([CanonicalKVCacheTensor(tensor, 24)], [[]]))
    assert (found.pages, found.device, found.tensor) == ((4, 24, 40, 4096), "cuda", tensor)
    tensor = LikeTorchs(shape=(4, 2, 6), strides=(20, 7, 1), element_bytes=2)
    with pytest.raises(KVError) as caught:
        device_tensors(CanonicalKVCaches([CanonicalKVCacheTensor(tensor, 24)], [[]]))
    assert str(caught.value) == (
        "KV cache tensor 0: the bytes of a block don't lie together: shape [4, 2, 6], strides [40, 14, 2] bytes"
    )
