"""A queue from which any item can also be taken out in O(1), and a memory of evicted keys made of it.

An ``OrderedDict`` does the same with 150 bytes an item. Here an item that is taken out leaves its *entry* in the
queue, counted in ``_dead``; since a queue is left in the order in which it was entered, the first entries of an
item are the dead ones. Dead entries are swept out before they outnumber the live ones.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from kv_api import OffloadKey

T = TypeVar("T")

_SLACK = 64  # dead entries that are not worth a sweep


class Fifo(Generic[T]):
    """First in, first out, for distinct items. It doesn't know what is in it: whoever removes an item does."""

    __slots__ = ("_dead", "_dead_count", "_entries")

    def __init__(self) -> None:
        self._entries: deque[T] = deque()
        self._dead: dict[T, int] = {}
        self._dead_count = 0

    def push(self, items: Iterable[T]) -> None:
        """Enter items that are not in the queue."""
        self._entries.extend(items)

    def pop(self) -> T:
        """Take the oldest item."""
        item = self._entries.popleft()
        while self._dead and item in self._dead:
            self._dead_count -= 1
            if self._dead[item] == 1:
                del self._dead[item]
            else:
                self._dead[item] -= 1
            item = self._entries.popleft()
        return item

    def take(self, count: int) -> list[T]:
        """Take the ``count`` oldest items; there must be as many."""
        if self._dead:
            return [self.pop() for _ in range(count)]
        popleft = self._entries.popleft
        return [popleft() for _ in range(count)]

    def remove(self, item: T) -> None:
        """Take out an item that is in the queue, wherever it is."""
        self._dead[item] = self._dead.get(item, 0) + 1
        self._dead_count += 1
        if self._dead_count > len(self) + _SLACK:
            self._entries = deque(self)
            self._dead.clear()
            self._dead_count = 0

    def clear(self) -> None:
        """Take out everything."""
        self._entries.clear()
        self._dead.clear()
        self._dead_count = 0

    def check(self) -> None:
        """Recount the dead, and see that no item is in the queue twice."""
        dead_count = sum(self._dead.values())
        assert dead_count == self._dead_count, f"{dead_count} dead entries, {self._dead_count} counted"
        assert Counter(self._entries) >= Counter(self._dead), f"{self._dead} are not among {self._entries}"
        items = list(self)
        assert len(items) == len(self), f"{len(items)} items in the queue, {len(self)} counted"
        assert len(set(items)) == len(items), f"an item is in the queue twice: {items}"

    def __len__(self) -> int:
        return len(self._entries) - self._dead_count

    def __iter__(self) -> Iterator[T]:
        """The items, oldest first."""
        dead = dict(self._dead)
        for item in self._entries:
            if dead.get(item):
                dead[item] -= 1
            else:
                yield item


class Ghosts:
    """Keys of evicted chunks, oldest first.

    Several lists may share one dictionary, ``lists``, which has the list of each key that is in any of them: so a
    key is looked for once. The oldest may be forgotten before it is added, by a caller who works through a batch
    in numbers first.
    """

    __slots__ = ("_queue", "_surplus", "lists")

    def __init__(self, lists: "dict[OffloadKey, Ghosts] | None" = None) -> None:
        self.lists: dict[OffloadKey, Ghosts] = {} if lists is None else lists
        self._queue: Fifo[OffloadKey] = Fifo()
        self._surplus = 0  # of the next `add`, how many are forgotten already

    def add(self, keys: Sequence[OffloadKey]) -> None:
        """Remember keys that aren't in any of the lists."""
        if self._surplus:
            keys = keys[self._surplus :]
            self._surplus = 0
        self.lists.update(dict.fromkeys(keys, self))
        self._queue.push(keys)

    def remove(self, key: OffloadKey) -> None:
        """Forget a key that is remembered."""
        del self.lists[key]
        self._queue.remove(key)

    def forget(self, count: int) -> None:
        """Forget those that were added first; if there are fewer, the first of the next ``add``, too."""
        known, lists = min(count, len(self._queue)), self.lists
        for key in self._queue.take(known):
            del lists[key]
        self._surplus += count - known

    def clear(self) -> None:
        """Forget everything."""
        self.forget(len(self))
        self._queue.clear()

    def check(self) -> None:
        """Recount the queue against the keys."""
        self._queue.check()
        queued, known = set(self._queue), {key for key, home in self.lists.items() if home is self}
        assert queued == known, f"{len(queued)} keys in the queue, {len(known)} known"
        assert not self._surplus, f"{self._surplus} keys forgotten that were never added"

    def __contains__(self, key: OffloadKey) -> bool:
        return self.lists.get(key) is self

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[OffloadKey]:
        return iter(self._queue)
