"""Situations made by hand in which a connector says what isn't so, or asks without end, and ranks that differ."""

from dataclasses import replace
from typing import Any

from kv_sim_breaches import PROMPT, half_of, request, rest, spec, stored_once, world

from kv_api import (
    BlockRemoved,
    BlockStored,
    CacheHitSource,
    Direction,
    KVConnectorStats,
)
from kv_offload_cpu.stats import CPUOffloadingStats
from kv_sim.actions import Action, Kind
from kv_sim.checkers import accounting, work
from kv_sim.checkers.served import Served
from kv_sim.config import WorldConfig
from kv_sim.engine.request import Status
from kv_sim.examples.catalogue import LATER, MEMORY, SUBJECTS
from kv_sim.examples.memory import MemoryConnector
from kv_sim.memory.copy import Copy
from kv_sim.memory.shadow import Shadow
from kv_sim.violation import Invariant, Referee
from kv_sim.world import World


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
    half = half_of(made)
    block_hash, slot = half._slot_of.popitem()
    half._free_slots.append(slot)
    half._events.append(BlockRemoved([block_hash], "CPU"))
    rest(made)


def a_reset_that_lies(referee: Referee) -> None:
    made = world(referee)
    half = half_of(made)
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
    half = half_of(made)
    block_hash = next(iter(half._slot_of))
    half._free_slots.append(half._slot_of.pop(block_hash))
    half.take_events = list  # it is stored again when it is asked for
    referee.switched_off.add(Invariant.HITS)
    rest(made)


def announced_twice(referee: Referee) -> None:
    made = world(referee)
    half = half_of(made)
    block_hash = next(iter(half._slot_of))
    half._free_slots.append(half._slot_of.pop(block_hash))
    referee.switched_off.add(Invariant.HITS)
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
    made.sites[0].counted._sums["vllm:kv_offload_store_size_sum"] -= 32
    rest(made)


def a_share_that_stays_in_use(referee: Referee) -> None:
    made = stored_once(referee)
    made.sites[0].counted._shares[""]["vllm:kv_offload_cpu_cache_read_usage_perc"] = 0.25
    made.sites[0].counted.check(made.engine.devices)


def a_whole_that_is_not_its_parts(referee: Referee) -> None:
    class Usage(CPUOffloadingStats):
        def reduce(self) -> dict[str, Any]:
            return {**super().reduce(), "vllm:kv_offload_cpu_cache_usage_perc": 0.5}

    accounting.Counted(referee, is_on=True).take(Usage({}))


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
    half = half_of(made)
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
    Shadow(1, referee).about_to_move(0, copy, 3, 4, 4, [], [])


def ask_again_for_ever(referee: Referee) -> None:
    retries = work.Retries(referee)
    for _ in range(work.MOST_RETRIES + 1):
        retries.matched("r1", (None, False))
