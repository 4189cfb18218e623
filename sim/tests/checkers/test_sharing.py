"""Engines that share a store: what is found of each other's, and not of a stranger's; what a reset takes back."""

from collections import Counter
from dataclasses import replace
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from kv_sim_notes import Notes

from kv_api import BlockRemoved, Direction, LookupResult, ReqContext, make_offload_key
from kv_sim.actions import Action, Kind
from kv_sim.checkers import at_rest, hits, sharing
from kv_sim.checkers.accounting import Mirror
from kv_sim.checkers.media import sides_of
from kv_sim.checkers.served import Served
from kv_sim.config import Stranger, WorldConfig
from kv_sim.engine.request import SimRequest, Status
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import SHARED, SUBJECTS
from kv_sim.examples.shared import SharedConnector, SharedScheduler
from kv_sim.history.draws import config_for
from kv_sim.memory.copy import State
from kv_sim.offload.files import _number_of
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Violation
from kv_sim.world import World

TWO = WorldConfig(engines=2, prefix_caching=False)
LENT, STRANGE = "a load of what another engine stored", "a stranger's KV is not found"
FORGET = {"running": False, "connector": True}


def comes(name: str, tokens: int = 9, engine: int = 0) -> Action:
    spec = RequestSpec(name, 0, tokens, 0, 1, 1)
    return Action(Kind.ADD, {"engine": engine, "spec": spec.to_json()})


def step(engine: int = 0) -> Action:
    return Action(Kind.STEP, {"engine": engine})


STORED = (comes("r1"), *[step()] * 3)
"""Two blocks are, at the first engine."""


def world_after(*actions: Action, subject: Subject = SHARED, config: WorldConfig = TWO) -> World:
    world = World(config, subject)
    for action in actions:
        world.apply(action)
    return world


def situations(world: World) -> tuple[int, int]:
    return world.coverage.situations[LENT], world.coverage.situations[STRANGE]


def what_is_wrong(*actions: Action, subject: Subject = SHARED, config: WorldConfig = TWO) -> str | None:
    try:
        at_rest.check(world_after(*actions, subject=subject, config=config))
    except Violation as found:
        return str(found)
    return None


def test_what_one_stored_is_loaded_at_the_other() -> None:
    world = world_after(*STORED, comes("r2", engine=1), step(1))
    assert situations(world) == (1, 0)
    assert world.engines[1].served.found == {"r2": 8}
    assert world.rest() is None


@pytest.mark.parametrize("ranks", [1, 2])
def test_files_that_engines_share_are_read_from_where_they_lie(ranks: int) -> None:
    """No load of them fails, which would be recomputed."""
    files = SUBJECTS["offload-file-shared"]
    world = world_after(*STORED, comes("r2", engine=1), subject=files, config=replace(TWO, tp_size=ranks))
    assert world.rest() is None
    assert situations(world)[0] > 0
    assert world.engines[1].served.found["r2"] == 8
    loads = [
        copy
        for device in world.engines[1].devices
        for copy in device.copies.ended
        if copy.direction is Direction.LOAD
    ]
    assert len(loads) >= ranks
    assert {copy.state for copy in loads} == {State.DONE}


@pytest.mark.parametrize(("name", "number"), [("world", 0), ("world-0", 0), ("world-1", 1), ("", 0), (None, 0)])
def test_who_shares_files_has_the_number_of_its_engine(name: str | None, number: int) -> None:
    assert _number_of(name) == number


def test_a_stranger_has_whole_blocks_of_another_size() -> None:
    sizes = [(8, 8), (8, 2), (4, 4), (2, 1)]
    strangers = [
        WorldConfig(engines=2, block_size=size, hashes_per_block=hashes, stranger="blocks").at(1)
        for size, hashes in sizes
    ]
    assert [(one.block_size, one.hashes_per_block) for one in strangers] == [(4, 4), (4, 2), (8, 4), (4, 1)]


def test_a_stranger_has_another_number_of_ranks() -> None:
    ranks = [WorldConfig(engines=2, tp_size=size, stranger="ranks").at(1).tp_size for size in (1, 2, 4)]
    assert ranks == [2, 1, 1]


def test_what_one_has_stored_itself_is_not_lent() -> None:
    elsewhere = (comes("r3", 5, 1), step(1), comes("r4", 5, 1), step(1))
    world = world_after(*STORED, comes("r2"), step(), *elsewhere)
    assert situations(world) == (1, 0), "what r3 has of the other engine is this one's, too, from then on"
    assert world.engines[0].served.found == {"r1": 0, "r2": 8}


@pytest.mark.parametrize("stranger", ["model", "path", "dtype", "blocks", "ranks"])
def test_of_a_stranger_nothing_is_found(stranger: Stranger) -> None:
    config = replace(TWO, stranger=stranger)
    world = world_after(*STORED, comes("r2", engine=1), step(1), config=config)
    assert world.engines[1].served.found == {"r2": 0}
    assert situations(world) == (0, int(stranger != "blocks"))  # there hashes are others
    assert world.rest() is None
    here, there = (engine.config for engine in world.engines)
    assert here.stranger == "none"
    assert there.stranger == stranger
    assert (there.block_size == here.block_size, there.tp_size == here.tp_size) == (
        stranger != "blocks",
        stranger != "ranks",
    )


class _KnowsNoModel(SharedScheduler):
    def _means(self) -> tuple[Any, ...]:
        return ("all",)


class KnowsNoModel(SharedConnector):
    scheduler_class = _KnowsNoModel


@pytest.mark.parametrize(
    ("stranger", "whose"),
    [
        ("model", "of another model"),
        ("path", "of another model"),
        ("dtype", "of another data type"),
        ("ranks", "of an engine with another layout"),
    ],
)
def test_a_strangers_bytes_are_told_as_such(stranger: Stranger, whose: str) -> None:
    subject = replace(SHARED, kv_connector="KnowsNoModel", module_path=__name__)
    history, config = (*STORED, comes("r2", engine=1)), replace(TWO, stranger=stranger, tp_size=2)
    assert what_is_wrong(*history, subject=subject, config=config) == (
        "HITS  engine 1 request r2: get_num_new_matched_tokens(…, 0) found 8 tokens, but no request with the same "
        "prefix, salt, adapter and images has computed block 0 of its tokens; an engine with incompatible KV has"
    )
    plain = replace(subject, traits=frozenset())
    found = what_is_wrong(*history, subject=plain, config=config)
    assert found is not None
    assert found.startswith(
        f"CONTENT  engine 1 request r2 token 0: rank 0 block 1 holds token 0 of request r1, {whose}, last "
    )
    assert what_is_wrong(*history, subject=subject) is None


class _StoresNothing(SharedScheduler):
    def _begin(self, key: Any) -> None:
        return None


class StoresNothing(SharedConnector):
    scheduler_class = _StoresNothing


class _FindsItsOwn(SharedScheduler):
    def _means(self) -> tuple[Any, ...]:
        assert self._vllm_config.kv_transfer_config is not None
        return (self._vllm_config.kv_transfer_config.engine_id, *super()._means())


class FindsItsOwn(SharedConnector):
    scheduler_class = _FindsItsOwn


def test_what_is_not_found_at_the_other_is_missed() -> None:
    its_own = replace(SHARED, kv_connector="FindsItsOwn", module_path=__name__)
    found = what_is_wrong(*STORED, subject=replace(its_own, evicts_oldest=False))
    assert found is not None
    assert found.startswith(
        "HITS  engine 1 request r1 is repeated at rest: 0 of its 9 tokens are found, but earlier "
    )
    assert what_is_wrong(subject=its_own) == (
        "HITS  engine 1 request lent-0 arrives at rest: 0 of its first 88 tokens are found, but engine "
        "0, which shares "
        "the store, has just computed them all"
    )


class _TellsLater(SharedScheduler):
    _new: tuple[tuple[Any, ...], ...] = ((), (), ())
    """By how many steps ago its store was planned."""

    @property
    def _told(self) -> set[Any]:
        told: set[Any] = vars(self._store).setdefault("told", set())
        return told

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        self._told.update(self._new[-1])
        self._new = ((), *self._new[:-1])
        return super().build_connector_meta(scheduler_output)

    def _begin(self, key: Any) -> Any:
        self._new = ((*self._new[0], key), *self._new[1:])
        return super()._begin(key)

    def _finds(self, key: Any) -> bool:
        return key in self._told and super()._finds(key)


class TellsLater(SharedConnector):
    scheduler_class = _TellsLater


def test_who_tells_of_a_store_in_a_later_step_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = replace(SHARED, kv_connector="TellsLater", module_path=__name__)
    assert what_is_wrong(*STORED, subject=subject) is None
    monkeypatch.setattr(sharing, "let_all_hear", lambda sites, settle: True)
    found = what_is_wrong(*STORED, subject=subject)
    assert found is not None
    assert found.startswith("HITS  engine ")


def test_who_tells_of_a_store_later_gets_steps_before_each_is_asked_for_what_there_was() -> None:
    """Also where no new prompt comes."""
    subject = replace(SHARED, kv_connector="TellsLater", module_path=__name__, evicts_oldest=False)
    assert what_is_wrong(*STORED, subject=subject) is None


def test_of_who_does_not_claim_to_keep_what_it_has_nothing_new_is_asked() -> None:
    its_own = replace(SHARED, kv_connector="FindsItsOwn", module_path=__name__, traits=frozenset())
    assert what_is_wrong(*STORED, subject=its_own) is None


def test_a_reset_comes_when_all_have_been_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """From then on nothing is known of what others have."""
    asked: list[tuple[str, int]] = []

    def notes(name: str) -> Any:
        return lambda site, *more: asked.append((name, site.place.number))

    monkeypatch.setattr(sharing, "check_lent", notes("lent"))
    monkeypatch.setattr(hits, "check_forgotten", notes("forgotten"))
    assert what_is_wrong(*STORED) is None
    assert asked == [("lent", 0), ("lent", 1), ("forgotten", 0), ("forgotten", 1)]


@pytest.mark.parametrize("who", [0, 1])
def test_after_a_reset_nothing_is_demanded_of_the_other(who: int) -> None:
    reset = Action(Kind.RESET, {"engine": who, **FORGET})
    stores_nothing = replace(SHARED, kv_connector="StoresNothing", module_path=__name__, evicts_oldest=False)
    history = (comes("r1", engine=1 - who), *[step(1 - who)] * 3)
    assert what_is_wrong(*history, subject=stores_nothing) is not None
    assert what_is_wrong(*history, reset, subject=stores_nothing) is None


# -- what may be found -------------------------------------------------------------------------


def sampled(name: str, tokens: int = 9, computed: int = 9) -> SimRequest:
    request = SimRequest(RequestSpec(name, 0, tokens, 0, 1, 1), 4, 0)
    request.num_computed_tokens = computed
    return request


def two(notes: Notes, *, forgets: bool = False) -> tuple[Served, Served]:
    kind = {"is_on": not forgets, "forgets": forgets}
    made = Served(notes, 4, **kind), Served(notes, 4, **kind)
    for one, other in (made, reversed(made)):
        one.shares_with.append(other)
    return made


def may_find(served: Served, count: int = 8) -> bool:
    notes: Any = served._referee
    before = len(notes.told)
    served.check_match(sampled("r9"), 0, count)
    return len(notes.told) == before


@pytest.mark.parametrize("forgets", [False, True])
def test_a_reset_is_of_one_engine_and_takes_back_what_anybody_computed(forgets: bool) -> None:
    here, there = two(Notes(), forgets=forgets)
    ended = sampled("r1")
    there.compute(ended)
    ended.status = Status.FINISHED_STOPPED
    assert (may_find(here), may_find(there)) == (True, True)
    here.reset([])
    assert (may_find(here), may_find(there)) == (False, True)
    assert (here.resets, there.resets) == (1, 0)
    there.compute(sampled("r2", computed=4))
    assert (may_find(here, 4), may_find(here)) == (True, False)
    here.compute(sampled("r3"))
    assert (may_find(here), may_find(there)) == (True, True)


def test_what_goes_on_elsewhere_may_be_stored_after_a_reset() -> None:
    here, there = two(Notes())
    there.compute(sampled("r1", computed=4))
    here.reset([])
    assert (may_find(here, 4), may_find(here)) == (True, False)


def test_what_ran_before_anybodys_reset_need_not_be_found() -> None:
    here, there = two(Notes())
    requests = [sampled("r1"), sampled("r2"), sampled("r3")]
    for request in requests:
        request.status = Status.FINISHED_STOPPED
    there.compute(requests[0])
    here.compute(requests[1])
    here.reset([requests[1]])
    there.compute(requests[2])
    judged = there.is_fair(requests[0]), here.is_fair(requests[1]), there.is_fair(requests[2])
    assert judged == (False, False, True)


def test_whose_a_block_is() -> None:
    here, there = two(Notes())
    strange = Served(Notes(), 4, is_on=True)
    strange.strangers, here.strangers = [here], [strange]
    here.compute(sampled("r1", computed=4))
    there.compute(sampled("r2", computed=8))
    strange.compute(sampled("r3", 13, computed=12))
    asks = sampled("r4", 13)
    spans = [(0, 4), (0, 8), (4, 8), (4, 4)]
    assert [here.is_of_others(asks, *span) for span in spans] == [False, True, True, False]
    assert [here.is_of_strangers(asks, start) for start in (0, 4, 8, 12)] == [False, False, True, False]
    assert not strange.is_of_strangers(asks, 8)
    assert strange.is_of_strangers(sampled("r5", 13), 0) is False, "it has computed that, too"


def test_what_is_its_own_is_what_it_computed_since_its_reset() -> None:
    """Whatever it claims: loads of what others stored are counted for all."""
    for is_on in (False, True):
        here, there = Served(Notes(), 4, is_on=is_on), Served(Notes(), 4, is_on=is_on)
        here.shares_with = [there]
        here.compute(sampled("r1"))
        assert not here.is_of_others(sampled("r2"), 0, 8)
        here.reset([])
        assert here.is_of_others(sampled("r2"), 0, 8)


def test_a_block_that_is_not_full_is_no_strangers() -> None:
    """What will be sampled is known here, and nobody else knows it."""
    here, strange = Served(Notes(), 4, is_on=True), Served(Notes(), 4, is_on=True)
    here.strangers, strange.strangers = [strange], [here]
    computed, asks = (SimRequest(RequestSpec(name, 0, 6, 0, 8, 8), 4, 8) for name in ("r1", "r2"))
    computed.num_computed_tokens = computed.num_output_tokens = 8
    strange.compute(computed)
    assert here.is_of_strangers(asks, 0)
    assert not here.is_of_strangers(asks, 4)


def test_what_goes_on_within_a_block_elsewhere_may_be_stored_after_a_reset() -> None:
    notes = Notes()
    here, there = (Served(notes, 4, is_on=True, hashes_per_block=2, ends_within=True) for _ in range(2))
    here.shares_with, there.shares_with = [there], [here]
    living = SimRequest(RequestSpec("r1", 0, 9, 0, 1, 1), 4, 0, hashes_per_block=2)
    living.num_computed_tokens = 6
    there.compute(living)
    here.reset([])
    here.check_match(living, 0, 6)
    assert notes.take() == []
    living.status = Status.FINISHED_STOPPED
    here.reset([])
    here.check_match(living, 4, 2)
    assert len(notes.take()) == 1


# -- what else there is of each ------------------------------------------------------------------


def test_who_evicts_what_another_one_stored_may_tell_it() -> None:
    removed = [BlockRemoved([b"a"], "CPU")]
    for is_exact, is_shared in product((False, True), repeat=2):
        notes = Notes()
        Mirror(notes, is_exact=is_exact, is_shared=is_shared).take(removed)
        assert len(notes.told) == (0 if is_shared and not is_exact else 1)


def test_a_medium_may_find_what_another_engine_has_stored_while_its_own_store_goes_on() -> None:
    """Here nothing is shared in truth: what is found is made up."""
    subject = replace(SUBJECTS["offload"], shares_store=True, engines=2)
    world = World(TWO, subject)
    key, context = make_offload_key(b"k" * 8, 0), ReqContext("r1")
    (here, there) = [side.manager for engine in world.engines for side in sides_of(engine.connectors[-1])]
    for guard in here, there:
        guard.on_new_request(context)
        assert guard.prepare_store([key], context).keys_to_store == [key]
        guard.manager = SimpleNamespace(lookup=lambda *asked: LookupResult.HIT, complete_store=lambda *said: None)
    with pytest.raises(Violation, match=r"HITS  engine 0 the medium.s .* finds a chunk whose store hasn't ended"):
        here.lookup(key, context)
    there.complete_store([key], context)
    assert here.lookup(key, context) is LookupResult.HIT
    assert there.lookup(key, context) is LookupResult.HIT


@pytest.mark.parametrize("ranks", [False, True])
def test_strangers_are_in_half_of_the_worlds_of_who_claims_them(ranks: bool) -> None:
    claimed = frozenset({Trait.STRANGERS, *([Trait.RANKS] if ranks else [])})
    strange = replace(SHARED, traits=claimed)
    drawn = [
        (
            config_for(strange, Random(seed)),
            config_for(replace(strange, traits=claimed - {Trait.STRANGERS}), Random(seed)),
        )
        for seed in range(200)
    ]
    assert {plain.stranger for _, plain in drawn} == {"none"}
    assert all(replace(one, stranger="none", role=plain.role) == plain for one, plain in drawn), (
        "no more is another"
    )
    assert all((one.engines, plain.engines) == (2, 2) for one, plain in drawn)
    assert {one.role for one, _ in drawn if one.stranger != "none"} == {"kv_both"}
    kinds = Counter(one.stranger for one, _ in drawn)
    assert set(kinds) == {"none", "model", "path", "dtype", "blocks", *(["ranks"] if ranks else [])}
    assert 60 < kinds["none"] < 140
    assert kinds["model"] + kinds["dtype"] > 1.2 * kinds["path"] > kinds["dtype"] / 2
    assert all(kinds[one] > 10 for one in set(kinds) - {"none"}), "the type takes the place of the model alone"


def test_in_some_worlds_one_engine_only_stores_and_the_other_only_loads() -> None:
    """A quarter each of those that don't run ahead: a producer's blocks are freed at once."""
    drawn = [config_for(replace(SHARED, traits=frozenset()), Random(seed)) for seed in range(300)]
    assert {config.role for config in drawn if config.run_ahead} == {"kv_both"}
    roles = Counter(config.role for config in drawn if not config.run_ahead)
    assert roles["kv_both"] > 1.4 * max(roles["kv_producer"], roles["kv_consumer"])
    assert min(roles["kv_producer"], roles["kv_consumer"]) > 20
    parted = next(config for config in drawn if config.role == "kv_producer")
    assert (parted.at(0).role, parted.at(1).role) == ("kv_producer", "kv_consumer")


# -- who is driven so --------------------------------------------------------------------------


def test_a_place_says_which_model_and_which_folder() -> None:
    world = World(replace(TWO, stranger="path"), SHARED)
    here, there = (engine.place for engine in world.engines)
    assert here.folder is there.folder
    assert here.model == f"kv-sim/{here.deployment}"
    assert there.model == f"elsewhere/{here.deployment}"
    other = World(replace(TWO, stranger="model"), SHARED).engines
    named = f"kv-sim/{other[0].place.deployment}"
    assert [engine.place.model for engine in other] == [named, f"{named}-other"]
    typed = World(replace(TWO, stranger="dtype"), SHARED).engines
    assert len({engine.place.model for engine in typed}) == 1
    told = [engine.describe(SHARED, 0).model_config for engine in typed]
    assert [model.dtype for model in told] == ["float32", "bfloat16"]
    assert {engine.config.dtype for engine in (*world.engines, *other)} == {"float32"}
    alone = World(TWO, replace(SHARED, shares_store=False, traits=frozenset()))
    assert alone.engines[0].place.folder is not alone.engines[1].place.folder
    assert situations(alone) == (0, 0)


@pytest.mark.parametrize("more", [{"engines": 1}, {"serves_peers": True}])
def test_a_store_is_shared_by_two_and_without_tickets(more: dict[str, Any]) -> None:
    with pytest.raises(
        ValueError, match="shares_store: expected engines=2 and serves_peers=False beside it, got "
    ):
        replace(SHARED, **more)


def test_what_could_be_claimed() -> None:
    assert {*Trait} - {*SHARED.possible_traits} == {Trait.HOLDS, Trait.TICKETS}
    assert Trait.STRANGERS not in replace(SHARED, shares_store=False, traits=frozenset()).possible_traits
