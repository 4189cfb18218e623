"""From an engine's KV cache tensors to the canonical form that a medium gets: pages, and whose they are."""

from kv_api import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    ConfigError,
    KVCacheConfig,
    KVCaches,
)
from kv_api.pages import pages_of
from kv_offload.shape.layout import Layout


def canonical_caches(kv_caches: KVCaches, kv_cache_config: KVCacheConfig, layout: Layout) -> CanonicalKVCaches:
    """The pages of all groups that are offloaded. Layers that alias the same memory share a tensor."""
    tensors: list[CanonicalKVCacheTensor] = []
    places: dict[tuple[int, int], int] = {}
    refs: list[list[CanonicalKVCacheRef]] = []
    for group in layout.groups:
        names = kv_cache_config.kv_cache_groups[group.group_id].layer_names
        of_group = []
        for name in names:
            if name not in kv_caches:
                known = ", ".join(sorted(kv_caches)) or "none"
                raise ConfigError(f"register_kv_caches: there is no tensor of layer {name!r}; known: {known}")
            pages = pages_of(
                name, kv_caches[name], kv_cache_config.num_blocks, group.bytes_per_block // len(names)
            )
            place = places.setdefault((pages.address, pages.stride_bytes), len(tensors))
            if place == len(tensors):
                tensors.append(CanonicalKVCacheTensor(pages.tensor, pages.page_bytes))
            elif pages.page_bytes > tensors[place].page_size_bytes:
                tensors[place] = CanonicalKVCacheTensor(pages.tensor, pages.page_bytes)
            of_group.append(CanonicalKVCacheRef(place, pages.page_bytes))
        refs.append(of_group)
    return CanonicalKVCaches(tensors, refs)
