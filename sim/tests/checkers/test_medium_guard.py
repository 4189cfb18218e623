"""What the manager of a medium answers and does with what is in use is judged, and that its room comes back."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest

from kv_api import (
    BlockIDsLoadStoreSpec,
    LoadStoreSpec,
    LookupResult,
    OffloadingManager,
    OffloadKey,
    PrefixLookup,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    make_offload_key,
)
from kv_offload_cpu import CPUOffloadingManager
from kv_sim.checkers import at_rest
from kv_sim.checkers.medium import MediumGuard, guard_media, sides_of
from kv_sim.checkers.room import MOST_CHUNKS, _Room, check_room
from kv_sim.config import BUILTIN_ENGINE, WorldConfig
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.fuzz import run_seed
from kv_sim.growth.metered import MeteredWorld
from kv_sim.growth.models import MODELS
from kv_sim.site import Site
from kv_sim.subject import Trait
from kv_sim.violation import Invariant, Referee, Violation
from kv_sim.world import World

A, B, C, D = (make_offload_key(bytes([number]), 0) for number in range(4))
REQUEST = ReqContext("r")
PROTOCOL, OWNERSHIP, CONSERVATION = Invariant.PROTOCOL, Invariant.OWNERSHIP, Invariant.CONSERVATION


class Taken(Referee):
    """Writes down what is found instead of raising it."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[tuple[Invariant, str]] = []

    def fail(self, invariant: Invariant, message: str) -> None:
        self.taken.append((invariant, message))


class Shelves(OffloadingManager):
    """Does as it is told, and answers what it is told to."""

    def __init__(self) -> None:
        self.answer: Any = None
        self.heard: list[tuple[str, Any]] = []

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return self.answer  # type: ignore[no-any-return]

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        return self.answer  # type: ignore[no-any-return]

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        return self.answer  # type: ignore[no-any-return]

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        return self.answer  # type: ignore[no-any-return]

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self.heard.append(("complete_load", keys))

    def complete_store(self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True) -> None:
        self.heard.append(("complete_store", (keys, success)))

    def reset_cache(self) -> None:
        self.heard.append(("reset_cache", None))

    def on_reset_flushed(self) -> None:
        self.heard.append(("on_reset_flushed", None))


class Quick(Shelves):
    """The same, with the calls that do several in one."""

    def lookup_prefix(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrefixLookup:
        return self.answer  # type: ignore[no-any-return]

    def prepare_stores(self, stores: Any) -> list[PrepareStoreOutput]:
        return self.answer  # type: ignore[no-any-return]


def guarded(kind: type[Shelves] = Shelves) -> tuple[Shelves, MediumGuard, Taken]:
    manager, notes = kind(), Taken()
    return manager, MediumGuard(manager, notes), notes


def stored(
    keys: list[OffloadKey], places: list[int], evicted: list[OffloadKey] | None = None
) -> PrepareStoreOutput:
    return PrepareStoreOutput(keys, BlockIDsLoadStoreSpec(places), evicted or [])


WRONG: list[tuple[str, Callable[[MediumGuard], object], object, str]] = [
    ("on_new_request", lambda g: g.on_new_request(REQUEST), None, "None, which is no RequestOffloadingContext"),
    ("lookup", lambda g: g.lookup(A, REQUEST), True, "True, which is no LookupResult"),
    ("lookup", lambda g: g.lookup_prefix([A], REQUEST), None, "None, which is no LookupResult"),
    ("prepare_load", lambda g: g.prepare_load([A], REQUEST), [1], "[1], which is no LoadStoreSpec"),
]


@pytest.mark.parametrize(("method", "ask", "answer", "what"), WRONG, ids=range(len(WRONG)))
def test_answers_are_of_the_type_that_is_asked_for(
    method: str, ask: Callable[[MediumGuard], object], answer: object, what: str
) -> None:
    manager = Shelves()
    guard = MediumGuard(manager, Referee())
    manager.answer = answer
    with pytest.raises(Violation) as caught:
        ask(guard)
    assert str(caught.value) == f"PROTOCOL  the medium's Shelves.{method} answered {what}"


@pytest.mark.parametrize("answer", [True, False, None])
def test_a_limit_is_kept_or_not(answer: Any) -> None:
    manager, guard, notes = guarded()
    manager.limit_chunks = lambda num_chunks: answer  # type: ignore[method-assign]
    assert guard.limit_chunks(3) is answer
    told = [(PROTOCOL, "the medium's Shelves.limit_chunks answered None, which is no bool")]
    assert notes.taken == (told if answer is None else [])


@pytest.mark.parametrize("answer", [LookupResult.HIT, LookupResult.HIT_PENDING, LookupResult.RETRY])
def test_right_answers_are_passed_on(answer: LookupResult) -> None:
    manager, guard, notes = guarded()
    manager.answer = answer
    assert guard.lookup(A, REQUEST) is answer
    hits = 2 if answer is LookupResult.HIT else 0
    assert guard.lookup_prefix([A, B], REQUEST) == PrefixLookup(hits, answer)
    manager.answer = RequestOffloadingContext()
    assert guard.on_new_request(REQUEST) is manager.answer
    manager.answer = None
    assert guard.prepare_store([A], REQUEST) is None and guard.prepare_stores([([A], REQUEST)]) == []
    manager.answer = stored([B], [4], [D])
    assert guard.prepare_store([A, B], REQUEST) is manager.answer
    assert guard.prepare_stores([([A, B, C], REQUEST)][:0]) == []
    assert guard.config_info() == [{}], "what isn't judged is the manager's"
    assert notes.taken == []


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (PrefixLookup(2, LookupResult.HIT), None),
        (PrefixLookup(1, LookupResult.MISS), None),
        (PrefixLookup(0, LookupResult.RETRY), None),
        (PrefixLookup(3, LookupResult.HIT), "3 hits of 2 chunks"),
        (PrefixLookup(-1, LookupResult.MISS), "-1 hits of 2 chunks"),
        (PrefixLookup(1, LookupResult.HIT), "1 hits of 2 chunks, and then LookupResult.HIT"),
        (PrefixLookup(2, LookupResult.MISS), "2 hits of 2 chunks, and then LookupResult.MISS"),
    ],
)
def test_hits_of_a_prefix_are_some_of_it_and_then_something_else(answer: PrefixLookup, said: str | None) -> None:
    manager, guard, notes = guarded(Quick)
    manager.answer = answer
    assert guard.lookup_prefix([A, B], REQUEST) is answer
    expected = [] if said is None else [(PROTOCOL, f"the medium's Quick.lookup_prefix answered {said}")]
    assert notes.taken == expected


@pytest.mark.parametrize("answer", [(1, LookupResult.MISS), PrefixLookup(1, False)])  # type: ignore[arg-type]
def test_hits_of_a_prefix_are_a_prefix_lookup(answer: object) -> None:
    manager = Quick()
    guard = MediumGuard(manager, Referee())
    manager.answer = answer
    with pytest.raises(
        Violation, match=r"Quick.lookup_prefix answered .*, which is no (PrefixLookup|LookupResult)$"
    ):
        guard.lookup_prefix([A, B], REQUEST)


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (stored([A, D], [1, 2]), "prepare_store stores 2 chunks of 2 that were offered, 1 that weren't offered"),
        (stored([A, A], [1, 2]), "prepare_store stores 2 chunks of 2 that were offered, some of them twice"),
        (stored([A], [1], [B]), "prepare_store evicts 1 chunks of the same offer"),
        (
            stored([A], [1], ["b"]),
            "prepare_store answered evicted_keys=['b'], expected a list of keys, which are bytes",
        ),  # type: ignore[list-item]
        (
            stored([A], [1], b"b"),
            "prepare_store answered evicted_keys=b'b', expected a list of keys, which are bytes",
        ),  # type: ignore[arg-type]
        (stored([A], [1], 3), "prepare_store answered evicted_keys=3, expected a list of keys, which are bytes"),  # type: ignore[arg-type]
        (stored("ab", [1]), "prepare_store answered keys_to_store='ab', expected a list of keys, which are bytes"),  # type: ignore[arg-type]
    ],
)
def test_what_is_stored_was_offered(output: PrepareStoreOutput, said: str) -> None:
    manager, guard, notes = guarded()
    manager.answer = output
    guard.prepare_store([A, B], REQUEST)
    assert notes.taken == [(PROTOCOL, f"the medium's Shelves.{said}")]


def test_several_stores_are_judged_like_one_after_the_other() -> None:
    manager, guard, notes = guarded(Quick)
    manager.answer = [stored([A], [1]), stored([C], [1])]
    guard.prepare_stores([([A], REQUEST), ([B, C], REQUEST), ([D], REQUEST)])
    assert notes.taken == [
        (OWNERSHIP, "the medium's Quick.prepare_stores gives away what a job still uses: place 1")
    ]
    manager.answer = [stored([], [])] * 2
    guard.prepare_stores([([A], REQUEST)])
    assert notes.taken[1:] == [(PROTOCOL, "the medium's Quick.prepare_stores answered 2 times to 1 stores")]


def test_who_is_asked_for_one_store_at_a_time_is_judged_by_that() -> None:
    manager, guard, notes = guarded()
    manager.answer = stored([D], [1])
    guard.prepare_stores([([A], REQUEST)])
    said = "stores 1 chunks of 1 that were offered, 1 that weren't offered"
    assert notes.taken == [(PROTOCOL, f"the medium's Shelves.prepare_store {said}")]


@pytest.mark.parametrize("what", ["read", "written"])
def test_nothing_in_use_leaves_or_has_its_place_given_away(what: str) -> None:
    manager, guard, notes = guarded()

    def begin() -> None:
        if what == "read":
            manager.answer = BlockIDsLoadStoreSpec([7, 8])
            guard.prepare_load([A, B], REQUEST)
        else:
            manager.answer = stored([A, B], [7, 8])
            guard.prepare_store([A, B], REQUEST)

    def end() -> None:
        if what == "read":
            guard.complete_load([A, B], REQUEST)
        else:
            guard.complete_store([A, B], REQUEST, False)

    begin()
    manager.answer = stored([C], [8], [B, D])
    guard.prepare_store([C], REQUEST)
    evicts = (OWNERSHIP, "the medium's Shelves.prepare_store evicts chunks that jobs read or write: place 8")
    gives = (OWNERSHIP, "the medium's Shelves.prepare_store gives away what a job still uses: place 8")
    assert notes.taken == [evicts, gives]
    guard.complete_store([C], REQUEST)
    notes.taken.clear()
    end()
    begin()
    if what == "read":  # by two jobs, of which one ends
        begin()
        end()
    manager.answer = stored([C], [8], [])
    guard.prepare_store([C], REQUEST)
    assert notes.taken == [gives]
    guard.complete_store([C], REQUEST)
    end()
    manager.answer = stored([C], [8], [A, B])
    guard.prepare_store([C], REQUEST)
    assert notes.taken == [gives]


@pytest.mark.parametrize("places", [LoadStoreSpec(), BlockIDsLoadStoreSpec([5, 6])])
def test_places_that_are_not_one_number_for_each_chunk_are_unknown(places: LoadStoreSpec) -> None:
    manager, guard, notes = guarded()
    manager.answer = places
    guard.prepare_load([A], REQUEST)
    manager.answer = PrepareStoreOutput([C], LoadStoreSpec(), [A])
    guard.prepare_store([C], REQUEST)
    assert notes.taken == [
        (OWNERSHIP, "the medium's Shelves.prepare_store evicts chunks that jobs read or write: 1 of them")
    ]


def test_a_reset_gives_no_place_away_before_jobs_have_ended() -> None:
    manager, guard, notes = guarded()
    manager.answer = stored([A, B], [3, 4])
    guard.prepare_store([A, B], REQUEST)
    guard.reset_cache()
    manager.answer = stored([A, C], [4, 5], [B])
    guard.prepare_store([A, C], REQUEST)
    said = (
        "the medium's Shelves.prepare_store gives away what a job from before the reset may still use, since "
        "on_reset_flushed was not called: place 4"
    )
    assert notes.taken == [(OWNERSHIP, said)], "nothing of before is known, so B may leave"
    guard.complete_store([A, C], REQUEST)
    guard.on_reset_flushed()
    guard.prepare_store([A, C], REQUEST)
    assert len(notes.taken) == 1
    assert manager.heard == [("reset_cache", None), ("complete_store", ([A, C], True)), ("on_reset_flushed", None)]


def test_nor_does_a_reset_after_that() -> None:
    manager, guard, notes = guarded()
    for key, place in ((A, 3), (B, 4)):
        manager.answer = stored([key], [place])
        guard.prepare_store([key], REQUEST)
        guard.reset_cache()
    manager.answer = stored([C, D], [3, 4])
    guard.prepare_store([C, D], REQUEST)
    [(invariant, said)] = notes.taken
    assert invariant is OWNERSHIP
    assert said.endswith("since on_reset_flushed was not called: places 3, 4")


@pytest.mark.parametrize("name", ["offload", "offload-file", "offload+file", "p2p+offload", "later"])
def test_every_medium_of_a_world_is_guarded(name: str) -> None:
    world = World(WorldConfig(), SUBJECTS[name])
    managers = [side.manager for side in sides_of(world.engine.connectors[-1])]
    assert len(managers) == {"offload+file": 2, "later": 0}.get(name, 1)
    assert all(type(manager) is MediumGuard for manager in managers)
    guard_media(world.engine.connectors[0], world.referee)  # a worker's has none
    world.break_off(None)


def test_where_work_is_counted_nobody_is_guarded() -> None:
    world = MeteredWorld(SUBJECTS["offload"], MODELS["full attention"], BUILTIN_ENGINE, 8)
    [side] = sides_of(world._world.engine.connectors[-1])
    assert not isinstance(side.manager, MediumGuard)


# Room


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
    said = "at rest the medium's Losing has room for 3 chunks, and after a reset for 4"
    assert room_of(MediumGuard(manager, Referee()) if is_guarded else manager)[0] == (CONSERVATION, said)  # type: ignore[arg-type]


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


@pytest.mark.parametrize("lost", ALL)
def test_places_that_a_reset_loses_are_missed(lost: str) -> None:
    assert room_of(Shelf(9, ALL)) == []
    found = room_of(Shelf(9, {*ALL} - {lost}))
    said = f"at rest the medium's Shelf has room for 9 chunks, and after a reset while so many were {lost}, for 0"
    assert found[0] == (CONSERVATION, said)


def test_pins_are_missed_of_a_medium_with_more_room_than_is_asked_for() -> None:
    shelf = Shelf(MOST_CHUNKS + 9, ALL)
    shelf.prepare_load([make_offload_key(bytes([number]), 0) for number in range(99)], REQUEST)
    said = (
        f"at rest the medium's Shelf has room for {MOST_CHUNKS - 90} chunks, and after a reset for {MOST_CHUNKS}"
    )
    assert room_of(shelf) == [(CONSERVATION, said)]


class Shrinking(Shelf):
    def reset_cache(self) -> None:
        self.places = 8
        super().reset_cache()


def test_room_that_is_less_after_the_first_reset_is_missed() -> None:
    said = "at rest the medium's Shrinking has room for 9 chunks, and after a reset for 8"
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
    with pytest.raises(Violation, match=r"^NO-CRASH  the medium, at rest: KeyError: 'no' \(test_medium_guard.py:"):
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


# -- what isn't there --------------------------------------------------------------------------


def test_what_has_not_been_stored_is_no_hit() -> None:
    shelves, guard, taken = guarded()

    def found(key: OffloadKey) -> str:
        before = len(taken.taken)
        shelves.answer = LookupResult.HIT
        guard.lookup(key, REQUEST)
        return "; ".join(f"{invariant} {message}" for invariant, message in taken.taken[before:])

    assert [found(key) for key in (A, B)] == ["", ""], "somebody else may have stored it"
    shelves.answer = PrepareStoreOutput([A, B], BlockIDsLoadStoreSpec([1, 2]), [])
    guard.prepare_store([A, B, C], REQUEST)
    said = "HITS the medium's Shelves.lookup finds a chunk whose store"
    assert [found(key) for key in (A, B, C)] == [f"{said} goes on", f"{said} goes on", ""]
    guard.complete_store([A], REQUEST)
    guard.complete_store([B], REQUEST, False)
    guard.complete_store([D], REQUEST, False)  # one that nobody knows is ignored
    assert [found(key) for key in (A, B, D)] == ["", f"{said} failed", ""]
    for answer in (LookupResult.MISS, LookupResult.HIT_PENDING, LookupResult.RETRY):
        shelves.answer = answer
        guard.lookup(B, REQUEST)
    assert len(taken.taken) == 3
    guard.reset_cache()
    assert found(B) == ""


def test_of_a_prefix_only_the_hits_must_be_there() -> None:
    shelves, guard, taken = guarded(Quick)
    shelves.answer = stored([B], [1])
    guard.prepare_store([B], REQUEST)
    shelves.answer = PrefixLookup(1, LookupResult.HIT_PENDING)
    guard.lookup_prefix([A, B], REQUEST)
    assert not taken.taken
    guard.lookup_prefix([B, A], REQUEST)
    assert taken.taken == [(Invariant.HITS, "the medium's Quick.lookup_prefix finds a chunk whose store goes on")]
