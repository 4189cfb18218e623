"""KV events: tells routers what is in the medium.

A manager's events name chunks by their keys. vLLM's form of them is a placeholder: the chunk's own hash, and
neither tokens nor parent. With ``self_describing_kv_events`` the event of a full-attention chunk has what the
GPU's own events have: the hash of each of its blocks, its tokens, its parent, and what else the hashes cover.
This is noted while a request that has the chunk is alive, and kept until an event says that the chunk is gone, so
both events have the same hashes. Chunks that share blocks repeat their hashes, so a router has to count
references. A tail, which ends within a block, is told by all of its hashes, as blocks of the tokens of one.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kv_api import (
    MEDIUM_CPU,
    MEDIUM_STORAGE,
    AttentionKind,
    BlockRemoved,
    BlockStored,
    KVCacheEvent,
    Medium,
    OffloadingEvent,
    OffloadKey,
    Request,
    get_offload_block_hash,
    get_offload_group_idx,
)
from kv_api.blocks import HashExtras
from kv_offload.shape.layout import Group, Layout

MEDIA = {Medium.CPU: MEDIUM_CPU, Medium.STORAGE: MEDIUM_STORAGE}

Home = tuple[Medium, str | None]
"""A tier: its kind, and its name if it is a secondary one."""


@dataclass(slots=True)
class _Payload:
    """The content of an event about one chunk."""

    block_hashes: list[bytes]
    parent: bytes | None
    token_ids: list[int]
    block_size: int
    """Tokens of each hash."""
    lora_id: int | None
    lora_name: str | None
    extras: list[tuple[Any, ...] | None] | None
    """By hash."""
    homes: set[Home]
    """Where it was told to be."""


class EventTranslator:
    """Turns a manager's events into KV events. ``_payloads`` has the contents of chunks that events may name."""

    def __init__(self, layout: Layout, hash_extras: HashExtras, *, is_describing: bool) -> None:
        self._groups = {group.group_id: group for group in layout.groups}
        self._tokens_per_hash = layout.tokens_per_hash
        self._hash_extras = hash_extras
        self.is_describing = is_describing
        self._payloads: dict[OffloadKey, _Payload] = {}

    def note(self, request: Request, group: Group, chunks: Iterable[int], keys: Sequence[OffloadKey]) -> None:
        """Note what some of a request's chunks hold, while the request is alive.

        ``keys`` has the keys of all its chunks.
        """
        if not self.is_describing or group.kind is not AttentionKind.FULL:
            return
        size = group.tokens_per_chunk
        for chunk in chunks:
            if keys[chunk] not in self._payloads:
                self._note(keys[chunk], request, range(chunk * size, (chunk + 1) * size), group.tokens_per_block)

    def note_tail(self, request: Request, group: Group, boundary: int, key: OffloadKey) -> None:
        """The same of a tail: each of its hashes is told as a block of its own."""
        if not self.is_describing or group.kind is not AttentionKind.FULL or key in self._payloads:
            return
        start = boundary // group.tokens_per_block * group.tokens_per_block
        self._note(key, request, range(start, boundary), self._tokens_per_hash)

    def _note(self, key: OffloadKey, request: Request, tokens: range, block_size: int) -> None:
        """Note the payload of some tokens, told as blocks of ``block_size``."""
        per_hash, hashes, lora = self._tokens_per_hash, request.block_hashes, request.lora_request
        first, end, per_block = tokens.start // per_hash, tokens.stop // per_hash, block_size // per_hash
        blocks = [range(start, start + block_size) for start in tokens[::block_size]]
        self._payloads[key] = _Payload(
            list(hashes[first + per_block - 1 : end : per_block]),
            hashes[first - 1] if first else None,
            list(request.all_token_ids[tokens.start : tokens.stop]),
            block_size,
            getattr(lora, "lora_int_id", None),
            getattr(lora, "lora_name", None),
            [self._hash_extras(request, block) for block in blocks],
            set(),
        )

    def forget(self, keys: Iterable[OffloadKey]) -> None:
        """A store failed: nothing was told of these chunks, unless they are somewhere else."""
        for key in keys:
            payload = self._payloads.get(key)
            if payload is not None and not payload.homes:
                del self._payloads[key]

    def translate(self, events: Iterable[OffloadingEvent]) -> list[KVCacheEvent]:
        """The KV events, in the same order."""
        told: list[KVCacheEvent] = []
        gone: dict[OffloadKey, None] = {}
        for event in events:
            if event.removed:
                gone.update(dict.fromkeys(event.keys))
                told += self._removed(event)
            else:
                told += self._stored(event)
        self.forget(gone)
        return told

    def _stored(self, event: OffloadingEvent) -> Iterator[KVCacheEvent]:
        locality = event.locality.value if event.locality else None
        for key in event.keys:
            group = self._groups[get_offload_group_idx(key)]
            payload = self._payloads.get(key)
            if payload is not None:
                payload.homes.add((event.medium, event.ownership))
            full = payload or _Payload([get_offload_block_hash(key)], None, [], 0, None, None, None, set())
            yield BlockStored(
                block_hashes=list(full.block_hashes),
                parent_block_hash=full.parent,
                token_ids=list(full.token_ids),
                block_size=full.block_size,
                lora_id=full.lora_id,
                medium=MEDIA[event.medium],
                lora_name=full.lora_name,
                extra_keys=None if full.extras is None else list(full.extras),
                group_idx=group.group_id,
                kv_cache_spec_kind=str(group.kind) if self.is_describing else None,
                kv_cache_spec_sliding_window=group.window_tokens or None if self.is_describing else None,
                locality=locality,
                ownership=event.ownership,
            )

    def _removed(self, event: OffloadingEvent) -> Iterator[KVCacheEvent]:
        by_group: dict[int, list[bytes | int]] = {}
        for key in event.keys:
            payload = self._payloads.get(key)
            home = (event.medium, event.ownership)
            # What was told as a placeholder is taken back as one, also if its payload became known since.
            described = payload is not None and home in payload.homes
            if payload is not None:
                payload.homes.discard(home)
            if not event.metadata_only:
                hashes = by_group.setdefault(get_offload_group_idx(key), [])
                hashes += payload.block_hashes if payload and described else [get_offload_block_hash(key)]
        for group_id, removed in by_group.items():
            yield BlockRemoved(
                block_hashes=removed,
                medium=MEDIA[event.medium],
                group_idx=group_id,
                locality=event.locality.value if event.locality else None,
                ownership=event.ownership,
            )

    def check(self) -> None:
        """See that payloads are only noted if they are wanted."""
        assert self.is_describing or not self._payloads, f"{len(self._payloads)} payloads, and none is wanted"
