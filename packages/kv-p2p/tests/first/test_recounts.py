"""What can't be in a table, a store, a pipe or a buffer is found when it is recounted."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from kv_p2p_simple_buffers import end, insert, make

from kv_p2p.first.lookup_buffer.simple import Side
from kv_p2p.first.lookup_buffer.store import LocalStore
from kv_p2p.first.lookup_buffer.table import GIVEN_UP_MAX, Entry, EntryTable
from kv_p2p.first.pipe.local import LocalPipe

BreakIt = Callable[[Any], object]


def finds(recounted: Any, break_it: BreakIt) -> str:
    """What a recount says of something that was right before."""
    recounted.check()
    break_it(recounted)
    with pytest.raises(AssertionError) as raised:
        recounted.check()
    return str(raised.value)


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda table: setattr(table, "num_bytes", 9), "9 bytes counted, 8 held"),
        (lambda table: setattr(table, "num_bytes", 7), "7 bytes counted, 8 held"),
        (lambda table: table._by_tokens.clear(), "the index has {}, and the entries are {(1,): [0, 1]}"),
        (lambda table: table._by_tokens.update({(3,): []}), "the index has {(1,): [0, 1], (3,): []}, and"),
        (lambda table: table._by_tokens[1,].reverse(), "the index has {(1,): [1, 0]}, and"),
        (
            lambda table: (table._entries.update({0: table._entries.pop(0)}), table._by_tokens[1,].reverse()),
            "out of order: [1, 0]",
        ),
        (lambda table: table._unwanted.update({7: None}), "unwanted [7] of [0, 1]"),
        (lambda table: table._unwanted.update({1: None, 0: None}), "unwanted [1, 0] of [0, 1]"),
        (
            lambda table: table._given_up.update(dict.fromkeys(range(GIVEN_UP_MAX + 1))),
            f"{GIVEN_UP_MAX + 1} requests remembered",
        ),
        (lambda table: setattr(table, "_next", 1), "[0, 1] and the next is 1"),
    ],
)
def test_of_a_table(break_it: BreakIt, said: str) -> None:
    table = EntryTable(100)
    for _ in range(2):
        table.add(Entry((1,), ("",), 4))
    table._unwanted.update({0: None, 1: None})
    table.check()
    table._unwanted.clear()
    assert finds(table, break_it).startswith(said)


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda store: setattr(store, "num_bytes", 5), "5 bytes counted, 4 held"),
        (lambda store: setattr(store, "_capacity_bytes", 3), "4 bytes held, at most 3"),
    ],
)
def test_of_a_store(break_it: BreakIt, said: str) -> None:
    store = LocalStore(4)
    store.put("a", np.zeros(4, np.uint8))
    assert finds(store, break_it) == said


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda pipe: setattr(pipe, "_other", LocalPipe.pair()[0]), "the ends are not each other's"),
        (lambda pipe: pipe._inbox.append(None), "2 under way, at most 1"),
        (lambda pipe: pipe._other._inbox.append(None), "2 under way, at most 1"),
    ],
)
def test_of_a_pipe(break_it: BreakIt, said: str) -> None:
    one, other = LocalPipe.pair(1)
    one.send_tensor(None)
    other.send_tensor(None)
    assert finds(one, break_it) == said


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda buffer: setattr(buffer._table, "num_bytes", 5), "5 bytes counted, 16 held"),
        (lambda buffer: setattr(buffer, "_ended", "so"), "ended, and 1 entries are left"),
        (lambda buffer: setattr(buffer, "_side", Side.CONSUMER), "Side.CONSUMER has a thread"),
    ],
)
def test_of_a_buffer(break_it: BreakIt, said: str) -> None:
    producer, consumer = make("local")
    insert(producer, 1, num_bytes=0)
    kept = producer._table.num_bytes, producer._ended, producer._side
    assert finds(producer, break_it) == said
    producer._table.num_bytes, producer._ended, producer._side = kept
    end((producer, consumer))


class Watched(dict[Any, Any]):
    """Notes at each use whether somebody has the lock."""

    def __init__(self, lock: threading.Lock) -> None:
        super().__init__()
        self.lock = lock
        self.seen: list[bool] = []

    def __setitem__(self, key: Any, value: Any) -> None:
        self.seen.append(self.lock.locked())
        super().__setitem__(key, value)

    def __iter__(self) -> Iterator[Any]:
        self.seen.append(self.lock.locked())
        return super().__iter__()

    def __getattribute__(self, name: str) -> Any:
        if name in ("get", "pop", "clear", "values"):
            self.seen.append(self.lock.locked())
        return super().__getattribute__(name)


def test_only_who_has_the_lock_touches_what_is_in_a_store() -> None:
    store = LocalStore(4)
    store._values = watched = Watched(store._lock)
    for use, times in (
        (lambda: store.put("a", np.zeros(3, np.uint8)), 2),
        (lambda: store.put("b", np.zeros(2, np.uint8)), 4),
        (lambda: store.get("b"), 1),
        (store.check, 1),
        (store.close, 1),
    ):
        use()
        assert watched.seen == [True] * times
        watched.seen.clear()
