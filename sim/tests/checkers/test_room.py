"""At rest a medium has room for as much as at any other time, or CONSERVATION is broken."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest
from kv_sim_shelves import REQUEST, A, Shelves, Taken, stored

from kv_api import (
    LoadStoreSpec,
    LookupResult,
    OffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    make_offload_key,
)
from kv_offload_cpu import CPUOffloadingManager
from kv_sim.checkers import at_rest
from kv_sim.checkers.media import sides_of
from kv_sim.checkers.medium import MediumGuard
from kv_sim.checkers.room import MOST_CHUNKS, _Room, check_room
from kv_sim.config import WorldConfig
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.fuzz import run_seed
from kv_sim.site import Site
from kv_sim.subject import Trait
from kv_sim.violation import Invariant, Referee, Violation
from kv_sim.world import World

CONSERVATION = Invariant.CONSERVATION


class Losing(CPUOffloadingManager):
    """Never gives a pin back."""

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        pass


def room_of(manager: OffloadingManager) -> list[tuple[Invariant, str]]:
    notes = Taken()
    _Room(manager, [0, 1], notes).check()
    return notes.taken


@pytest.mark.parametrize("chunks", [1, 2, 5, MOST_CHUNKS, 1000])
@pytest.mark.parametrize("threshold", [0, 2])
@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_medium_has_as_much_room_as_ever(chunks: int, threshold: int, is_guarded: bool) -> None:
    manager = CPUOffloadingManager(chunks, "arc", store_threshold=threshold)
    output = manager.prepare_store([A], REQUEST)
    assert output is not None
    manager.complete_store(output.keys_to_store, REQUEST)
    assert room_of(MediumGuard(manager, Referee()) if is_guarded else manager) == []  # type: ignore[arg-type]
    manager.check()


@pytest.mark.parametrize("is_guarded", [False, True])
def test_pins_that_nobody_gives_back_are_missed(is_guarded: bool) -> None:
    manager: Any = Losing(4, "lru")
    manager.prepare_store([A], REQUEST)
    manager.complete_store([A], REQUEST)
    manager.prepare_load([A], REQUEST)
    manager.complete_load([A], REQUEST)
    said = "at rest the medium's Losing has room for 3 more chunks, but after a reset for 4: some are still in use"
    assert room_of(MediumGuard(manager, Referee()) if is_guarded else manager)[0] == (CONSERVATION, said)  # type: ignore[arg-type]


class Halfway(CPUOffloadingManager):
    """Makes room for a store, and then refuses it."""

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        output = super().prepare_store(keys, req_context)
        if output is None:
            super().prepare_store(list(keys)[:1], req_context)
            self.complete_store(list(keys)[:1], req_context, success=False)
        return output


@pytest.mark.parametrize("chunks", [1, 3, MOST_CHUNKS - 1, MOST_CHUNKS])
def test_a_store_that_is_refused_changes_nothing(chunks: int) -> None:
    said = (
        f"at rest the medium's Halfway finds {chunks} chunks, but only {chunks - 1} of them after "
        f"prepare_store refused {MOST_CHUNKS} more: a refused store must change nothing"
    )
    expected = [(Invariant.HITS, said)] if chunks < MOST_CHUNKS else []  # where no offer is refused
    assert room_of(Halfway(chunks, "lru")) == expected


class Stuck(CPUOffloadingManager):
    """Takes a chunk for one that is being stored, as soon as it has refused a store."""

    has_refused = False

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        output = super().prepare_store(keys, req_context)
        self.has_refused = output is None
        return output

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        found = super().lookup(key, req_context)
        is_hit = found is LookupResult.HIT
        return LookupResult.HIT_PENDING if is_hit and self.has_refused else found


def test_nor_does_it_keep_others_waiting() -> None:
    said = (
        f"at rest the medium's Stuck finds 3 chunks, but only 0 of them after prepare_store refused "
        f"{MOST_CHUNKS} more: a refused store must change nothing"
    )
    assert room_of(Stuck(3, "lru")) == [(Invariant.HITS, said)]


class Shelf(Shelves):
    """Of few places: gives back those of a reset as it is told."""

    def __init__(self, places: int, keeps: Collection[str]) -> None:
        super().__init__()
        self.places, self.keeps = places, keeps
        self.state: dict[OffloadKey, str] = {}

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        gone = [key for key, state in self.state.items() if state == "stored"]
        if len(keys) > self.places - len(self.state) + len(gone):
            return None
        for key in gone:
            del self.state[key]
        self.state.update(dict.fromkeys(keys, "being stored"))
        return stored([*keys], [*range(len(keys))], gone)

    def complete_store(self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True) -> None:
        for key in keys:
            if success:
                self.state[key] = "stored"
            else:
                del self.state[key]

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        self.state.update(dict.fromkeys(keys, "read"))
        return LoadStoreSpec()

    def reset_cache(self) -> None:
        self.places -= sum(state not in self.keeps for state in self.state.values())
        self.state = {}


class Arena(Shelves):
    """Each chunk takes as much room as it is large, in one piece; a reset may lose some of it."""

    def __init__(self, units: int, lost_at_reset: int = 0) -> None:
        super().__init__()
        self.units, self.lost_at_reset = units, lost_at_reset
        self.at: dict[OffloadKey, range] = {}
        self.idle: list[OffloadKey] = []

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        at, gone = dict(self.at), [key for key in self.idle if key not in keys]
        for key in gone:
            del at[key]
        for key in keys:
            size, used = 1 + key[0] % 5, {unit for piece in at.values() for unit in piece}
            begins = (
                first for first in range(self.units - size + 1) if used.isdisjoint(range(first, first + size))
            )
            first = next(begins, None)
            if first is None:
                return None
            at[key] = range(first, first + size)
        self.at, self.idle = at, []
        return stored([*keys], [*range(len(keys))], gone)

    def complete_store(self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True) -> None:
        for key in keys:
            if success:
                self.idle.append(key)
            else:
                del self.at[key]

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        self.idle = [key for key in self.idle if key not in keys]
        return LoadStoreSpec()

    def reset_cache(self) -> None:
        self.at, self.idle = {}, []
        self.units -= self.lost_at_reset


def test_chunks_of_several_sizes_need_not_fit_as_they_did() -> None:
    """What lies in between keeps others out, though there is room for them in all."""
    for units in range(20, 60):
        manager = Arena(units)
        keys = [OffloadKey(bytes([size, number])) for number, size in enumerate((0, 4, 0, 3))]
        manager.prepare_store(keys, REQUEST)  # some of them are in use for ever: of such a medium nobody can tell
        manager.complete_store(keys[::2], REQUEST)
        assert room_of(manager) == [], units


class HalfwayArena(Arena):
    """Makes room for a store of others, and then refuses it."""

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        return LookupResult.HIT if key in self.idle else LookupResult.MISS

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        output = super().prepare_store(keys, req_context)
        if output is None:
            self.idle = [key for key in self.idle if key in keys]
        return output


def test_a_store_of_other_chunks_is_refused_also_where_it_matters_which_they_are() -> None:
    taken = room_of(HalfwayArena(60))
    assert [invariant for invariant, _ in taken] == [Invariant.HITS]


def test_room_for_chunks_of_several_sizes_that_a_reset_loses_is_missed() -> None:
    taken = room_of(Arena(60, lost_at_reset=5))
    assert [invariant for invariant, _ in taken] == [CONSERVATION] * 3


class PickyArena(Arena):
    """Takes the one half of what it is offered, and the next time the other."""

    offers = 0

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        self.offers += 1
        return super().prepare_store([*keys][self.offers % 2 :: 2], req_context)


def test_nobody_can_tell_of_chunks_of_several_sizes_that_are_taken_or_not() -> None:
    for units in range(20, 60):
        assert room_of(PickyArena(units)) == [], units


ALL = ("stored", "being stored", "read")
BUSY = {"stored": "stored", "being stored": "being stored", "read": "being read"}


@pytest.mark.parametrize("lost", ALL)
def test_places_that_a_reset_loses_are_missed(lost: str) -> None:
    assert room_of(Shelf(9, ALL)) == []
    found = room_of(Shelf(9, {*ALL} - {lost}))
    said = f"at rest the medium's Shelf has room for 9 chunks, but for 0 after a reset while 9 were {BUSY[lost]}"
    assert found[0] == (CONSERVATION, said)


def test_pins_are_missed_of_a_medium_with_more_room_than_is_asked_for() -> None:
    shelf = Shelf(MOST_CHUNKS + 9, ALL)
    shelf.prepare_load([make_offload_key(bytes([number]), 0) for number in range(99)], REQUEST)
    said = (
        f"at rest the medium's Shelf has room for {MOST_CHUNKS - 90} more chunks, but after a reset for "
        f"{MOST_CHUNKS}: "
        "some are still in use"
    )
    assert room_of(shelf) == [(CONSERVATION, said)]


class Shrinking(Shelf):
    def reset_cache(self) -> None:
        self.places = 8
        super().reset_cache()


def test_room_that_is_less_after_the_first_reset_is_missed() -> None:
    said = (
        "at rest the medium's Shrinking has room for 9 more chunks, but after a reset for 8: the reset lost some"
    )
    assert room_of(Shrinking(9, ALL)) == [(CONSERVATION, said)]


class Asked(Shelf):
    """Notes who asks for room, and for chunks of which groups."""

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        self.heard.append(("begins", req_context.req_id))
        return super().on_new_request(req_context)

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        self.heard.append((req_context.req_id, [key[-1] for key in keys]))
        return super().prepare_store(keys, req_context)

    def on_request_finished(self, req_context: ReqContext) -> None:
        self.heard.append(("ends", req_context.req_id))


def test_room_is_asked_for_by_one_request_and_for_chunks_of_all_groups() -> None:
    asked = Asked(3, ALL)
    assert room_of(asked) == []
    assert (asked.heard[0], asked.heard[-1]) == (("begins", "room"), ("ends", "room"))
    offers = [groups for whose, groups in asked.heard if whose == "room"]
    assert offers
    assert all(groups == [number % 2 for number in range(len(groups))] for groups in offers)


class Raising(Shelf):
    def reset_cache(self) -> None:
        raise KeyError("no")


def test_what_a_medium_raises_at_rest_is_told_as_such() -> None:
    world = World(WorldConfig(), SUBJECTS["offload"])
    connector = world.engine.connectors[-1]
    for side in sides_of(connector):
        side.manager = Raising(3, ALL)
    with pytest.raises(Violation, match=r"^NO-CRASH  the medium, at rest: KeyError: 'no' \(test_room.py:"):
        check_room(connector, world.referee)


@pytest.mark.parametrize("goes_on", [False, True])
def test_books_are_recounted_after_whatever_is_asked_at_rest(
    goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def check_kept(site: Site, settle: Callable[[], bool]) -> None:
        order.append("asked")
        if goes_on:
            site.engine.add(RequestSpec("r1", 0, 9, 0, 1, 1))

    monkeypatch.setattr(at_rest.conservation, "check_books", lambda engine: order.append("recounted"))
    monkeypatch.setattr(at_rest.hits, "check_kept", check_kept)
    monkeypatch.setattr(at_rest, "check_room", lambda connector, referee: order.append("reset"))
    world = World(WorldConfig(), SUBJECTS["offload"])
    world.rest()
    assert order == ["recounted", "asked", *([] if goes_on else ["recounted", "reset", "recounted"])]


@pytest.mark.once
@pytest.mark.parametrize("resets", [False, True])
def test_a_history_ends_with_a_look_at_the_room(monkeypatch: pytest.MonkeyPatch, resets: bool) -> None:
    looked = list[object]()
    monkeypatch.setattr(at_rest, "check_room", lambda connector, referee: looked.append(connector))
    claimed = frozenset(Trait) - {Trait.LOSSES} if resets else frozenset({Trait.GROUPS})
    for seed in range(4):
        assert run_seed(replace(SUBJECTS["offload"], traits=claimed), seed).failure is None
    assert len(looked) == 4 * resets


@pytest.mark.once
def test_what_a_lost_copy_uses_is_in_use_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = list[object]()
    monkeypatch.setattr(at_rest, "check_room", lambda connector, referee: looked.append(connector))
    for seed in range(16, 24):
        assert run_seed(SUBJECTS["offload"], seed).failure is None
    assert 0 < len(looked) < 8


class Partly(CPUOffloadingManager):
    """Stores as much of an offer as there is room for; maybe only every second chunk is worth it."""

    chunks, is_worth_it = 4, 1

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        worth_it = [key for key in keys if key[0] % self.is_worth_it == 0]
        return super().prepare_store(worth_it[: self.chunks], req_context)


class Choosing(Partly):
    chunks, is_worth_it = 300, 2


def test_a_store_is_all_or_nothing() -> None:
    said = (
        f"at rest the medium's Partly was offered {MOST_CHUNKS} chunks, for which it has no room, and "
        "prepare_store stores 4 of them, expected None: all or nothing"
    )
    assert room_of(Partly(4))[0] == (Invariant.PROTOCOL, said)
    assert all(invariant is not Invariant.PROTOCOL for invariant, _ in room_of(Choosing(300)))
