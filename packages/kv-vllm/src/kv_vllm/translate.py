"""Translates values of ours that vLLM inspects into vLLM's, by one table.

vLLM only reads attributes or calls methods of most objects, and ours fit unchanged. Some it *inspects*: by
``isinstance``, by the identity of an enumeration's member, by encoding a struct. Those have a row in ``TABLE``;
all others pass unchanged. In the other direction this module translates a connector's role, a medium's
configuration, and the kinds of KV cache groups.
"""

from collections.abc import Callable, Iterable
from dataclasses import fields
from enum import Enum
from typing import Any, Final

from vllm.distributed import kv_events
from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.distributed.kv_transfer.kv_connector.v1.offloading import metrics
from vllm.v1.core.kv_cache_utils import (
    generate_block_hash_extra_keys,
    maybe_convert_block_hash,
    to_event_extra_keys,
)
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpecKind,
    MambaSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
    get_kv_cache_spec_kind,
)
from vllm.v1.kv_offload import base as offload
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec as VllmCPULoadStoreSpec
from vllm.v1.metrics.cache_hit_source import CacheHitSource as VllmCacheHitSource

import kv_api
from kv_api import AttentionKind, ConfigError, KVConnectorRole
from kv_api.groups import GroupDescription
from kv_offload.metrics import OffloadingConnectorStats
from kv_offload_cpu import CPULoadStoreSpec

Maker = Callable[[Any], Any]


def _members(ours: type[Enum], theirs: type[Enum]) -> Maker:
    """Members of the same name."""
    return {member: theirs[member.name] for member in ours}.__getitem__


def _fields(theirs: Any) -> Maker:
    """An object of vLLM's class, with the fields that it has in the installed version, and translated values."""
    names = [field.name for field in fields(theirs)]
    return lambda ours: theirs(**{name: to_vllm(getattr(ours, name)) for name in names})


def _event(theirs: Any) -> Maker:
    """A struct that vLLM encodes. Its block hashes have the form that is set for vLLM's own events."""

    def make(ours: Any) -> Any:
        values = {name: getattr(ours, name) for name in theirs.__struct_fields__ if hasattr(ours, name)}
        if hasattr(ours, "block_hashes"):
            values["block_hashes"] = [_hash(block_hash) for block_hash in ours.block_hashes]
        if hasattr(ours, "parent_block_hash"):
            values["parent_block_hash"] = _hash(ours.parent_block_hash)
        return theirs(**values)

    return make


def _hash(block_hash: Any) -> Any:
    return maybe_convert_block_hash(block_hash) if isinstance(block_hash, bytes) else block_hash


def _stats(ours: OffloadingConnectorStats) -> Any:
    return metrics.OffloadingConnectorStats(ours.data)


TABLE: Final[dict[type, Maker]] = {
    # vLLM matches, compares or looks up members of these enumerations.
    kv_api.LookupResult: _members(kv_api.LookupResult, offload.LookupResult),
    kv_api.OffloadPolicy: _members(kv_api.OffloadPolicy, offload.OffloadPolicy),
    kv_api.Medium: _members(kv_api.Medium, offload.Medium),
    kv_api.Locality: _members(kv_api.Locality, offload.Locality),
    kv_api.CacheHitSource: _members(kv_api.CacheHitSource, VllmCacheHitSource),
    KVConnectorRole: _members(KVConnectorRole, base.KVConnectorRole),
    # vLLM reads enumeration members from these.
    kv_api.RequestOffloadingContext: _fields(offload.RequestOffloadingContext),
    kv_api.OffloadingEvent: _fields(offload.OffloadingEvent),
    kv_api.PrepareStoreOutput: _fields(offload.PrepareStoreOutput),
    # vLLM checks the class of these.
    kv_api.OffloadingCounterMetadata: _fields(offload.OffloadingCounterMetadata),
    kv_api.OffloadingGaugeMetadata: _fields(offload.OffloadingGaugeMetadata),
    kv_api.OffloadingHistogramMetadata: _fields(offload.OffloadingHistogramMetadata),
    OffloadingConnectorStats: _stats,
    CPULoadStoreSpec: lambda ours: VllmCPULoadStoreSpec(ours.block_ids.tolist()),
    # vLLM encodes these.
    kv_api.BlockStored: _event(kv_events.BlockStored),
    kv_api.BlockRemoved: _event(kv_events.BlockRemoved),
    kv_api.AllBlocksCleared: _event(kv_events.AllBlocksCleared),
}
"""A class of ours -> the function that makes an object of vLLM's of one of ours."""

MARKERS: Final = (
    (base.KVConnectorMetadata, kv_api.KVConnectorMetadata),
    (base.KVConnectorWorkerMetadata, kv_api.KVConnectorWorkerMetadata),
    (base.KVConnectorHandshakeMetadata, kv_api.KVConnectorHandshakeMetadata),
)
"""Classes whose objects vLLM only passes on: ours are registered as virtual subclasses of vLLM's abstract
classes."""

for _theirs, _ours in MARKERS:
    _theirs.register(_ours)


def to_vllm(value: Any) -> Any:
    """The value that vLLM gets for one of ours."""
    make = TABLE.get(type(value))
    return value if make is None else make(value)


def events_to_vllm(events: Iterable[kv_api.KVCacheEvent], kinds: tuple[str, ...]) -> list[Any]:
    """KV events as vLLM's; ``kinds`` has vLLM's word for each KV cache group."""
    told = []
    for event in events:
        translated = to_vllm(event)
        if translated is not event and getattr(event, "kv_cache_spec_kind", None) is not None:
            translated.kv_cache_spec_kind = kinds[translated.group_idx]
        told.append(translated)
    return told


# -- and back ------------------------------------------------------------------------------------


def role_of(role: Any) -> KVConnectorRole:
    """Our role for vLLM's, or for ours."""
    return KVConnectorRole[role.name]


def offloading_config_of(config: Any) -> kv_api.OffloadingConfig:
    """Our medium's configuration, from that of vLLM's media. Fields that an older vLLM lacks have defaults."""
    return kv_api.OffloadingConfig(
        **{
            **_present(kv_api.OffloadingConfig, config),
            "groups": tuple(
                kv_api.OffloadingGroupConfig(**_present(kv_api.OffloadingGroupConfig, group))
                for group in config.groups
            ),
            "model": kv_api.OffloadingModelConfig(**_present(kv_api.OffloadingModelConfig, config.model)),
            "cache": kv_api.OffloadingCacheConfig(**_present(kv_api.OffloadingCacheConfig, config.cache)),
            "parallel": kv_api.OffloadingParallelConfig(
                **_present(kv_api.OffloadingParallelConfig, config.parallel)
            ),
        }
    )


def _present(ours: Any, theirs: Any) -> dict[str, Any]:
    return {field.name: getattr(theirs, field.name) for field in fields(ours) if hasattr(theirs, field.name)}


# -- what hashes cover ---------------------------------------------------------------------------


def hash_extras(request: Any, tokens: range) -> tuple[Any, ...] | None:
    """The extra keys, beside tokens, that vLLM's hash of a block of these tokens covers, as in its events."""
    extras, _ = generate_block_hash_extra_keys(request, tokens.start, tokens.stop, 0)
    return None if extras is None else (to_event_extra_keys([extras]) or [None])[0]


# -- kinds of KV cache groups --------------------------------------------------------------------

KINDS: Final = {
    KVCacheSpecKind.FULL_ATTENTION: AttentionKind.FULL,
    KVCacheSpecKind.MLA_ATTENTION: AttentionKind.FULL,
    KVCacheSpecKind.SLIDING_WINDOW: AttentionKind.SLIDING_WINDOW,
    KVCacheSpecKind.SLIDING_WINDOW_MLA: AttentionKind.SLIDING_WINDOW,
    KVCacheSpecKind.CHUNKED_LOCAL_ATTENTION: AttentionKind.SLIDING_WINDOW,
    KVCacheSpecKind.MAMBA: AttentionKind.STATE_SPACE,
}
"""The kinds of groups whose blocks these connectors can store and load."""


def group_kind(kv_cache_spec: Any) -> str:
    """The kind of a group, in vLLM's words."""
    return str(get_kv_cache_spec_kind(kv_cache_spec).value)


def reads_all(kv_cache_spec: Any) -> bool:
    """Whether the group's layers attend to all earlier tokens."""
    return KINDS.get(get_kv_cache_spec_kind(kv_cache_spec)) is AttentionKind.FULL


def has_states(kv_cache_spec: Any) -> bool:
    """Whether it is a group of states."""
    return KINDS.get(get_kv_cache_spec_kind(kv_cache_spec)) is AttentionKind.STATE_SPACE


def describe_group(kv_cache_spec: Any) -> GroupDescription:
    """Describe a group's layers, by the class of their spec: one class may have the attributes of another."""
    kind, name = get_kv_cache_spec_kind(kv_cache_spec), type(kv_cache_spec).__name__
    if kind not in KINDS:
        known = ", ".join(sorted(known.value for known in KINDS))
        raise ConfigError(
            f"a KV cache group of {name} ({kind.value}) is of a kind that these connectors don't support; "
            f"choices: {known}"
        )
    layer = kv_cache_spec
    if isinstance(kv_cache_spec, UniformTypeKVCacheSpecs):
        layer = next(iter(kv_cache_spec.kv_cache_specs.values()))
    if KINDS[kind] is AttentionKind.STATE_SPACE:
        return _describe_states(kv_cache_spec, layer)
    if KINDS[kind] is AttentionKind.FULL:
        assert isinstance(layer, FullAttentionSpec), f"{name} is of kind {kind.value}"
        return GroupDescription(AttentionKind.FULL, kv_cache_spec.block_size, 0, _page_bytes(kv_cache_spec))
    window, restart = _window(layer)
    return GroupDescription(
        AttentionKind.SLIDING_WINDOW, kv_cache_spec.block_size, window, _page_bytes(kv_cache_spec), restart
    )


def _window(layer: Any) -> tuple[int, int]:
    """How many tokens back a layer reads, and after how many tokens its window restarts (0: never).

    The first includes tokens that vLLM keeps before a window (``extra_retained_tokens``, for drafts that are
    computed late): a load has to fill their blocks, too.
    """
    if isinstance(layer, ChunkedLocalAttentionSpec):
        return layer.attention_chunk_size, layer.attention_chunk_size
    assert isinstance(layer, SlidingWindowSpec), f"{type(layer).__name__} has no window"
    return layer.sliding_window + getattr(layer, "extra_retained_tokens", 0), 0


def _describe_states(kv_cache_spec: Any, layer: Any) -> GroupDescription:
    """Describe a group of states. vLLM keeps and hands over a state at a boundary only if states are reused."""
    name = type(kv_cache_spec).__name__
    assert isinstance(layer, MambaSpec), f"{name} is of kind {KVCacheSpecKind.MAMBA.value}"
    if layer.mamba_cache_mode != "align":
        raise ConfigError(
            f"a KV cache group of {name} has mamba_cache_mode {layer.mamba_cache_mode!r}, in which vLLM doesn't "
            "cache states by prefix; choices: align (--mamba-cache-mode align, with prefix caching)"
        )
    return GroupDescription(
        AttentionKind.STATE_SPACE,
        kv_cache_spec.block_size,
        page_size_bytes=_page_bytes(kv_cache_spec),
        is_handed_over=True,
    )


def _page_bytes(kv_cache_spec: Any) -> int:
    """Bytes of one block of one layer; the mean, rounded up, if layers differ, since a medium counts them all."""
    if isinstance(kv_cache_spec, UniformTypeKVCacheSpecs):
        return -(-int(kv_cache_spec.page_size_bytes) // len(kv_cache_spec.kv_cache_specs))
    return int(kv_cache_spec.page_size_bytes)
