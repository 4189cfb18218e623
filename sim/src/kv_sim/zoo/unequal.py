"""Planted in kv-offload's and kv-p2p's connectors: KV cache groups are taken to have blocks of one size."""

import sys
from dataclasses import replace
from typing import Any

from kv_api import KVCacheConfig, OffloadKey, Request, VllmConfig
from kv_offload.describe import EngineDescription
from kv_offload.scheduler.state.progress import Progress
from kv_p2p.pulling.groups import Group
from kv_p2p.pulling.options import Options
from kv_sim.offload.host_memory import TimedOffloadingConnector
from kv_sim.p2p import WorldP2PConnector
from kv_sim.zoo.offload import PartedScheduler
from kv_sim.zoo.planted import with_parts
from kv_sim.zoo.pulls import PartedP2PScheduler


def _as_the_first(engine: EngineDescription) -> EngineDescription:
    """A description in which every group has the blocks of the first."""
    layout, first = engine.layout, engine.layout.groups[0]
    groups = tuple(
        replace(group, tokens_per_block=first.tokens_per_block, hashes_per_chunk=first.hashes_per_chunk)
        for group in layout.groups
    )
    return replace(engine, layout=replace(layout, groups=groups, grain_tokens=first.tokens_per_block))


class _OneSize(PartedScheduler):
    def __init__(
        self,
        vllm_config: VllmConfig,
        kv_cache_config: KVCacheConfig | None,
        engine: EngineDescription,
        spec: Any,
    ) -> None:
        super().__init__(vllm_config, kv_cache_config, _as_the_first(engine), spec)


class BlocksOfTheFirst(TimedOffloadingConnector):
    """The blocks of every group are taken to have as many tokens as those of the first."""

    scheduler_class = _OneSize


class _OneHashEarly(Progress):
    def extend_keys(self, request: Request, tokens: int = sys.maxsize) -> None:
        super().extend_keys(request, tokens)
        for progress in self.groups:
            size, suffix = progress.group.hashes_per_chunk, progress.group.key_suffix
            if size > 1:
                ends = range(size - 2, len(progress.keys) * size, size)
                progress.keys[:] = [OffloadKey(request.block_hashes[end] + suffix) for end in ends]


class KeysOneHashEarly(TimedOffloadingConnector):
    """A chunk of several hashes has the key of the hash before its last one."""

    scheduler_class = with_parts(PartedScheduler, progress=_OneHashEarly)


class _OneSizeHeld(PartedP2PScheduler):
    def __init__(
        self,
        vllm_config: VllmConfig,
        kv_cache_config: KVCacheConfig | None,
        options: Options,
        groups: tuple[Group, ...],
    ) -> None:
        alike = tuple(replace(group, block_size=groups[0].block_size) for group in groups)
        super().__init__(vllm_config, kv_cache_config, options, alike)


class HoldsOfTheFirstSize(WorldP2PConnector):
    """The same in pulls: how many blocks are held and pulled of each group is worked out with the first's size."""

    scheduler_class = _OneSizeHeld
