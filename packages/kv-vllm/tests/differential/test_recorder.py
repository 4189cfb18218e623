"""A trace is a function of the seed, and recording it changes nothing."""

import os
import subprocess
import sys
from random import Random
from types import SimpleNamespace

import pytest

from kv_api import Direction
from kv_sim.config import GroupConfig, WorldConfig
from kv_sim.engine.builtin import BuiltinEngine
from kv_sim.engine.pause import MODES
from kv_sim.engine.request import SimRequest, Status
from kv_sim.engine.request_spec import RequestSpec, Turn
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.guard import HistoryEnds
from kv_sim.history.draws import config_for
from kv_sim.subject import Trait
from kv_sim.violation import Violation
from kv_sim.world import World
from kv_vllm.differential.recorder import RecordedWorld, RecordingEngine, _Known, _sampled, record
from kv_vllm.differential.trace import (
    COMPARED,
    POOL_CALLS,
    Abort,
    Add,
    Call,
    NextTurn,
    Paused,
    PoolCall,
    Process,
    Reset,
    Resumed,
    Sampled,
    Schedule,
)
from kv_vllm.differential.trace import Turn as TraceTurn

CODE = """
from hashlib import sha256
from random import Random
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.history.draws import config_for
from kv_vllm.differential.recorder import record
for name in ("later", "patient", "memory"):
    for seed in range(4):
        random = Random(seed)
        trace = record(SUBJECTS[name], config_for(SUBJECTS[name], random), random, 100)
        calls = [(call.name, call.arguments) for turn in trace.turns for call in turn.calls]
        answers = [call.answer for turn in trace.turns for call in turn.calls if "match" in call.name]
        events = [turn.event for turn in trace.turns]
        print(sha256(repr((events, calls, answers)).encode()).hexdigest())
"""


def recorded(name, seed, actions=100):
    random = Random(seed)
    config = config_for(SUBJECTS[name], random)
    return record(SUBJECTS[name], config, random, actions), config


@pytest.mark.once
def test_traces_are_the_same_in_every_process():
    def run(hash_seed):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    first = run("1")
    assert len(set(first)) > 6
    assert run("2") == first


@pytest.mark.parametrize("name", ["later", "patient", "memory"])
def test_recording_changes_nothing(name):
    def digest(**options):
        random = Random(5)
        world = World(config_for(SUBJECTS[name], random), SUBJECTS[name], **options)
        for _ in range(100):
            world.act(random)
        return world.digest

    assert digest(engine_class=RecordingEngine) == digest()


def test_a_trace_holds_what_a_scheduler_is_told_and_asks():
    events, names, untold = set(), set(), 0
    for seed in range(12):
        trace, _ = recorded("later", seed)
        events |= {type(turn.event) for turn in trace.turns}
        scheduled, processed = (
            [turn.event.step for turn in trace.turns if isinstance(turn.event, kind)]
            for kind in (Schedule, Process)
        )
        assert scheduled == [*range(1, len(scheduled) + 1)]
        assert processed == scheduled[: len(processed)]
        names |= {call.name for turn in trace.turns for call in turn.calls}
        for turn in trace.turns:
            steps = [call for call in turn.calls if call.name == "build_connector_meta"]
            assert len(steps) == isinstance(turn.event, Schedule)
            reports = [call for call in turn.calls if call.name == "update_connector_output"]
            assert len(reports) == (isinstance(turn.event, Process) and turn.event.is_told)
            if isinstance(turn.event, Process):
                assert [report.arguments["report"] for report in reports] in ([turn.event.report], [])
                untold += not turn.event.is_told
                assert turn.event.is_told or not (turn.event.sampled or turn.event.report)
    assert untold > 0
    assert events == {Add, NextTurn, Schedule, Process, Abort, Reset, Paused, Resumed}
    assert names <= COMPARED - {"request_finished_all_groups"}
    assert names >= COMPARED - {"request_finished_all_groups", "reset_cache", "has_pending_block_frees"}


@pytest.mark.once
@pytest.mark.parametrize(("name", "done"), [("p2p", {"evict_blocks"}), ("offload", set())])
def test_what_a_world_forgets_belongs_to_the_call_in_which_it_does(name, done):
    """It forgets blocks of the request that has just ended, so that the next one comes by its ticket."""
    found = set()
    for seed in range(3):
        trace = record(SUBJECTS[name], WorldConfig(num_blocks=24), Random(seed), 100)
        for call in (call for turn in trace.turns for call in turn.calls if call.pool_calls):
            found |= {one.name for one in call.pool_calls}
            assert call.name == "request_finished_all_groups"
            assert all(set(one.blocks) <= {*call.arguments["blocks"][0]} for one in call.pool_calls)
    assert found == done


def test_what_is_done_to_the_pool_is_recorded_once_with_the_next_call_that_is():
    world = World(WorldConfig(), SUBJECTS["memory"], engine_class=RecordingEngine)
    engine = world.engine
    for name in POOL_CALLS:
        engine.listen_to_pool(name)
    pool = engine.scheduler.blocks.block_pool
    pool.touch(block for block in (3, 2))
    assert pool.touched == {2: 1, 3: 1}
    pool.free_blocks([2, 3])
    pool.evict_blocks({4})
    for _ in range(2):
        engine.schedule(lambda name, drafts: 0)
    told = [(call.name, call.pool_calls) for turn in engine.turns for call in turn.calls]
    done = (PoolCall("touch", (3, 2)), PoolCall("free_blocks", (2, 3)), PoolCall("evict_blocks", (4,)))
    assert told == [("build_connector_meta", done), ("build_connector_meta", ())]
    assert pool.touched == {}


def test_a_step_says_that_it_keeps_room_for_prompts_before_a_load():
    groups = (GroupConfig(), GroupConfig("sliding", 8))
    small = {"num_blocks": 40, "max_step_tokens": 16, "max_running": 2, "host_slots": 256}
    config, kept = WorldConfig(groups=groups, prefix_caching=False, **small), []
    for seed in range(8):
        for turn in record(SUBJECTS["offload"], config, Random(seed), 100).turns:
            kept += [turn.event.keeps_room] if isinstance(turn.event, Schedule) else []
    assert 0 < sum(kept) < len(kept) / 20


def test_every_request_samples_what_it_was_given():
    """Tokens that a request takes are a prefix of its whole output; the last one is marked."""
    for seed in range(8):
        trace, _ = recorded("memory", seed, 150)
        lengths, limits = {}, {}
        for turn in trace.turns:
            if isinstance(turn.event, Add):
                lengths[turn.event.request_id], limits[turn.event.request_id] = 0, turn.event.max_tokens
            if isinstance(turn.event, NextTurn):  # which it may take up later
                limits[turn.event.request_id] += turn.event.max_tokens
            if isinstance(turn.event, Process):
                for name, sampled in turn.event.sampled.items():
                    assert 0 <= sampled.surplus < len(sampled.tokens)
                    assert not (sampled.surplus and not sampled.ends)
                    if any(sampled.tokens):
                        lengths[name] += len(sampled.tokens) - sampled.surplus
                        assert lengths[name] <= limits[name]


class Rolls(Random):
    """Says what it was told to, and takes the first."""

    def __init__(self, *rolls):
        super().__init__()
        self.rolls = list(rolls)

    def random(self):
        return self.rolls.pop(0)

    def choice(self, some):
        return some[0]


@pytest.mark.parametrize(
    ("rolls", "change", "done"),
    [
        ([0.29], {}, "abort r1"),
        ([0.3, 0.09], {}, "fail 1 8"),
        ([0.3, 0.1], {}, "anything"),
        ([0.3, 0.5], {}, "anything"),
        ([0.0], {"silent": ("abort",)}, "fail 1 8"),
        ([0.0], {"silent": ("abort", "fail")}, "anything"),
        ([0.0], {"silent": ("abort",), "traits": ()}, "anything"),
        ([0.0], {"loaded": ()}, "fail 1 8"),
        ([], {"loaded": (), "loads": False}, "anything"),
    ],
)
def test_what_is_rare_is_done_more_often(monkeypatch, rolls, change, done):
    loaded = change.get("loaded", [f"r{number}" for number in range(9, 0, -1)])
    silent = change.get("silent", ())
    traits, loads = change.get("traits", (Trait.FAILURES,)), change.get("loads", True)
    directions = {7: Direction.STORE, 8: Direction.LOAD, 9: Direction.LOAD}
    copies = [SimpleNamespace(copy_id=n, direction=way) for n, way in directions.items() if loads or n == 7]
    device = SimpleNamespace(rank=1, copies=SimpleNamespace(startable=lambda: copies))
    world, acts = object.__new__(RecordedWorld), []
    engine = SimpleNamespace(scheduler=SimpleNamespace(loaded={*loaded}), devices=[device])
    world.sites = [SimpleNamespace(engine=engine)]
    world.config, world.subject = SimpleNamespace(silent=silent), SimpleNamespace(traits=traits)
    monkeypatch.setattr(World, "act", lambda self, random: acts.append("anything"))
    monkeypatch.setattr(
        World,
        "apply",
        lambda self, action, random: acts.append(" ".join([action.kind.value, *map(str, action.args.values())])),
    )
    world.act(Rolls(*rolls))
    assert acts == [done]


@pytest.mark.parametrize(
    ("known", "count", "sampled"),
    [
        (2, 2, Sampled((3, 4), ends=True)),
        (2, 3, Sampled((3, 4, 0), ends=True, surplus=1)),
        (4, 1, Sampled((0,), ends=False)),
    ],
)
def test_what_a_request_got(known, count, sampled):
    asked = SimpleNamespace(output_tokens=3)
    request = SimpleNamespace(all_token_ids=[1, 2, 3, 4], num_output_tokens=3, turn=0, asked=asked)
    before = _Known(request, 0, known, was_preempted=False)
    assert _sampled(before, count) == sampled
    asked.output_tokens = 5
    assert _sampled(before, count) == Sampled(sampled.tokens, ends=False)
    assert _sampled(None, count) == Sampled((0,) * count, ends=False)


@pytest.mark.parametrize(("count", "surplus"), [(2, 0), (4, 2)])
def test_what_a_session_got_that_went_on_at_once(count, surplus):
    request = SimRequest(RequestSpec("r", 0, 5, 0, 3, 3, turns=(Turn(2, 1, 1),)), 4, 20)
    request.num_output_tokens = 1
    before = _Known.of(request)
    last = tuple(request.stories[0].tokens[6:8])
    assert not before.goes_on
    request.begin_turn()
    assert before.goes_on
    assert _sampled(before, count) == Sampled(last + (0,) * surplus, ends=True, surplus=surplus)


@pytest.fixture
def engine():
    """One in which nothing has happened."""
    made = object.__new__(RecordingEngine)
    made.turns = []
    return made


@pytest.mark.parametrize(("turns", "is_session"), [(None, False), ((), True), ((Turn(2, 1, 1),), True)])
def test_an_arrival_is_recorded(engine, monkeypatch, turns, is_session):
    spec = RequestSpec("r", 0, 3, 2, 4, 6, "s", "a", skip_reading_prefix_cache=True, turns=turns)
    monkeypatch.setattr(BuiltinEngine, "add", lambda self, spec: ("added", spec))
    assert engine.add(spec) == ("added", spec)
    assert [turn.event for turn in engine.turns] == [Add("r", spec.prompt, 6, "s", "a", True, is_session)]


def test_what_arrives_for_a_session_is_recorded(engine, monkeypatch):
    spec, taken = RequestSpec("r", 0, 3, 0, 1, 1, turns=(Turn(4, 2, 3), Turn(1, 1, 2))), []
    request = SimpleNamespace(spec=spec, turns_arrived=0)
    engine.scheduler = SimpleNamespace(requests={"r": request})
    monkeypatch.setattr(BuiltinEngine, "take_turn", lambda self, request_id: taken.append(request_id))
    for request.turns_arrived in range(3):
        engine.take_turn("r")
    assert taken == ["r"] * 3
    assert [turn.event for turn in engine.turns] == [
        NextTurn("r", spec.said_in(1), 3),
        NextTurn("r", spec.said_in(2), 2),
        NextTurn("r", ()),
    ]


@pytest.mark.parametrize(
    ("status", "loaded", "state"),
    [
        (Status.WAITING, (), "waiting"),
        (Status.WAITING_FOR_REMOTE_KVS, ("q",), "waiting for a load"),
        (Status.WAITING_FOR_REMOTE_KVS, ("q", "r"), "load reported"),
        (Status.PREEMPTED, ("r",), "preempted"),
    ],
)
def test_the_state_in_which_a_request_is_aborted_is_recorded(engine, monkeypatch, status, loaded, state):
    aborted = []
    engine.scheduler = SimpleNamespace(requests={"r": SimpleNamespace(status=status)}, loaded={*loaded})
    monkeypatch.setattr(BuiltinEngine, "abort", lambda self, request_id: aborted.append(request_id))
    engine.abort("r")
    assert (aborted, [turn.event for turn in engine.turns]) == (["r"], [Abort("r", state)])


@pytest.mark.parametrize(("of_b", "shares"), [(5, True), (7, False)])
def test_what_a_step_gave_is_recorded(engine, monkeypatch, of_b, shares):
    """`a` samples, and one of its two drafts is rejected; `b` is in its prefill; `c` has gone meanwhile."""
    a, b = (
        SimpleNamespace(
            request_id=name, all_token_ids=[1, 2], num_tokens=2, num_output_tokens=0, turn=0, asked=limit
        )
        for name, limit in (("a", SimpleNamespace(output_tokens=9)), ("b", SimpleNamespace(output_tokens=9)))
    )
    a.status = b.status = Status.RUNNING
    tables = {"a": SimpleNamespace(groups=[[4], [5]]), "b": SimpleNamespace(groups=[[6], [of_b]])}
    output = SimpleNamespace(
        num_scheduled_tokens={"a": 3, "b": 4, "c": 1}, scheduled_spec_decode_tokens={"a": [7, 7]}
    )
    engine._pool_calls = []
    engine.steps = [SimpleNamespace(number=3, output=output, sampling={"a", "c"}, rejected={"a": 1})]
    engine.scheduler = SimpleNamespace(
        requests={"a": a, "b": b}, running=[a, b], blocks=SimpleNamespace(tables_of=tables.__getitem__)
    )

    def process(self):
        a.all_token_ids += [8, 9]
        nothing = dict.fromkeys(("finished_sending", "finished_recving", "failed_recving"))
        self._note("update_connector_output", (SimpleNamespace(**nothing, invalid_block_ids={5}),), None)

    monkeypatch.setattr(BuiltinEngine, "process", process)
    engine.process()
    sampled = {"a": Sampled((8, 9), ends=False), "c": Sampled((0,), ends=False)}
    assert [turn.event for turn in engine.turns] == [Process(3, sampled, {"invalid_block_ids": [5]}, shares)]


@pytest.mark.parametrize(
    ("before", "after", "stops"),
    [
        (Status.PREEMPTED, Status.WAITING_FOR_STREAMING_REQ, True),
        (Status.PREEMPTED, Status.FINISHED_STOPPED, False),
        (Status.RUNNING, Status.WAITING_FOR_STREAMING_REQ, False),
    ],
)
def test_a_session_that_stops_while_it_is_preempted_is_recorded(engine, monkeypatch, before, after, stops):
    asked = SimpleNamespace(output_tokens=1)
    session = SimpleNamespace(
        status=before, turn=0, all_token_ids=[1], num_tokens=1, num_output_tokens=1, asked=asked
    )
    output = SimpleNamespace(num_scheduled_tokens={"gone": 1, "r": 1}, scheduled_spec_decode_tokens={})
    engine.steps = [SimpleNamespace(number=3, output=output, sampling={"r"}, rejected={})]
    engine.scheduler = SimpleNamespace(requests={"r": session}, running=[])
    engine._report = {}
    monkeypatch.setattr(BuiltinEngine, "process", lambda self: setattr(session, "status", after))
    engine.process()
    assert engine.turns[0].event.stops_preempted is stops


@pytest.mark.parametrize("answer", [True, False, None])
@pytest.mark.parametrize("running", [True, False])
def test_the_answer_of_a_reset_is_recorded(engine, monkeypatch, running, answer):
    monkeypatch.setattr(BuiltinEngine, "reset", lambda self, running, connector: answer)
    assert engine.reset(running=running, connector=not running) is answer
    assert [turn.event for turn in engine.turns] == [Reset(running, not running, answer)]


@pytest.mark.parametrize("mode", MODES)
def test_a_pause_and_its_end_are_recorded_and_whether_there_was_work(mode):
    """A sleep is a reset to a scheduler, in a pause."""
    world = World(WorldConfig(max_running=1), SUBJECTS["memory"], engine_class=RecordingEngine)
    engine = world.engine
    for name in ("r1", "r2"):
        engine.add(RequestSpec(name, 0, 5, 0, 1, 1))
    engine.pause(mode)
    engine.scheduler.connector.has_pending_push_work = lambda: True
    engine.schedule(lambda request, drafts: 0)
    engine.steps.clear()
    has_work = mode == "abort"  # they have ended, and are yet to be named
    assert engine.sleep()
    engine.wake()
    events = [turn.event for turn in engine.turns[2:]]
    assert events == [Paused(mode), Schedule(1, has_work), Reset(True, True, True), Resumed()]
    assert [call.name for call in engine.turns[2].calls] == ["request_finished_all_groups"] * 2 * has_work


def test_of_the_calls_only_those_of_the_schedulers_connector_and_of_a_turn_are_recorded(monkeypatch):
    """And all are logged, as without a record."""
    notes, logged = [], []
    monkeypatch.setattr(
        BuiltinEngine, "__init__", lambda self, config, subject, referee, note, place: notes.append(note)
    )
    engine = RecordingEngine("config", "subject", "referee", lambda *call: logged.append(call))
    calls = [
        ("scheduler", "reset_cache", (), True),
        ("worker", "reset_cache", (), False),
        ("scheduler", "get_stats", (), None),
    ]
    for turn in (None, TraceTurn(Schedule(1))):
        if turn is not None:
            engine.turns.append(turn)
        for call in calls:
            notes[0](*call)
    assert logged == calls * 2
    assert engine.turns == [TraceTurn(Schedule(1), [Call("reset_cache", {}, True)])]


@pytest.mark.parametrize("end", [Violation("CONTENT", "some block"), HistoryEnds("it is over")], ids=repr)
def test_the_turn_in_which_a_history_ends_early_is_left_out(monkeypatch, end):
    def act(self, random):
        self.engine._open(Schedule(len(self.engine.turns)))
        if len(self.engine.turns) == 3:
            raise end

    monkeypatch.setattr(RecordedWorld, "act", act)
    found, _ = recorded("later", 0)
    whole = [TraceTurn(Schedule(0)), TraceTurn(Schedule(1))]
    assert (found.turns, found.cut_short_by) == (whole, str(end))
    monkeypatch.setattr(RecordedWorld, "act", lambda self, random: self.engine._open(Schedule(7)))
    found, _ = recorded("memory", 0, 2)
    assert (found.turns, found.cut_short_by) == ([TraceTurn(Schedule(7))] * 2, None)
