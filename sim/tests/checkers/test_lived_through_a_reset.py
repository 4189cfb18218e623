"""HITS, where engines serve each other: what nobody may pull after a reset."""

from enum import Enum
from typing import Any

import pytest
from kv_sim_notes import Notes

from kv_api import CacheHitSource, KVConnectorOutput
from kv_sim.checkers.tickets import Tickets
from kv_sim.config import WorldConfig
from kv_sim.engine.request import SimRequest, Status
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.violation import Referee, Violation

TICKET = {"do_remote_prefill": True, "do_remote_decode": False, "remote_request_id": "r1.1"}
PEER, HOST = {CacheHitSource.P2P: 8}, {CacheHitSource.HOST: 8}


def comes(tickets: Tickets, name: str, ticket: dict[str, Any] | None = TICKET) -> SimRequest:
    made = SimRequest(RequestSpec(name, 0, 9, 0, 1, 1), 4, 40)
    made.kv_transfer_params = ticket and dict(ticket)
    tickets.hear("on_new_request", (made,), None)
    return made


def held(referee: Referee | None = None, *, still: bool = True) -> Tickets:
    """One request is held, or was."""
    tickets = Tickets(WorldConfig(), referee or Referee(), is_on=True)
    made = SimRequest(RequestSpec("r1", 0, 9, 0, 1, 1), 4, 40)
    made.status, made.num_computed_tokens, made.is_held = Status.FINISHED_STOPPED, 9, still
    tickets.hear("request_finished_all_groups", (made, ([],)), (True, TICKET))
    return tickets


def pulls(tickets: Tickets, made: SimRequest, sources: Any = PEER) -> None:
    tickets.hear("update_state_after_alloc", (made, None, 8), None)
    tickets.hear("get_external_cache_hit_sources", (made, 8), sources)


def ends(tickets: Tickets, made: SimRequest, *, well: bool = True) -> None:
    failed = set() if well else {made.request_id}
    output = KVConnectorOutput(finished_recving={made.request_id}, failed_recving=failed)
    tickets.hear("update_connector_output", (output,), None)


class Foreign(Enum):
    """Sources as another package has them: no strings."""

    P2P = "p2p"
    HOST = "host"


@pytest.mark.parametrize("kind", [CacheHitSource, Foreign])
def test_no_ticket_is_taken_that_came_before_a_reset(kind: Any) -> None:
    tickets = held()
    made, other = comes(tickets, "r2"), comes(tickets, "r3")
    tickets.hear("reset_cache", (), True)
    pulls(tickets, other, {kind.HOST: 8})
    with pytest.raises(Violation) as raised:
        pulls(tickets, made, {kind.HOST: 4, kind.P2P: 4})
    said = "HITS  request r2: 8 tokens are pulled by a ticket from before the last reset"
    assert str(raised.value) == said
    pulls(tickets, comes(tickets, "r2"))


@pytest.mark.parametrize(
    ("told", "well", "sources"), [(False, True, PEER), (True, False, PEER), (True, True, HOST)]
)
def test_who_begins_in_time_fails_or_loads_from_elsewhere_is_right(told: bool, well: bool, sources: Any) -> None:
    tickets = held()
    tickets.hear("reset_cache", (), True)
    if told:
        tickets.hear("build_connector_meta", (None,), None)
    made = comes(tickets, "r2")
    pulls(tickets, made, sources)
    ends(tickets, made, well=well)


@pytest.mark.parametrize("resets", [1, 2])
def test_what_was_held_is_pulled_by_nobody_who_begins_after_it(resets: int) -> None:
    tickets = held()
    for _ in range(resets):
        tickets.hear("reset_cache", (), True)
    tickets.hear("build_connector_meta", (None,), None)
    made = comes(tickets, "r2")
    pulls(tickets, made)
    with pytest.raises(Violation) as raised:
        ends(tickets, made)
    assert str(raised.value) == (
        "HITS  request r2: blocks that were held when the cache was reset are pulled in a later step"
    )
    ends(tickets, made)


def test_another_request_with_the_id_of_one_that_was_too_late() -> None:
    tickets = held()
    tickets.hear("reset_cache", (), True)
    tickets.hear("build_connector_meta", (None,), None)
    made = comes(tickets, "r2")
    pulls(tickets, made)
    ends(tickets, comes(tickets, "r2"))
    pulls(tickets, made)
    with pytest.raises(Violation, match="request r2: blocks that were held when the cache was reset are pulled"):
        ends(tickets, made)


def test_another_request_with_the_id_of_one_that_had_a_ticket() -> None:
    """It has none, so whatever it pulls is by nothing that came before the reset."""
    tickets = held()
    comes(tickets, "r2")
    made = comes(tickets, "r2", None)
    tickets.hear("reset_cache", (), True)
    pulls(tickets, made)


def test_what_was_held_no_longer_at_the_reset_is_nothing_that_lived_through_it() -> None:
    tickets = held(still=False)
    tickets.hear("reset_cache", (), True)
    tickets.hear("build_connector_meta", (None,), None)
    made = comes(tickets, "r2")
    pulls(tickets, made)
    ends(tickets, made)


def test_several_that_were_too_late_are_told_in_order() -> None:
    notes = Notes()
    tickets = held(notes)
    tickets.hear("reset_cache", (), True)
    tickets.hear("build_connector_meta", (None,), None)
    names = [f"r{number}" for number in range(10, 30)]
    for name in names:
        pulls(tickets, comes(tickets, name))
    tickets.hear("update_connector_output", (KVConnectorOutput(finished_recving=set(names)),), None)
    said = "blocks that were held when the cache was reset are pulled in a later step"
    assert notes.told == [f"HITS  request {name}: {said}" for name in names]
