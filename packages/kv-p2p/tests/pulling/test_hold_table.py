"""`HoldTable` against an obvious model: for each hold, who reads it and what has happened to it."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kv_p2p.pulling.metadata import Hold, hold_id_of, number_of
from kv_p2p.pulling.tcp.holds import HoldTable

IDS = ("a", "b", "c")
TABLES = {"a": ((2, 1), (7, 8)), "b": ((3,), (9,)), "c": ((6, 4, 5), (0, 0, 7))}
"""Of two groups; of the second one of c, two blocks slid out of a window."""
NONE = "there is no hold {!r}: it was pulled, it was declined, or its time was over"
ids = st.sampled_from(IDS)


def no_such_places(hold_id, group, first, count):
    held = len(TABLES[hold_id][group])
    return f"hold {hold_id!r} has {held} blocks of group {group}; it has not {count} from place {first} on"


def slid(hold_id, group, place):
    return f"hold {hold_id!r} has no block of group {group} at place {place}: it slid out of a window"


def hold(hold_id):
    return Hold(f"request {hold_id}", hold_id, f"digest {hold_id}", TABLES[hold_id])


def why_not(hold_id, places):
    """What is wrong with these places of a hold; None: nothing."""
    for group, (first, count) in enumerate(places):
        table = TABLES[hold_id][group]
        if first < 0 or count < 0 or first + count > len(table):
            return no_such_places(hold_id, group, first, count)
        for place in range(first, first + count):
            if not table[place]:
                return slid(hold_id, group, place)
    return None


class Machine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.table = HoldTable()
        self.open = {}
        """By hold that is there: how many read it."""
        self.done = set()
        """Those that were pulled or declined while they are read."""
        self.closing = set()
        self.served = []

    def there(self):
        return [hold_id for hold_id in IDS if hold_id in self.open]

    def end(self, hold_id):
        del self.open[hold_id]
        self.done.discard(hold_id)
        self.closing.discard(hold_id)

    @rule(hold_id=ids)
    def serve(self, hold_id):
        if hold_id in self.open:
            with pytest.raises(ValueError, match=f"hold '{hold_id}' is served already"):
                self.table.serve(hold(hold_id))
        elif hold_id not in self.served:  # a hold has an id that none had
            self.table.serve(hold(hold_id))
            self.open[hold_id] = 0

    @rule(hold_id=ids, digest_of=ids, places=st.tuples(*[st.tuples(*[st.integers(-4, 4)] * 2)] * 2))
    def begin_read(self, hold_id, digest_of, places):
        found = self.table.begin_read(hold_id, f"digest {digest_of}", places)
        if hold_id not in self.open or hold_id in self.closing:
            assert found == NONE.format(hold_id)
        elif digest_of != hold_id:
            assert found == f"hold {hold_id!r} is of another prompt"
        elif (reason := why_not(hold_id, places)) is not None:
            assert found == reason
        else:
            assert found == [
                tuple(table[place] for place in range(first, first + count))
                for table, (first, count) in zip(TABLES[hold_id], places, strict=True)
            ]
            self.open[hold_id] += 1

    @rule(data=st.data(), hold_id=ids)
    def read_what_is_right(self, data, hold_id):
        places = []
        for table in TABLES[hold_id]:
            first = data.draw(st.integers(table.count(0), len(table)))
            places.append((first, data.draw(st.integers(0, len(table) - first))))
        self.begin_read(hold_id, hold_id, places)

    @precondition(lambda self: any(self.open.values()))
    @rule(data=st.data(), has_all=st.booleans())
    def end_read(self, data, has_all):
        hold_id = data.draw(st.sampled_from([one for one in self.there() if self.open[one]]))
        self.table.end_read(hold_id, has_all=has_all)
        self.open[hold_id] -= 1
        if has_all:
            self.done.add(hold_id)
            self.closing.add(hold_id)
        if hold_id in self.done and self.open[hold_id] == 0:
            self.served.append(hold_id)
            self.end(hold_id)

    @rule(hold_id=ids, digest_of=ids)
    def decline(self, hold_id, digest_of):
        self.table.decline(hold_id, f"digest {digest_of}")
        if self.open.get(hold_id) and digest_of == hold_id:
            self.done.add(hold_id)
        elif hold_id in self.open and digest_of == hold_id:
            self.served.append(hold_id)
            self.end(hold_id)

    @rule(hold_id=ids)
    def withdraw(self, hold_id):
        is_read = bool(self.open.get(hold_id))
        assert self.table.withdraw(hold_id) is not is_read
        if is_read:
            self.closing.add(hold_id)
        elif hold_id in self.open:
            self.end(hold_id)
        else:
            self.served = [served for served in self.served if served != hold_id]

    @rule()
    def take_served(self):
        assert self.table.take_served() == self.served
        self.served = []

    @invariant()
    def recount(self):
        self.table.check()


TestHoldTable = Machine.TestCase


def table(*hold_ids):
    made = HoldTable()
    for hold_id in hold_ids:
        made.serve(hold(hold_id))
    return made


def test_a_hold_that_was_withdrawn_while_it_is_read_is_read_to_its_end():
    holds = table("a")
    assert holds.begin_read("a", "digest a", [(0, 2), (1, 1)]) == [(2, 1), (8,)]
    assert holds.withdraw("a") is False
    assert holds.begin_read("a", "digest a", [(1, 1), (0, 0)]) == NONE.format("a")
    holds.decline("a", "digest a")
    assert holds.take_served() == []
    holds.end_read("a", has_all=True)
    assert holds.take_served() == ["a"]
    assert holds.withdraw("a") is True


def test_or_is_gone_when_it_is_asked_for_again():
    holds = table("a", "b")
    holds.begin_read("a", "digest a", [(0, 1), (0, 0)])
    assert holds.withdraw("a") is False
    holds.end_read("a", has_all=False)
    assert holds.take_served() == []
    assert holds.withdraw("a") is True
    assert holds.take_served() == []
    assert holds.begin_read("a", "digest a", [(0, 1), (0, 0)]) == NONE.format("a")
    assert holds.begin_read("b", "digest b", [(0, 1), (0, 1)]) == [(3,), (9,)]


def test_what_is_withdrawn_after_its_end_is_not_told_and_others_are():
    holds = table("a", "b", "c")
    for hold_id in ("a", "b", "c"):
        holds.decline(hold_id, f"digest {hold_id}")
    assert holds.withdraw("b") is True
    assert holds.take_served() == ["a", "c"]


@pytest.mark.parametrize(
    ("hold_id", "number"),
    [
        *[("a.1", 1), ("a.b-2.31", 31), ("7", 7), (f"a.{'9' * 18}", 10**18 - 1)],
        *[(f"a{end}", 0) for end in ("", ".", ".-1", ".1b", ".²", ".1" + "0" * 18, "." + "9" * 5000)],
        ("", 0),
    ],
)
def test_a_hold_says_which_of_its_engine_it_is(hold_id, number):
    assert number_of(hold_id) == number
    assert number_of(hold_id_of(hold_id, 12)) == 12


def test_what_is_to_come_is_what_was_counted_after_the_last_one_that_came():
    holds = HoldTable()
    assert [holds.is_to_come(hold_id) for hold_id in ("a.1", "a.0", "a")] == [True, False, False]
    for hold_id in ("a.3", "b.2", "c"):
        holds.serve(Hold("request", hold_id, "digest", ((1,),)))
    asked = ("a.1", "c.2", "b.3", "a.4")
    assert [holds.is_to_come(hold_id) for hold_id in asked] == [False, False, False, True]
    holds.decline("a.3", "digest")
    assert not holds.is_to_come("a.3")


def test_who_breaks_off_leaves_it_for_the_next():
    holds = table("a")
    holds.begin_read("a", "digest a", [(1, 1), (0, 2)])
    holds.end_read("a", has_all=False)
    assert holds.begin_read("a", "digest a", [(0, 2), (1, 1)]) == [(2, 1), (8,)]


def test_once_one_has_it_all_it_ends_with_the_last_reader_whatever_that_one_got():
    holds = table("a")
    for _ in range(2):
        holds.begin_read("a", "digest a", [(0, 2), (0, 2)])
    holds.end_read("a", has_all=True)
    assert holds.take_served() == []
    holds.end_read("a", has_all=False)
    assert holds.take_served() == ["a"]


def test_what_is_declined_while_it_is_read_may_be_read_by_more_until_then():
    holds = table("a")
    holds.begin_read("a", "digest a", [(0, 2), (0, 2)])
    holds.decline("a", "digest a")
    assert holds.begin_read("a", "digest a", [(0, 1), (0, 0)]) == [(2,), ()]
    for _ in range(2):
        assert holds.take_served() == []
        holds.end_read("a", has_all=False)
    assert holds.take_served() == ["a"]


@pytest.mark.parametrize(
    ("first", "count", "blocks"), [(0, 3, [6, 4, 5]), (0, 1, [6]), (1, 1, [4]), (1, 2, [4, 5]), (2, 1, [5])]
)
def test_places_are_those_of_the_prompt(first, count, blocks):
    assert table("c").begin_read("c", "digest c", [(first, count), (2, 1)]) == [tuple(blocks), (7,)]
    assert table("c").begin_read("c", "digest c", [(first, count), (3, 0)]) == [tuple(blocks), ()]


@pytest.mark.parametrize(
    ("first", "count"),
    [
        (0, 4),
        (2, 2),
        (3, 1),
        (-1, 1),
        (-1, 2),
        (-3, 3),
        (4, 0),
        (0, -1),
        (2, -1),
        (1 << 70, 1),
        (0, 1 << 70),
    ],
)
def test_places_that_are_not_there_are_not_read(first, count):
    holds = table("c")
    for group, places in enumerate([[(first, count), (2, 1)], [(0, 3), (first, count)]]):
        assert holds.begin_read("c", "digest c", places) == no_such_places("c", group, first, count)
    assert holds.withdraw("c") is True  # nobody reads it


@pytest.mark.parametrize(("first", "count", "place"), [(0, 3, 0), (1, 2, 1), (1, 1, 1), (0, 1, 0)])
def test_what_slid_out_of_a_window_is_not_read(first, count, place):
    holds = table("c")
    assert holds.begin_read("c", "digest c", [(0, 3), (first, count)]) == slid("c", 1, place)
    assert holds.withdraw("c") is True


@pytest.mark.parametrize("places", [[], [(0, 1)], [(0, 1), (0, 1), (0, 1)]])
def test_who_knows_other_groups_reads_nothing(places):
    holds = table("a")
    said = f"hold 'a' has blocks of 2 KV cache groups, not of {len(places)}"
    assert holds.begin_read("a", "digest a", places) == said
    assert holds.withdraw("a") is True


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda holds: setattr(holds._held["a"], "readers", -1), "hold a has -1 readers"),
        (
            lambda holds: setattr(holds._held["a"], "is_pulled", True),
            "hold a was pulled or declined, nobody reads it, and it is",
        ),
        (lambda holds: holds._served.append("a"), "['a'] have ended and are held"),
    ],
)
def test_recounting_finds_what_cannot_be(break_it, said):
    holds = table("a")
    break_it(holds)
    with pytest.raises(AssertionError) as raised:
        holds.check()
    assert said in str(raised.value)
