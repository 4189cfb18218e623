"""Which blocks a worker may say were not loaded: those that a load which goes on was to fill, and no others."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kv_api import Direction
from kv_sim.actions import Action, Kind
from kv_sim.checkers.protocol import check_failed_blocks
from kv_sim.config import WorldConfig
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples import catalogue
from kv_sim.examples.catalogue import several
from kv_sim.history.rest import come_to_rest
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant, Referee, Violation
from kv_sim.world import World

# Their loads fail here without a copy that fails, which a cache could not do.
LATER, MEMORY = (
    replace(one, traits=one.traits - {Trait.KEEPS, Trait.EVENTS}) for one in (catalogue.LATER, catalogue.MEMORY)
)

PROMPT = 10
"""Tokens: two blocks of four that are stored and loaded, and a third."""


class Loading:
    """A world whose GPU has forgotten a prompt that its connector has stored, and which loads that now."""

    def __init__(self, subject: Subject, referee: Referee | None = None, **config: Any) -> None:
        self.world = World(WorldConfig(num_blocks=32, **config), subject, referee=referee)
        self.told: list[set[int]] = [set() for _ in self.world.engine.workers]
        self.add("r1")
        come_to_rest(self.world)
        assert self.world.engine.reset(running=False, connector=False)
        for rank, connector in enumerate(self.world.engine.connectors[:-1]):
            half: Any = getattr(connector, "side", connector)
            half.get_block_ids_with_load_errors = lambda rank=rank: self.told[rank]
        self.add("r2", output=3)

    def add(self, name: str, output: int = 1, *, conversation: int = 0) -> None:
        self.world.engine.add(RequestSpec(name, conversation, PROMPT, 0, output, output))

    def act(self, *kinds: Kind, **args: Any) -> None:
        for kind in kinds:
            assert self.world.apply(Action(kind, args))

    @property
    def table(self) -> list[int]:
        (table,) = self.world.engine.scheduler.blocks.tables["r2"].groups
        return table

    def breaks(self, kind: Kind, **args: Any) -> str:
        with pytest.raises(Violation) as raised:
            self.act(kind, **args)
        assert raised.value.invariant is Invariant.PROTOCOL
        return raised.value.message


def test_those_that_may_be_named_are_told_in_order() -> None:
    step: Any = SimpleNamespace(sync_targets={"r1": [16, 3]})
    shadow: Any = SimpleNamespace(load_rights=(24,), owners={}, owner=lambda block: "no request")
    with pytest.raises(Violation, match=r"blocks that loads fill: 3, 16, 24$"):
        check_failed_blocks(0, {1}, step, shadow, Referee())


def test_blocks_of_a_load_that_goes_on() -> None:
    made = Loading(LATER)
    made.act(Kind.STEP)
    made.told[0] = {*made.table[:2]}
    made.act(Kind.STEP)


def test_a_block_of_a_request_that_nothing_befell() -> None:
    """The third block is computed, and block 20 nobody's."""
    made = Loading(LATER)
    made.act(Kind.STEP)
    filled = ", ".join(map(str, sorted(made.table)))
    made.add("r3", 9, conversation=1)
    made.act(Kind.STEP)
    (other,) = made.world.engine.scheduler.blocks.tables["r3"].groups
    made.told[0] = {other[0], *made.table}
    assert made.breaks(Kind.STEP) == (
        f"worker 0 side, get_block_ids_with_load_errors reports block {other[0]} (of request r3), which no load "
        f"under way fills; blocks that loads fill: {filled}"
    )


@pytest.mark.parametrize("loaded", [1, 0])
def test_a_block_that_is_computed_after_one_that_was_not_loaded(loaded: int) -> None:
    """It is lost with that, in the same step. If all was loaded, it isn't."""
    made = Loading(MEMORY)
    connector = made.world.engine.connectors[0]
    half: Any = getattr(connector, "side", connector)
    half.get_block_ids_with_load_errors = lambda: {*made.table[:loaded], made.table[2]}
    if loaded:
        made.act(Kind.STEP)
    else:
        assert " (of request r2), which no load under way fills; blocks that loads fill: " in made.breaks(
            Kind.STEP
        )


def test_where_nothing_is_loaded() -> None:
    made = Loading(MEMORY)
    made.act(Kind.STEP)
    made.told[0] = {20}
    assert made.breaks(Kind.STEP) == (
        "worker 0 side, get_block_ids_with_load_errors reports block 20 (of no request), which no load under way "
        "fills; blocks that loads fill: none"
    )


def ends_now(made: Loading) -> None:
    """The load's copy has ended, and the next step reports that."""
    made.act(Kind.STEP, Kind.SETTLE)
    assert not made.world.engine.devices[0].copies.running


def test_in_the_step_that_reports_its_end_a_load_goes_on() -> None:
    made = Loading(LATER)
    ends_now(made)
    made.told[0] = {made.table[0]}
    made.act(Kind.STEP)


def test_after_that_it_does_not() -> None:
    made = Loading(LATER)
    ends_now(made)
    block = made.table[0]
    made.act(Kind.STEP)
    made.told[0] = {block}
    assert f"block {block} (of request r2)" in made.breaks(Kind.STEP)


def test_the_load_of_an_aborted_request_goes_on_until_its_end_is_reported() -> None:
    made = Loading(LATER)
    made.act(Kind.STEP)
    block = made.table[0]
    made.act(Kind.ABORT, request="r2")
    made.told[0] = {block}
    made.act(Kind.STEP, Kind.SETTLE, Kind.STEP)
    made.add("r3", conversation=1)
    assert f"block {block} (of request r3), which no load under way fills" in made.breaks(Kind.STEP)


def test_until_all_ranks_have_reported_its_end() -> None:
    """The second rank's worker is late, and blames a block in the step in which the first one's is done."""
    made = Loading(LATER, tp_size=2, failure_policy="fail")
    made.act(Kind.STEP)
    devices = made.world.engine.devices
    (copy,) = [c for c in devices[0].copies.running.values() if c.direction is Direction.LOAD]
    made.act(Kind.FINISH, rank=0, copy=copy.copy_id)
    made.act(Kind.STEP)
    block = made.table[0]
    made.told[1] = {block}
    made.act(Kind.STEP, Kind.SETTLE, Kind.STEP)
    made.add("r3", conversation=1)
    assert made.breaks(Kind.STEP).startswith(
        f"worker 1 side, get_block_ids_with_load_errors reports block {block} ("
    )


def test_a_load_of_a_step_ends_with_it() -> None:
    made = Loading(MEMORY)
    made.act(Kind.SCHEDULE)
    made.told[0] = {made.table[0]}
    made.act(Kind.EXECUTE, rank=0)
    made.act(Kind.RETIRE, rank=0)
    made.act(Kind.PROCESS)
    made.told[0] = {made.table[0]}
    assert "loads fill: none" in made.breaks(Kind.STEP)


def test_a_load_of_a_step_whose_request_was_preempted_meanwhile() -> None:
    """Steps run ahead, and its blocks are given back before the worker's report of it comes in."""
    made = Loading(MEMORY, run_ahead=1)
    made.act(Kind.SCHEDULE)
    made.told[0] = {made.table[0]}
    made.act(Kind.EXECUTE, rank=0)
    assert made.world.engine.reset(running=True, connector=False) is None
    made.act(Kind.RETIRE, rank=0)
    made.act(Kind.PROCESS)


@pytest.mark.parametrize("subject", [several(LATER, MEMORY), several(MEMORY, LATER)])
def test_children_of_a_multiconnector(subject: Subject) -> None:
    """What the first one loads either may name; what nobody loads neither may."""
    for child in range(2):
        made = Loading(subject)
        half: Any = made.world.engine.connectors[0]
        del half.side.get_block_ids_with_load_errors
        half.sub_connectors[child].side.get_block_ids_with_load_errors = lambda told=made.told: told[0]
        made.act(Kind.SCHEDULE)
        made.told[0] = {made.table[0]}
        made.world.engine.finish_step()
        made.told[0] = {25}
        assert "block 25 (of no request)" in made.breaks(Kind.STEP)


def test_nobody_looks() -> None:
    referee = Referee()
    referee.switched_off.add(Invariant.PROTOCOL)
    made = Loading(MEMORY, referee)
    made.told[0] = {20}
    made.act(Kind.STEP)


def test_what_was_computed_from_blocks_that_were_not_filled_is_not_found() -> None:
    """Also if its request has gone before anybody knows."""
    made = Loading(MEMORY, run_ahead=1)
    made.world.engine.abort("r2")
    request = made.world.engine.add(RequestSpec("r3", 0, PROMPT, 10, 1, 1))
    worker: Any = made.world.engine.connectors[0]
    worker.side.start_load_kv = lambda forward_context: None
    made.act(Kind.SCHEDULE)
    blocks = made.world.engine.scheduler.blocks
    pool, (table,) = blocks.block_pool, blocks.tables["r3"].groups
    made.told[0] = {*table[:2]}
    made.act(Kind.EXECUTE, rank=0)  # which waits for the kernels, to store what they leave
    made.world.engine.abort("r3")
    assert [pool.find(0, name) for name in request.prompt_hashes[:4]] == table[:4]
    made.act(Kind.PROCESS)
    assert [pool.find(0, name) for name in request.prompt_hashes] == [None] * 5
