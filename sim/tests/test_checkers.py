"""Each checker fires in a minimal situation made by hand, says where, and is silent when switched off."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kv_api import (
    BlockRemoved,
    BlockStored,
    CacheHitSource,
    KVCacheEvent,
    KVConnectorStats,
    KVConnectorTransferResults,
)
from kv_offload_cpu.stats import CPUOffloadingStats
from kv_sim.actions import Action, Kind
from kv_sim.checkers import accounting, protocol, quiescence, work
from kv_sim.checkers.hits import Served
from kv_sim.config import GroupConfig, WorldConfig
from kv_sim.engine.request import RequestSpec, SimRequest, Status
from kv_sim.examples.catalogue import LATER, MEMORY, OFFLOAD, SUBJECTS
from kv_sim.examples.memory import MemoryConnector
from kv_sim.guard import Guard, HistoryEnds
from kv_sim.memory.copies import Copy, CopyEngine, Direction
from kv_sim.memory.shadow import Shadow
from kv_sim.subject import Subject
from kv_sim.violation import Invariant, Referee, Violation
from kv_sim.world import World

I = Invariant  # noqa: E741 - it stands in a table
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


def rest(made: World) -> None:
    quiescence.come_to_rest(made)


# -- the situations -----------------------------------------------------------------------------


def wrong_bytes(referee: Referee) -> None:
    made = world(referee, output=3)
    made.engine.devices[0].memory[1, 0, 2] ^= 1
    made.apply(Action(Kind.STEP))


def a_step_writes_under_a_store(referee: Referee) -> None:
    copy = Copy(0, Direction.STORE, ((3, 0),), "", 0)
    Shadow(1, referee).about_to_write(0, [3], "step 2 computes into it", [copy])


def a_load_without_right(referee: Referee) -> None:
    copy = Copy(0, Direction.LOAD, ((3, 0),), "", 0)
    Shadow(1, referee).about_to_move(0, copy, 3, 0, 4, [], CopyEngine(SimpleNamespace()))  # type: ignore[arg-type]


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
    half: Any = made.engine.connectors[-1].side  # type: ignore[attr-defined]
    half._later = [{"jobs": ("r1",)}]
    rest(made)


def books_that_are_wrong_for_a_while(referee: Referee) -> None:
    """The reset at rest puts them right."""
    made = world(referee)
    half: Any = made.engine.connectors[-1].side  # type: ignore[attr-defined]
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
    half: Any = made.engine.connectors[-1].side  # type: ignore[attr-defined]
    half._free_slots.pop()
    rest(made)


def books_that_a_reset_at_rest_leaves_wrong(referee: Referee) -> None:
    made = world(referee)
    half: Any = made.engine.connectors[-1].side  # type: ignore[attr-defined]
    forget = half.reset_cache
    half.reset_cache = lambda: bool(half._free_slots.pop()) and forget()
    rest(made)


def bytes_that_are_not_counted_at_rest(referee: Referee) -> None:
    made = stored_once(referee)
    forget = made.engine.reset

    def reset(**how: bool) -> bool | None:
        made.counted._sums["vllm:kv_offload_load_bytes"] -= 1
        return forget(**how)

    made.engine.reset = reset  # type: ignore[method-assign]
    rest(made)


def a_load_that_is_never_reported(referee: Referee) -> None:
    """What is still going on isn't judged: of that nothing is known."""
    made = World(WorldConfig(), MEMORY, referee=referee)
    half: Any = made.engine.connectors[-1].side  # type: ignore[attr-defined]
    half.get_num_new_matched_tokens = lambda request, local: (4, True)
    half.update_state_after_alloc = lambda *args: None
    made.referee.silent.add(I.HITS)
    for name in ("r1", "r2"):
        made.engine.add(spec(name, output_tokens=1, max_tokens=1))
    rest(made)
    assert made.engine.num_steps == quiescence.MOST_STEPS


def work_that_never_ends(referee: Referee) -> None:
    made = world(referee)
    half: Any = made.engine.connectors[-1].side  # type: ignore[attr-defined]
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

    made = World(WorldConfig(), MEMORY, referee=referee)
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
    half: Any = made.engine.connectors[-1].side  # type: ignore[attr-defined]
    half.get_num_new_matched_tokens = lambda request, local: (4, True)
    half.update_state_after_alloc = lambda *args: None
    half.request_finished_all_groups = lambda *args: (True, None)
    referee.silent.add(I.HITS)
    made.engine.add(spec(output_tokens=1, max_tokens=1))
    made.apply(Action(Kind.STEP))
    made.apply(Action(Kind.ABORT, {"request": "r1"}))


def failed_blocks_of_several_groups(referee: Referee) -> None:
    made = World(WorldConfig(groups=(GroupConfig(), GroupConfig("sliding", 4))), MEMORY, referee=referee)
    half: Any = made.engine.connectors[0].side  # type: ignore[attr-defined]
    half.get_block_ids_with_load_errors = lambda: {1}
    made.engine.add(spec(output_tokens=1, max_tokens=1))
    made.apply(Action(Kind.STEP))


def events_that_cannot_be_read(referee: Referee) -> None:
    made = World(WorldConfig(), MEMORY, referee=referee)
    half: Any = made.engine.connectors[-1].side  # type: ignore[attr-defined]

    def events() -> Iterator[KVCacheEvent]:
        yield {}["nowhere"]

    half.take_events = events
    made.engine.add(spec(output_tokens=1, max_tokens=1))
    made.apply(Action(Kind.STEP))


def a_hit_that_nobody_computed(referee: Referee) -> None:
    Served(referee, 4, is_on=True).check_match(request(), 0, 4)


def a_hit_from_before_a_reset(referee: Referee) -> None:
    served, stale = Served(referee, 4, is_on=True), request()
    stale.num_computed_tokens = PROMPT
    served.compute(stale)
    stale.status = Status.FINISHED_STOPPED
    served.check_match(stale, 0, 8)
    served.reset([stale])
    served.check_match(stale, 0, 8)


def a_block_that_was_lost(referee: Referee) -> None:
    made = world(referee)
    half: Any = made.engine.connectors[-1].side  # type: ignore[attr-defined]
    block_hash, slot = half._slot_of.popitem()
    half._free_slots.append(slot)
    half._events.append(BlockRemoved([block_hash], "CPU"))
    rest(made)


def a_reset_that_lies(referee: Referee) -> None:
    made = world(referee)
    half: Any = made.engine.connectors[-1].side  # type: ignore[attr-defined]
    half.reset_cache = lambda: True
    rest(made)


def sources_that_do_not_add_up(referee: Referee) -> None:
    accounting.check_sources("r1", 8, {CacheHitSource.HOST: 4}, referee)


def a_source_of_nothing(referee: Referee) -> None:
    accounting.check_sources("r1", 8, {CacheHitSource.HOST: 8, CacheHitSource.DISK: 0}, referee)


class Forgetful(MemoryConnector):
    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats | None:
        return Counted(dict.fromkeys(data or {}, 0))


class Counted(KVConnectorStats):
    def reduce(self) -> dict[str, Any]:
        return self.data

    def is_empty(self) -> bool:
        return not self.data


def stats_that_arrive_as_others(referee: Referee) -> None:
    accounting.check_stats(Forgetful, None, referee)
    accounting.check_stats(Forgetful, Counted({}), referee)
    accounting.check_stats(MemoryConnector, Counted({"loads": 3}), referee)  # it can't rebuild any
    accounting.check_stats(Forgetful, Counted({"loads": 0}), referee)
    accounting.check_stats(Forgetful, Counted({"loads": 3}), referee)


def removed_and_never_stored(referee: Referee) -> None:
    accounting.Mirror(referee).take([BlockRemoved([b"x"], "CPU")])


def found_and_not_announced(referee: Referee) -> None:
    made = world(referee)
    made.engine.mirror.blocks.clear()
    rest_of_mirror(made)


def announced_and_not_found(referee: Referee) -> None:
    made = world(referee)
    half: Any = made.engine.connectors[-1].side  # type: ignore[attr-defined]
    block_hash = next(iter(half._slot_of))
    half._free_slots.append(half._slot_of.pop(block_hash))
    half.take_events = list  # it is stored again when it is asked for
    referee.silent.add(I.HITS)
    rest(made)


def announced_twice(referee: Referee) -> None:
    made = world(referee)
    half: Any = made.engine.connectors[-1].side  # type: ignore[attr-defined]
    block_hash = next(iter(half._slot_of))
    half._free_slots.append(half._slot_of.pop(block_hash))
    referee.silent.add(I.HITS)
    rest(made)


def tokens_of_another_block(referee: Referee) -> None:
    mirror = accounting.Mirror(referee, is_exact=True)
    known = request()
    mirror.know(known)
    hashes, tokens = known.prompt_hashes, known.all_token_ids
    mirror.take([BlockStored([hashes[0]], None, tokens[:4], 4, None, "CPU", None)])
    mirror.take([BlockStored([hashes[1]], hashes[0], tokens[5:9], 4, None, "CPU", None)])


def bytes_that_are_not_counted(referee: Referee) -> None:
    made = stored_once(referee)
    made.counted._sums["vllm:kv_offload_store_size_sum"] -= 32
    rest(made)


def a_share_that_stays_in_use(referee: Referee) -> None:
    made = stored_once(referee)
    made.counted._shares["vllm:kv_offload_cpu_cache_read_usage_perc"] = 0.25
    made.counted.check(made)


def a_whole_that_is_not_its_parts(referee: Referee) -> None:
    class Usage(CPUOffloadingStats):
        def reduce(self) -> dict[str, Any]:
            return {**super().reduce(), "vllm:kv_offload_cpu_cache_usage_perc": 0.5}

    accounting.Counted(referee, is_on=True).take(Usage({}))


def stored_once(referee: Referee) -> World:
    """A world at rest in which kv-offload stored two blocks of four tokens."""
    made = world(referee, OFFLOAD)
    quiescence._settle(made)
    return made


def what_was_just_used_is_gone(referee: Referee) -> None:
    """The example drops what was stored longest ago, however often it was used since."""
    made = World(WorldConfig(host_slots=4), replace(MEMORY, evicts_oldest=True), referee=referee)
    for number in range(2):
        made.engine.add(spec(f"r{number}", conversation=number, output_tokens=1, max_tokens=1))
    rest(made)


def half_a_connector(referee: Referee) -> None:
    made = World(WorldConfig(), SUBJECTS["later+flaky"], referee=referee)
    flaky: Any = made.engine.connectors[-1].sub_connectors[1]  # type: ignore[attr-defined]
    flaky.side.shutdown()
    rest(made)


def rest_of_mirror(made: World) -> None:
    """At rest nothing is removed, so that the mirror is only compared."""
    half: Any = made.engine.connectors[-1].side  # type: ignore[attr-defined]
    half.reset_cache = lambda: False
    rest(made)


def ranks_that_differ(referee: Referee) -> None:
    made = world(referee, LATER, tp_size=2)
    made.apply(Action(Kind.STEP))
    device = made.engine.devices[1]
    device.copies.open().submit(Direction.STORE, [(9, 0)])
    rest(made)


def a_slot_that_is_not_there(referee: Referee) -> None:
    copy = Copy(0, Direction.STORE, ((3, 4),), "", 0)
    Shadow(1, referee).about_to_move(0, copy, 3, 4, 4, [], CopyEngine(SimpleNamespace()))  # type: ignore[arg-type]


def ask_again_for_ever(referee: Referee) -> None:
    retries = work.Retries(referee)
    for _ in range(work.MOST_RETRIES + 1):
        retries.matched("r1", (None, False))


ANY = "***"
"""What a message says there depends on hashes, on where a line stands, or on pytest."""
ASKED = "request r1: get_num_new_matched_tokens(…, "

SITUATIONS: tuple[tuple[Invariant, Callable[[Referee], None], str], ...] = (
    (
        I.CONTENT,
        wrong_bytes,
        "request r1 token 2: rank 0 block 1 holds 0x***, last written by step 1 for request r1 "
        "(group 0, layer 0, step 2)",
    ),
    (
        I.OWNERSHIP,
        a_step_writes_under_a_store,
        "rank 0 block 3 (of nobody): step 2 computes into it while store copy 0 (begun for nobody) is under way",
    ),
    (
        I.OWNERSHIP,
        a_load_without_right,
        "rank 0 block 3 (of nobody): load copy 0 writes it, but no load into it is announced or going on",
    ),
    (I.CONSERVATION, a_block_that_stays, "GPU blocks [5, 7] (of nobody, request r1) are never freed"),
    (I.CONSERVATION, a_load_right_that_stays, "loads of requests ['r8', 'r9'] never ended"),
    (
        I.CONSERVATION,
        a_name_that_stays,
        "request r1 has ended, everything is at rest, and "
        "MemoryConnector._scheduler._later[…]['jobs'][…] still remembers it",
    ),
    (
        I.CONSERVATION,
        books_that_are_wrong,
        "at rest the books of MemoryScheduler are wrong: free 61 + in use 2 != 64, or one counts twice***",
    ),
    (
        I.CONSERVATION,
        books_that_are_wrong_for_a_while,
        "at rest the books of MemoryScheduler are wrong: until it forgets***",
    ),
    (
        I.CONSERVATION,
        books_that_a_reset_at_rest_leaves_wrong,
        "at rest the books of MemoryScheduler are wrong: free 61 + in use 2 != 64, or one counts twice***",
    ),
    (
        I.LIVENESS,
        a_load_that_is_never_reported,
        "after 400 quiet steps there are still requests: <request r1 waiting for a load 4/9>, "
        "<request r2 waiting for a load 4/9>",
    ),
    (
        I.LIVENESS,
        work_that_never_ends,
        "after 400 quiet steps there are still requests: none, but it wants to go on",
    ),
    (
        I.NO_CRASH,
        a_connector_that_raises,
        "scheduler side, reset_cache: KeyError: 'nowhere' (test_checkers.py:*** in "
        "a_connector_that_raises.<locals>.Clumsy.reset_cache)",
    ),
    (
        I.NO_CRASH,
        reports_that_cannot_be_joined,
        "what the workers report, joined: KeyError: 'nowhere' (test_checkers.py:*** in "
        "reports_that_cannot_be_joined.<locals>.join)",
    ),
    (
        I.NO_CRASH,
        events_that_cannot_be_read,
        "scheduler side, the events of take_events: KeyError: 'nowhere' (test_checkers.py:*** in "
        "events_that_cannot_be_read.<locals>.events)",
    ),
    (
        I.PROTOCOL,
        more_than_there_is,
        ASKED + "4) answered (8, False), but at most 4 of its 9 tokens can be loaded so",
    ),
    (I.PROTOCOL, an_asynchronous_nothing, ASKED + "0) answered (0, True), an asynchronous load of nothing"),
    (I.PROTOCOL, no_count, ASKED + "0) answered ('4', False), whose count is no count"),
    (I.PROTOCOL, no_pair, ASKED + "0) answered 4, which is no pair"),
    (I.PROTOCOL, a_load_of_nobody, "request r9: the end of a load is reported, but there is no such request"),
    (
        I.PROTOCOL,
        a_store_that_nobody_waits_for,
        "request r1: the end of a store is reported, but its blocks are not held for one",
    ),
    (
        I.PROTOCOL,
        a_hold_while_it_loads,
        "request r1: request_finished holds its blocks for a store while its load is under way; "
        "whichever is reported first frees them",
    ),
    (
        I.PROTOCOL,
        failed_blocks_of_several_groups,
        "failed block ids are reported, but there are several groups",
    ),
    (
        I.HITS,
        a_hit_that_nobody_computed,
        "request r1: 4 tokens are found after the first 0, but nobody computed block 0 of them in this world",
    ),
    (
        I.HITS,
        a_hit_from_before_a_reset,
        "request r1: 8 tokens are found after the first 0, but nobody computed block 0 of them since reset 1",
    ),
    (
        I.HITS,
        a_block_that_was_lost,
        "request r1 comes again at rest: 4 of its 9 tokens are found, but the first 8 belong to "
        "requests that ended well, no copy failed, and there was room for all",
    ),
    (
        I.HITS,
        a_reset_that_lies,
        "request r1: 8 tokens are found after the first 0, but nobody computed block 0 of them since reset 1",
    ),
    (
        I.ACCOUNTING,
        sources_that_do_not_add_up,
        "request r1: 8 tokens are loaded, but their sources are counted as {'host': 4}",
    ),
    (
        I.ACCOUNTING,
        a_source_of_nothing,
        "request r1: 8 tokens are loaded, but their sources are counted as {'host': 8, 'disk': 0}",
    ),
    (I.ACCOUNTING, stats_that_arrive_as_others, "stats {'loads': 3} arrive as {'loads': 0} where they are shown"),
    (
        I.ACCOUNTING,
        removed_and_never_stored,
        "an event removes block b'x' of group None from CPU, which no event had stored",
    ),
    (
        I.ACCOUNTING,
        found_and_not_announced,
        "request r1 comes again at rest: block 0 of its prompt is found, but by the events so "
        "far it is not stored",
    ),
    (
        I.ACCOUNTING,
        announced_and_not_found,
        "request r1 comes again at rest: block 0 of its prompt is not found, but by the events "
        "so far it is stored",
    ),
    (
        I.ACCOUNTING,
        announced_twice,
        "an event stores block b***of group None in CPU, which was stored before and not removed since",
    ),
    (
        I.ACCOUNTING,
        tokens_of_another_block,
        "of blocks [b***] an event tells (parent, tokens, block size, adapter) (b***, [***, ***, "
        "***, ***], 4, None), but it is (b***, [***, ***, ***, ***], 4, None)",
    ),
    (
        I.ACCOUNTING,
        bytes_that_are_not_counted,
        "vllm:kv_offload_store_size_sum adds up to 32, but 1 store copies that ended well moved 64 bytes",
    ),
    (
        I.ACCOUNTING,
        bytes_that_are_not_counted_at_rest,
        "vllm:kv_offload_load_bytes adds up to ***, but *** load copies that ended well moved *** bytes",
    ),
    (
        I.ACCOUNTING,
        a_share_that_stays_in_use,
        "nothing is under way, but these shares are in use: "
        "{'vllm:kv_offload_cpu_cache_usage_perc': 0.0, "
        "'vllm:kv_offload_cpu_cache_write_usage_perc': 0.0, "
        "'vllm:kv_offload_cpu_cache_read_usage_perc': 0.25}",
    ),
    (
        I.ACCOUNTING,
        a_whole_that_is_not_its_parts,
        "the first of these is the sum of the others: {'vllm:kv_offload_cpu_cache_usage_perc': "
        "0.5, 'vllm:kv_offload_cpu_cache_write_usage_perc': 0, "
        "'vllm:kv_offload_cpu_cache_read_usage_perc': 0}",
    ),
    (
        I.HITS,
        what_was_just_used_is_gone,
        "request r0 comes again at rest: 0 of its first 8 tokens are found, but r0 and new ones "
        "of 2 chunks came last, and all have room",
    ),
    (
        I.CONSERVATION,
        half_a_connector,
        "everything is at rest, and of FlakyScheduler with its workers 1 of 2 are switched off",
    ),
    (I.GEOMETRY, ranks_that_differ, "ranks 0 and 1 disagree: a store of ((9, 0),) ran on one of them only"),
    (I.GEOMETRY, a_slot_that_is_not_there, "rank 0: store copy 0 uses host slot 4 of 4"),
    (I.WORK, ask_again_for_ever, "request r1: the connector answered 'ask again' 61 times in a row"),
)
each = pytest.mark.parametrize(
    ("invariant", "situation", "words"), SITUATIONS, ids=lambda v: getattr(v, "__name__", "")
)


@each
def test_it_fires_and_says_where(invariant: Invariant, situation: Callable[[Referee], None], words: str) -> None:
    with pytest.raises(Violation) as caught:
        situation(Referee())
    assert caught.value.invariant is invariant
    anything = ".*".join(map(re.escape, words.split(ANY)))
    assert re.fullmatch(anything, caught.value.message, re.DOTALL), caught.value.message
    assert str(caught.value) == f"{invariant}  {caught.value.message}"


@each
def test_it_is_silent_when_switched_off(
    invariant: Invariant, situation: Callable[[Referee], None], words: str
) -> None:
    referee = Referee()
    referee.silent.add(invariant)
    if invariant is I.NO_CRASH:
        with pytest.raises(HistoryEnds, match="KeyError"):
            situation(referee)
    else:
        situation(referee)


def test_every_checker_has_a_situation() -> None:
    assert {invariant for invariant, _, _ in SITUATIONS} == set(Invariant)


def test_the_engine_recounts_its_own_books_at_rest() -> None:
    made = world(Referee())
    made.engine.devices[0].copies.ended.append(Copy(7, Direction.STORE, (), "", 0))
    with pytest.raises(AssertionError, match="1 copies, 0 submitted"):
        rest(made)
