"""What clients send in kv_transfer_params, and to whom it comes."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from kv_sim.actions import Kind
from kv_sim.config import WorldConfig
from kv_sim.engine.request import SimRequest, Status
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import LATER, MEMORY, P2P, SUBJECTS
from kv_sim.fuzz import run_seed
from kv_sim.history.clients import NO_OBJECTS, VALUES, WORDS, draw, over
from kv_sim.history.coverage import NO_OBJECT, STRANGE_WORDS
from kv_sim.history.router import Router
from kv_sim.subject import Subject, Trait
from kv_sim.world import World

TICKET = {"do_remote_prefill": True, "remote_request_id": "a", "remote_digest": "d"}
SPECS = [RequestSpec(f"r{number}", number % 5, 1 + number % 40, 0, 1, 1) for number in range(3000)]


def worlds(subject: Subject, seeds: int = 3) -> list[World]:
    """What became of some histories."""
    made: list[World] = []

    def make_world(*args: Any, **options: Any) -> World:
        made.append(World(*args, **options))
        return made[-1]

    runs = [run_seed(subject, seed, make_world=make_world) for seed in range(seeds)]
    assert [run.failure for run in runs] == [None] * seeds
    return made


def added_to(world: World) -> list[dict[str, Any]]:
    return [action.args["spec"] for action in world.history if action.kind is Kind.ADD]


def sent_to(worlds: Sequence[World]) -> list[Any]:
    """What the clients sent."""
    sent = [spec.get("kv_transfer_params") for world in worlds for spec in added_to(world)]
    return [params for params in sent if params is not None]


def test_a_few_send_something_and_all_that_is_listed_is_sent() -> None:
    drawn = [draw(spec).kv_transfer_params for spec in SPECS]
    assert drawn == [draw(spec).kv_transfer_params for spec in SPECS]
    sent = [params for params in drawn if params is not None]
    assert 0.1 < len(sent) / len(SPECS) < 0.25
    texts = Counter(json.dumps(params) for params in sent if not isinstance(params, dict))
    assert texts.keys() == {*map(json.dumps, NO_OBJECTS)}
    objects = [params for params in sent if isinstance(params, dict)]
    assert {word for params in objects for word in params} == {*WORDS}
    values = {json.dumps(value) for params in objects for value in params.values()}
    assert values == {*map(json.dumps, VALUES)}
    assert {*map(len, objects)} == {1, 2, 3}


def test_where_tickets_are_known_their_words_are_sent_too_however_few_they_are() -> None:
    objects = [params for params in (draw(spec, {"a", "b"}).kv_transfer_params for spec in SPECS) if params]
    words = {word for params in objects if isinstance(params, dict) for word in params}
    assert words == {"a", "b", *WORDS}


def test_in_which_order_the_words_of_tickets_are_known_has_no_say() -> None:
    """They are a set, which has another order in each process."""
    assert [draw(spec, ("a", "b", "c")) for spec in SPECS] == [draw(spec, ("c", "b", "a")) for spec in SPECS]


def test_nothing_is_sent_that_somebody_might_fulfil() -> None:
    """A host of that name might be looked for; and a list of no tiers is a wish."""
    drawn = (draw(spec).kv_transfer_params for spec in SPECS)
    objects = [params for params in drawn if isinstance(params, dict)]
    assert not any(isinstance(params.get("remote_host"), str) for params in objects)
    assert not any(params.get("kv_load_tiers") == [] for params in objects)
    assert any(params.get("remote_block_ids") == [] for params in objects)


@pytest.mark.once
@pytest.mark.parametrize("name", ["memory", "offload", "p2p", "p2p-two-engines"])
def test_who_does_not_claim_it_is_sent_nothing_and_the_rest_of_a_history_is_the_same(name: str) -> None:
    claims = SUBJECTS[name]
    without = replace(claims, traits=claims.traits - {Trait.CLIENTS})
    with_clients, trusted = worlds(claims), worlds(without)
    assert sent_to(with_clients)
    assert not sent_to(trusted)
    if not claims.serves_peers:  # where no router hears it
        assert [*map(plain, with_clients)] == [*map(plain, trusted)]


def plain(world: World) -> list[Any]:
    """What happened, whatever clients sent."""
    nothing = {"kv_transfer_params": None}
    return [
        RequestSpec.from_json({**action.args["spec"], **nothing}) if action.kind is Kind.ADD else action
        for action in world.history
    ]


def test_both_kinds_are_counted() -> None:
    found, made = Counter[str](), worlds(MEMORY)
    for world in made:
        found.update(world.coverage.situations)
    sent = sent_to(made)
    assert found[STRANGE_WORDS] == sum(isinstance(params, dict) for params in sent) > 0
    assert found[NO_OBJECT] == sum(not isinstance(params, dict) for params in sent) > 0


@pytest.mark.parametrize(
    ("params", "sent", "by_any", "by_fair"),
    [
        (TICKET, None, TICKET, TICKET),
        (TICKET, {"remote_digest": 7}, {**TICKET, "remote_digest": 7}, TICKET),
        ({"do_remote_decode": True}, {"a": 1}, {"do_remote_decode": True, "a": 1}, {"do_remote_decode": True}),
        (
            {"do_remote_decode": False},
            {"do_remote_decode": "yes", "a": 1},
            {"do_remote_decode": "yes", "a": 1},
            {"do_remote_decode": False, "a": 1},
        ),
    ],
)
def test_what_a_client_sends_goes_over_what_a_router_says(
    params: Any, sent: Any, by_any: Any, by_fair: Any
) -> None:
    """But by a fair router nobody's ticket is changed, and nobody is held whom it didn't count."""
    assert over(params, sent, is_fair=False) == by_any
    assert over(params, sent, is_fair=True) == by_fair


def request(name: str, sent: Any = None) -> SimRequest:
    return SimRequest(RequestSpec(name, 0, 9, 0, 1, 1, kv_transfer_params=sent), 4, 40)


def test_a_ticket_that_a_client_spoilt_is_not_given_back_but_somebody_comes_for_it_at_the_end() -> None:
    router = Router(World(WorldConfig(num_blocks=80), P2P).engines, is_fair=False, claims_used=False)
    assert router.words == set()
    for sent, is_left in (({"remote_digest": 7}, True), (None, False)):
        held = request("held", {"a": 1})
        held.status, held.is_held = Status.FINISHED_STOPPED, True
        router.learn(router.engines[0], held, TICKET, ())
        assert router.words == TICKET.keys()
        told = router.params_for(router.engines[0], request("r2", sent))
        assert told == {**TICKET, "do_remote_decode": True, **(sent or {})}
        claim = router.last_claim()
        assert (claim is not None) is is_left
        assert claim is None or claim[1].kv_transfer_params is None


def test_what_is_no_object_comes_as_it_is_by_a_router_and_without_one() -> None:
    for is_fair in (True, False):
        router = Router(World(WorldConfig(num_blocks=80), P2P).engines, is_fair=is_fair)
        router.learn(router.engines[0], request("held"), TICKET, ())
        assert router.params_for(router.engines[0], request("r1", ["a"])) == ["a"]
        assert router.words == TICKET.keys()  # so the ticket is for somebody else
    alone = World(WorldConfig(), LATER).engine.add(request("r1", "text").spec)
    assert (alone.kv_transfer_params, alone.words) == ("text", {})
    assert World(WorldConfig(), LATER).engine.add(request("r1", {"a": 1}).spec).words == {"a": 1}


def test_who_sends_no_object_counts_as_one_that_came() -> None:
    """Of those that come to a router some aren't wanted elsewhere, by their number."""
    router = Router(World(WorldConfig(num_blocks=80), P2P).engines, is_fair=False)
    sent = [["a"], None, None, None]
    told = [router.params_for(router.engines[0], request(f"r{number}", one)) for number, one in enumerate(sent)]
    assert told == [["a"], *({"do_remote_decode": wanted} for wanted in (True, True, False))]


def test_a_request_is_known_by_what_its_client_sends_only_in_a_schedule() -> None:
    spec = request("r1", {"a": [1]}).spec
    assert RequestSpec.from_json(spec.to_json()) == spec
    assert "kv_transfer_params" not in request("r1").spec.to_json()
    assert hash(spec) == hash(request("r1").spec)
    assert spec != request("r1").spec
