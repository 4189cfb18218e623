"""Who gets whose ticket, of a router that can be trusted and of one that can't, and who comes for what is left."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from kv_api import Request
from kv_p2p import P2PSchedulerSide
from kv_sim.config import Role, WorldConfig
from kv_sim.engine.engine import Engine
from kv_sim.engine.pool import BlockPool
from kv_sim.engine.request import SimRequest, Status
from kv_sim.engine.request_spec import RequestSpec, Turn
from kv_sim.examples.catalogue import P2P, P2P_TWO
from kv_sim.history.arrivals import Arrivals
from kv_sim.history.router import KNOWN_TICKETS, UNWANTED, Router
from kv_sim.p2p import WorldP2PConnector
from kv_sim.site import Call
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Violation
from kv_sim.world import World

WANTED = {"do_remote_decode": True}
FAIR = replace(P2P, traits=P2P.traits - {Trait.TICKETS})


def ticket(name: str) -> dict[str, Any]:
    return {"do_remote_prefill": True, "remote_request_id": name}


def request(tokens: int, conversation: int = 0, **more: Any) -> SimRequest:
    return SimRequest(RequestSpec(f"r{tokens}", conversation, tokens, 0, 1, 1, **more), 4, 40)


def router(*, is_fair: bool = False) -> Router:
    return Router(World(WorldConfig(num_blocks=80), P2P).engines, is_fair=is_fair)


def params(router: Router, request: SimRequest) -> dict[str, Any]:
    """What a request gets that comes to the only engine."""
    return router.params_for(router.engines[0], request)


def learn(router: Router, request: SimRequest, ticket: dict[str, Any]) -> None:
    router.learn(router.engines[0], request, ticket, ())


def given(router: Router, request: SimRequest) -> Any:
    """Whose ticket a request gets."""
    got = params(router, request)
    assert bool(got.get("do_remote_prefill")) is ("remote_request_id" in got)
    return got.get("remote_request_id")


def test_a_ticket_is_for_who_begins_with_its_prompt() -> None:
    one = router()
    learn(one, request(2), ticket("a"))
    learn(one, request(3), ticket("b"))
    assert params(one, request(2)) == {**ticket("a"), **WANTED}
    assert params(one, request(3, conversation=1)) == WANTED
    assert params(one, request(4)) == {**ticket("b"), **WANTED}  # left for the next one, too
    assert params(one, request(3)) == {**ticket("b"), "do_remote_decode": False}
    assert params(one, request(3)) == WANTED


def test_the_newest_ticket_of_a_prompt_counts_and_few_are_known() -> None:
    one = router()
    for count in range(1, KNOWN_TICKETS + 2):
        learn(one, request(1, conversation=count), ticket(f"old {count}"))
    learn(one, request(1, conversation=2), ticket("new"))
    assert given(one, request(1, conversation=1)) is None
    assert given(one, request(1, conversation=2)) == "new"
    rest = [given(one, request(1, conversation=count)) for count in range(3, KNOWN_TICKETS + 2)]
    assert rest == [f"old {count}" for count in range(3, KNOWN_TICKETS + 2)]


def test_only_a_request_that_is_to_be_held_has_the_name_of_a_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    one = router()
    monkeypatch.setattr(one.engines[0].connectors[-1], "leaves_tickets", False, raising=False)
    said = [params(one, request(1, conversation=number)) for number in range(1, UNWANTED + 1)]
    names = [{"transfer_id": f"transfer-{number}"} for number in range(1, UNWANTED)]
    assert said == [*({**WANTED, **name} for name in names), {"do_remote_decode": False}]


@pytest.mark.parametrize(("named", "is_held"), [(True, True), (True, False), (False, True)])
def test_a_ticket_is_made_up_for_what_is_held_under_a_name_of_the_routers(
    monkeypatch: pytest.MonkeyPatch, named: bool, is_held: bool
) -> None:
    """A wish without a name is a client's own."""
    made = router()
    (engine,) = made.engines
    monkeypatch.setattr(engine.connectors[-1], "leaves_tickets", False, raising=False)
    wanted = request(5)
    wanted.kv_transfer_params = {**WANTED, **({"transfer_id": "transfer-1"} if named else {})}
    found = made.ticket_of(engine, wanted, (is_held, None))
    made_up = {"do_remote_prefill": True, "transfer_id": "transfer-1", **engine.address()}
    assert found == (made_up if named and is_held else {})


def test_of_the_prompts_that_it_begins_with_the_one_that_ended_last_counts() -> None:
    one = router()
    for tokens, name in ((2, "old"), (3, "longer"), (2, "new")):
        learn(one, request(tokens), ticket(name))
    assert given(one, request(4)) == "new"
    assert given(one, request(4)) == "longer"


@pytest.mark.parametrize("is_fair", [True, False])
def test_a_fair_router_looks_at_the_whole_prompt_its_salt_its_adapter_and_its_image(is_fair: bool) -> None:
    for other in (request(6), request(5, salt="s"), request(5, adapter="s"), request(5, image="i", image_at=2)):
        one = router(is_fair=is_fair)
        learn(one, request(5), ticket("a"))
        assert given(one, other) == (None if is_fair else "a")
        assert given(one, request(5)) == ("a" if is_fair else None)


def test_a_fair_router_gives_each_ticket_once_and_asks_for_one_or_the_other() -> None:
    one = router(is_fair=True)
    said = []
    for number in range(9):
        learn(one, request(5), ticket(str(number)))
        said += [params(one, request(5)), params(one, request(5))]
    assert said[::2] == [{**ticket(str(number)), "do_remote_decode": False} for number in range(9)]
    assert [got["do_remote_decode"] for got in said[1::2]] == [number % 2 == 0 for number in range(9)]
    assert [*map(len, said[1::2])] == [1] * 9


def test_no_more_is_wanted_by_a_fair_router_than_can_be_held_beside_the_longest_request() -> None:
    """Of 60 blocks 3 are spare and 12 for the longest; with 45 tokens and one to sample each holds 12."""
    for blocks, spec_tokens, most in ((51, 0, 2), (52, 0, 3), (52, 2, 2)):
        config = WorldConfig(num_blocks=blocks, spec_tokens=spec_tokens)
        one = Router(World(config, P2P).engines, is_fair=True)
        others = [request(45, conversation=number % 5, salt=str(number)) for number in range(9)]
        assert sum(params(one, other)["do_remote_decode"] for other in others) == most
        for ended in others:
            ended.status = Status.FINISHED_STOPPED
        others[0].is_held = True
        again = [request(45, salt="again"), request(45, salt="more"), request(45, salt="most")]
        assert sum(params(one, other)["do_remote_decode"] for other in again) == most - 1


def test_of_a_session_no_ticket_is_wanted_by_a_fair_router() -> None:
    session = request(5, turns=(Turn(1, 1, 1),))
    assert params(router(is_fair=True), session) == {"do_remote_decode": False}
    assert params(router(), session) == WANTED


# -- at the end --------------------------------------------------------------------------------


def test_who_comes_last_comes_once_for_each_that_is_held() -> None:
    one = router(is_fair=True)
    held, gone = request(5, turns=(Turn(1, 1, 1),)), request(6)
    held.is_held = True
    learn(one, gone, ticket("gone"))
    learn(one, held, ticket("held"))
    assert given(one, request(5)) == "held"
    found = one.last_claim()
    assert found is not None
    engine, spec = found
    assert engine is one.engines[0]
    assert spec == RequestSpec("last-2", 0, 5, 0, 1, 1)
    assert one.last_claim() is None
    claim = SimRequest(spec, 4, 40)
    assert params(one, claim) == {**ticket("held"), "do_remote_decode": False}
    assert given(one, SimRequest(spec, 4, 40)) is None


@pytest.mark.parametrize("subject", [P2P, FAIR], ids=["p2p", "fair"])
@pytest.mark.parametrize(("seconds", "last"), [(5, []), (1000, ["last-1"])])
def test_what_is_held_ends_by_its_own_time_or_since_somebody_comes(
    subject: Subject, seconds: int, last: list[str]
) -> None:
    held = replace(subject, extra_config={**subject.extra_config, "hold_seconds": seconds})
    arrived: list[str] = []

    def observe(call: Call) -> None:
        if call.method == "on_new_request":
            arrived.append(call.args[0].request_id)

    world = World(WorldConfig(prefix_caching=False), held, observe=observe)
    world.engine.add(RequestSpec("r1", 0, 9, 0, 1, 1))
    world.rest()
    assert arrived == ["r1", *last]


class _KeepsThem(P2PSchedulerSide):
    """Who comes with a ticket takes nothing, and doesn't say so either."""

    def on_new_request(self, request: Request) -> None:
        pass


class KeepsThem(WorldP2PConnector):
    scheduler_class = _KeepsThem


def test_what_is_held_for_ever_is_told() -> None:
    endless = {**FAIR.extra_config, "hold_seconds": 10000}
    subject = Subject("KeepsThem", __name__, endless, FAIR.traits - {Trait.HOLDS}, serves_peers=True)
    world = World(WorldConfig(prefix_caching=False), subject)
    world.engine.add(RequestSpec("r1", 0, 9, 0, 1, 1))
    with pytest.raises(
        Violation,
        match=(
            r"LIVENESS.*after 400 steps without new work these requests are left: <request r1 at its limit 9/10, "
            r"held, "
        ),
    ):
        world.rest()


# -- two engines -------------------------------------------------------------------------------


def between_two(role: Role = "kv_producer", *, is_fair: bool = True) -> Router:
    """The second has the other role."""
    return Router(World(WorldConfig(num_blocks=80, engines=2, role=role), P2P_TWO).engines, is_fair=is_fair)


def arriving(one: Router, engine: Engine, tokens: int, **more: Any) -> SimRequest:
    """One of so many tokens as it comes to an engine: by which name, the router says."""
    return SimRequest(one.named(engine, request(tokens, **more).spec), 4, 40)


@pytest.mark.parametrize("is_fair", [True, False])
def test_a_ticket_goes_to_the_other_engine_alone(is_fair: bool) -> None:
    one = between_two("kv_both", is_fair=is_fair)
    for holder, other in (one.engines, reversed(one.engines)):
        one.learn(holder, request(5), ticket("a"), ())
        assert "remote_request_id" not in one.params_for(holder, arriving(one, holder, 5))
        assert one.params_for(other, arriving(one, other, 5))["remote_request_id"] == "a"


@pytest.mark.parametrize("is_fair", [True, False])
def test_a_producer_gets_none_from_a_fair_router(is_fair: bool) -> None:
    one = between_two("kv_consumer", is_fair=is_fair)
    one.learn(one.engines[0], request(5), ticket("a"), ())
    comes = arriving(one, one.engines[1], 5)
    assert ("remote_request_id" in one.params_for(one.engines[1], comes)) is not is_fair


def test_who_goes_on_between_two_engines_bears_the_name_of_whom_it_goes_on_from() -> None:
    one = between_two("kv_both")
    here, there = one.engines
    one.learn(here, request(5), ticket("a"), ())
    one.learn(here, request(6), ticket("b"), ())
    names = {
        (engine, tokens, salt): arriving(one, engine, tokens, salt=salt).request_id
        for engine in (here, there)
        for tokens in (5, 6, 7)
        for salt in (None, "s")
    }
    changed = {(there, 5, None): "r5-00000001", (there, 6, None): "r6-00000002"}
    assert names == {**{each: f"r{each[1]}" for each in names}, **changed}
    for alone in (router(is_fair=True), between_two(is_fair=False)):
        alone.learn(alone.engines[0], request(5), ticket("a"), ())
        assert arriving(alone, alone.engines[-1], 5).request_id == "r5", "one engine, or any ticket for anybody"


@pytest.mark.parametrize(
    ("name", "gets"),
    [
        ("r5", None),
        ("r6", None),
        ("r5-0000001", None),
        ("r55-00000001", None),
        ("r5-00000001-00000001", None),
        ("r5-00000001", "a"),
        ("r5-0000000a", "a"),
    ],
)
def test_who_bears_another_name_gets_no_ticket(name: str, gets: str | None) -> None:
    one = between_two()
    one.learn(one.engines[0], request(5), ticket("a"), ())
    comes = SimRequest(RequestSpec(name, 0, 5, 0, 1, 1), 4, 40)
    assert one.params_for(one.engines[1], comes).get("remote_request_id") == gets
    left = one.params_for(one.engines[1], arriving(one, one.engines[1], 5)).get("remote_request_id")
    assert left == (None if gets else "a")


def test_a_fair_router_asks_a_producer_to_hold_and_for_one_token() -> None:
    more = SimRequest(RequestSpec("more", 0, 5, 0, 1, 2), 4, 40)
    one = between_two()
    asked = [(engine, asks) for engine in one.engines for asks in (request(5), more)]
    assert [one.params_for(*each)["do_remote_decode"] for each in asked] == [True, False, False, False]
    one = between_two(is_fair=False)
    assert [one.params_for(*each)["do_remote_decode"] for each in asked] == [True, True, True, False]


def test_what_one_holds_takes_no_room_of_the_other() -> None:
    one = between_two("kv_both")
    others = [request(45, conversation=number % 5, salt=str(number)) for number in range(12)]
    wanted = [sum(one.params_for(at, other)["do_remote_decode"] for other in others) for at in one.engines]
    assert wanted == [5, 5]


def test_what_is_held_goes_next_to_the_other_engine() -> None:
    one = between_two()
    held, later, gone = request(5), request(6), request(7)
    held.is_held = later.is_held = True
    for each in (held, later, gone):
        one.learn(one.engines[0], each, ticket(each.request_id), ())
    assert [one.newest_for(engine) for engine in one.engines] == [None, later.spec]
    assert one.params_for(one.engines[1], arriving(one, one.engines[1], 6))["remote_request_id"] == "r6"
    assert one.newest_for(one.engines[1]) == held.spec
    alone = router(is_fair=True)
    learn(alone, held, ticket("held"))
    assert alone.newest_for(alone.engines[0]) is None


def test_who_comes_last_has_exactly_the_prompt_that_is_held() -> None:
    """Also by those of its tokens that nobody else has, and when it is held again."""
    one, names = between_two("kv_both"), []
    held = SimRequest(RequestSpec("r5", 0, 5, 2, 1, 1), 4, 40)
    for engine in one.engines:
        held.is_held = True
        one.learn(engine, held, ticket("5"), ())
        found = one.last_claim()
        assert found is not None and found[1].prompt == held.spec.prompt
        assert RequestSpec.from_json(found[1].to_json()) == found[1]
        held = SimRequest(found[1], 4, 40)
        names.append((held.request_id, held.spec.own_of))
    assert names == [("r5-80000001", "r5"), ("r5-80000001-80000002", "r5")]
    assert "own_of" not in RequestSpec("r5", 0, 5, 2, 1, 1).to_json()


def test_who_comes_last_comes_to_the_other_engine() -> None:
    one = between_two("kv_both")
    for number, engine in enumerate(one.engines, 5):
        held = request(number)
        held.is_held = True
        one.learn(engine, held, ticket(str(number)), ())
    claims = [one.last_claim(), one.last_claim()]
    assert [(claim[0], claim[1].request_id) for claim in claims if claim] == [
        (one.engines[1], "r5-80000001"),
        (one.engines[0], "r6-80000002"),
    ]


@pytest.mark.parametrize(("engines", "forgets"), [(1, True), (2, False)])
def test_only_where_there_is_one_engine_does_it_forget(
    engines: int, forgets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = router(is_fair=True) if engines == 1 else between_two()
    forgotten: list[set[int]] = []
    monkeypatch.setattr(BlockPool, "evict_blocks", lambda pool, blocks: forgotten.append(blocks))
    for number in range(2):
        ended = request(15)
        ended.num_output_tokens = 1  # which is of no prompt
        one.learn(one.engines[0], ended, ticket(str(number)), ([1, 2, 3, 4],))
    assert forgotten == ([{2, 3, 4}] if forgets else [])


def test_who_goes_on_from_what_is_held_has_its_prompt_and_room_for_some_tokens() -> None:
    held = RequestSpec("r1", 3, 21, 1, 1, 1, salt="s", adapter="s")
    config = WorldConfig(num_blocks=9, spec_tokens=1, silent=frozenset({"same_id"}))
    arrivals, random, goes_on = Arrivals(config, of_peers=True), Random(3), []
    for _ in range(400):
        spec = arrivals.draw(random, (), held)
        if (spec.conversation, spec.shared_tokens, spec.salt, spec.adapter) == (3, 21, "s", "s"):
            goes_on.append(spec)
        assert spec.total_tokens <= config.longest_request
    assert 0.5 < len(goes_on) / 400 < 0.7
    assert {spec.output_tokens for spec in goes_on} == {1, 2, 3, 4, 5}
    assert all((spec.own_tokens, spec.max_tokens) == (1, spec.output_tokens) for spec in goes_on)
    assert len({spec.request_id for spec in goes_on}) == len(goes_on)
