"""The canonical form of an engine's KV caches."""

import numpy as np
import pytest
from kv_offload_configs import FULL, STATE, kv_cache_config

from kv_api import ConfigError
from kv_api.pages import Pages
from kv_offload.describe import describe_engine
from kv_offload.worker import register
from kv_offload.worker.register import canonical_caches


def layout_of(cache, **extra):
    from kv_offload_configs import vllm_config

    return describe_engine(vllm_config(**extra), cache).layout


def test_aliases_share_a_tensor():
    cache = kv_cache_config(((FULL, 4, 0), (FULL, 4, 0)), num_blocks=8)
    cache.kv_cache_groups[0].layer_names = ["layer0", "other"]
    memory, other = np.zeros((8, 4), dtype=np.uint64), np.zeros((8, 4), dtype=np.uint64)
    found = canonical_caches({"layer0": memory, "layer1": memory.view(), "other": other}, cache, layout_of(cache))
    assert [tensor.page_size_bytes for tensor in found.tensors] == [32, 32]
    assert [[ref.tensor_idx for ref in refs] for refs in found.group_data_refs] == [[0, 1], [0]]


@pytest.mark.parametrize("widths", [(2, 4), (4, 2)])
def test_of_aliases_the_whole_page_is_shared(widths):
    cache = kv_cache_config(((FULL, 4, 0), (FULL, 4, 0)), num_blocks=8)
    memory = np.zeros((8, 4), dtype=np.uint64)
    layers = {f"layer{number}": memory[:, :width] for number, width in enumerate(widths)}
    found = canonical_caches(layers, cache, layout_of(cache))
    assert [(tensor.tensor.shape, tensor.page_size_bytes) for tensor in found.tensors] == [((8, 32), 32)]
    refs = [(ref.tensor_idx, ref.page_size_bytes) for (ref,) in found.group_data_refs]
    assert refs == [(0, 8 * width) for width in widths]


def test_what_begins_at_one_place_and_goes_on_at_others_is_shared_by_nobody():
    cache = kv_cache_config(((FULL, 4, 0), (FULL, 4, 0)), num_blocks=8)
    memory = np.zeros((16, 4), dtype=np.uint64)
    found = canonical_caches({"layer0": memory[:8], "layer1": memory[::2]}, cache, layout_of(cache))
    assert [tensor.tensor.strides for tensor in found.tensors] == [(32, 1), (64, 1)]
    assert [[ref.tensor_idx for ref in refs] for refs in found.group_data_refs] == [[0], [1]]


def test_a_layer_without_a_tensor():
    cache = kv_cache_config(num_blocks=8)
    for known, described in (({"m": np.zeros((8, 4)), "k": np.zeros((8, 4))}, "k, m"), ({}, "none")):
        with pytest.raises(ConfigError) as raised:
            canonical_caches(known, cache, layout_of(cache))
        expected = f"register_kv_caches: there is no tensor of layer 'layer0'; known: {described}"
        assert str(raised.value) == expected


def test_the_page_of_such_a_layer_is_its_share_of_the_groups(monkeypatch):
    cache = kv_cache_config(((STATE, 4, 0),), num_blocks=4)
    cache.kv_cache_groups[0].layer_names = ["a", "b"]
    asked = []

    def pages_of(name, tensor, num_blocks, page_bytes):
        asked.append((name, tensor, num_blocks, page_bytes))
        return Pages(len(asked), page_bytes, page_bytes, f"pages of {name}")

    monkeypatch.setattr(register, "pages_of", pages_of)
    found = canonical_caches({"a": "one", "b": "two"}, cache, layout_of(cache))
    assert asked == [("a", "one", 4, 32), ("b", "two", 4, 32)]
    assert [(tensor.tensor, tensor.page_size_bytes) for tensor in found.tensors] == [
        ("pages of a", 32),
        ("pages of b", 32),
    ]
