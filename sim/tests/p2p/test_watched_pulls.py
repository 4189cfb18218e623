"""What a worker's side reports of holds and pulls is looked at: nothing ends before its time without a reason."""

from dataclasses import replace
from typing import Any

import pytest

from kv_api import Direction, KVConnectorTransferResults
from kv_p2p import P2PWorkerSide
from kv_p2p.pulling.metadata import P2PMetadata, Part
from kv_sim.actions import Action, Kind
from kv_sim.config import WorldConfig
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import P2P
from kv_sim.violation import Invariant, Violation
from kv_sim.world import World


class Holding:
    """A request has ended and is held, and the time is what it is said to be."""

    def __init__(self) -> None:
        self.world = World(WorldConfig(prefix_caching=False, num_blocks=40), P2P)
        connector: Any = self.world.engine.connectors[0]
        self.worker: Any = connector.side
        self.now = 100.0
        self.worker.clock = lambda: self.now
        self.add("r1")
        self.step()
        self.step()
        assert [*self.worker.held_requests] == ["r1"]
        self.seconds: int = self.worker._kv_transfer_config.kv_connector_extra_config["hold_seconds"]

    def add(self, name: str) -> None:
        self.world.engine.add(RequestSpec(name, 0, 9, 0, 1, 1))

    def step(self) -> None:
        assert self.world.apply(Action(Kind.STEP))

    def lets_go(self) -> None:
        del self.worker._held["r1"]
        self.worker.wire.withdraw(self.worker._holds["r1"][0])


def test_a_hold_that_ends_early_is_told_with_the_time_that_it_had() -> None:
    made = Holding()
    made.now += made.seconds - 2
    made.step()
    made.lets_go()
    made.now += 0.5
    with pytest.raises(Violation) as raised:
        made.step()
    assert raised.value.invariant is Invariant.PROTOCOL
    assert raised.value.message == (
        "worker 0 side reports: the hold of request r1 has ended, but it was neither pulled nor declined, and it "
        "had 1.5 seconds left"
    )


@pytest.mark.parametrize("late", [0, 7])
def test_a_hold_may_end_when_its_time_is_over(late: int) -> None:
    made = Holding()
    made.now += made.seconds + late
    made.step()
    assert [*made.worker.held_requests] == []
    assert made.worker._holds == {}


def test_who_knows_that_nobody_will_pull_it_may_let_it_go() -> None:
    made = Holding()
    made.worker.wire.over.add(made.worker._holds["r1"][0])
    made.lets_go()
    made.step()
    assert (made.worker._holds, made.worker.wire.over) == ({}, set()), "it is forgotten"


def test_a_hold_that_is_taken_back_may_end_at_once() -> None:
    """Others that are, and of which nothing is known any more, are no matter."""
    made = Holding()
    tell = made.worker._told
    made.worker._told = lambda: replace(tell(), revoked=["r9", "r1"])
    hold_id, looked_at = made.worker._holds["r1"][0], list[tuple[Direction, str]]()
    made.worker.wire.forget = lambda direction, name: looked_at.append((direction, name)) or []
    made.step()
    assert [*made.worker.held_requests] == []
    assert made.worker._holds == {}
    assert looked_at == [(Direction.STORE, hold_id)]


def test_a_router_learns_of_a_hold_by_its_prompt() -> None:
    made = Holding()
    router: Any = made.world.router
    (ended,) = made.world.engine.outcome.ended
    assert (len(ended.all_token_ids), len(ended.prompt_token_ids)) == (10, 9)
    assert [*router._known] == [tuple(ended.prompt_token_ids)]


def test_a_pull_that_fails_early_is_told_with_the_time_that_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Holding()
    made.add("r2")
    made.step()
    assert [*made.worker.pulling_requests] == ["r2"]
    seconds = made.worker._kv_transfer_config.kv_connector_extra_config["pull_seconds"]
    del made.worker._pulling["r2"]
    results = KVConnectorTransferResults(finished_recving={"r2"}, failed_recving={"r2"})
    monkeypatch.setattr(P2PWorkerSide, "get_transfer_results", lambda side, finished: results)
    made.now += 0.5
    with pytest.raises(Violation) as raised:
        made.step()
    assert raised.value.message == (
        "worker 0 side reports: the pull of request r2 failed, but none of its copies did, and it had "
        f"{seconds - 0.5:g} seconds left"
    )


def test_a_pull_whose_blocks_have_come_may_not_fail_however_late_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Holding()
    made.add("r2")
    made.step()
    wire, (_, end) = made.worker.wire, made.worker._pulls["r2"]
    made.world.take(Kind.SETTLE)
    assert not wire.has_filled("r2"), "they were sent, and nobody has received them"
    while not wire.has_filled("r2"):
        assert wire.poll().failed == []
        made.world.take(Kind.SETTLE)
    assert not wire.has_filled("r3")
    del made.worker._pulling["r2"]
    results = KVConnectorTransferResults(finished_recving={"r2"}, failed_recving={"r2"})
    monkeypatch.setattr(P2PWorkerSide, "get_transfer_results", lambda side, finished: results)
    made.now = end + 7
    with pytest.raises(Violation, match="the pull of request r2 failed, but all of its blocks had arrived"):
        made.step()


@pytest.mark.parametrize(("left", "has_failed"), [(0.5, True), (0, False), (-7, False), (-7, True)])
def test_a_pull_may_fail_with_a_copy_of_it_or_when_its_time_is_over(
    left: float, has_failed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then its blocks may be unfilled, and nothing of it is remembered."""
    made = Holding()
    made.add("r2")
    made.step()
    pull, end = made.worker._pulls["r2"]
    del made.worker._pulling["r2"]
    results = KVConnectorTransferResults(finished_recving={"r2"}, failed_recving={"r2"})
    monkeypatch.setattr(P2PWorkerSide, "get_transfer_results", lambda side, finished: results)
    monkeypatch.setattr(P2PWorkerSide, "get_block_ids_with_load_errors", lambda side: set(pull.block_ids))
    made.worker.wire.failed.update(["r2"] * has_failed)
    made.now = end - left
    made.step()
    assert (made.worker._pulls, made.worker.wire.failed) == ({}, set())


def test_the_blocks_of_all_pulls_that_fail_in_a_step_may_be_unfilled(monkeypatch: pytest.MonkeyPatch) -> None:
    made, names = Holding(), {"r2", "r3"}
    made.add("r2")
    made.step()
    worker = made.worker
    pull, end = worker._pulls["r2"]
    for name, first in (("r2", pull.block_ids[:2]), ("r3", pull.block_ids[2:])):
        worker._pulls[name] = replace(pull, request_id=name, parts=(Part(0, first),)), end
    blocks = {block for pull, _ in worker._pulls.values() for block in pull.block_ids}
    worker._pulling.clear()
    results = KVConnectorTransferResults(finished_recving=names, failed_recving=names)
    monkeypatch.setattr(P2PWorkerSide, "get_transfer_results", lambda side, finished: results)
    monkeypatch.setattr(P2PWorkerSide, "get_block_ids_with_load_errors", lambda side: blocks)
    worker.wire.failed.update(names)
    assert worker.get_transfer_results(set()) is results and worker._pulls == {}
    assert worker.get_block_ids_with_load_errors() == blocks


@pytest.mark.parametrize(
    ("is_idle", "waited", "seconds"), [(True, 1, 1), (True, 0, 0), (False, 1, 0), (True, 3, 1)]
)
def test_time_is_steps_without_work_in_which_no_copy_moved(is_idle: bool, waited: int, seconds: int) -> None:
    made = Holding()
    del made.worker.clock
    before = made.worker.clock()
    made.worker._told = lambda: P2PMetadata(is_idle=is_idle)
    made.worker._waited_steps = made.worker._device.waited_steps
    made.worker._device.waited_steps += waited
    made.worker.start_load_kv(None)
    assert made.worker.clock() == before + seconds


def test_blocks_of_a_pull_that_failed_are_unfilled_in_that_step_only(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Holding()
    monkeypatch.setattr(P2PWorkerSide, "get_block_ids_with_load_errors", lambda side: {7, 5})
    made.worker._lost.update((5, 7))
    with pytest.raises(Violation) as raised:
        made.step()
    assert raised.value.message == (
        "worker 0 side reports: blocks [5, 7] weren't filled, but no pull of them failed in this step"
    )


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("is_sent", [False, True])
def test_nothing_has_ended_of_which_a_copy_may_still_move(is_sent: bool, is_lost: bool) -> None:
    """Maybe only when it is found."""
    made = Holding()
    made.add("r2")
    made.step()
    (device,) = made.world.engine.devices
    if is_sent:
        device.copies.advance(device.copies.running[0], 3)
        made.step()
    (copy,) = device.copies.running.values()
    if is_lost:
        device.lose(copy)
    report = made.worker.get_transfer_results

    def reports(finished: set[str]) -> KVConnectorTransferResults:
        (made.worker._pulling if is_sent else made.worker._held).clear()
        results: KVConnectorTransferResults = report(finished)
        return results

    made.worker.get_transfer_results = reports
    made.now += 0 if is_sent else made.seconds
    with pytest.raises(Violation) as raised:
        made.step()
    assert raised.value.invariant is Invariant.OWNERSHIP
    state = "was lost" if is_lost else "is under way"
    what = {
        True: f"the pull of request r2 has ended, but load copy 1, which {state}, may still write its blocks",
        False: f"the hold of request r1 has ended, but store copy 0, which {state}, may still read its blocks",
    }[is_sent]
    assert raised.value.message == f"worker 0 side reports: {what} {copy.blocks_left}"
