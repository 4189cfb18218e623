"""Numbers of places, which tell chunks of neighbours from an engine's own."""

from kv_offload_file.sharing.place import (
    MOST_ENGINES,
    MOST_SLOTS,
    NUM_PLACES,
    NeighbourSlot,
    nowhere,
    place_of,
    slot_of_neighbour,
)


def test_places_tell_engines_and_slots_apart():
    everywhere = [(engine, slot) for engine in (None, 0, 1, MOST_ENGINES - 1) for slot in (0, 6, MOST_SLOTS - 1)]
    places = [slot if engine is None else place_of(NeighbourSlot(engine, slot)) for engine, slot in everywhere]
    assert places == sorted({*places})
    assert [slot_of_neighbour(place) for place in places] == [
        None if engine is None else NeighbourSlot(engine, slot) for engine, slot in everywhere
    ]
    assert places[:4] == [0, 6, MOST_SLOTS - 1, MOST_SLOTS]
    assert places[-1] < NUM_PLACES == 2**31


def test_nowhere_is_at_no_engine_and_side_by_side_not_the_same():
    places = [nowhere(index) for index in range(4)]
    assert all(place.engine >= MOST_ENGINES for place in places)
    assert places[0] != places[1] != places[2]
    assert all(place_of(place) < NUM_PLACES for place in places)
