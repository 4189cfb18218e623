"""From an engine's KV cache tensors to the canonical form that a medium gets: pages, and whose they are.

An engine has each layer's blocks together, or all layers of each block (vLLM's ``BLHNC``, which models need whose
groups have pages of several sizes). Then the layers of a group lie side by side in every block, but for some bytes
of padding that are nobody's, since a block is of one group at a time. A medium gets them as one page: it moves
that in one piece, where each layer by itself would be a small one.
"""

from collections.abc import Sequence
from typing import Final

from kv_api import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    ConfigError,
    KVCacheConfig,
    KVCaches,
)
from kv_api.pages import Pages, lie_in_one, pages_of, widened
from kv_offload.shape.layout import Layout

MOST_PADDING_BYTES: Final = 4 << 10
"""Between two layers. To move that takes no longer than to begin another piece."""


def canonical_caches(kv_caches: KVCaches, kv_cache_config: KVCacheConfig, layout: Layout) -> CanonicalKVCaches:
    """The pages of all groups that are offloaded. Layers that alias the same memory share a tensor.

    Of a group that another stage of the pipeline has, there are none.
    """
    tensors: list[CanonicalKVCacheTensor] = []
    places: dict[tuple[int, int], int] = {}
    refs: list[list[CanonicalKVCacheRef]] = []
    for group in layout.groups:
        names = kv_cache_config.kv_cache_groups[group.group_id].layer_names
        for name in names:
            if name not in kv_caches:
                known = ", ".join(sorted(kv_caches)) or "none"
                raise ConfigError(f"register_kv_caches: there is no tensor of layer {name!r}; known: {known}")
        num_blocks, of_layer = kv_cache_config.num_blocks, group.bytes_per_block // max(1, len(names))
        layers = [pages_of(name, kv_caches[name], num_blocks, of_layer) for name in names]
        of_group = []
        for pages in _as_few(layers, group.bytes_per_block):
            place = places.setdefault((pages.address, pages.stride_bytes), len(tensors))
            if place == len(tensors):
                tensors.append(CanonicalKVCacheTensor(pages.tensor, pages.page_bytes))
            elif pages.page_bytes > tensors[place].page_size_bytes:
                tensors[place] = CanonicalKVCacheTensor(pages.tensor, pages.page_bytes)
            of_group.append(CanonicalKVCacheRef(place, pages.page_bytes))
        refs.append(of_group)
    return CanonicalKVCaches(tensors, refs)


def _as_few(layers: list[Pages], most_bytes: int) -> list[Pages]:
    """The same pages, joined if a medium has room for the padding: it was told how large a block is."""
    few = joined(layers)
    return few if sum(pages.page_bytes for pages in few) <= most_bytes else layers


def joined(layers: Sequence[Pages]) -> list[Pages]:
    """The pages of a group's layers, those that lie side by side in every block as one; in the order of layers."""
    runs: list[list[int]] = []
    for number in sorted(range(len(layers)), key=lambda number: layers[number].address):
        if runs and _goes_on([layers[before] for before in runs[-1]], layers[number]):
            runs[-1].append(number)
        else:
            runs.append([number])
    return [_as_one([layers[number] for number in run]) for run in sorted(runs, key=min)]


def _goes_on(run: list[Pages], pages: Pages) -> bool:
    """Whether each of these pages lies right behind the same block's of a run, before the run's next block."""
    first, last = run[0], run[-1]
    padding = pages.address - (last.address + last.page_bytes)
    return (
        pages.stride_bytes == first.stride_bytes
        and 0 <= padding <= MOST_PADDING_BYTES
        and pages.address + pages.page_bytes - first.address <= first.stride_bytes
        and lie_in_one(first.tensor, pages.tensor)
    )


def _as_one(run: list[Pages]) -> Pages:
    first, last = run[0], run[-1]
    return first if first is last else widened(first, last.address + last.page_bytes - first.address)
