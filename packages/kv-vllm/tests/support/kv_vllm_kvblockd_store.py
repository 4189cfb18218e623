"""kvblockd's store in the memory of this process: what its Python client does, without a socket and a daemon.

A key is put once, as a whole: who puts it again is told that it is there. Clients of a namespace have one store.
"""

import itertools
import weakref

from kvblockd.errors import ConnectionLost
from kvblockd.protocol import Status

STORES = weakref.WeakValueDictionary()
"""By namespace."""


class Store:
    """What a daemon keeps for a namespace.

    ``room``: so many keys; with one more the daemon lets go of what was used longest ago. ``evicts``: with every
    so-manieth put one goes, as if others needed its room. ``goes``: of the keys that are got every so-manieth is
    gone by then. ``breaks``: every so-manieth call ends with the connection.
    """

    def __init__(self, room=None, evicts=0, goes=0, breaks=0):
        self.blobs = {}
        """By key, what was used longest ago first."""
        self._room, self._evicts, self.goes, self._breaks = room, evicts, goes, breaks
        self._puts, self._gets, self._calls = itertools.count(1), itertools.count(1), itertools.count(1)

    def called(self):
        """Raises if the connection has ended."""
        if self._breaks and next(self._calls) % self._breaks == 0:
            raise ConnectionLost("the testbed's store hangs up")

    def put(self, key, blob):
        """Keep it, if nothing is there."""
        if key in self.blobs:
            return Status.OK_EXISTS
        if self._evicts and next(self._puts) % self._evicts == 0:
            self.evict()
        if self._room is not None and len(self.blobs) >= self._room:
            self.evict()
        self.blobs[key] = blob
        return Status.OK

    def get(self, key):
        """What is there, which is the youngest then, or None."""
        if self.goes and next(self._gets) % self.goes == 0:
            self.blobs.pop(key, None)
        if key in self.blobs:
            self.blobs[key] = self.blobs.pop(key)
        return self.blobs.get(key)

    def evict(self):
        """Let go of what was used longest ago."""
        self.blobs.pop(next(iter(self.blobs), None), None)


class Client:
    """Fits ``kvblockd.client.Client``, as far as vllm-kvblockd uses it."""

    def __init__(self, addr, *, namespace, **said):
        self._store = STORES[namespace]

    def batch_exists(self, keys, deadline=None):
        """How many are there from the first one on, and which."""
        self._store.called()
        found = [key in self._store.blobs for key in keys]
        return (found.index(False) if False in found else len(found)), found

    def batch_get_scatter(self, keys, prefix_len, alloc, deadline=None):
        """Get each into memory for it, if whoever asked has some for what its beginning says."""
        self._store.called()
        return [self._got(index, key, prefix_len, alloc) for index, key in enumerate(keys)]

    def _got(self, index, key, prefix_len, alloc):
        blob = self._store.get(key)
        if blob is None:
            return Status.NOT_FOUND
        place = alloc(index, blob[:prefix_len], len(blob) - prefix_len)
        if place is None:
            return Status.NOT_FOUND
        place[:] = blob[prefix_len:]
        return Status.OK

    def put(self, key, data, ttl_ms=0):
        """Keep it."""
        self._store.called()
        pieces = [data] if isinstance(data, (bytes, bytearray, memoryview)) else data
        return self._store.put(key, b"".join(bytes(piece) for piece in pieces))

    def touch_lease(self, keys, sub, ttl_ms=0):
        """They are used."""
        self._store.called()
        for key in keys:
            if key in self._store.blobs:
                self._store.get(key)
        return [Status.OK] * len(keys)

    def close(self):
        """Nothing is open."""
