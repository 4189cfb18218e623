"""A store for UCM in the memory of this process: UCM's interface for vendors, over the testbed's copies.

A block is found when all layers of it have been dumped, and stays for whoever has begun to load it. A dump, and a
load of whole blocks, go on until somebody waits for them; a load of single layers moves when it is waited for,
since a copy of the testbed's is of all layers. So is a dump of single layers: it begins with the last one.
"""

import ctypes
from types import SimpleNamespace

import torch
from kv_vllm_gpu import Event, Stream
from kv_vllm_mooncake_pool import Pool, Value
from ucm.store.pipeline.errors import StoreNotFoundError
from ucm.store.ucmstore_v1 import Task, UcmKVStoreBaseV1

from kv_api import Direction

CURRENT = SimpleNamespace(shared=None, card=None, layers=None, events={})
"""What belongs to the connector that is at work."""


class Shared(Pool):
    """What all ranks of a world have together, as Mooncake's pool keeps it."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.broken = []
        """What went wrong here and not in UCM, which takes any error for its store's."""


class Moves(Task):
    """What is under way: the end of its copies, what is found by others afterwards, or why it comes to nothing."""

    def __init__(self, error=None):
        self.error = error
        self.events, self.values, self.layers = [], {}, []


class Store(UcmKVStoreBaseV1):
    """One side's, or one rank's."""

    def __init__(self, config):
        super().__init__(config)
        self._pool, self._card, self._layers = CURRENT.shared, CURRENT.card, CURRENT.layers
        self._waiting = {}
        """Layers of blocks that are dumped with the last one: by key."""

    def cc_store(self):
        """There is none."""
        return 0

    def lookup(self, block_ids):
        """Whether each is there."""
        return [self._pool.has(block) for block in block_ids]

    def lookup_on_prefix(self, block_ids):
        """The last of those that are there from the first one on."""
        found = self.lookup(block_ids)
        return (found.index(False) if False in found else len(found)) - 1

    def lookup_on_reverse(self, block_ids):
        """The last that is there."""
        return max((index for index, there in enumerate(self.lookup(block_ids)) if there), default=-1)

    def prefetch(self, block_ids):
        """They are used."""
        for block in block_ids:
            if self._pool.has(block):
                self._pool.used(block)

    def load(self, block_ids, shard_index, dst_tensor):
        """By tensors: UCM's connectors have addresses."""
        raise NotImplementedError

    dump = load

    def load_data(self, block_ids, shard_index, dst_addr):
        """Begin to load."""
        return self._begun(self._load, block_ids, shard_index, dst_addr)

    def dump_data(self, block_ids, shard_index, src_addr, prerequisite_handle=0):
        """Begin to dump, after an event."""
        return self._begun(self._dump, block_ids, shard_index, src_addr, prerequisite_handle)

    def _begun(self, begin, block_ids, shards, addresses, *said):
        try:
            places = [[self._card.page_at(int(address)) for address in row] for row in addresses]
            if len(places) != len(block_ids):
                raise RuntimeError(f"{len(block_ids)} blocks, {len(places)} addresses")
            return begin(list(zip(block_ids, shards, places, strict=True)), *said)
        except AssertionError as error:
            self._pool.broken.append(error)
            raise

    def _load(self, wanted):
        missing = [key for key, _, _ in wanted if not self._pool.has(key)]
        if missing:
            return Moves(StoreNotFoundError(f"{len(missing)} of {len(wanted)} blocks aren't there"))
        if not self._pool.moves():
            return Moves(RuntimeError("it didn't come through"))
        moves, pages = Moves(), []
        for key, _, places in wanted:
            self._pool.used(key)
            value = self._pool.values[key]
            if self._is_whole(places):
                pages.append((places[0][1], value.places))
            else:
                moves.layers += [(layer, block, value) for layer, block in places]
        if pages:
            moves.events.append(self._copy(Direction.LOAD, pages))
        return moves

    def _dump(self, wanted, handle):
        if not self._pool.moves():
            return Moves(RuntimeError("it didn't come through"))
        moves, pages = Moves(), []
        for key, _, places in wanted:
            if not self._is_whole(places):
                begun = self._waiting.setdefault(key, {})
                begun |= dict(places)
                if len(begun) < self._card.device.config.layers:
                    continue
                places = sorted(self._waiting.pop(key).items())
            value = self._pool.begin(key, [self._card.page_bytes for _ in places])
            if isinstance(value, Value):
                [block] = {block for _, block in places}
                pages.append((block, value.places))
                moves.values[key] = value
        if pages:
            moves.events.append(self._copy(Direction.STORE, pages, CURRENT.events.get(handle)))
        return moves

    def _is_whole(self, places):
        layers = [layer for layer, _ in places]
        return layers == [*range(self._card.device.config.layers)] and len({block for _, block in places}) == 1

    def _copy(self, direction, pages, after=None):
        stream, event = Stream(), Event()
        if after is not None:
            stream.wait_event(after)
        self._card.submit(direction, pages, stream, in_order=after is not None)
        event.record(stream)
        return event

    def check(self, task):
        """Whether it has ended."""
        ended = all(event.query() for event in task.events)
        if ended:
            self._end(task)
        return ended

    def wait(self, task):
        """Until it has; raises if it came to nothing."""
        for event in task.events:
            event.synchronize()
        self._end(task)
        for layer, block, value in task.layers:
            page = self._layers[layer][block]
            read = bytearray(ctypes.string_at(value.places[layer], self._card.page_bytes))
            page.copy_(torch.frombuffer(read, dtype=page.dtype).view(page.shape))
        if task.error is not None:
            raise task.error

    def _end(self, task):
        if any(event.copy in self._card.failed for event in task.events):
            task.error = RuntimeError("a copy failed")
        for key, value in task.values.items():
            self._pool.end(key, value, is_whole=task.error is None)
        task.values = {}
