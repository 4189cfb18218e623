"""What the manager of a medium answers is judged, and what it does with chunks in use."""

from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import pytest
from kv_sim_shelves import REQUEST, A, B, C, D, Shelves, Taken, stored

from kv_api import (
    BlockIDsLoadStoreSpec,
    LoadStoreSpec,
    LookupResult,
    OffloadKey,
    PrefixLookup,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
)
from kv_sim.actions import Action, Kind
from kv_sim.checkers.media import guard_media, sides_of
from kv_sim.checkers.medium import MOST_OFFERS, MediumGuard
from kv_sim.config import BUILTIN_ENGINE, WorldConfig
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.growth.metered import MeteredWorld
from kv_sim.growth.models import MODELS
from kv_sim.violation import Invariant, Referee, Violation
from kv_sim.world import World

PROTOCOL, OWNERSHIP = Invariant.PROTOCOL, Invariant.OWNERSHIP


class Quick(Shelves):
    """The same, with the calls that do several in one."""

    def lookup_prefix(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrefixLookup:
        return self.answer  # type: ignore[no-any-return]

    def prepare_stores(self, stores: Any) -> list[PrepareStoreOutput]:
        return self.answer  # type: ignore[no-any-return]


def guarded(kind: type[Shelves] = Shelves) -> tuple[Shelves, MediumGuard, Taken]:
    manager, notes = kind(), Taken()
    guard = MediumGuard(manager, notes)
    guard.on_new_request(REQUEST)
    notes.taken.clear()
    return manager, guard, notes


WRONG: list[tuple[str, Callable[[MediumGuard], object], object, str]] = [
    ("on_new_request", lambda g: g.on_new_request(REQUEST), None, "None, expected a RequestOffloadingContext"),
    ("lookup", lambda g: g.lookup(A, REQUEST), True, "True, expected a LookupResult"),
    ("lookup", lambda g: g.lookup_prefix([A], REQUEST), None, "None, expected a LookupResult"),
    ("prepare_load", lambda g: g.prepare_load([A], REQUEST), [1], "[1], expected a LoadStoreSpec"),
    ("prepare_store", lambda g: g.prepare_store([A], REQUEST), [A], f"{[A]}, expected a PrepareStoreOutput"),
    ("take_events", lambda g: g.take_events(), None, "None, expected OffloadingEvents; () for none"),
]


@pytest.mark.parametrize(("method", "ask", "answer", "what"), WRONG, ids=range(len(WRONG)))
def test_answers_are_of_the_type_that_is_asked_for(
    method: str, ask: Callable[[MediumGuard], object], answer: object, what: str
) -> None:
    manager = Shelves()
    guard = MediumGuard(manager, Referee())
    if method != "on_new_request":
        manager.answer = RequestOffloadingContext()
        guard.on_new_request(REQUEST)
    manager.answer = answer
    with pytest.raises(Violation) as caught:
        ask(guard)
    assert str(caught.value) == f"PROTOCOL  the medium's Shelves.{method} answered {what}"


def test_what_is_being_stored_is_not_stored_again_until_that_has_ended() -> None:
    manager, guard, notes = guarded()
    manager.answer = stored([A, B], [1, 2])
    guard.prepare_store([A, B], REQUEST)
    guard.complete_store([B], REQUEST, success=False)
    manager.answer = stored([B, A], [3, 4])
    guard.prepare_store([A, B], REQUEST)
    assert notes.taken == [
        (
            PROTOCOL,
            "the medium's Shelves.prepare_store stores 1 chunks whose store hasn't ended: leave them out",
        )
    ]


def test_it_is_counted_how_often_there_was_room() -> None:
    manager, room = Quick(), Counter[str]()
    guard = MediumGuard(manager, Taken(), room)
    for answer in (stored([A], [1]), stored([B], [1], [A]), None):
        manager.answer = answer
        guard.prepare_store([B], REQUEST)
    assert room == {"free": 1, "full": 2}
    manager.answer = [stored([C], [3])]
    guard.prepare_stores([([C], REQUEST)])
    guard.prepare_stores([([C], REQUEST), ([D], REQUEST)])
    assert room == {"free": 3, "full": 3}


def test_an_answer_without_a_name_is_told_without_its_address() -> None:
    manager, guard, notes = guarded()
    manager.answer = object()
    guard.lookup(A, REQUEST)
    assert notes.taken == [
        (PROTOCOL, "the medium's Shelves.lookup answered <object object>, expected a LookupResult")
    ]


@pytest.mark.parametrize("answer", [True, False, None])
def test_a_limit_is_kept_or_not(answer: Any) -> None:
    manager, guard, notes = guarded()
    manager.limit_chunks = lambda num_chunks: answer  # type: ignore[method-assign]
    assert guard.limit_chunks(3) is answer
    told = [(PROTOCOL, "the medium's Shelves.limit_chunks answered None, expected a bool")]
    assert notes.taken == (told if answer is None else [])


@pytest.mark.parametrize("answer", [LookupResult.HIT, LookupResult.HIT_PENDING, LookupResult.RETRY])
def test_right_answers_are_passed_on(answer: LookupResult) -> None:
    manager, guard, notes = guarded()
    manager.answer = answer
    assert guard.lookup(A, REQUEST) is answer
    hits = 2 if answer is LookupResult.HIT else 0
    assert guard.lookup_prefix([A, B], REQUEST) == PrefixLookup(hits, answer)
    manager.answer = RequestOffloadingContext()
    assert guard.on_new_request(ReqContext("another")) is manager.answer
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
    manager.answer = RequestOffloadingContext()
    guard.on_new_request(REQUEST)
    manager.answer = answer
    with pytest.raises(
        Violation, match=r"Quick.lookup_prefix answered .*, expected a (PrefixLookup|LookupResult)$"
    ):
        guard.lookup_prefix([A, B], REQUEST)


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (stored([A, D], [1, 2]), "prepare_store stores 2 chunks of 2 that were offered, 1 that weren't offered"),
        (stored([A, A], [1, 2]), "prepare_store stores 2 chunks of 2 that were offered, some of them twice"),
        (stored([A], [1], [B]), "prepare_store evicts 1 chunks that are in the same offer"),
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
        (OWNERSHIP, "the medium's Quick.prepare_stores gives a new chunk a place that a job still uses: place 1")
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
    gives = (
        OWNERSHIP,
        "the medium's Shelves.prepare_store gives a new chunk a place that a job still uses: place 8",
    )
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


@pytest.mark.parametrize("places", [LoadStoreSpec(), *map(BlockIDsLoadStoreSpec, ([5], [5, 6, 7]))])
def test_places_that_are_not_one_number_for_each_chunk_are_unknown(places: LoadStoreSpec) -> None:
    manager, guard, notes = guarded()
    manager.answer = places
    guard.prepare_load([A, B], REQUEST)
    manager.answer = PrepareStoreOutput([C], LoadStoreSpec(), [A])
    guard.prepare_store([C], REQUEST)
    assert notes.taken == [
        (OWNERSHIP, "the medium's Shelves.prepare_store evicts chunks that jobs read or write: 1 of them")
    ]


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_reset_gives_no_place_away_before_jobs_have_ended(is_shared: bool) -> None:
    manager, guard, notes = guarded()
    guard.others += [guarded()[1]] if is_shared else []
    manager.answer = stored([A, B], [3, 4])
    guard.prepare_store([A, B], REQUEST)
    guard.reset_cache()
    manager.answer = stored([A, C], [4, 5], [B])
    guard.prepare_store([A, C], REQUEST)
    said = (
        "the medium's Shelves.prepare_store gives a new chunk a place that a job from before the reset may "
        "still use, since on_reset_flushed was not called: place 4"
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


# -- what isn't there --------------------------------------------------------------------------


class Dropping(Shelves):
    """Notes which chunks are dropped."""

    def drop(self, keys: Collection[OffloadKey]) -> None:
        self.heard.append(("drop", keys))


def test_what_was_dropped_is_not_stored_again_before_its_job_has_ended() -> None:
    manager, guard, notes = guarded(Dropping)
    manager.answer = stored([A], [1])
    guard.prepare_store([A], REQUEST)
    guard.drop([A, B])
    assert manager.heard == [("drop", [A, B])]
    manager.answer = stored([A], [2])
    guard.prepare_store([A], REQUEST)
    said = "stores 1 chunks whose store hasn't ended, although drop was called meanwhile: leave them out"
    assert notes.taken == [(PROTOCOL, f"the medium's Dropping.prepare_store {said}")]
    guard.complete_store([A], REQUEST, success=False)
    guard.complete_store([A], REQUEST)
    manager.answer = stored([A], [3])
    guard.prepare_store([A], REQUEST)
    manager.answer = stored([A], [4])
    guard.prepare_store([A], REQUEST)
    without_drop = said.replace(", although drop was called meanwhile", "")
    assert notes.taken[1:] == [(PROTOCOL, f"the medium's Dropping.prepare_store {without_drop}")]


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
    assert [found(key) for key in (A, B, C)] == [f"{said} hasn't ended", f"{said} hasn't ended", ""]
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
    said = (Invariant.HITS, "the medium's Quick.lookup_prefix finds a chunk whose store hasn't ended")
    assert taken.taken == [said]
    shelves.answer = PrefixLookup(2, LookupResult.HIT_PENDING)
    guard.lookup_prefix([A, B, C], REQUEST)
    assert taken.taken == [said, said], "each hit is looked at, not only the first"


@pytest.mark.parametrize("kind", [Shelves, Quick])
def test_a_request_is_known_from_its_begin_to_its_end(kind: type[Shelves]) -> None:
    """Its jobs end later, and another one of its id may begin then; or it may itself."""
    manager, guard, notes = guarded(kind)
    manager.answer = [] if kind is Quick else None
    context, again = ReqContext("r1"), ReqContext("r1")

    def told_of(call: Callable[[], object]) -> list[str]:
        notes.taken.clear()
        call()
        return [said for invariant, said in notes.taken if invariant is PROTOCOL and "is called for" in said]

    def told_of_all(of: ReqContext) -> list[list[str]]:
        calls: list[Callable[[], object]] = [
            lambda: guard.lookup(A, of),
            lambda: guard.prepare_load([A], of),
            lambda: guard.prepare_stores([([A], of)]),
        ]
        return [told_of(call) for call in calls]

    names = ["lookup", "prepare_load", "prepare_stores" if kind is Quick else "prepare_store"]
    wrong = [
        [
            f"the medium's {kind.__name__}.{name} is called for request r1 before on_new_request or after "
            "on_request_finished, when a medium may not know it"
        ]
        for name in names
    ]
    assert told_of_all(context) == wrong
    guard.on_new_request(context)
    assert told_of_all(context) == [[]] * 3
    assert told_of_all(again) == wrong
    assert told_of(lambda: guard.on_request_finished(context)) == []
    assert told_of(lambda: guard.complete_load([A], context)) == []
    assert told_of_all(context) == wrong
    guard.on_new_request(again)
    assert told_of_all(again) == [[]] * 3


def test_a_prefix_is_looked_up_for_a_request_that_has_begun() -> None:
    manager, guard, notes = guarded(Quick)
    manager.answer = PrefixLookup(1, LookupResult.HIT)
    guard.lookup_prefix([A], REQUEST)
    assert not notes.taken
    guard.on_request_finished(REQUEST)
    guard.lookup_prefix([A], REQUEST)
    [(invariant, said)] = notes.taken
    assert invariant is PROTOCOL
    assert said.startswith(
        "the medium's Quick.lookup_prefix is called for request r before on_new_request or after"
    )


def test_a_request_begins_once_and_ends_once() -> None:
    manager, guard, notes = guarded()
    manager.answer = RequestOffloadingContext()
    first, second = ReqContext("r1"), ReqContext("r1")
    ends = "the medium's Shelves.on_request_finished is called for request r1 before on_new_request or after "

    def told_of(call: Callable[[], object]) -> list[str]:
        notes.taken.clear()
        call()
        return [said for _, said in notes.taken]

    assert [said.startswith(ends) for said in told_of(lambda: guard.on_request_finished(first))] == [True]
    assert told_of(lambda: guard.on_new_request(first)) == []
    for one in (first, second):
        assert told_of(lambda one=one: guard.on_new_request(one)) == [  # type: ignore[misc]
            "the medium's Shelves.on_new_request is called for request r1, and one of this id hasn't ended"
        ]
    assert [said.startswith(ends) for said in told_of(lambda: guard.on_request_finished(first))] == [True]
    assert told_of(lambda: guard.on_new_request(second)) == []
    assert told_of(lambda: guard.on_request_finished(second)) == []
    assert [said.startswith(ends) for said in told_of(lambda: guard.on_request_finished(second))] == [True]


def test_at_rest_every_request_has_ended() -> None:
    manager, guard, notes = guarded()
    manager.answer = RequestOffloadingContext()
    guard.on_new_request(ReqContext("a"))
    guard.check_ended()
    guard.on_request_finished(REQUEST)
    assert notes.taken == [
        (
            PROTOCOL,
            "the medium's Shelves.on_request_finished was not called for a, r: they have ended, and a medium "
            "keeps what it knows of them",
        )
    ]


@pytest.mark.parametrize("name", ["offload", "later+offload", "offload+file"])
def test_a_connector_that_ends_a_request_twice_or_never_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of aborted requests, which hold no blocks any more."""
    end = MediumGuard.on_request_finished
    subject = SUBJECTS[name]
    for times, said in (
        (2, "on_request_finished is called for request r1 before"),
        (0, "was not called for r1: "),
    ):

        def ends(guard: MediumGuard, context: ReqContext, *, times: int = times) -> None:
            for _ in range(times):
                end(guard, context)

        monkeypatch.setattr(MediumGuard, "on_request_finished", ends)
        world = World(WorldConfig(host_slots=8), subject)
        spec = RequestSpec("r1", 0, 8, 0, 1, 1)
        world.apply(Action(Kind.ADD, {"spec": spec.to_json()}))
        with pytest.raises(Violation, match=said) as caught:
            world.replay([Action(Kind.ABORT, {"request": "r1"})])
        assert caught.value.invariant is PROTOCOL


def test_what_was_answered_is_not_offered_again_and_again() -> None:
    manager, guard, notes = guarded()
    manager.answer = stored([], [])
    first, second = ReqContext("r1"), ReqContext("r2")
    for context in (first, second):
        guard.on_new_request(context)
    notes.taken.clear()
    guard.prepare_store([], first)
    for context in (first, second, first):
        for _ in range(MOST_OFFERS):
            guard.prepare_store([A], context)
        guard.reset_cache()
    manager.answer = None
    for _ in range(MOST_OFFERS):
        guard.prepare_store([B], second)  # what is refused is asked for later
    manager.answer = stored([], [])
    for _ in range(MOST_OFFERS):
        guard.prepare_store([B], second)
    assert notes.taken == []
    guard.prepare_store([C, B], second)
    said = "prepare_store was offered one chunk of request r2 51 times, and answered each time"
    assert notes.taken == [(Invariant.WORK, f"the medium's Shelves.{said}")]


def test_an_offer_counts_once_for_each_chunk_and_only_while_its_request_lasts() -> None:
    manager, guard, notes = guarded()
    context = ReqContext("r1")
    manager.answer = RequestOffloadingContext()
    guard.on_new_request(context)
    manager.answer = stored([], [])
    for _ in range(MOST_OFFERS):
        guard.prepare_store([A, A], context)
    guard.on_request_finished(context)
    manager.answer = RequestOffloadingContext()
    guard.on_new_request(context)
    manager.answer = stored([], [])
    guard.prepare_store([A], context)
    assert notes.taken == []


def test_offers_of_several_stores_at_once_are_counted() -> None:
    manager, guard, notes = guarded(Quick)
    manager.answer = [stored([], [])]
    for _ in range(MOST_OFFERS):
        guard.prepare_stores([([A], REQUEST)])
    assert notes.taken == []
    guard.prepare_stores([([A], REQUEST)])
    [(invariant, said)] = notes.taken
    assert invariant is Invariant.WORK and "offered one chunk of request r 51 times" in said
