"""The canonical form of an engine's KV caches."""

import numpy as np
import pytest
from kv_offload_configs import FULL, STATE, kv_cache_config

from kv_api import ConfigError
from kv_api.pages import Pages, pages_of
from kv_offload.describe import describe_engine
from kv_offload.worker import register
from kv_offload.worker.register import MOST_PADDING_BYTES, canonical_caches, joined


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
    cache.kv_cache_groups[0].layer_names = ["k", "l"]
    with pytest.raises(ConfigError, match="no tensor of layer 'l'; known: k"):
        canonical_caches({"k": np.zeros((8, 4))}, cache, layout_of(cache))


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


# -- all layers of each block together -----------------------------------------------------------


class Watched(np.ndarray):
    """An array that hears who reads it."""


def slices(memory, *places):
    """The pages of layers that are at these places of each block."""
    return [pages_of(f"layer {begin}", memory[:, begin:end], len(memory)) for begin, end in places]


def page_places(memory, pages):
    """Where pages begin in the first block, and where they end; that they are the same in the others."""
    found = []
    for one in pages:
        begin = one.address - memory.__array_interface__["data"][0]
        for block, page in enumerate(one.tensor):
            assert page.tobytes() == memory.tobytes()[block * one.stride_bytes + begin :][: one.page_bytes]
        found.append((begin, begin + one.page_bytes))
    return found


@pytest.fixture
def memory():
    return np.random.default_rng(0).integers(-128, 128, (3, 100), dtype=np.int8)


def test_layers_that_lie_side_by_side_in_every_block_are_one_page(memory):
    for places in ([(10, 40), (40, 50), (50, 100)], [(50, 100), (10, 40), (40, 50)]):
        assert page_places(memory, joined(slices(memory, *places))) == [(10, 100)]


def test_a_little_padding_between_them_comes_along():
    memory = np.random.default_rng(0).integers(-128, 128, (2, 3 * MOST_PADDING_BYTES), dtype=np.int8)
    begin = 8 + MOST_PADDING_BYTES
    assert page_places(memory, joined(slices(memory, (0, 8), (begin, begin + 8)))) == [(0, begin + 8)]
    places = [(0, 8), (begin + 1, begin + 9)]
    assert page_places(memory, joined(slices(memory, *places))) == places


def test_layers_whose_blocks_lie_together_are_not_joined(memory):
    """The second begins where the last block of the first ends, or in the last but one."""
    flat = memory.reshape(-1)
    layers = [flat[:150].reshape(3, 50), flat[150:].reshape(3, 50)]
    found = joined([pages_of("l", layer, 3) for layer in layers])
    assert page_places(memory, found) == [(0, 50), (150, 200)]
    over_the_end = [pages_of("l", flat[start : start + 200].reshape(2, 100)[:, :60], 2) for start in (20, 80)]
    assert page_places(memory, joined(over_the_end)) == [(20, 80), (80, 140)]
    behind_it = [
        pages_of("l", flat[start : start + 200].reshape(2, 100)[:, :end], 2) for start, end in ((20, 60), (80, 40))
    ]
    assert page_places(memory, joined(behind_it)) == [(20, 120)]


def test_what_overlaps_or_goes_on_at_other_places_is_not_joined(memory):
    places = [(0, 20), (10, 30)]
    assert page_places(memory, joined(slices(memory, *places))) == places
    first, second = slices(memory, (0, 20))[0], pages_of("l", memory[:, 20:40], 3)._replace(stride_bytes=200)
    assert joined([first, second]) == [first, second]


def test_pages_come_in_the_order_of_their_first_layers(memory):
    far = np.random.default_rng(1).integers(-128, 128, (3, 100), dtype=np.int8)
    for one, other in ((memory, far), (far, memory)):
        layers = [
            *slices(one, (50, 60)),
            *slices(other, (0, 10)),
            *slices(one, (40, 50)),
            *slices(other, (10, 20)),
        ]
        found = joined(layers)
        assert page_places(one, found[:1]) == [(40, 60)]
        assert page_places(other, found[1:]) == [(0, 20)]


def test_layers_that_somebody_watches_stay_what_they_are(memory):
    layers = slices(memory.view(Watched), (0, 10), (10, 20))
    assert joined(layers) == layers


def test_groups_that_overlay_each_other_share_what_begins_at_one_place(memory):
    """As vLLM packs groups with pages of several sizes: each from the begin of a block on."""
    cache = kv_cache_config(((FULL, 4, 0), (FULL, 4, 0)), num_blocks=3)
    cache.kv_cache_groups[0].layer_names = ["a", "b"]
    cache.kv_cache_groups[1].layer_names = ["c", "d", "e"]
    for group, page_bytes in zip(cache.kv_cache_groups, (40, 34), strict=True):  # on average
        group.kv_cache_spec.page_size_bytes = page_bytes
    layers = {"a": (0, 60), "b": (60, 80), "c": (0, 10), "d": (10, 70), "e": (72, 100)}
    caches = {name: memory[:, begin:end] for name, (begin, end) in layers.items()}
    found = canonical_caches(caches, cache, layout_of(cache))
    assert [(tensor.page_size_bytes, tensor.tensor.tobytes()) for tensor in found.tensors] == [
        (100, memory.tobytes())
    ]
    refs = [[(ref.tensor_idx, ref.page_size_bytes) for ref in refs] for refs in found.group_data_refs]
    assert refs == [[(0, 80)], [(0, 100)]]


@pytest.mark.parametrize(("page_bytes", "pages"), [(13, [20, 8]), (14, [28])])
def test_padding_that_no_medium_was_told_of_does_not_come_along(memory, page_bytes, pages):
    cache = kv_cache_config(num_blocks=3)
    cache.kv_cache_groups[0].layer_names = ["a", "b"]
    cache.kv_cache_groups[0].kv_cache_spec.page_size_bytes = page_bytes
    found = canonical_caches({"a": memory[:, :20], "b": memory[:, 20:28]}, cache, layout_of(cache))
    assert [tensor.page_size_bytes for tensor in found.tensors] == pages
