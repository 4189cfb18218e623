"""Situations made by hand in which a connector, its copies or a world break a rule, and worlds to make them in."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kv_api import (
    Direction,
    KVCacheEvent,
    KVConnectorTransferResults,
)
from kv_sim.actions import Action, Kind
from kv_sim.checkers import protocol
from kv_sim.config import GroupConfig, WorldConfig
from kv_sim.engine.request import SimRequest
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import MEMORY, OFFLOAD
from kv_sim.guard import Guard
from kv_sim.history.rest import MOST_STEPS, come_to_rest
from kv_sim.memory.copy import Copy
from kv_sim.memory.shadow import Shadow
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant, Referee
from kv_sim.world import World

PROMPT = 9
"""Tokens: two blocks of four and one more."""


def spec(name: str = "r1", **changes: Any) -> RequestSpec:
    plain = {"request_id": name, "conversation": 0, "shared_tokens": PROMPT, "own_tokens": 0}
    return RequestSpec(**{**plain, **changes})


def request(**changes: Any) -> SimRequest:
    return SimRequest(spec(**{"output_tokens": 1, "max_tokens": 1, **changes}), 4, 0)


def world(referee: Referee, subject: Subject = MEMORY, *, output: int = 1, **config: Any) -> World:
    """A world in which one request was added and one step was taken."""
    made = World(WorldConfig(**config), subject, referee=referee)
    made.engine.add(spec(output_tokens=output, max_tokens=output))
    made.apply(Action(Kind.STEP))
    return made


def half_of(made: World) -> Any:
    """The scheduler's side of its connector."""
    return made.engine.connectors[-1].side  # type: ignore[attr-defined]


def rest(made: World) -> None:
    made.rest()


def stored_once(referee: Referee) -> World:
    """A world at rest in which kv-offload stored two blocks of four tokens."""
    made = world(referee, OFFLOAD)
    come_to_rest(made)
    return made


def wrong_bytes(referee: Referee) -> None:
    made = world(referee, output=3)
    made.engine.devices[0].memory[1, 0, 2] ^= 1
    made.apply(Action(Kind.STEP))


def a_step_writes_under_a_store(referee: Referee) -> None:
    copy = Copy(0, Direction.STORE, ((3, 0),), "", 0)
    Shadow(1, referee).about_to_write(0, [3], "step 2 computes into it", [copy])


def a_load_without_right(referee: Referee) -> None:
    copy = Copy(0, Direction.LOAD, ((3, 0),), "", 0)
    Shadow(1, referee).about_to_move(0, copy, 3, 0, 4, [], [])


def a_block_that_stays(referee: Referee) -> None:
    made = world(referee)
    made.engine.scheduler.blocks.block_pool.touch([5, 7])
    made.engine.shadow.owners[7] = "r1"
    rest(made)


def a_load_right_that_stays(referee: Referee) -> None:
    made = world(referee)
    made.engine.shadow.load_rights.update({5: "r9", 7: "r8", 8: "r9"})
    rest(made)


def a_name_that_stays(referee: Referee) -> None:
    made = world(referee)
    half = half_of(made)
    half._later = [{"jobs": ("r1",)}]
    rest(made)


def books_that_are_wrong_for_a_while(referee: Referee) -> None:
    """The reset at rest puts them right."""
    made = world(referee)
    half = half_of(made)
    wrong, forget = ["until it forgets"], half.reset_cache

    def check() -> None:
        assert not wrong, wrong[0]

    def reset_cache() -> bool:
        wrong.clear()
        return bool(forget())

    half.check, half.reset_cache = check, reset_cache
    rest(made)


def books_that_are_wrong(referee: Referee) -> None:
    made = world(referee)
    half = half_of(made)
    half._free_slots.pop()
    rest(made)


def books_that_a_reset_at_rest_leaves_wrong(referee: Referee) -> None:
    made = world(referee)
    half = half_of(made)
    forget = half.reset_cache
    half.reset_cache = lambda: bool(half._free_slots.pop()) and forget()
    rest(made)


def bytes_that_are_not_counted_at_rest(referee: Referee) -> None:
    made = stored_once(referee)
    forget = made.engine.reset

    def reset(**how: bool) -> bool | None:
        made.sites[0].counted._sums["vllm:kv_offload_load_bytes"] -= 1
        return forget(**how)

    made.engine.reset = reset  # type: ignore[method-assign]
    rest(made)


def a_load_that_is_never_reported(referee: Referee) -> None:
    """What is still going on isn't judged: of that nothing is known."""
    made = World(WorldConfig(), MEMORY, referee=referee)
    half = half_of(made)
    half.get_num_new_matched_tokens = lambda request, local: (4, True)
    half.update_state_after_alloc = lambda *args: None
    made.referee.switched_off.add(Invariant.HITS)
    for name in ("r1", "r2"):
        made.engine.add(spec(name, output_tokens=1, max_tokens=1))
    rest(made)
    assert made.engine.num_steps == MOST_STEPS


def a_hold_that_never_ends(referee: Referee) -> None:
    made = World(WorldConfig(), MEMORY, referee=referee)
    half_of(made).request_finished_all_groups = lambda *args: (True, None)
    made.referee.switched_off.add(Invariant.HITS)
    made.engine.add(spec(output_tokens=1, max_tokens=1))
    rest(made)


def work_that_never_ends(referee: Referee) -> None:
    made = world(referee)
    half = half_of(made)
    half.has_pending_push_work = lambda: True
    rest(made)


def a_connector_that_raises(referee: Referee) -> None:
    class Clumsy:
        def reset_cache(self) -> bool:
            return bool({}["nowhere"])

    Guard(Clumsy(), "scheduler", referee, lambda *_: None).reset_cache()  # type: ignore[arg-type]


def reports_that_cannot_be_joined(referee: Referee) -> None:
    def join(reports: object) -> None:
        raise KeyError("nowhere")

    made = World(WorldConfig(tp_size=2), MEMORY, referee=referee)
    made.engine.aggregator.aggregate_reports = join  # type: ignore[assignment]
    made.engine.add(spec(output_tokens=1, max_tokens=1))
    made.apply(Action(Kind.STEP))


def more_than_there_is(referee: Referee) -> None:
    assert protocol.check_match(request(), 4, (8, False), referee) == (0, False)


def an_asynchronous_nothing(referee: Referee) -> None:
    assert protocol.check_match(request(), 0, (0, True), referee) == (0, False)


def no_count(referee: Referee) -> None:
    assert protocol.check_match(request(), 0, ("4", False), referee) == (0, False)


def no_pair(referee: Referee) -> None:
    assert protocol.check_match(request(), 0, 4, referee) == (0, False)


def a_load_of_nobody(referee: Referee) -> None:
    results = KVConnectorTransferResults(finished_recving={"r9"})
    protocol.check_reports(world(referee).engine.scheduler, results, referee)
    assert not results.finished_recving


def a_store_that_nobody_waits_for(referee: Referee) -> None:
    made = world(referee, output=3)
    results = KVConnectorTransferResults(finished_sending={"r1"})
    protocol.check_reports(made.engine.scheduler, results, referee)
    assert not results.finished_sending


def a_hold_while_it_loads(referee: Referee) -> None:
    made = World(WorldConfig(), MEMORY, referee=referee)
    half = half_of(made)
    half.get_num_new_matched_tokens = lambda request, local: (4, True)
    half.update_state_after_alloc = lambda *args: None
    half.request_finished_all_groups = lambda *args: (True, None)
    referee.switched_off.add(Invariant.HITS)
    made.engine.add(spec(output_tokens=1, max_tokens=1))
    made.apply(Action(Kind.STEP))
    made.apply(Action(Kind.ABORT, {"request": "r1"}))


def failed_blocks_of_several_groups(referee: Referee) -> None:
    groups = (GroupConfig(), GroupConfig("sliding", 4))
    keeps_nothing = replace(MEMORY, traits=frozenset({Trait.GROUPS}))
    made = World(WorldConfig(groups=groups), keeps_nothing, referee=referee)
    half: Any = made.engine.connectors[0].side  # type: ignore[attr-defined]
    half.get_block_ids_with_load_errors = lambda: {1}
    made.engine.add(spec(output_tokens=1, max_tokens=1))
    made.apply(Action(Kind.STEP))


def events_that_cannot_be_read(referee: Referee) -> None:
    made = World(WorldConfig(), MEMORY, referee=referee)
    half = half_of(made)

    def events() -> Iterator[KVCacheEvent]:
        yield {}["nowhere"]

    half.take_events = events
    made.engine.add(spec(output_tokens=1, max_tokens=1))
    made.apply(Action(Kind.STEP))
