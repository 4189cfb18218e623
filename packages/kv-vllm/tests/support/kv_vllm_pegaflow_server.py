"""PegaFlow's server in the memory of this process: what its client asks of it, over the testbed's copies.

A block is kept under the hash of its prefix, one for each kind of KV cache group, and is found when all ranks have
saved all of it. Who looks up hashes gets a lease of what is there: it stays until all ranks have loaded it, or the
lease is given back. A save waits for its copies; a load goes on, and whoever began it looks at its state.
"""

import ctypes
import itertools
from dataclasses import dataclass, field

from kv_vllm_gpu import Event, Stream
from pegaflow.pegaflow import QueryLoading, QueryReady

from kv_api import Direction

PENDING, LOADED, FAILED = 0, 1, -1
"""States of a load."""


class Part:
    """What a rank has saved of one group's layers: some memory."""

    def __init__(self, layers, page_bytes):
        self._pieces = [ctypes.create_string_buffer(page_bytes) for _ in range(layers)]
        self.places = tuple(map(ctypes.addressof, self._pieces))


@dataclass
class Layer:
    """Where a layer begins, the bytes of a block of it, its group, and of which kind that is."""

    address: int
    block_bytes: int
    group: str
    kind: int


@dataclass
class Engine:
    """Its ranks' devices and layers, by name."""

    namespace: str
    ranks: int
    cards: dict = field(default_factory=dict)
    layers: dict = field(default_factory=dict)

    def parts_of(self, kind):
        """What makes a block of a kind whole."""
        groups = {
            layer.group for layers in self.layers.values() for layer in layers.values() if layer.kind == kind
        }
        return {(rank, group) for rank in range(self.ranks) for group in groups}


@dataclass
class Lease:
    """Blocks that stay, for so many ranks that have yet to load them."""

    blocks: list
    ranks: int


class Server:
    """What the engines of a world share.

    ``room``: so many blocks, of which the one used longest ago goes. ``waits``: who looks up something that is
    there is told so often to ask again. ``fails``: of the saves and loads every so-manieth fails.
    """

    def __init__(self, room=None, waits=0, fails=0):
        self.blocks, self.leases, self.engines = {}, {}, {}
        """By namespace, kind and hash, what was used longest ago first; a block is its parts."""
        self._room, self._waits, self._fails = room, waits, fails
        self._names, self._moves, self._asked = itertools.count(1), itertools.count(1), {}

    def register(self, instance, namespace, rank, ranks, card, layers):
        """A rank has these layers."""
        engine = self.engines.setdefault(instance, Engine(namespace, ranks))
        assert (engine.namespace, engine.ranks) == (namespace, ranks), "ranks that don't agree"
        engine.cards[rank], engine.layers[rank] = card, layers

    def unregister(self, instance):
        """The engine has gone."""
        return (True, "") if self.engines.pop(instance, None) else (False, f"no engine {instance}")

    def look_up(self, instance, hashes, kind):
        """What is there: of attention the longest prefix, of the other kinds whatever is."""
        engine, found = self.engines[instance], []
        whole = engine.parts_of(kind)
        for position, block_hash in enumerate(hashes):
            key = (engine.namespace, kind, bytes(block_hash))
            if whole <= self.blocks.get(key, {}).keys():
                self.blocks[key] = self.blocks.pop(key)
                found.append((position, self.blocks[key]))
            elif not kind:
                break
        if not found:
            return QueryReady(0, b"", [])
        asked = tuple(map(bytes, hashes))
        if not kind and self._asked.setdefault(asked, 0) < self._waits:
            self._asked[asked] += 1
            return QueryLoading()
        self._asked.pop(asked, None)
        lease = next(self._names).to_bytes(16, "big")
        self.leases[lease] = Lease([parts for _, parts in found], engine.ranks)
        return QueryReady(len(found), lease, [position for position, _ in found])

    def release(self, lease):
        """Whoever has it loads nothing."""
        self.leases.pop(bytes(lease), None)

    def save(self, instance, rank, saves):
        """Copy what isn't there yet of (layer, blocks, hashes), and wait for that."""
        if self._comes_to_nothing():
            return False, "no room"
        engine = self.engines[instance]
        card, wanted = engine.cards[rank], {}
        for name, numbers, hashes in saves:
            layer = engine.layers[rank][name]
            for number, block_hash in zip(numbers, hashes, strict=True):
                index, block = card.page_at(layer.address + number * layer.block_bytes)
                key = (engine.namespace, layer.kind, bytes(block_hash))
                wanted.setdefault((key, layer.group), {}).setdefault(block, []).append(index)
        new = []
        for (key, group), blocks in wanted.items():
            if not engine.parts_of(key[1]) <= self.blocks.get(key, {}).keys():
                block, layers = next(iter(blocks.items()))
                assert layers == [*range(card.device.config.layers)], f"layers of a block: {layers}"
                new.append((key, group, block, Part(len(layers), card.page_bytes)))
        if new:
            copied = self._copy(card, Direction.STORE, [(block, part.places) for _, _, block, part in new])
            copied.synchronize()
            if copied.copy in card.failed:
                return False, "a copy failed"
        for key, group, _, part in new:
            self.blocks.setdefault(key, {})[rank, group] = part
        while self._room is not None and len(self.blocks) > self._room:
            del self.blocks[next(iter(self.blocks))]
        return True, ""

    def load(self, instance, rank, groups, loads):
        """Begin to copy what is leased: ``loads`` are (lease, of each group where its blocks go, if anywhere)."""
        if self._comes_to_nothing():
            return None
        engine, pages = self.engines[instance], []
        for lease, targets in loads:
            held = self.leases[bytes(lease)]
            held.ranks -= 1
            if not held.ranks:
                del self.leases[bytes(lease)]
            for names, numbers in zip(groups, targets, strict=True):
                for parts, number in zip(held.blocks, numbers, strict=True):
                    if number is not None and names:
                        pages.append((number, parts[rank, engine.layers[rank][names[0]].group].places))
        return self._copy(engine.cards[rank], Direction.LOAD, pages)

    def _comes_to_nothing(self):
        return bool(self._fails) and next(self._moves) % self._fails == 0

    @staticmethod
    def _copy(card, direction, pages):
        stream, event = Stream(), Event()
        card.submit(direction, pages, stream, in_order=False)
        event.record(stream)
        return event
