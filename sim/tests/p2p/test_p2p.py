"""Engines that pull from themselves: the world as a wire, and worlds in which something is pulled."""

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from kv_p2p.pulling.metadata import Hold, Part, Pull, Source
from kv_p2p.pulling.ticket import Address
from kv_p2p.pulling.wire import Ended
from kv_sim.actions import Kind
from kv_sim.config import STATE, GroupConfig, WorldConfig
from kv_sim.engine.engine import Engine
from kv_sim.engine.pool import BlockPool
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import P2P, P2P_CROWDED, SUBJECTS
from kv_sim.fuzz import run_seed
from kv_sim.history.arrivals import MOST_BLOCKS, Arrivals
from kv_sim.history.coverage import PULLED
from kv_sim.history.draws import config_for
from kv_sim.history.features import with_loads, with_own_cache
from kv_sim.memory.device import Device
from kv_sim.memory.shadow import Shadow
from kv_sim.p2p import TimedP2PWorkerSide, WorldWire
from kv_sim.site import Call
from kv_sim.subject import Trait
from kv_sim.violation import Referee
from kv_sim.world import World

HOLD = Hold("r1", "r1.1", "digest", ((3, 4, 5),))
THERE = Source(Address("somewhere", 1), "r1.1", "digest")
FORGETFUL = replace(SUBJECTS["patient"], traits=frozenset())
PULL = Pull("r2", THERE, (Part(1, (7, 8)),))
IT_HAS_GONE = Ended(failed=[("r2", "it was not received")])


# -- worlds ------------------------------------------------------------------------------------


def test_most_worlds_of_what_serves_peers_have_no_prefix_cache_and_more_room() -> None:
    served = replace(P2P, traits=P2P.traits - {Trait.UNEQUAL})
    plain = replace(served, serves_peers=False, traits=served.traits - {Trait.FAILURES})
    pairs = [(config_for(served, Random(seed)), config_for(plain, Random(seed))) for seed in range(600)]
    without = [(own, other) for own, other in pairs if not own.prefix_caching]
    assert len(without) / len(pairs) == pytest.approx(2 / 3, abs=0.08)
    for own, other in pairs:
        blocks = other.num_blocks * (1 if own.prefix_caching else 2)
        # Which worlds have sessions, pauses and images, and what their stages hold, is said by sizes, too.
        by_sizes = ["prefix_caching", "sessions", "stages", "pauses", "images"]
        # With several groups most of the others' worlds are such that a lot is loaded.
        by_sizes += ["role", "host_slots", "evicts"] if len(own.groups) > 1 else []
        same: dict[str, Any] = {name: getattr(own, name) for name in by_sizes}
        assert own == replace(other, num_blocks=blocks, **same)


def test_where_the_router_can_be_trusted_engines_give_and_take_and_have_room_to_hold() -> None:
    alike = replace(P2P, traits=P2P.traits - {Trait.UNEQUAL})
    fair = replace(alike, traits=alike.traits - {Trait.TICKETS})
    pairs = [(config_for(fair, Random(seed)), config_for(alike, Random(seed))) for seed in range(200)]
    assert {other.role for _, other in pairs} == {"kv_both", "kv_consumer", "kv_producer"}
    for own, other in pairs:
        assert own.role == "kv_both"
        blocks = 24 * len(own.groups) * (1 if own.prefix_caching else 2)
        if other.num_blocks >= blocks and own.prefix_caching == other.prefix_caching:
            assert own.num_blocks == other.num_blocks
        assert own.num_blocks >= blocks


@pytest.mark.once
def test_a_third_of_the_worlds_with_one_group_of_all_others_are_without_one() -> None:
    for name, subject in SUBJECTS.items():
        alike = replace(subject, traits=subject.traits - {Trait.UNEQUAL})
        drawn = [config_for(alike, Random(seed)) for seed in range(200)]
        without = [config for config in drawn if not config.prefix_caching]
        if subject.serves_peers:
            assert len(without) > 100, name
            continue
        of_one = [config for config in without if len(config.groups) == 1]
        assert 25 < len(of_one) < 80, name
        assert not any(STATE in config.groups or config.hashes_per_block > 1 for config in without), name
        assert {with_loads(config) for config in without} == set(without), name


def test_what_an_engine_keeps_for_its_own_cache_needs_one() -> None:
    kept = [(GroupConfig(), STATE), (GroupConfig(), GroupConfig("sliding", 8)), (GroupConfig(),)]
    drawn = {
        (groups, hashes, with_loads(config).prefix_caching)
        for groups in kept
        for hashes in ((1, 2) if groups == (GroupConfig(),) else (1,))
        for slots in range(40)
        for config in [WorldConfig(groups=groups, hashes_per_block=hashes, host_slots=slots)]
    }
    without = {(groups, hashes) for groups, hashes, prefix_caching in drawn if not prefix_caching}
    assert without == {(kept[1], 1), (kept[2], 1)}
    assert {(groups, hashes) for groups, hashes, prefix_caching in drawn if prefix_caching} == {
        *((groups, 1) for groups in kept),
        (kept[2], 2),
    }


def test_which_worlds_these_are_their_sizes_say() -> None:
    for with_some in (with_own_cache, with_loads):
        drawn = [
            [with_some(WorldConfig(host_slots=slots, layers=layers)).prefix_caching for slots in range(40)]
            for layers in (1, 2)
        ]
        assert drawn[0] == drawn[1]
        assert {*drawn[0]} == {True, False}


def test_without_a_prefix_cache_nothing_has_a_name() -> None:
    for enable_caching in (True, False):
        pool = BlockPool(4, enable_caching=enable_caching)
        (block,) = pool.allocate(1)
        pool.cache(0, b"a", block)
        assert pool.find(0, b"a") == (block if enable_caching else None)
        pool.check()
        pool.free([block])
        # What nobody can find is given away first.
        assert list(pool.free_queue)[0 if not enable_caching else -1] == block


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_without_a_prefix_cache_every_prompt_is_computed_again(prefix_caching: bool) -> None:
    found: list[int] = []

    def observe(call: Call) -> None:
        if call.method == "get_num_new_matched_tokens":
            found.append(call.args[1])

    world = World(WorldConfig(prefix_caching=prefix_caching), FORGETFUL, observe=observe)
    for name in ("r1", "r2"):
        world.engine.add(RequestSpec(name, 0, 9, 0, 1, 1))
        while world.engine.has_work:
            world.take(Kind.STEP)
    assert set(found[2:]) == {
        8 if prefix_caching else 0
    }  # each is asked about twice: "ask again" is the first answer
    assert len(found) == 4


def test_where_there_is_none_most_prompts_come_again() -> None:
    shares = {}
    for prefix_caching in (False, True):
        config = WorldConfig(num_blocks=80, prefix_caching=prefix_caching)
        arrivals, random, last = Arrivals(config), Random(5), [RequestSpec("r", 0, 1, 0, 1, 1)] * 6
        again = Counter[str]()
        for _ in range(1000):
            spec = arrivals.draw(random, ())
            assert len(spec.prompt) + spec.max_tokens + 1 <= MOST_BLOCKS * config.block_size
            before = {one.prompt for one in last}
            again["whole" if spec.prompt in before else "begun" if spec.prompt[:-1] in before else "new"] += 1
            last = [*last[1:], spec]
        shares[prefix_caching] = [again[kind] / 1000 for kind in ("whole", "begun", "new")]
    assert shares[False] == pytest.approx([0.3, 0.3, 0.4], abs=0.12)
    assert shares[True][2] > 0.8


# -- the wire ----------------------------------------------------------------------------------


@pytest.fixture
def wire() -> WorldWire:
    device = Device(0, WorldConfig(num_blocks=12, layers=2), Shadow(1, Referee()))
    device.memory[3:6] = np.arange(3 * 2 * 4, dtype=np.uint64).reshape(3, 2, 4)
    device.shadow.load_rights.update({7: "r2", 8: "r2"})
    return WorldWire(device)


def running(wire: WorldWire) -> Any:
    (copy,) = wire.device.copies.running.values()
    return copy


def run(wire: WorldWire) -> Ended:
    wire.device.copies.advance(running(wire), 2)
    return wire.poll()


def test_what_is_pulled_is_sent_and_then_received(wire: WorldWire) -> None:
    wire.serve(HOLD)
    wire.pull(PULL)
    assert wire.poll() == Ended()
    assert not wire.withdraw("r1.1")
    assert run(wire) == Ended()
    assert not wire.give_up("r2")
    assert run(wire) == Ended(served=["r1.1"], pulled=["r2"])
    assert wire.device.memory[7:9].tolist() == wire.device.memory[4:6].tolist()
    assert wire.poll() == Ended()
    wire.pull(PULL)  # it was good for one
    assert wire.poll() == IT_HAS_GONE


@pytest.mark.parametrize(
    "source", [replace(THERE, hold_id="r1.2"), replace(THERE, digest="another")], ids=["hold", "digest"]
)
def test_what_is_not_held_fails_at_once(wire: WorldWire, source: Source) -> None:
    wire.serve(HOLD)
    wire.pull(replace(PULL, source=source))
    assert wire.poll() == IT_HAS_GONE
    assert [str(copy) for copy in wire.device.copies.ended] == ["load copy 0"]
    wire.decline(source)
    assert wire.poll() == Ended()
    assert wire.withdraw("r1.1")


@pytest.mark.parametrize("sent", [False, True])
def test_either_half_of_the_way_may_fail(wire: WorldWire, sent: bool) -> None:
    wire.serve(HOLD)
    wire.pull(PULL)
    if sent:
        run(wire)
    wire.device.copies.fail(running(wire))
    assert wire.poll() == Ended(failed=[("r2", "it was not received" if sent else "it was not sent")])
    assert wire.poll() == Ended()
    wire.decline(THERE)
    assert wire.poll() == Ended(served=["r1.1"])


@pytest.mark.parametrize("sent", [False, True])
def test_what_is_lost_may_be_given_up_and_withdrawn(wire: WorldWire, sent: bool) -> None:
    wire.serve(HOLD)
    wire.pull(PULL)
    if sent:
        run(wire)
    assert wire.give_up("r2") is (not sent)
    wire.device.copies.lose(running(wire))
    assert wire.give_up("r2")
    assert wire.withdraw("r1.1")
    wire.device.copies.restart(0)
    assert wire.poll() == Ended()  # nobody waits for it any more


def test_an_end_that_is_reported_twice_is_one(wire: WorldWire) -> None:
    wire.serve(HOLD)
    wire.pull(PULL)
    run(wire)
    wire.device.copies.repeat(wire.device.copies.ended[0])
    assert wire.poll() == Ended()
    run(wire)
    for copy in list(wire.device.copies.ended):
        wire.device.copies.repeat(copy)
    assert wire.poll() == Ended()


def test_a_hold_that_is_read_is_not_declined(wire: WorldWire) -> None:
    wire.serve(HOLD)
    wire.pull(PULL)
    wire.decline(THERE)
    assert wire.poll() == Ended()
    assert run(wire) == Ended()
    wire.decline(THERE)  # all of it was sent, and somebody else doesn't want it
    assert wire.poll() == Ended(served=["r1.1"])
    assert run(wire) == Ended(pulled=["r2"])


def test_a_copy_reads_after_every_step_that_was_launched(wire: WorldWire) -> None:
    wire.device.copies.launched_steps = 3
    wire.serve(HOLD)
    wire.pull(PULL)
    assert running(wire).after_step == 3
    wire.device.copies.advance(running(wire), 2)
    wire.poll()
    assert running(wire).after_step == 0


def test_closing_lets_everything_end(wire: WorldWire) -> None:
    wire.serve(HOLD)
    wire.pull(PULL)
    wire.close()
    assert not wire.device.copies.running


# -- histories ---------------------------------------------------------------------------------


@pytest.mark.once
def test_much_is_pulled_in_all_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is pulled, it has gone, it breaks off or is late."""
    happened: Counter[str] = Counter()
    poll, give_up, withdraw = WorldWire.poll, WorldWire.give_up, WorldWire.withdraw

    def polled(wire: WorldWire) -> Ended:
        ended = poll(wire)
        happened.update(served=len(ended.served), pulled=len(ended.pulled), failed=len(ended.failed))
        happened.update(reason for _, reason in ended.failed)
        return ended

    def given_up(wire: WorldWire, request_id: str) -> bool:
        happened[f"given up {(answer := give_up(wire, request_id))}"] += 1
        return answer

    def withdrawn(wire: WorldWire, hold_id: str) -> bool:
        happened[f"withdrawn {(answer := withdraw(wire, hold_id))}"] += 1
        return answer

    monkeypatch.setattr(WorldWire, "poll", polled)
    monkeypatch.setattr(WorldWire, "give_up", given_up)
    monkeypatch.setattr(WorldWire, "withdraw", withdrawn)
    least = {"served": 20, "pulled": 10, "it was not sent": 1, "it was not received": 6}
    least |= {"given up True": 1, "withdrawn False": 2, "withdrawn True": 100}
    for seed in range(150):
        assert run_seed(P2P, seed).failure is None
        lacking = {name: happened[name] for name in least if happened[name] < least[name]}
        if not lacking:
            return
    pytest.fail(f"too few {lacking}")


def test_the_worker_waits_only_where_nothing_is_computed_and_nothing_moves() -> None:
    config = WorldConfig(prefix_caching=False)
    world = World(config, P2P)
    engine: Engine = world.engine
    (worker,) = (one.side for one in engine.connectors if isinstance(one.side, TimedP2PWorkerSide))
    engine.add(RequestSpec("r1", 0, 9, 0, 3, 3))
    world.rest()
    assert worker.clock() > 5  # the end of r1's hold
    seconds = [worker.clock()]
    engine.add(RequestSpec("r2", 1, 9, 0, 30, 30))
    for _ in range(10):
        world.take(Kind.STEP)
        seconds.append(worker.clock())
    assert len(set(seconds)) == 1


@pytest.mark.once
def test_it_gets_on_where_more_is_wanted_than_there_is_room_for() -> None:
    """Some give way to who comes with a ticket, and holds end although none does so by time."""
    runs = [run_seed(P2P_CROWDED, seed) for seed in range(12)]
    assert [run.failure for run in runs] == [None] * 12
    for situation, least in ((PULLED, 10), ("match: ask again", 5)):
        assert sum(run.coverage.situations[situation] for run in runs) > least, situation
