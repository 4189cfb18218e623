"""A connector that leaves no tickets: the router names each transfer, and makes up the ticket of what is held."""

from dataclasses import replace

import pytest

from kv_sim.actions import Kind
from kv_sim.config import WorldConfig
from kv_sim.engine.request import SimRequest
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import P2P_TWO
from kv_sim.history.coverage import PULLED
from kv_sim.subject import Trait
from kv_sim.violation import Violation
from kv_sim.world import World

BY_NAME = replace(
    P2P_TWO,
    kv_connector="ByName",
    module_path="kv_sim_made_tickets",
    extra_config={"hold_seconds": 90, "pull_seconds": 90},
    traits=frozenset({Trait.HOLDS}),
)
TWO = WorldConfig(num_blocks=40, engines=2, role="kv_producer")
HELD = {"r1": RequestSpec("r1", 0, 9, 0, 1, 1), "r2": RequestSpec("r2", 1, 6, 0, 1, 1)}


def comes(world: World, engine: int, spec: RequestSpec) -> SimRequest:
    """It comes to an engine, and both work until it has ended."""
    request = world.engines[engine].add(spec)
    for at in [0, 1] * 9:
        world.take(Kind.STEP, engine=at)
        world.take(Kind.SETTLE, engine=at)
    assert request.status.is_finished
    return request


def goes_on(name: str = "ByName") -> tuple[World, list[SimRequest]]:
    """Two prompts are held at the first engine, and the first of them goes on at the second."""
    world = World(TWO, replace(BY_NAME, kv_connector=name))
    requests = [comes(world, 0, spec) for spec in HELD.values()]
    requests.append(comes(world, 1, replace(HELD["r1"], request_id="r1-00000001")))
    world.rest()
    return world, requests


def test_what_is_held_is_pulled_by_the_name_that_the_router_gave_it() -> None:
    world, requests = goes_on()
    assert [request.kv_transfer_params for request in requests] == [
        {"do_remote_decode": True, "transfer_id": "transfer-1"},
        {"do_remote_decode": True, "transfer_id": "transfer-2"},
        {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "transfer_id": "transfer-1",
            "remote_engine_id": "world-0",
        },
    ]
    assert world.coverage.situations[PULLED] == 2, "the other one at the end"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "NewestWhateverItsName",
            r"r1-00000001: .*\(…, 0\) found 0 tokens, but its ticket is for the blocks of request r1",
        ),
        ("HoldsNothing", "r1: it came with do_remote_decode, .* neither held its blocks nor left a ticket"),
    ],
)
def test_a_mistake_in_it_is_found(name: str, words: str) -> None:
    with pytest.raises(Violation, match=f"^HITS  (engine 1 )?request {words}"):
        goes_on(name)
