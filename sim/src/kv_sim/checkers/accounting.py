"""ACCOUNTING: a connector's stats and KV events agree with what happened.

The sources of a hit add up to the hit. Stats have the same numbers after they were sent to another process. KV
events describe a cache that could exist: only stored blocks are removed, and after all events a mirror of the
cache holds exactly the blocks that the connector finds (``hits``). A subject that claims ``Trait.EVENTS`` stores
no block twice in its events, and describes blocks correctly. A subject that claims ``Trait.COUNTS`` counts the
bytes of the copies that succeeded, and at rest its gauges show no memory in use.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kv_api import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheHitSource,
    Direction,
    KVCacheEvent,
    KVConnectorBase_V1,
    KVConnectorStats,
)
from kv_sim.checkers.answers import shown
from kv_sim.engine.request import SimRequest
from kv_sim.memory.copy import State
from kv_sim.memory.device import Device
from kv_sim.violation import Invariant, Referee

SOURCES: Final = tuple(source.value for source in CacheHitSource)
"""By their values: vLLM's enum is another one than kv-api's."""


def check_sources(request_id: str, tokens: int, answer: Any, referee: Referee) -> None:
    """The counts of ``get_external_cache_hit_sources`` are positive, add up, and have known sources."""
    counts = dict(answer)
    for source in counts:
        if getattr(source, "value", source) not in SOURCES:
            referee.fail(
                Invariant.ACCOUNTING,
                f"request {request_id}: get_external_cache_hit_sources names {shown(source)}, which is not a "
                f"source of hits; known: {', '.join(SOURCES)}",
            )
    if sum(counts.values()) != tokens or any(count <= 0 for count in counts.values()):
        named = {str(getattr(source, "value", source)): count for source, count in counts.items()}
        referee.fail(
            Invariant.ACCOUNTING,
            f"request {request_id}: {tokens} tokens are loaded, but get_external_cache_hit_sources answered "
            f"{named}",
        )


def check_stats(connector: type[KVConnectorBase_V1], stats: KVConnectorStats | None, referee: Referee) -> None:
    """If the class can rebuild stats from their payload, the rebuilt stats are the same."""
    if stats is None or stats.is_empty():
        return
    rebuilt = connector.build_kv_connector_stats(stats.to_dict())
    if rebuilt is not None and rebuilt.reduce() != stats.reduce():
        referee.fail(
            Invariant.ACCOUNTING,
            f"stats {stats.reduce()} become {rebuilt.reduce()} by to_dict and build_kv_connector_stats",
        )


BYTES: Final = {
    Direction.LOAD: ("vllm:kv_offload_load_bytes", "vllm:kv_offload_load_size_sum"),
    Direction.STORE: ("vllm:kv_offload_store_bytes", "vllm:kv_offload_store_size_sum"),
}
"""Sums of bytes, as ``reduce`` names them."""

SHARE: Final = "vllm:kv_offload_cpu_cache_usage_perc"
PARTS: Final = ("vllm:kv_offload_cpu_cache_write_usage_perc", "vllm:kv_offload_cpu_cache_read_usage_perc")
"""How much of the host memory jobs are using, and the two parts of that."""

ROUNDING: Final = 1e-9


class Counted:
    """The sums of all steps' stats, for a connector that claims ``Trait.COUNTS``."""

    def __init__(self, referee: Referee, *, is_on: bool) -> None:
        self._referee = referee
        self._is_on = is_on
        self._sums: Counter[str] = Counter()
        self._shares: dict[str, dict[str, float]] = {}
        """The gauges of each child of a MultiConnector, by its name as a message begins; the connector's own under
        ``""``."""

    def take(self, stats: KVConnectorStats | None) -> None:
        """Add the stats since the last call."""
        if stats is None or not self._is_on:
            return
        for whose, numbers in by_child(stats.reduce()):
            for name in (name for names in BYTES.values() for name in names):
                self._sums[name] += numbers.get(name, 0)
            if SHARE in numbers:
                self._take_shares(whose, {name: numbers.get(name, 0) for name in (SHARE, *PARTS)})

    def _take_shares(self, whose: str, shares: dict[str, float]) -> None:
        self._shares[whose] = shares
        whole, *parts = shares.values()
        if abs(whole - sum(parts)) > ROUNDING:
            self._referee.fail(
                Invariant.ACCOUNTING,
                f"{whose}the first of these metrics should be the sum of the others: {shares}",
            )

    def check(self, devices: Sequence[Device]) -> None:
        """Compare the sums with the copies; called when no copy is under way, except lost ones."""
        if not self._is_on:
            return
        copies = [(copy, device.block_bytes) for device in devices for copy in device.copies.ended]
        for direction, names in BYTES.items():
            done = [(c, size) for c, size in copies if c.direction is direction and c.state is State.DONE]
            moved = sum(size * len(copy.pairs) for copy, size in done)
            late = sum(size * len(copy.pairs) for copy, size in done if copy.was_lost)  # maybe given up before
            for name in names:
                if not moved - late <= self._sums[name] <= moved:
                    self._referee.fail(
                        Invariant.ACCOUNTING,
                        f"{name} adds up to {self._sums[name]}, but {len(done)} {direction.value} copies that "
                        f"succeeded moved {moved} bytes",
                    )
        is_busy = any(device.copies.running or device.copies.has_unheard for device in devices)
        for whose, shares in self._shares.items() if not is_busy else ():
            if any(shares.values()):
                self._referee.fail(
                    Invariant.ACCOUNTING, f"{whose}no job is under way, but these gauges are not all 0: {shares}"
                )


def by_child(numbers: Mapping[str, Any], whose: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """A connector's numbers, and those of each child of a MultiConnector, with its name as a message begins."""
    yield whose, numbers
    for name, more in numbers.items():
        if isinstance(more, Mapping):
            yield from by_child(more, f"{name}: {whose}")


class _Block(NamedTuple):
    """The true description of a block, which an event may give."""

    before: bytes | None
    """The block before it."""
    tokens: list[int]
    adapter: str | None
    salt: str | None
    image: tuple[str, int] | None = None
    """An image that one of its tokens stands for, and the place of that token in the image."""

    @property
    def extras(self) -> tuple[Any, ...] | None:
        """The extra keys of its hash: adapter and image, and the salt in the first block of a prompt."""
        own = (self.adapter, self.image, self.salt if self.before is None else None)
        return tuple(word for word in own if word) or None


class Mirror:
    """A router's view of the cache after the events so far."""

    def __init__(
        self, referee: Referee, *, is_exact: bool = False, is_shared: bool = False, parts: Sequence[int] = ()
    ) -> None:
        """``is_shared``: other engines fill the same store, so a removed block may be one that they stored.

        ``parts``: if groups have blocks of several sizes, how many of each group's are one of the largest.
        """
        self._referee = referee
        self._parts_of_group = parts
        self._known_in_parts: dict[int, dict[bytes, _Block]] = {count: {} for count in parts}
        self._is_exact = is_exact
        self._may_remove_anything = is_shared and not is_exact
        self._known: dict[bytes, _Block] = {}
        """Block hash -> its description, for all requests so far."""
        self._parts: set[bytes] = set()
        """Hashes of parts of blocks, which events name like blocks: stored ends of prompts."""
        self.blocks: Counter[tuple[Any, ...]] = Counter()

    def know(self, request: SimRequest) -> None:
        """A request arrives: events may name its blocks."""
        if not self._is_exact:
            return
        adapter, salt = request.spec.adapter, request.spec.salt
        for parts, table in self._known_in_parts.items():
            images = request.images_by_hash(parts)
            for block_hash, before, tokens in request.all_blocks(parts):
                table[block_hash] = _Block(before, tokens, adapter, salt, images.get(block_hash))
        if self._known_in_parts:
            return
        images = request.images_by_hash()
        for block_hash, before, tokens in request.all_blocks():
            self._known[block_hash] = _Block(before, tokens, adapter, salt, images.get(block_hash))
        for before, part, tokens in request.parts_of_blocks():
            self._known[part] = _Block(before, tokens, adapter, salt, images.get(part))
            self._parts.add(part)

    def take(self, events: Iterable[KVCacheEvent]) -> None:
        """Apply events in order."""
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self.blocks.clear()
            elif isinstance(event, BlockStored):
                self._store(event)
            elif isinstance(event, BlockRemoved):
                self._remove(event)

    def _store(self, event: BlockStored) -> None:
        """Chunks may share blocks, so blocks are counted. But no two chunks have the same last block.

        An exception are prompts that end within a block: the part of one may be the beginning of another's.
        """
        for block_hash in event.block_hashes:
            key = (event.medium, event.group_idx, block_hash)
            is_last = block_hash == event.block_hashes[-1] and block_hash not in self._parts
            if self._is_exact and self.blocks[key] and is_last:
                self._referee.fail(
                    Invariant.ACCOUNTING,
                    f"an event stores block {block_hash!r} of group {event.group_idx} in {event.medium}, but an "
                    "earlier event stored it, and no event has removed it since",
                )
            self.blocks[key] += 1
        known = self._known_of(event.group_idx)
        if event.token_ids and event.block_hashes and all(name in known for name in event.block_hashes):
            self._check_told(event, [known[name] for name in event.block_hashes])  # type: ignore[index]

    def _known_of(self, group: int | None) -> dict[bytes, _Block]:
        """The blocks that events of a group may name."""
        if not self._known_in_parts:
            return self._known
        return self._known_in_parts[1 if group is None else self._parts_of_group[group]]

    def _check_told(self, event: BlockStored, known: Sequence[_Block]) -> None:
        tokens = [token for block in known for token in block.tokens]
        extras = [block.extras for block in known]
        told = (event.parent_block_hash, list(event.token_ids), event.block_size, event.lora_name)
        true = (known[0].before, tokens, len(tokens) // len(known), known[0].adapter)
        if told != true:
            self._referee.fail(
                Invariant.ACCOUNTING,
                f"an event for blocks {event.block_hashes!r} has (parent, tokens, block size, adapter) {told}, "
                f"expected {true}",
            )
        if event.extra_keys is not None and list(event.extra_keys) != extras:  # vLLM's connector tells none
            self._referee.fail(
                Invariant.ACCOUNTING,
                f"an event for blocks {event.block_hashes!r} has the extra keys {event.extra_keys}, expected "
                f"{extras}",
            )

    def _remove(self, event: BlockRemoved) -> None:
        for block_hash in event.block_hashes:
            key = (event.medium, event.group_idx, block_hash)
            if not self.blocks[key] and self._may_remove_anything:
                continue
            if not self.blocks[key]:
                self._referee.fail(
                    Invariant.ACCOUNTING,
                    f"an event removes block {block_hash!r} of group {event.group_idx} from {event.medium}, "
                    "but no event has stored it there",
                )
                continue
            self.blocks[key] -= 1
            if not self.blocks[key]:
                del self.blocks[key]
