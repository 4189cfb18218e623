"""Mooncake's store in the memory of one process: what its Python library does, over the testbed's copies.

A key is put once, as a whole, and can be found when all of it has come; whoever puts it meanwhile is told that it
is there. Who puts or gets waits for the copies, which run when the world says and wait for nothing. A full pool
refuses what is put, and makes room for the next.
"""

import ctypes
import itertools
import threading
from types import SimpleNamespace

from kv_vllm_gpu import CARDS, Event, Stream

from kv_api import Direction

DONE, FULL, TOO_SMALL, MISSING, FAILED = 0, -200, -600, -704, -800
"""What Mooncake says of a key."""


class Value:
    """What is kept under a key: some memory, in pieces, and whether all of it has come."""

    def __init__(self, sizes):
        self.size = sum(sizes)
        self.is_whole = False
        self._pieces = [ctypes.create_string_buffer(size) for size in sizes]

    @property
    def places(self):
        """Addresses."""
        return tuple(map(ctypes.addressof, self._pieces))


class Pool:
    """All that the clients of one master have together.

    ``room``: so many keys. ``evicts``: with every so-manieth put one goes, as if others needed its room.
    ``fails``: of what is put and got every so-manieth key fails.
    """

    def __init__(self, room=None, evicts=0, fails=0):
        self.values = {}
        """By key, what was used longest ago first."""
        self._room, self._evicts, self._fails = room, evicts, fails
        self._puts, self._moves = itertools.count(1), itertools.count(1)

    def has(self, key):
        """Whether all of it is there."""
        return key in self.values and self.values[key].is_whole

    def used(self, key):
        """It is the youngest."""
        self.values[key] = self.values.pop(key)

    def evict(self):
        """Let go of what was used longest ago."""
        oldest = next((key for key, value in self.values.items() if value.is_whole), None)
        self.values.pop(oldest, None)

    def begin(self, key, sizes):
        """Room for a key, or what is to be said instead."""
        if key in self.values:
            return DONE
        if self._evicts and next(self._puts) % self._evicts == 0:
            self.evict()
        if self._room is not None and len(self.values) >= self._room:
            self.evict()
            return FULL
        self.values[key] = value = Value(sizes)
        return value

    def end(self, key, value, *, is_whole):
        """It has come, or never will."""
        if not is_whole:
            self.values.pop(key, None)
        value.is_whole = is_whole

    def moves(self):
        """Whether the next key comes through."""
        return not self._fails or next(self._moves) % self._fails != 0


class ReplicateConfig:
    """How a key is to be kept: that makes no difference here."""

    group_ids = ()


CURRENT = threading.local()
"""Of the thread that makes clients: their pool."""


class Store:
    """A client; fits ``MooncakeDistributedStore``."""

    def __init__(self):
        self.pool = CURRENT.pool
        self._memory = []

    def setup(self, *said, **named):
        """Any master will do."""
        return DONE

    def register_buffer(self, address, size):
        """Memory from which, and into which, it may copy."""
        self._memory.append(range(address, address + size))
        return DONE

    def batch_is_exist(self, keys):
        """1 for what is there."""
        return [int(self.pool.has(key)) for key in keys]

    def batch_put_from_multi_buffers(self, keys, addresses, sizes, config=None):
        """Put each, of pieces, and wait until all have come."""
        begun = [self._begin_put(*said) for said in zip(keys, addresses, sizes, strict=True)]
        return [self._end_put(key, *one) for key, one in zip(keys, begun, strict=True)]

    def _begin_put(self, key, addresses, sizes):
        """What is said of a key, its value if it is new, and the end of its copy if that has begun."""
        value = self.pool.begin(key, sizes)
        if not isinstance(value, Value):
            return value, None, None
        if not self.pool.moves():
            return FAILED, value, None
        return DONE, value, self._copy(Direction.STORE, addresses, sizes, value)

    def _end_put(self, key, code, value, event):
        if event is not None:
            event.synchronize()
        if value is not None:
            self.pool.end(key, value, is_whole=code == DONE)
        return code

    def batch_get_into_multi_buffers(self, keys, addresses, sizes):
        """Get each, and wait until all have come; of what has come, how many bytes."""
        begun = [self._begin_get(*said) for said in zip(keys, addresses, sizes, strict=True)]
        for _, _, event in begun:
            if event is not None:
                event.synchronize()
        return [code for code, _, _ in begun]

    def _begin_get(self, key, addresses, sizes):
        """What is said of a key, its value, which is kept meanwhile, and the end of its copy if that has begun."""
        if not self.pool.has(key):
            return MISSING, None, None
        value = self.pool.values[key]
        if sum(sizes) != value.size:
            return TOO_SMALL if sum(sizes) < value.size else FAILED, None, None
        if not self.pool.moves():
            return FAILED, None, None
        self.pool.used(key)
        return value.size, value, self._copy(Direction.LOAD, addresses, sizes, value)

    def _copy(self, direction, addresses, sizes, value):
        """Begin with a copy between a block of the GPU and a value."""
        [card] = [card for card in CARDS.values() if card.has(addresses[0])]
        assert all(any(address in memory for memory in self._memory) for address in addresses), "not registered"
        assert set(sizes) == {card.page_bytes}, f"pages of {set(sizes)} bytes"
        pages = [card.page_at(address) for address in addresses]
        [block] = {block for _, block in pages}
        assert [layer for layer, _ in pages] == [*range(card.device.config.layers)], f"layers of a page: {pages}"
        stream, event = Stream(), Event()
        card.submit(direction, [(block, value.places)], stream, in_order=True)
        event.record(stream)
        return event

    def remove_all(self, force=False):
        """Let go of all that has come; returns how many that were."""
        whole = [key for key, value in self.pool.values.items() if value.is_whole]
        for key in whole:
            del self.pool.values[key]
        return len(whole)

    def close(self):
        """What it put stays in the pool, as if that was another's memory."""
        return DONE


LIBRARY = SimpleNamespace(MooncakeDistributedStore=Store, ReplicateConfig=ReplicateConfig)
"""In the place of ``mooncake.store``."""
