"""What a request leaves when it ends: a ticket of blocks that are held; and what is known of those that are."""

from typing import Any

import pytest

from kv_sim.checkers.tickets import Tickets
from kv_sim.config import WorldConfig
from kv_sim.engine.request import SimRequest, Status
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.violation import Invariant, Referee, Violation

PARAMS = {"do_remote_prefill": True, "do_remote_decode": False, "remote_request_id": "r1.1"}


def ends(tickets: Tickets, name: str, *, is_held: bool, params: dict[str, Any] | None = None) -> SimRequest:
    made = SimRequest(RequestSpec(name, 0, 9, 0, 1, 1), 4, 40)
    made.kv_transfer_params = {"do_remote_decode": True}
    made.status, made.num_computed_tokens = Status.FINISHED_STOPPED, 9
    tickets.hear("request_finished", (made, []), (is_held, PARAMS if params is None else params))
    made.is_held = is_held
    return made


@pytest.fixture
def tickets() -> Tickets:
    return Tickets(WorldConfig(), Referee(), is_on=True)


def test_who_leaves_a_ticket_is_held(tickets: Tickets) -> None:
    ends(tickets, "r1", is_held=True)
    with pytest.raises(Violation) as raised:
        ends(tickets, "r2", is_held=False, params={**PARAMS, "remote_request_id": "r2.2"})
    assert raised.value.invariant is Invariant.HITS
    assert raised.value.message == "request r2: it got a ticket when it ended, but its blocks aren't held"


@pytest.mark.parametrize("change", ["none", "its time was over", "a reset", "a reset that workers know of"])
def test_or_it_hands_on_one_of_blocks_that_are(change: str, tickets: Tickets) -> None:
    first = ends(tickets, "r1", is_held=True)
    first.is_held = change != "its time was over"
    if "reset" in change:
        tickets.hear("reset_cache", (), True)
    if "know" in change:
        tickets.hear("build_connector_meta", (), None)
    if change == "none":
        ends(tickets, "r2", is_held=False)
        return
    with pytest.raises(Violation) as raised:
        ends(tickets, "r2", is_held=False)
    assert raised.value.message == (
        "request r2: it got a ticket when it ended, but its blocks aren't held; the ticket is of request "
        "r1, whose "
        "hold was withdrawn"
    )


def test_nothing_is_said_of_who_serves_nobody() -> None:
    ends(Tickets(WorldConfig(), Referee(), is_on=False), "r1", is_held=False)


def test_who_does_not_claim_to_hold_may_keep_its_blocks_elsewhere() -> None:
    ends(Tickets(WorldConfig(), Referee(), is_on=True, holds=False), "r1", is_held=False)


def known(tickets: Tickets) -> list[bool]:
    return [tickets.has_held, tickets.has_untold, tickets.has_revoked]


def test_it_is_known_what_is_held_and_of_what_time(tickets: Tickets) -> None:
    assert known(tickets) == [False, False, False]
    first = ends(tickets, "r1", is_held=True)
    assert known(tickets) == [True, True, False]
    tickets.hear("build_connector_meta", (), None)
    assert known(tickets) == [True, False, False]
    for name in ("reset_cache", "build_connector_meta"):
        tickets.hear(name, (), True)
        assert known(tickets) == [False, False, True]
    second = ends(tickets, "r2", is_held=True, params={**PARAMS, "remote_request_id": "r2.2"})
    assert known(tickets) == [True, True, True]
    first.is_held = False
    assert known(tickets) == [True, True, False]
    second.is_held = False
    assert known(tickets) == [False, True, False]
