"""A queue from which any item can be removed in O(1), and a memory of evicted keys made of it.

An ``OrderedDict`` does the same with 150 bytes an item. Here the queue is made of *stretches*, lists of items one
after the other, so that many are entered and taken in one call. An item that is taken out leaves its *entry* in
the queue, counted in ``_dead``; since a queue is left in the order in which it was entered, the first entries of
an item are the dead ones. Dead entries are swept out before they outnumber the live ones.

Invariants: no stretch is empty, and ``_first``, as many entries of the first one as were taken before, doesn't
reach its end; ``_size`` is the number of the other entries, with ``_dead_count`` dead ones.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Generic, TypeVar

from kv_api import OffloadKey

T = TypeVar("T")

_SLACK = 64  # dead entries that are not worth a sweep
_LONG = 256  # entries of a stretch that isn't made longer


class Fifo(Generic[T]):
    """First in, first out, for distinct items. It can't say whether an item is in it: its user must know."""

    __slots__ = ("_dead", "_dead_count", "_first", "_size", "_stretches")

    def __init__(self) -> None:
        self._stretches: deque[list[T]] = deque()
        self._first = 0
        self._size = 0
        self._dead: dict[T, int] = {}
        self._dead_count = 0

    def push(self, items: Sequence[T]) -> None:
        """Enter items that are not in the queue."""
        if not items:
            return
        self._size += len(items)
        if self._stretches and len(self._stretches[-1]) < _LONG:
            self._stretches[-1] += items
        else:
            self._stretches.append([*items])

    def take(self, count: int) -> list[T]:
        """Take the ``count`` oldest items; there must be as many."""
        taken = self._take_entries(count)
        while self._dead and not self._dead.keys().isdisjoint(taken):
            taken = [item for item in taken if not self._bury(item)]
            taken += self._take_entries(count - len(taken))
        return taken

    def lead(self, count: int) -> list[T]:
        """Up to ``count`` of the oldest items, which stay in the queue; none if one of them was removed."""
        lead = self._stretches[0][self._first : self._first + count] if self._stretches else []
        return [] if self._dead and not self._dead.keys().isdisjoint(lead) else lead

    def remove(self, item: T) -> None:
        """Take out an item that is in the queue, wherever it is."""
        self._dead[item] = self._dead.get(item, 0) + 1
        self._dead_count += 1
        if self._dead_count > len(self) + _SLACK:
            items = list(self)
            self.clear()
            for start in range(0, len(items), _LONG):
                self.push(items[start : start + _LONG])

    def clear(self) -> None:
        """Take out everything."""
        self._stretches.clear()
        self._first = self._size = 0
        self._dead.clear()
        self._dead_count = 0

    def check(self) -> None:
        """Recount the dead, and see that no item is in the queue twice."""
        entries = [*self._entries()]
        assert len(entries) == self._size, f"{len(entries)} entries in the queue, {self._size} counted"
        lengths = [*map(len, self._stretches)]
        assert all(lengths) and self._first < max(lengths[:1], default=1), f"{self._first} of {lengths} are taken"
        dead_count = sum(self._dead.values())
        assert dead_count == self._dead_count, f"{dead_count} dead entries, {self._dead_count} counted"
        assert Counter(entries) >= Counter(self._dead), f"{self._dead} are not among {entries}"
        items = list(self)
        assert len(items) == len(self), f"{len(items)} items in the queue, {len(self)} counted"
        assert len(set(items)) == len(items), f"an item is in the queue twice: {items}"

    def _take_entries(self, count: int) -> list[T]:
        """The oldest entries, dead ones among them."""
        taken: list[T] = []
        while (missing := count - len(taken)) > 0:
            stretch, first = self._stretches[0], self._first
            if missing < len(stretch) - first:
                taken += stretch[first : first + missing]
                self._first = first + missing
            else:
                taken += stretch[first:]
                self._first = 0
                self._stretches.popleft()
        self._size -= count
        return taken

    def _bury(self, item: T) -> bool:
        """Whether an entry that was just taken is dead; if so, count one dead entry less."""
        times = self._dead.get(item, 0)
        if times:
            self._dead_count -= 1
            if times > 1:
                self._dead[item] = times - 1
            else:
                del self._dead[item]
        return times > 0

    def _entries(self) -> Iterator[T]:
        return islice(chain.from_iterable(self._stretches), self._first, None)

    def __len__(self) -> int:
        return self._size - self._dead_count

    def __iter__(self) -> Iterator[T]:
        """The items, oldest first."""
        dead = dict(self._dead)
        for item in self._entries():
            if dead.get(item):
                dead[item] -= 1
            else:
                yield item


class Ghosts:
    """Keys of evicted chunks, oldest first.

    A caller that first counts through a batch may forget the oldest keys before they are added.
    """

    __slots__ = ("_queue", "_surplus", "keys")

    def __init__(self) -> None:
        self.keys: set[OffloadKey] = set()
        """The remembered keys. Not to be changed."""
        self._queue: Fifo[OffloadKey] = Fifo()
        self._surplus = 0  # of the next `add`, how many are forgotten already

    def add(self, keys: Sequence[OffloadKey]) -> None:
        """Remember keys that aren't remembered."""
        if self._surplus:
            keys = keys[self._surplus :]
            self._surplus = 0
        self.keys.update(keys)
        self._queue.push(keys)

    def remove(self, key: OffloadKey) -> None:
        """Forget a key that is remembered."""
        self.keys.remove(key)
        self._queue.remove(key)

    def forget(self, count: int) -> None:
        """Forget the oldest keys; if there are fewer, also the first ones of the next ``add``."""
        known = min(count, len(self._queue))
        if known > 0:
            self.keys.difference_update(self._queue.take(known))
        self._surplus += count - known

    def clear(self) -> None:
        """Forget everything."""
        self.keys.clear()
        self._queue.clear()
        self._surplus = 0

    def check(self) -> None:
        """Recount the queue against the keys."""
        self._queue.check()
        queued = set(self._queue)
        assert queued == self.keys, f"{len(queued)} keys in the queue, {len(self.keys)} known"
        assert not self._surplus, f"{self._surplus} keys forgotten that were never added"

    def __contains__(self, key: OffloadKey) -> bool:
        return key in self.keys

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[OffloadKey]:
        return iter(self._queue)
