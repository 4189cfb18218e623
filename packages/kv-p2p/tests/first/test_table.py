"""The table of entries against an obvious, slow model."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_p2p.first.lookup_buffer.table import Entry, EntryTable, Tokens

TOKENS = st.lists(st.integers(0, 2), max_size=4).map(tuple)


@dataclass
class Model:
    """A list, and which of it is unwanted."""

    threshold: int
    entries: list[tuple[Entry, bool]] = field(default_factory=list)
    given_up: set[Tokens] = field(default_factory=set)

    def add(self, entry: Entry) -> None:
        self.entries.append((entry, entry.tokens in self.given_up))
        self.given_up -= {entry.tokens}
        while self.is_over and any(unwanted for _, unwanted in self.entries):
            self.entries.remove(next(one for one in self.entries if one[1]))

    def take(self, asked: Tokens | None) -> Entry | None:
        same = [one for one in self.entries if asked is None or (asked and one[0].tokens == asked)]
        alike = [one for one in self.entries if asked is not None and self.begins_alike(one[0].tokens, asked)]
        for one in same + alike:
            self.entries.remove(one)
            return one[0]
        return None

    def begins_alike(self, held: Tokens, asked: Tokens) -> bool:
        pairs = list(zip(held, asked, strict=False))
        return bool(pairs) and all(one == other for one, other in pairs)

    @property
    def num_bytes(self) -> int:
        return sum(entry.num_bytes for entry, _ in self.entries)

    @property
    def is_over(self) -> bool:
        return len(self.entries) >= 2 and self.num_bytes > self.threshold


ACTIONS = ["add", "add", "take", "take", "take any", "clear", "ask", "give up", "give up"]


@given(
    st.integers(0, 30),
    st.lists(st.tuples(st.sampled_from(ACTIONS), TOKENS, st.integers(0, 20)), max_size=30),
)
def test_it_does_what_a_list_does(threshold: int, actions: list[tuple[str, Tokens, int]]) -> None:
    table, model = EntryTable(threshold), Model(threshold)
    for number, (action, tokens, num_bytes) in enumerate(actions):
        if action == "add":
            entry = Entry(tokens, (number,), num_bytes)
            table.add(entry)
            model.add(entry)
        elif action == "ask":
            table.ask(tokens)
            model.given_up -= {tokens}
        elif action == "give up":
            table.give_up(tokens)
            model.given_up |= {tokens} - {()}
        elif action == "clear" and number % 5 == 0:
            table.clear()
            model = Model(threshold)
        else:
            asked = None if action == "take any" else tokens
            assert table.take(asked) == model.take(asked)
        table.check()
        assert (len(table), table.num_bytes) == (len(model.entries), model.num_bytes)
        assert table.is_over == model.is_over


def entry(*tokens: int, num_bytes: int = 1, name: str = "") -> Entry:
    return Entry(tokens, (name,), num_bytes)


def test_exactly_these_tokens_come_first_and_then_the_oldest_that_begins_alike() -> None:
    table = EntryTable(100)
    entries = [entry(1, 2, 3), entry(1), entry(1, 2, name="one"), entry(1, 2, name="two"), entry(2)]
    for one in entries:
        table.add(one)
    taken = [table.take((1, 2)) for _ in range(5)]
    assert taken == [entries[2], entries[3], entries[0], entries[1], None]
    assert table.take((3, 1)) is None
    assert table.take(None) == entries[4]


def test_what_has_no_tokens_matches_only_who_asks_for_anything() -> None:
    table = EntryTable(100)
    table.add(entry())
    assert (table.take((1,)), table.take(())) == (None, None)
    assert table.take(None) == entry()


@pytest.mark.parametrize("asked", [None, ()])
def test_of_a_request_that_names_no_tokens_nothing_becomes_unwanted(asked: Tokens | None) -> None:
    table = EntryTable(10)
    table.give_up(asked)
    table.add(entry(num_bytes=6, name="kept"))
    table.add(entry(1, num_bytes=6))
    assert table.is_over
    assert table.take(None) == entry(num_bytes=6, name="kept")


@pytest.mark.parametrize(
    ("sizes", "is_over"), [([], False), ([11], False), ([5, 5], False), ([5, 6], True), ([11, 0], True)]
)
def test_one_entry_is_never_too_much(sizes: list[int], is_over: bool) -> None:
    table = EntryTable(10)
    for size in sizes:
        table.add(entry(1, num_bytes=size))
    assert table.is_over == is_over


def test_what_nobody_wants_any_more_makes_room() -> None:
    table = EntryTable(10)
    for tokens in ((1,), (2,), None):
        table.give_up(tokens)
    table.ask((2,))
    table.ask(None)
    for one in (entry(1, num_bytes=5), entry(1, num_bytes=5, name="wanted")):
        table.add(one)
        table.check()
    assert len(table) == 2
    table.add(entry(2, num_bytes=6))
    table.check()
    assert (len(table), table.is_over) == (2, True)
    assert [table.take((1,)), table.take((2,))] == [entry(1, num_bytes=5, name="wanted"), entry(2, num_bytes=6)]


@pytest.mark.parametrize(("num_bytes", "left"), [(5, [2, 3]), (6, [3])])
def test_as_many_as_needed_make_room_and_the_oldest_first(num_bytes: int, left: list[int]) -> None:
    table = EntryTable(10)
    for token in (1, 2):
        table.give_up((token,))
        table.add(entry(token, num_bytes=5))
    table.add(entry(3, num_bytes=num_bytes))
    table.check()
    assert [token for token in (1, 2, 3) if table.take((token,)) is not None] == left


def test_after_a_clear_nothing_is_unwanted() -> None:
    table = EntryTable(10)
    table.give_up((1,))
    table.add(entry(1, num_bytes=5))
    table.give_up((3,))
    table.clear()
    table.check()
    for token in (2, 3):
        table.add(entry(token, num_bytes=6))
    assert (len(table), table.is_over) == (2, True)


def test_it_does_not_remember_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kv_p2p.first.lookup_buffer.table.GIVEN_UP_MAX", 2)
    table = EntryTable(0)
    for token in (1, 2, 3):
        table.give_up((token,))
        table.check()
    table.add(entry(9))
    table.add(entry(1))
    assert table.is_over
    table.take((1,))
    table.add(entry(2))
    assert (len(table), table.is_over) == (1, False)


def test_what_it_remembers_of_a_request_is_not_its_tokens() -> None:
    """A prompt may have a hundred thousand, and so many requests are remembered."""
    table = EntryTable(100)
    table.give_up(tuple(range(100_000)))
    assert [type(kept) for kept in table._given_up] == [int]
