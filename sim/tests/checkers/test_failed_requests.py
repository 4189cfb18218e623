"""Whose loads a worker may say have failed: those that go on, and no others."""

from dataclasses import replace
from typing import Any

import pytest

from kv_api import Direction, KVConnectorTransferResults
from kv_sim.actions import Action, Kind
from kv_sim.config import WorldConfig
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples import catalogue
from kv_sim.history.rest import come_to_rest
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant, Referee, Violation
from kv_sim.world import World

# Their loads fail here without a copy that fails, which a cache could not do.
LATER, MEMORY = (
    replace(one, traits=one.traits - {Trait.KEEPS, Trait.EVENTS}) for one in (catalogue.LATER, catalogue.MEMORY)
)

WHERE = "worker 0 side, get_transfer_results reports in failed_recving that the load of request"


class Loading:
    """A world whose GPU has forgotten a prompt that its connector has stored, and which loads that now."""

    def __init__(self, subject: Subject, referee: Referee | None = None, **config: Any) -> None:
        self.world = World(WorldConfig(num_blocks=32, **config), subject, referee=referee)
        self.told: list[set[str]] = [set() for _ in self.world.engine.workers]
        self.add("r1")
        come_to_rest(self.world)
        assert self.world.engine.reset(running=False, connector=False)
        for rank, worker in enumerate(self.world.engine.workers):
            side: Any = getattr(worker.connector.connector, "side", None)
            side.get_transfer_results = self._also(side.get_transfer_results, rank)
        self.add("r2")

    def _also(self, tell: Any, rank: int) -> Any:
        def results(finished_req_ids: set[str]) -> KVConnectorTransferResults:
            told: KVConnectorTransferResults = tell(finished_req_ids)
            told.failed_recving |= self.told[rank]
            return told

        return results

    def add(self, name: str) -> None:
        self.world.engine.add(RequestSpec(name, 0, 10, 0, 3, 3))

    def act(self, *kinds: Kind, **args: Any) -> None:
        for kind in kinds:
            assert self.world.apply(Action(kind, args))

    def breaks(self, kind: Kind) -> str:
        with pytest.raises(Violation) as raised:
            self.act(kind)
        assert raised.value.invariant is Invariant.PROTOCOL
        return raised.value.message


@pytest.mark.parametrize("policy", ["recompute", "fail"])
def test_one_that_goes_on(policy: str) -> None:
    """Told once, or again until its end is reported."""
    made = Loading(LATER, failure_policy=policy)
    made.told[0] = {"r2"}
    made.act(Kind.STEP, Kind.STEP, Kind.SETTLE, Kind.STEP)
    made.told[0] = set()
    assert come_to_rest(made.world)


def test_one_that_has_ended() -> None:
    made = Loading(LATER)
    made.act(Kind.STEP, Kind.SETTLE, Kind.STEP)
    made.told[0] = {"r2"}
    assert (
        made.breaks(Kind.STEP)
        == f"{WHERE} r2 failed, but it has no asynchronous load under way; requests that have one: none"
    )


def test_one_of_nobody() -> None:
    made = Loading(LATER)
    made.told[0] = {"r1"}
    assert made.breaks(Kind.STEP) == (
        f"{WHERE} r1 failed, but the engine has no such request any more; requests that have one: r2"
    )


def test_one_of_the_step_waits_for_nothing() -> None:
    made = Loading(MEMORY)
    made.told[0] = {"r2"}
    assert "request r2 failed, but it has no asynchronous load under way" in made.breaks(Kind.STEP)


def test_that_of_an_aborted_request_goes_on_until_its_end_is_reported() -> None:
    made = Loading(LATER)
    made.act(Kind.STEP)
    made.act(Kind.ABORT, request="r2")
    made.told[0] = {"r2"}
    made.act(Kind.STEP, Kind.SETTLE, Kind.STEP)
    made.add("r3")
    assert "request r2 failed, but the engine has no such request any more" in made.breaks(Kind.STEP)


def test_until_all_ranks_have_reported_its_end() -> None:
    """One names what the other loads still; a step later nobody does."""
    made = Loading(LATER, tp_size=2)
    made.act(Kind.STEP)
    devices = made.world.engine.devices
    (copy,) = [c for c in devices[0].copies.running.values() if c.direction is Direction.LOAD]
    made.act(Kind.FINISH, rank=0, copy=copy.copy_id)
    made.act(Kind.STEP)
    made.told[0] = {"r2"}
    made.act(Kind.STEP, Kind.SETTLE, Kind.STEP)
    made.told = [set(), {"r2"}]
    assert made.breaks(Kind.STEP).startswith(f"{WHERE} r2 failed".replace("0", "1"))


def test_nobody_looks() -> None:
    referee = Referee()
    referee.switched_off.add(Invariant.PROTOCOL)
    made = Loading(MEMORY, referee)
    made.told[0] = {"r1", "r2"}
    made.act(Kind.STEP)
