"""Worlds of two engines: each has its own connector, and is judged alone; what one holds the other pulls."""

from collections import Counter
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest

from kv_p2p.pulling.metadata import Hold, Part, Pull, Source
from kv_p2p.pulling.ticket import Address
from kv_p2p.pulling.wire import Ended
from kv_sim.actions import Action, Kind
from kv_sim.config import BLOCKS_MORE, Stranger, WorldConfig
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import LATER, P2P, P2P_TWO
from kv_sim.failures.schedule_file import Schedule, ScheduleError, parse_schedule, to_text
from kv_sim.failures.shrink import _at_engine_of, shrink
from kv_sim.fuzz import Failure, replay, run_seed
from kv_sim.history.draws import config_for
from kv_sim.memory.device import Device
from kv_sim.memory.shadow import Shadow
from kv_sim.p2p import WorldWire
from kv_sim.site import Call
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant, Referee, Violation
from kv_sim.watching.log import Log
from kv_sim.watching.watch import WatchedWorld
from kv_sim.world import World
from kv_sim.zoo.registry import PLANTED

TWO = WorldConfig(num_blocks=40, engines=2, role="kv_producer")
FAIR = replace(P2P_TWO, traits=P2P.traits - {Trait.TICKETS})
PROMPT = RequestSpec("r1", 0, 9, 0, 1, 1)
GOES_ON = replace(PROMPT, request_id="r1-00000001")
"""Who comes with its ticket to the other engine, by name."""
BLIND = ("TicketsSurviveReset", "HoldsSurviveReset", "NewHoldsSurviveReset")
"""What a reset takes back is judged where there is one engine."""
RARE = ("LastTokenFromAWindowPassed", "PromisesWhatSlid")
"""Takes hundreds of worlds, whatever they have."""


def add(spec: RequestSpec, engine: int = 0) -> Action:
    where = {"engine": engine} if engine else {}
    return Action(Kind.ADD, {**where, "spec": spec.to_json()})


def settled_steps(world: World, engine: int, count: int) -> None:
    where = {"engine": engine} if engine else {}
    for _ in range(count):
        world.take(Kind.STEP, **where)
        world.take(Kind.SETTLE, **where)


# -- the worlds --------------------------------------------------------------------------------


def test_the_second_engine_has_the_other_role_and_blocks_of_its_own() -> None:
    config = WorldConfig(num_blocks=12, role="kv_consumer", engines=2)
    assert config.at(0) is config
    assert config.at(1) == replace(config, role="kv_producer", num_blocks=12 + BLOCKS_MORE)
    assert [WorldConfig(role=role).at(1).role for role in ("kv_both", "kv_producer")] == ["kv_both", "kv_consumer"]


def test_what_was_asked_at_rest_is_judged_at_each_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: Counter[int] = Counter()
    world = World(TWO, FAIR)
    monkeypatch.setattr(
        "kv_sim.checkers.conservation.check_books", lambda engine: judged.update([world.engines.index(engine)])
    )
    for engine in range(2):
        world.apply(add(replace(PROMPT, request_id=f"r{engine}"), engine))
    world.rest()
    assert judged[0] == judged[1] > 1
    world.end()


def test_all_that_never_end_are_named_wherever_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(TWO, FAIR)
    for engine in range(2):
        world.apply(add(replace(PROMPT, request_id=f"r{engine}"), engine))
    monkeypatch.setattr("kv_sim.checkers.at_rest.come_to_rest", lambda world: False)
    with pytest.raises(Violation, match=r"these requests are left: .*r0.*, .*r1") as raised:
        world.rest()
    assert raised.value.invariant is Invariant.LIVENESS
    world.break_off(None)


@pytest.mark.parametrize("paused", [0, 1])
def test_whichever_engine_pauses_goes_on_at_rest(paused: int) -> None:
    world = World(replace(TWO, pauses=True), FAIR)
    for engine in range(2):
        world.apply(add(replace(PROMPT, request_id=f"r{engine}"), engine))
    where = {"engine": paused} if paused else {}
    assert world.apply(Action(Kind.PAUSE, {**where, "mode": "keep"}))
    world.rest()
    assert [len(engine.outcome.ended) > 0 for engine in world.engines] == [True, True]
    world.end()


def test_engines_are_told_apart_and_what_they_are_told_is_of_one_deployment() -> None:
    one, other = World(TWO, P2P_TWO).sites
    assert [site.engine.place.engine_id for site in (one, other)] == ["world-0", "world-1"]
    assert one.engine.place.deployment == other.engine.place.deployment
    assert one.engine.place.deployment != World(TWO, P2P_TWO).engine.place.deployment
    told = [site.engine.connectors[-1].side._kv_transfer_config for site in (one, other)]
    assert [(each.engine_id, each.kv_role) for each in told] == [
        ("world-0", "kv_producer"),
        ("world-1", "kv_consumer"),
    ]
    assert World(WorldConfig(), P2P).engine.place.engine_id == "world"


def test_they_are_drawn_where_a_connector_asks_for_it_and_may_do_all_that_they_are_drawn_for() -> None:
    pairs = [(config_for(P2P_TWO, Random(seed)), config_for(P2P, Random(seed))) for seed in range(300)]
    for two, one in pairs:
        silent = one.silent | {"reset_all"}
        has_little_room = two.role == "kv_producer" and one.run_ahead and not one.prefix_caching
        blocks = one.num_blocks // (2 if has_little_room else 1)
        drawn = {"role": two.role, "stranger": two.stranger, "num_blocks": blocks}
        assert two == replace(one, engines=2, silent=silent, **drawn)
        if two.run_ahead and (two.zero_new_blocks or two.is_fine):
            assert two.role == "kv_both"
    roles = Counter(two.role for two, _ in pairs)
    assert min(roles.values()) > 50
    assert set(roles) == {"kv_both", "kv_producer", "kv_consumer"}


def test_a_quarter_of_the_second_engines_of_who_claims_it_are_strangers() -> None:
    trusts = replace(P2P_TWO, traits=P2P.traits)
    pairs = [(config_for(P2P_TWO, Random(seed)), config_for(trusts, Random(seed))) for seed in range(300)]
    assert {plain.stranger for _, plain in pairs} == {"none"}
    assert all(replace(one, stranger="none") == plain for one, plain in pairs), "nothing else is another"
    kinds = Counter(one.stranger for one, _ in pairs)
    assert set(kinds) == {"none", "model", "path", "dtype"}
    assert 50 < 300 - kinds.pop("none") < 100
    assert min(kinds.values()) > 10


def test_an_engine_that_has_another_beside_it_says_which_model_it_has() -> None:
    def told(config: WorldConfig, subject: Subject) -> list[Any]:
        engines = World(config, subject).engines
        return [getattr(engine.describe(subject, 0), "model_config", None) for engine in engines]

    assert told(WorldConfig(), P2P) == [None]
    one, other = told(TWO, P2P_TWO)
    assert (one.model, one.dtype) == (other.model, other.dtype)
    one, other = told(replace(TWO, stranger="model"), P2P_TWO)
    assert (other.model, other.dtype) == (f"{one.model}-other", one.dtype)
    one, other = told(replace(TWO, stranger="dtype"), P2P_TWO)
    assert (other.model, one.dtype, other.dtype) == (one.model, "float32", "bfloat16")


def test_more_than_two_are_none() -> None:
    with pytest.raises(ValueError, match=r"^engines: at most 2, got 3$"):
        WorldConfig(engines=3)


def test_requests_of_all_engines_have_names_of_their_own() -> None:
    world = World(TWO, P2P_TWO)
    random = Random(1)
    world.draw_request(random)
    assert world.apply(add(PROMPT, 1))
    for _ in range(300):
        assert world.draw_request(random).request_id != "r1"


# -- what happens in them ----------------------------------------------------------------------


def test_what_one_holds_the_other_pulls() -> None:
    world = World(TWO, FAIR)
    assert world.apply(add(PROMPT))
    settled_steps(world, 0, 3)
    assert world.engine.scheduler.requests["r1"].is_held
    assert world.apply(add(GOES_ON, 1))
    other = world.sites[1].engine
    world.take(Kind.STEP, engine=1)
    [copy] = world.engine.devices[0].copies.running.values()
    assert (len(copy.pairs), [*other.devices[0].copies.running]) == (3, [])
    world.rest()
    assert [*world.engine.scheduler.requests, *other.scheduler.requests] == []
    [pulled] = [request for request in other.outcome.ended if request.request_id == GOES_ON.request_id]
    assert pulled.num_computed_tokens == 9
    assert world.coverage.situations["match: asynchronous load"] == 1


@pytest.mark.parametrize("stranger", ["model", "path", "dtype"])
def test_a_stranger_takes_no_ticket_and_lets_go_of_what_is_held(stranger: Stranger) -> None:
    subject = replace(FAIR, extra_config={**FAIR.extra_config, "hold_seconds": 1000})
    world = World(replace(TWO, stranger=stranger), subject)
    assert world.apply(add(PROMPT))
    settled_steps(world, 0, 3)
    assert world.engine.scheduler.requests["r1"].is_held
    assert world.apply(add(GOES_ON, 1))
    world.rest()
    assert [request.request_id for request in world.sites[1].engine.outcome.ended] == [GOES_ON.request_id]
    assert not world.engine.scheduler.requests
    assert world.coverage.situations["match: asynchronous load"] == 0
    assert world.coverage.situations["a stranger's KV is not found"] == 1


@pytest.mark.parametrize(("stranger", "whose"), [("path", "of another model"), ("dtype", "of another data type")])
def test_who_takes_one_of_a_stranger_reads_what_another_model_wrote(stranger: Stranger, whose: str) -> None:
    [planted] = [one for one in PLANTED if one.name == "TakesTicketsOfOtherModels"]
    config = replace(TWO, stranger=stranger)
    history = [add(PROMPT), *[Action(Kind.STEP), Action(Kind.SETTLE)] * 3, add(GOES_ON, 1)]
    _, violation = replay(replace(planted.subject, traits=FAIR.traits), config, history)
    assert violation is not None
    assert violation.invariant is Invariant.CONTENT
    assert f"holds token 0 of request r1, {whose}, last written by load copy" in str(violation)


def test_an_action_happens_where_it_says_and_nowhere_if_there_is_no_such_engine() -> None:
    for config, legal in ((TWO, True), (WorldConfig(), False)):
        world = World(config, replace(P2P, engines=config.engines))
        assert world.apply(add(PROMPT, 1)) is legal
        assert world.take(Kind.STEP, engine=1) is legal
        assert world.history == ([add(PROMPT, 1)] if legal else [])
        assert not world.engine.scheduler.requests


@pytest.mark.once
def test_all_that_can_happen_happens_at_both() -> None:
    done: Counter[tuple[Kind, int]] = Counter()
    for seed in range(16):
        world = World(config_for(P2P_TWO, Random(seed)), P2P_TWO)
        world.run(Random(seed), 80)
        done.update((action.kind, action.args.get("engine", 0)) for action in world.history)
    for kind in (Kind.ADD, Kind.STEP, Kind.ABORT, Kind.RETIRE, Kind.EXECUTE, Kind.PROCESS):
        assert min(done[kind, 0], done[kind, 1]) > 0, kind


@pytest.mark.once
@pytest.mark.parametrize(("subject", "least"), [(P2P_TWO, 15), (FAIR, 7)], ids=["any tickets", "fair"])
def test_nothing_is_wrong_and_blocks_are_pulled(subject: Subject, least: int) -> None:
    runs = [run_seed(subject, seed) for seed in range(12)]
    assert [run.failure for run in runs] == [None] * 12
    assert sum(run.coverage.situations["match: asynchronous load"] for run in runs) > least
    assert [run_seed(subject, seed).digest for seed in range(4)] == [run.digest for run in runs[:4]]


def test_memory_of_both_is_in_the_fingerprint() -> None:
    world = World(TWO, P2P_TWO)
    before = world.digest
    world.sites[1].engine.devices[0].memory[3] += 1
    assert world.digest != before


def test_who_comes_at_the_end_comes_to_the_other_engine() -> None:
    world = World(TWO, FAIR)
    world.engine.add(PROMPT)
    arrived: list[tuple[int, str]] = []

    def observe(call: Call) -> None:
        if call.method == "on_new_request":
            arrived.append((call.engine, call.args[0].request_id))

    world = World(TWO, replace(FAIR, extra_config={**FAIR.extra_config, "hold_seconds": 1000}), observe=observe)
    world.engine.add(PROMPT)
    world.rest()
    assert arrived == [(0, "r1"), (1, "r1-80000001")]


# -- who judges --------------------------------------------------------------------------------


def test_a_message_says_which_engine_it_is_of() -> None:
    world = World(TWO, LATER)
    with pytest.raises(Violation, match=r"^CONTENT  engine 1 it is so$"):
        world.sites[1].referee.fail(Invariant.CONTENT, "it is so")
    world.referee.switched_off.add(Invariant.CONTENT)
    world.sites[1].referee.fail(Invariant.CONTENT, "it is so")


@pytest.mark.parametrize("engine", [0, 1])
def test_what_is_left_at_either_engine_is_found(engine: int) -> None:
    world = World(TWO, P2P_TWO)
    world.sites[engine].engine.shadow.load_rights[0, 1] = "r7"
    with pytest.raises(
        Violation, match=rf"^CONSERVATION  engine {engine} the end of the loads of .*r7.* was never reported$"
    ):
        world.rest()


@pytest.mark.once
@pytest.mark.parametrize(
    "planted",
    [p for p in PLANTED if p.subject.serves_peers and p.name not in (*BLIND, *RARE)],
    ids=lambda planted: planted.name,
)
def test_mistakes_in_pulls_are_found_between_two_engines(planted: Any) -> None:
    subject = replace(planted.subject, engines=2)
    found = (run_seed(subject, seed).failure for seed in range(100))
    failure = next(failure for failure in found if failure is not None)
    assert failure.violation.invariant in {planted.invariant, *planted.others}


# -- what becomes of a failure -------------------------------------------------------------------


def failure_of(name: str) -> Failure:
    [planted] = [p for p in PLANTED if p.name == name]
    subject = replace(planted.subject, engines=2)
    return next(f for f in (run_seed(subject, seed).failure for seed in range(100)) if f is not None)


@pytest.mark.once
def test_it_gets_short_and_a_file_of_it_replays() -> None:
    failure = failure_of("BrokenPullIsFine")
    short = shrink(failure)
    assert len(short.history) < min(len(failure.history), 12)
    assert {action.args.get("engine", 0) for action in short.history} == {0, 1}
    read = parse_schedule(to_text(Schedule.of(short)), "some.jsonl")
    assert (read.subject.engines, read.config, read.history) == (2, short.config, short.history)
    _, violation = replay(read.subject, read.config, read.history)
    assert str(violation) == str(short.violation)


def test_actions_of_the_second_engine_become_one_of_the_second() -> None:
    executes = Action(Kind.EXECUTE, {"rank": 0, "engine": 1})
    assert _at_engine_of(executes, Action(Kind.STEP)) == Action(Kind.STEP, {"engine": 1})
    reset = Action(Kind.RESET, {"running": True, "connector": False})
    assert _at_engine_of(Action(Kind.PROCESS), reset) == reset
    assert str(Action(Kind.SETTLE, {"engine": 1})) == "settle   engine=1"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"action": "step", "engine": 2}', "step.engine: the world has 2, numbered from 0; got 2"),
        ('{"action": "step", "engine": -1}', "step.engine: not less than 0, got -1"),
        ('{"action": "step", "engine": "1"}', 'step.engine: expected a whole number, got "1" (a string)'),
    ],
)
def test_a_file_that_names_no_engine_of_its_world(line: str, message: str) -> None:
    text = to_text(Schedule(P2P_TWO, TWO, [])) + line + "\n"
    with pytest.raises(ScheduleError) as raised:
        parse_schedule(text, "s.jsonl")
    assert str(raised.value).startswith(f"s.jsonl: line 2: {message}"), raised.value


# -- who looks -----------------------------------------------------------------------------------


def test_a_log_says_of_each_line_which_engine_it_is_of() -> None:
    lines: list[str] = []
    history = [
        add(PROMPT),
        *[Action(Kind.STEP), Action(Kind.SETTLE)] * 3,
        add(GOES_ON, 1),
    ]
    make = partial(WatchedWorld, watchers=[Log(lines.append)])
    _, violation = replay(FAIR, TWO, [*history, Action(Kind.STEP, {"engine": 1})], make_world=make)
    assert violation is None
    assert lines[1].endswith(
        "kv_producer, failed loads: recompute; 2 engines, the second kv_consumer with 47 blocks"
    )
    text = "\n".join(lines)
    for line in (
        "add      r1-00000001: 9 tokens of conversation 0, samples 1 of at most 1, at engine 1\n",
        "     engine 0    r1 new → waiting, 0/9 tokens, blocks []\n",
        "     engine 1: scheduler get_num_new_matched_tokens r1-00000001 after 0 -> 9 tokens, asynchronous\n",
        "     engine 0: rank 0 store copy 0 begins: block 1 → host 0, block 2 → host 1, block 3 → host 2",
        "     engine 1: rank 0 load copy 0 begins: host 0 → block 1, host 1 → block 2, host 2 → block 3\n",
    ):
        assert line in text, text


# -- the wire --------------------------------------------------------------------------------------


HOLD = Hold("r1", "r1.1", "digest", ((3, 4, 5),))
PULL = Pull("r2", Source(Address("somewhere", 1), "r1.1", "digest"), (Part(1, (7, 8)),))


def two_wires() -> tuple[WorldWire, WorldWire]:
    referee = Referee()
    referee.switched_off.update(Invariant)
    devices = [Device(0, WorldConfig(num_blocks=12), Shadow(1, referee)) for _ in range(2)]
    for device, other in zip(devices, reversed(devices), strict=True):
        device.others = [other]
    one, other = map(WorldWire, devices)
    return one, other


def test_bytes_go_from_one_device_to_the_other() -> None:
    holder, puller = two_wires()
    holder.device.memory[:] = 5
    puller.device.memory[:] = 6
    holder.serve(HOLD)
    puller.pull(PULL)
    [copy] = holder.device.copies.running.values()
    assert [block for block, _ in copy.pairs] == [4, 5]
    assert not puller.device.copies.running
    holder.device.copies.advance(copy, 2)
    assert (holder.poll(), puller.poll()) == (Ended(), Ended())
    [copy] = puller.device.copies.running.values()
    puller.device.copies.advance(copy, 2)
    assert puller.poll() == Ended(pulled=["r2"])
    assert holder.poll() == Ended(served=["r1.1"])
    assert [int(puller.device.memory[block].max()) for block in (6, 7, 8)] == [6, 5, 5]


def test_what_cannot_be_sent_or_was_lost_on_the_way_fails_where_it_is_waited_for() -> None:
    for fails in (True, False):
        holder, puller = two_wires()
        holder.serve(HOLD)
        puller.pull(PULL)
        [copy] = holder.device.copies.running.values()
        if fails:
            holder.device.copies.fail(copy)
        else:
            holder.device.copies.advance(copy, 2)
            holder.device.copies.lost_slots.add(0)
        assert holder.poll() == Ended()
        assert puller.poll() == Ended(failed=[("r2", "it was not sent")])


def test_a_hold_ends_when_the_other_engine_declines_it_and_not_while_it_reads() -> None:
    holder, puller = two_wires()
    holder.serve(HOLD)
    puller.pull(PULL)
    puller.decline(PULL.source)
    assert holder.poll() == Ended()
    assert "r1.1" in holder.holds
    assert puller.give_up("r2")
    puller.decline(PULL.source)
    assert holder.poll() == Ended(served=["r1.1"])
    assert not holder.holds


def test_time_stands_still_while_a_copy_is_under_way_at_the_other_engine() -> None:
    holder, puller = two_wires()
    holder.serve(HOLD)
    puller.device.begin_step([], [])
    puller.pull(PULL)
    puller.device.begin_step([], [])
    [copy] = holder.device.copies.running.values()
    holder.device.lose(copy)
    puller.device.begin_step([], [])
    assert puller.device.waited_steps == 2
