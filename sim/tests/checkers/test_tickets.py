"""Where engines serve each other: what is wanted is held, live tickets are used, no end is reported too early."""

import re
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from kv_api import KVConnectorTransferResults
from kv_p2p.pulling.worker import P2PWorkerSide
from kv_sim.checkers.tickets import Tickets
from kv_sim.config import GroupConfig, WorldConfig
from kv_sim.engine.request import SimRequest, Status
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import P2P, SUBJECTS
from kv_sim.fuzz import run_seed
from kv_sim.violation import Invariant, Referee, Violation
from kv_sim.zoo.registry import PLANTED

PARAMS = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_request_id": "r1.1",
    "remote_engine_id": "e",
}
SHARED = 9
"""Tokens of the prompt that is held: two blocks of four and one more."""
FINDS_NOTHING = "r3: .* found 0 tokens, but"


class Heard:
    """What a scheduler's side was called with, and answered: one request was held, and others come."""

    def __init__(self, *, is_on: bool = True, tables: tuple[list[int], ...] = ([],), **config: Any) -> None:
        self.tickets = Tickets(WorldConfig(**config), Referee(), is_on=is_on)
        self.held = request("r1")
        self.held.status, self.held.num_computed_tokens = Status.FINISHED_LENGTH_CAPPED, SHARED
        self.tickets.hear("request_finished_all_groups", (self.held, tables), (True, PARAMS))
        self.held.is_held = True

    def comes(self, name: str = "r2", params: dict[str, Any] | None = None, **spec: Any) -> SimRequest:
        made = request(name, **spec)
        made.kv_transfer_params = {**(PARAMS if params is None else params), "do_remote_decode": True}
        self.tickets.hear("on_new_request", (made,), None)
        return made

    def matches(self, made: SimRequest, count: int | None, local: int = 0, *, in_step: bool = False) -> None:
        self.tickets.hear("get_num_new_matched_tokens", (made, local), (count, bool(count) and not in_step))


def request(name: str, *, own: int = 0, salt: str | None = None) -> SimRequest:
    return SimRequest(RequestSpec(name, 0, SHARED, own, 1, 1, salt=salt), 4, 40)


@pytest.mark.parametrize(("own", "local", "all_of_it"), [(0, 0, 9), (0, 4, 5), (1, 0, 8), (1, 4, 4), (7, 8, 0)])
def test_a_live_ticket_is_good_for_all_that_is_held(own: int, local: int, all_of_it: int) -> None:
    """Of a longer prompt for whole blocks; more may come from elsewhere, and "ask again" is no refusal."""
    heard = Heard()
    made = heard.comes(own=own)
    for count in (all_of_it, all_of_it + 1, None):
        heard.matches(made, count, local)
    if all_of_it:
        with pytest.raises(Violation) as raised:
            heard.matches(made, all_of_it - 1, local)
        assert str(raised.value) == (
            f"HITS  request r2: get_num_new_matched_tokens(…, {local}) found {all_of_it - 1} tokens, but its "
            f"ticket is for the blocks of request r1, which are still held, and {all_of_it} of its 9 "
            "tokens can be "
            "pulled"
        )


@pytest.mark.parametrize(("own", "local", "all_of_it"), [(0, 0, 8), (0, 4, 4), (0, 8, 0), (1, 0, 8), (1, 4, 4)])
def test_a_step_that_loads_has_a_token_to_compute(own: int, local: int, all_of_it: int) -> None:
    """So of a whole prompt the last one isn't loaded; of a longer one, whole blocks as ever."""
    heard = Heard()
    made = heard.comes(own=own)
    heard.matches(made, all_of_it, local, in_step=True)
    if all_of_it:
        with pytest.raises(Violation, match=f"and {all_of_it} of its 9 tokens can be pulled"):
            heard.matches(made, all_of_it - 1, local, in_step=True)


def window(tokens: int) -> tuple[GroupConfig, GroupConfig]:
    return GroupConfig(), GroupConfig("sliding", tokens)


WINDOW = window(5)


@pytest.mark.parametrize(
    ("tokens", "table", "own", "local", "all_of_it"),
    [
        # With a window the last token is computed by itself: it reads the tokens from 4 on.
        (5, [3, 4, 5], 0, 0, 8),
        (5, [0, 4, 5], 0, 0, 8),
        (5, [0, 0, 5], 0, 0, 0),
        (5, [0, 0, 5], 0, 4, 0),
        (5, [0, 0, 5], 0, 8, 0),
        (5, [0, 4, 5], 1, 0, 8),
        (5, [0, 4, 5], 1, 4, 4),
        # From 3 on, which is in the block before.
        (6, [0, 4, 5], 0, 0, 0),
        # It reads from 1 on: what the hold lacks of that the GPU may have.
        (8, [0, 4, 5], 1, 0, 0),
        (8, [0, 4, 5], 1, 4, 4),
        (8, [0, 0, 5], 1, 4, 0),
    ],
)
def test_of_a_window_what_is_read_must_be_held(
    tokens: int, table: list[int], own: int, local: int, all_of_it: int
) -> None:
    heard = Heard(groups=window(tokens), tables=([1, 2, 3], table))
    made = heard.comes(own=own)
    heard.matches(made, all_of_it, local)
    if all_of_it:
        with pytest.raises(Violation):
            heard.matches(made, all_of_it - 1, local)


@pytest.mark.parametrize("groups", [(GroupConfig(),), (GroupConfig("sliding", SHARED),)])
def test_who_begins_with_the_first_token_needs_it(groups: tuple[GroupConfig, ...]) -> None:
    """Where a block is one token, the hold may lack that alone: who samples on slides out of its prompt."""
    for first in (0, 1):
        heard = Heard(groups=groups, tables=([first, *range(2, SHARED + 1)],), block_size=1)
        made = heard.comes()
        with pytest.raises(Violation) if first else nullcontext():
            heard.matches(made, 0)


def test_a_ticket_is_the_same_in_another_order() -> None:
    """A router may write it down anew."""
    heard = Heard()
    made = heard.comes(params=dict(reversed(PARAMS.items())))
    with pytest.raises(Violation, match="found 0 tokens, but its ticket is for the blocks of request r1"):
        heard.matches(made, 0)


@pytest.mark.parametrize(("tokens", "table", "is_judged"), [(9, [0, 4, 5], True), (9, [0, 0, 5], False)])
def test_what_slid_out_of_a_window_need_not_be_held(tokens: int, table: list[int], is_judged: bool) -> None:
    tickets = Tickets(WorldConfig(groups=WINDOW), Referee(), is_on=True)
    made = request("r1")
    made.kv_transfer_params = {"do_remote_decode": True}
    made.status, made.num_computed_tokens = Status.FINISHED_LENGTH_CAPPED, tokens
    call = ("request_finished_all_groups", (made, ([1, 2, 3], table)), (False, None))
    with pytest.raises(Violation, match="it came with do_remote_decode") if is_judged else nullcontext():
        tickets.hear(*call)


def test_who_slid_out_of_its_first_token_need_not_leave_a_ticket() -> None:
    """Where a block is one token, that alone is missing, and who goes on after the prompt reads it."""
    tickets = Tickets(WorldConfig(groups=(GroupConfig("sliding", SHARED),), block_size=1), Referee(), is_on=True)
    made = request("r1")
    made.kv_transfer_params = {"do_remote_decode": True}
    made.status, made.num_computed_tokens = Status.FINISHED_LENGTH_CAPPED, SHARED
    tickets.hear("request_finished_all_groups", (made, ([0, *range(2, SHARED + 1)],)), (False, None))


@pytest.mark.parametrize("ended", ["request_finished", "request_finished_all_groups"])
@pytest.mark.parametrize("other", ["takes it", "lets it go", "ends", "has another salt"])
def test_a_ticket_that_somebody_else_had_is_spent(other: str, ended: str) -> None:
    heard = Heard()
    made = heard.comes()
    one = heard.comes("r3", salt="s" if "salt" in other else None)
    calls = {"takes it": ("update_state_after_alloc", (one, None, 9), None)}
    calls["lets it go"] = ("update_state_after_alloc", (one, None, 0), None)
    one.status = Status.FINISHED_ABORTED
    tables: Any = [] if ended == "request_finished" else ([],)
    calls["ends"] = (ended, (one, tables), (False, None))
    if other in calls:
        heard.tickets.hear(*calls[other])
    heard.matches(made, 0)
    heard.matches(heard.comes("r4"), 0)


def test_who_took_it_computes_after_that() -> None:
    heard = Heard()
    made = heard.comes()
    heard.tickets.hear("update_state_after_alloc", (made, None, 9), None)
    heard.matches(made, 0)


@pytest.mark.parametrize("answer", [True, False, None])
def test_a_reset_ends_all_tickets(answer: bool | None) -> None:
    heard = Heard()
    made = heard.comes()
    heard.tickets.hear("reset_cache", (), answer)
    heard.matches(made, 0)
    heard.matches(heard.comes("r3"), 0)


def test_what_is_held_no_longer_need_not_be_found() -> None:
    heard = Heard()
    made = heard.comes()
    heard.held.is_held = False
    heard.matches(made, 0)


@pytest.mark.parametrize("changes", [{"is_on": False}, {"role": "kv_producer"}])
def test_who_pulls_nothing(changes: dict[str, Any]) -> None:
    heard = Heard(**changes)
    heard.matches(heard.comes(), 0)


@pytest.mark.parametrize(
    ("sent", "is_spent"),
    [
        ({"remote_engine_id": 7}, True),
        ({"remote_request_id": None}, True),
        ({"remote_request_id": 1, "remote_engine_id": 2}, False),  # so that nothing is left of this ticket
        ({"do_remote_prefill": False}, False),
        ({"do_remote_decode": 1}, True),
    ],
)
def test_of_a_ticket_that_a_client_changed_nothing_is_expected(sent: dict[str, Any], is_spent: bool) -> None:
    """Whoever took it all the same has it, and whoever refused it may have given it back."""
    heard = Heard()
    changed = SimRequest(RequestSpec("r2", 0, SHARED, 0, 1, 1, kv_transfer_params=sent), 4, 40)
    changed.kv_transfer_params = {**PARAMS, **sent}
    heard.tickets.hear("on_new_request", (changed,), None)
    heard.matches(changed, 9 if "do_remote_decode" in sent else 0)
    heard.tickets.hear("request_finished_all_groups", (changed, ([],)), (False, None))
    made = heard.comes("r3")
    with nullcontext() if is_spent else pytest.raises(Violation, match=FINDS_NOTHING):
        heard.matches(made, 0)


def test_a_ticket_that_a_client_changed_is_no_other_of_the_same_engine() -> None:
    heard, sent = Heard(), {"remote_host": "other"}
    changed = SimRequest(RequestSpec("r2", 0, SHARED, 0, 1, 1, kv_transfer_params=sent), 4, 40)
    changed.kv_transfer_params = {**PARAMS, "remote_request_id": "r9.9", **sent}
    heard.tickets.hear("on_new_request", (changed,), None)
    with pytest.raises(Violation, match=FINDS_NOTHING):
        heard.matches(heard.comes("r3"), 0)


@pytest.mark.parametrize("params", ["do_remote_prefill", ["do_remote_prefill"], 7, True])
def test_what_is_no_object_is_no_ticket_and_no_wish(params: Any) -> None:
    heard = Heard()
    made = request("r2")
    made.kv_transfer_params = params
    heard.tickets.hear("on_new_request", (made,), None)
    heard.matches(made, 0)
    made.status, made.num_computed_tokens = Status.FINISHED_LENGTH_CAPPED, SHARED
    heard.tickets.hear("request_finished_all_groups", (made, ([],)), (False, None))
    assert not heard.tickets.bearers


@pytest.mark.parametrize("wish", ["yes", 1, [True], True])
def test_only_a_true_wish_must_be_fulfilled(wish: Any) -> None:
    heard = Heard()
    made = request("r2")
    made.status, made.num_computed_tokens = Status.FINISHED_LENGTH_CAPPED, SHARED
    made.kv_transfer_params = {"do_remote_decode": wish}
    with pytest.raises(Violation, match="neither held its blocks nor") if wish is True else nullcontext():
        heard.tickets.hear("request_finished_all_groups", (made, ([],)), (False, None))


@pytest.mark.parametrize(
    "params", [{**PARAMS, "remote_request_id": "r1.2"}, {**PARAMS, "do_remote_prefill": False}, {}]
)
def test_what_is_no_ticket_of_this_world(params: dict[str, Any]) -> None:
    heard = Heard()
    heard.matches(heard.comes(params=params), 0)


def test_who_comes_without_any_parameters() -> None:
    heard = Heard()
    made = request("r2")
    heard.tickets.hear("on_new_request", (made,), None)
    heard.matches(made, 0)
    made.status, made.num_computed_tokens = Status.FINISHED_LENGTH_CAPPED, SHARED
    heard.tickets.hear("request_finished", (made, []), (False, None))


def test_a_ticket_of_a_longer_prompt_is_refused() -> None:
    """Also by who would come to the same tokens by itself."""
    heard = Heard()
    short = SimRequest(RequestSpec("r2", 0, SHARED - 1, 0, 4, 4), 4, 40)
    short.num_output_tokens = 1
    heard.held.hashes = np.concatenate([short.hashes[: SHARED + 1], heard.held.hashes[SHARED + 1 :]])
    short.kv_transfer_params = {**PARAMS}
    heard.tickets.hear("on_new_request", (short,), None)
    heard.matches(short, 0)
    heard.matches(heard.comes("r3"), 0)


@pytest.mark.parametrize(
    ("changes", "is_judged"),
    [
        ({}, True),
        ({"role": "kv_producer"}, True),
        ({"role": "kv_consumer"}, False),
        ({"wanted": False}, False),
        ({"status": Status.FINISHED_ABORTED}, False),
        ({"status": Status.FINISHED_STOPPED}, False),
        ({"ticket": PARAMS}, False),
    ],
)
def test_what_is_wanted_and_there_is_held(changes: dict[str, Any], is_judged: bool) -> None:
    tickets = Tickets(WorldConfig(role=changes.get("role", "kv_both")), Referee(), is_on=True)
    made = request("r1")
    made.kv_transfer_params = {"do_remote_decode": changes.get("wanted", True)}
    made.status = changes.get("status", Status.FINISHED_LENGTH_CAPPED)
    made.num_computed_tokens = SHARED
    call = ("request_finished", (made, []), ("ticket" in changes, changes.get("ticket")))
    Tickets(WorldConfig(), Referee(), is_on=True, holds=False).hear(*call)  # nobody said that it holds
    if not is_judged:
        tickets.hear(*call)
        return
    with pytest.raises(Violation) as raised:
        tickets.hear(*call)
    assert str(raised.value) == (
        "HITS  request r1: it came with do_remote_decode, ended well and its prompt is computed, but the "
        "connector "
        "neither held its blocks nor left a ticket when it ended"
    )


def test_so_is_what_was_preempted_in_its_last_step() -> None:
    """The engine would take that step again for whose KV is required."""
    tickets = Tickets(WorldConfig(), Referee(), is_on=True)
    made = request("r1")
    made.kv_transfer_params = {"do_remote_decode": True}
    made.status = Status.FINISHED_LENGTH_CAPPED
    with pytest.raises(Violation, match="well and was preempted in its last step, which"):
        tickets.hear("request_finished", (made, []), (False, None))


# -- what a worker reports ----------------------------------------------------------------------


def found(name: str) -> Violation:
    (subject,) = [planted.subject for planted in PLANTED if planted.name == name]
    failures = (run_seed(subject, seed).failure for seed in range(20))
    return next(failure.violation for failure in failures if failure is not None)


@pytest.mark.parametrize(
    ("name", "invariant", "message"),
    [
        ("LeavesABlock", Invariant.HITS, "tokens can be pulled"),
        ("HoldsWholeBlocks", Invariant.HITS, "neither held its blocks nor left a ticket"),
        (
            "FailsWhatCame",
            Invariant.PROTOCOL,
            r"^worker \d side reports: the pull of request r\d+ failed, but none of its copies did"
            r", and it had \d+ seconds left$",
        ),
        (
            "HoldsEndEarly",
            Invariant.PROTOCOL,
            r"^worker \d side reports: the hold of request r\d+ has ended, but it was neither pulled nor declined"
            r", and it had \d+ seconds left$",
        ),
    ],
)
def test_what_nothing_else_breaks_of_is_told(name: str, invariant: Invariant, message: str) -> None:
    violation = found(name)
    assert violation.invariant is invariant
    assert re.search(message, violation.message), violation.message


def test_blocks_that_were_pulled_are_not_said_to_be_unfilled(monkeypatch: pytest.MonkeyPatch) -> None:
    end = P2PWorkerSide._end_pull

    def ends(side: P2PWorkerSide, request_id: str, results: KVConnectorTransferResults) -> Any:
        pulling = end(side, request_id, results)
        if pulling is not None and not side._fails_requests:
            side._unfilled.update(pulling.pull.block_ids[:1])
        return pulling

    monkeypatch.setattr(P2PWorkerSide, "_end_pull", ends)
    failures = (run_seed(P2P, seed).failure for seed in range(20))
    message = next(failure.violation.message for failure in failures if failure is not None)
    told = r"worker \d side reports: blocks \[\d+\] weren't filled, but no pull of them failed in this step"
    assert re.fullmatch(told, message), message


@pytest.mark.once
@pytest.mark.parametrize("name", ["p2p", "p2p+offload"])
def test_tickets_are_issued_and_brought(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nothing would be demanded of anybody."""
    demanded = []
    check = Tickets._check_match

    def checks(tickets: Tickets, request: SimRequest, local: int, count: int | None, *, computes: int) -> None:
        issued = tickets._brought.get(request.request_id)
        demanded.append(issued is not None and not issued.is_spent and issued.request.is_held)
        check(tickets, request, local, count, computes=computes)

    monkeypatch.setattr(Tickets, "_check_match", checks)
    for seed in range(60):
        assert run_seed(SUBJECTS[name], seed).failure is None
        if sum(demanded) > 4:
            return
    pytest.fail(f"demanded {sum(demanded)} times")
