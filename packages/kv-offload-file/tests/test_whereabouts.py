"""In which places neighbours have chunks: each is looked for at the lowest number, and none that has gone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_offload_file.sharing.place import NeighbourSlot, place_of, slot_of_neighbour
from kv_offload_file.sharing.whereabouts import Whereabouts


def at(engine, slot):
    return place_of(NeighbourSlot(engine, slot))


def test_the_one_with_the_lowest_number_is_asked():
    known = Whereabouts()
    for engine in (3, 7, 1, 2):
        known.add([(b"a", at(engine, 9 - engine))])
        known.check()
    asked = []
    while known.places:
        asked.append(slot_of_neighbour(known.places[b"a"]))
        known.remove(b"a", known.places[b"a"])
        known.check()
    assert asked == [(1, 8), (2, 7), (3, 6), (7, 2)]


def test_within_the_files_of_one_it_is_where_it_was_seen_last():
    """It was stored anew in another slot, and that the first one has something else isn't read yet."""
    known = Whereabouts()
    for slot in (5, 3, 8):
        known.add([(b"a", at(1, slot))])
        assert known.places == {b"a": at(1, slot)}
    known.remove(b"a", at(1, 8))
    assert known.places == {b"a": at(1, 3)}
    known.remove(b"a", at(1, 5))
    assert known.places == {b"a": at(1, 3)} and len(known) == 1
    known.remove(b"a", at(1, 3))
    assert not known.places and not len(known)


def test_where_it_was_seen_last_is_no_matter_of_its_number():
    known = Whereabouts()
    known.add((b"a", at(1, slot)) for slot in (3, 5, 8))
    known.remove(b"a", at(1, 8))
    assert known.places == {b"a": at(1, 5)}


def test_who_came_last_is_no_matter_where_several_have_it():
    known = Whereabouts()
    known.add((b"a", at(engine, 0)) for engine in (1, 2, 7))
    known.remove(b"a", at(1, 0))
    assert known.places == {b"a": at(2, 0)}
    known.check()


def test_what_is_told_twice_is_there_once():
    known = Whereabouts()
    for _ in range(2):
        known.add([(b"a", at(1, 5))])
    assert len(known) == 1
    known.remove(b"a", at(1, 5))
    assert not len(known)


@given(
    st.lists(
        st.tuples(st.sampled_from([b"a", b"b"]), st.integers(0, 2), st.integers(0, 3), st.booleans()), max_size=30
    )
)
def test_it_knows_each_place_and_looks_at_the_best(steps):
    known, places = Whereabouts(), []
    for key, engine, slot, comes in steps:
        one = key, at(engine, slot)
        if comes and one not in places:
            places.append(one)
            known.add([one])
        elif not comes and one in places:
            places.remove(one)
            known.remove(*one)
        known.check()
        assert len(known) == len(places)
        assert all(known.has(*place) for place in places)
        assert known.places.keys() == {key for key, _ in places}
        for name, place in known.places.items():
            engines = [slot_of_neighbour(there).engine for key, there in places if key == name]
            assert slot_of_neighbour(place).engine == min(engines) and (name, place) in places


def test_a_recount_sees_what_is_wrong():
    known = Whereabouts()
    known.add([(b"a", at(1, 5))])
    known.add([(b"a", at(2, 5))])
    known.places[b"a"] = at(2, 5)
    with pytest.raises(AssertionError, match="61 is in"):
        known.check()
    known.places[b"a"] = at(3, 5)
    with pytest.raises(AssertionError, match="61 is looked for in"):
        known.check()
    known._others[b"a"].clear()
    with pytest.raises(AssertionError, match="61 is in"):
        known.check()
