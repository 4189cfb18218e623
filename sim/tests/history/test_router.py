"""Who gets whose ticket, of a router that can be trusted and of one that can't, and who comes for what is left."""

from dataclasses import replace
from typing import Any

import pytest

from kv_api import Request
from kv_p2p import P2PSchedulerSide
from kv_sim.config import WorldConfig
from kv_sim.engine.request import RequestSpec, SimRequest, Status, Turn
from kv_sim.examples.catalogue import P2P
from kv_sim.history.router import KNOWN_TICKETS, Router
from kv_sim.p2p import WorldP2PConnector
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
    return Router(World(WorldConfig(num_blocks=80), P2P).engine, is_fair=is_fair)


def given(router: Router, request: SimRequest) -> Any:
    """Whose ticket a request gets."""
    params = router.params_for(request)
    assert bool(params.get("do_remote_prefill")) is ("remote_request_id" in params)
    return params.get("remote_request_id")


def test_a_ticket_is_for_who_begins_with_its_prompt() -> None:
    one = router()
    one.learn(request(2), ticket("a"), ())
    one.learn(request(3), ticket("b"), ())
    assert one.params_for(request(2)) == {**ticket("a"), **WANTED}
    assert one.params_for(request(3, conversation=1)) == WANTED
    assert one.params_for(request(4)) == {**ticket("b"), **WANTED}  # left for the next one, too
    assert one.params_for(request(3)) == {**ticket("b"), "do_remote_decode": False}
    assert one.params_for(request(3)) == WANTED


def test_the_newest_ticket_of_a_prompt_counts_and_few_are_known() -> None:
    one = router()
    for count in range(1, KNOWN_TICKETS + 2):
        one.learn(request(1, conversation=count), ticket(f"old {count}"), ())
    one.learn(request(1, conversation=2), ticket("new"), ())
    assert given(one, request(1, conversation=1)) is None
    assert given(one, request(1, conversation=2)) == "new"
    rest = [given(one, request(1, conversation=count)) for count in range(3, KNOWN_TICKETS + 2)]
    assert rest == [f"old {count}" for count in range(3, KNOWN_TICKETS + 2)]


def test_of_the_prompts_that_it_begins_with_the_one_that_ended_last_counts() -> None:
    one = router()
    for tokens, name in ((2, "old"), (3, "longer"), (2, "new")):
        one.learn(request(tokens), ticket(name), ())
    assert given(one, request(4)) == "new"
    assert given(one, request(4)) == "longer"


@pytest.mark.parametrize("is_fair", [True, False])
def test_a_fair_router_looks_at_the_whole_prompt_its_salt_and_its_adapter(is_fair: bool) -> None:
    for other in (request(6), request(5, salt="s"), request(5, adapter="s")):
        one = router(is_fair=is_fair)
        one.learn(request(5), ticket("a"), ())
        assert given(one, other) == (None if is_fair else "a")
        assert given(one, request(5)) == ("a" if is_fair else None)


def test_a_fair_router_gives_each_ticket_once_and_asks_for_one_or_the_other() -> None:
    one = router(is_fair=True)
    said = []
    for number in range(9):
        one.learn(request(5), ticket(str(number)), ())
        said += [one.params_for(request(5)), one.params_for(request(5))]
    assert said[::2] == [{**ticket(str(number)), "do_remote_decode": False} for number in range(9)]
    assert [params["do_remote_decode"] for params in said[1::2]] == [number % 2 == 0 for number in range(9)]
    assert [*map(len, said[1::2])] == [1] * 9


def test_no_more_is_wanted_by_a_fair_router_than_can_be_held_beside_the_longest_request() -> None:
    """Of 60 blocks 3 are spare and 12 for the longest; with 45 tokens and one to sample each holds 12."""
    for blocks, spec_tokens, most in ((51, 0, 2), (52, 0, 3), (52, 2, 2)):
        config = WorldConfig(num_blocks=blocks, spec_tokens=spec_tokens)
        one = Router(World(config, P2P).engine, is_fair=True)
        others = [request(45, conversation=number % 5, salt=str(number)) for number in range(9)]
        assert sum(one.params_for(other)["do_remote_decode"] for other in others) == most
        for ended in others:
            ended.status = Status.FINISHED_STOPPED
        others[0].is_held = True
        again = [request(45, salt="again"), request(45, salt="more"), request(45, salt="most")]
        assert sum(one.params_for(other)["do_remote_decode"] for other in again) == most - 1


def test_of_a_session_no_ticket_is_wanted_by_a_fair_router() -> None:
    session = request(5, turns=(Turn(1, 1, 1),))
    assert router(is_fair=True).params_for(session) == {"do_remote_decode": False}
    assert router().params_for(session) == WANTED


# -- at the end --------------------------------------------------------------------------------


def test_who_comes_last_comes_once_for_each_that_is_held() -> None:
    one = router(is_fair=True)
    held, gone = request(5, turns=(Turn(1, 1, 1),)), request(6)
    held.is_held = True
    one.learn(gone, ticket("gone"), ())
    one.learn(held, ticket("held"), ())
    assert given(one, request(5)) == "held"
    spec = one.last_claim()
    assert spec == RequestSpec("last-2", 0, 5, 0, 1, 1)
    assert one.last_claim() is None
    claim = SimRequest(spec, 4, 40)
    assert one.params_for(claim) == {**ticket("held"), "do_remote_decode": False}
    assert given(one, SimRequest(spec, 4, 40)) is None


@pytest.mark.parametrize("subject", [P2P, FAIR], ids=["p2p", "fair"])
@pytest.mark.parametrize(("seconds", "last"), [(5, []), (1000, ["last-1"])])
def test_what_is_held_ends_by_its_own_time_or_since_somebody_comes(
    subject: Subject, seconds: int, last: list[str]
) -> None:
    held = replace(subject, extra_config={"hold_seconds": seconds, "pull_seconds": 6})
    arrived: list[str] = []

    def observe(side: str, name: str, args: tuple[Any, ...], answer: Any) -> None:
        if name == "on_new_request":
            arrived.append(args[0].request_id)

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
    endless = {"hold_seconds": 10000, "pull_seconds": 6}
    subject = Subject("KeepsThem", __name__, endless, FAIR.traits - {Trait.HOLDS}, serves_peers=True)
    world = World(WorldConfig(prefix_caching=False), subject)
    world.engine.add(RequestSpec("r1", 0, 9, 0, 1, 1))
    with pytest.raises(
        Violation,
        match=r"LIVENESS.*after 400 quiet steps there are still requests: <request r1 stopped 9/10, held, ",
    ):
        world.rest()
