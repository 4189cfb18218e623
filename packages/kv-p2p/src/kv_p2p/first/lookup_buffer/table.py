"""``EntryTable``: a producer's entries that were not taken yet, and which of them answers a request. Pure.

Entries are kept in the order in which they were inserted. A request takes the oldest entry with exactly its
tokens; if there is none, the oldest entry that matches. (vLLM takes the first match that it comes across.)

The table is *over* its threshold when its entries have more bytes, and there are at least two of them; then the
producer must wait. So an entry larger than the threshold gets through, too.

A request that was answered with None is remembered as given up, until it is made again. If its entry is inserted
after all, it is *unwanted*: a request can still take it, but unwanted entries are dropped, the oldest first,
before the producer has to wait. Otherwise they would fill the table for good. Only the hash of the request's
tokens is remembered, since a prompt may have very many tokens. An entry with the same hash by chance is unwanted,
too.

Invariants (``check``): ``num_bytes`` is the sum over the entries; the index has each entry once, under its
tokens, and in order; no list in it is empty; every unwanted entry is in the table.
"""

from typing import Final, NamedTuple

from kv_api.engine import Tensor

Tokens = tuple[int, ...]

GIVEN_UP_MAX: Final = 10_000
"""How many requests that were given up are remembered, at most."""


class Entry(NamedTuple):
    """The arguments of one ``insert``."""

    tokens: Tokens
    """The tokens that count."""
    tensors: tuple[Tensor | None, ...]
    num_bytes: int


class EntryTable:
    """The entries, by the order of insertion and by their tokens."""

    def __init__(self, threshold_bytes: float) -> None:
        self._threshold_bytes = threshold_bytes
        self._entries: dict[int, Entry] = {}
        self._by_tokens: dict[Tokens, list[int]] = {}
        self._given_up: dict[int, None] = {}
        self._unwanted: dict[int, None] = {}
        self._next = 0
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def is_over(self) -> bool:
        """Whether the producer has to wait until an entry is taken."""
        return self.num_bytes > self._threshold_bytes and len(self._entries) > 1

    def add(self, entry: Entry) -> None:
        """Append an entry. If the table is over its threshold, unwanted entries are dropped."""
        self._entries[self._next] = entry
        self._by_tokens.setdefault(entry.tokens, []).append(self._next)
        wanted = hash(entry.tokens)
        if wanted in self._given_up:
            del self._given_up[wanted]
            self._unwanted[self._next] = None
        self._next += 1
        self.num_bytes += entry.num_bytes
        while self.is_over and self._unwanted:
            self._remove(next(iter(self._unwanted)))

    def ask(self, asked: Tokens | None) -> None:
        """A request begins: if it was given up before, its entry is wanted again."""
        if asked is not None:
            self._given_up.pop(hash(asked), None)

    def give_up(self, asked: Tokens | None) -> None:
        """A request was answered with None: the next entry with exactly these tokens will be unwanted."""
        if asked:
            self._given_up[hash(asked)] = None
            if len(self._given_up) > GIVEN_UP_MAX:
                del self._given_up[next(iter(self._given_up))]

    def take(self, asked: Tokens | None) -> Entry | None:
        """Remove the entry that answers a request for these tokens, or for any (None); None if there is none."""
        number = self._find(asked)
        return None if number is None else self._remove(number)

    def clear(self) -> None:
        """Drop all entries."""
        for held in (self._entries, self._by_tokens, self._given_up, self._unwanted):
            held.clear()
        self.num_bytes = 0

    def _remove(self, number: int) -> Entry:
        entry = self._entries.pop(number)
        self._unwanted.pop(number, None)
        same = self._by_tokens[entry.tokens]
        same.remove(number)
        if not same:
            del self._by_tokens[entry.tokens]
        self.num_bytes -= entry.num_bytes
        return entry

    def _find(self, asked: Tokens | None) -> int | None:
        if asked is None:
            return next(iter(self._entries), None)
        if asked and asked in self._by_tokens:
            return self._by_tokens[asked][0]
        return next((number for number, entry in self._entries.items() if _matches(entry.tokens, asked)), None)

    def check(self) -> None:
        """Recount."""
        total = sum(entry.num_bytes for entry in self._entries.values())
        assert self.num_bytes == total, f"{self.num_bytes} bytes counted, {total} held"
        by_tokens: dict[Tokens, list[int]] = {}
        for number, entry in self._entries.items():
            by_tokens.setdefault(entry.tokens, []).append(number)
        assert self._by_tokens == by_tokens, f"the index has {self._by_tokens}, and the entries are {by_tokens}"
        numbers = list(self._entries)
        assert numbers == sorted(numbers), f"out of order: {numbers}"
        assert list(self._unwanted) == [number for number in numbers if number in self._unwanted], (
            f"unwanted {list(self._unwanted)} of {numbers}"
        )
        assert len(self._given_up) <= GIVEN_UP_MAX, f"{len(self._given_up)} requests remembered"
        assert all(number < self._next for number in numbers), f"{numbers} and the next is {self._next}"


def _matches(held: Tokens, asked: Tokens) -> bool:
    length = min(len(held), len(asked))
    return length > 0 and held[:length] == asked[:length]
