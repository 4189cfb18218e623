"""With a vLLM: the driver is its scheduler on the testbed's memory, and calls a connector as the testbed does."""

import gc
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

pytest.importorskip("kv_sim")

from kv_api import ConfigError
from kv_sim.actions import Action, Kind
from kv_sim.config import GroupConfig, WorldConfig
from kv_sim.engine.builtin import BuiltinEngine
from kv_sim.engine.request import Status
from kv_sim.engine.request_spec import RequestSpec, Turn
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.examples.memory import MemoryWorker
from kv_sim.fuzz import run_seed
from kv_sim.guard import HistoryEnds
from kv_sim.history.draws import config_for
from kv_sim.memory.device import Device
from kv_sim.subject import Subject
from kv_sim.violation import Invariant, Violation
from kv_sim.world import World
from kv_sim.zoo.registry import PLANTED
from kv_vllm.installed import vllm_version

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

ONLY_ONE_HAS = {"set_host_xfer_buffer_ops", "has_connector_metadata", "has_pending_push_work"}
"""Calls that a real engine makes at its start or when it likes, and questions of no consequence."""
OF_SLEEP = {
    *("unregister_kv_caches", "restore_kv_caches"),
    *("get_handshake_metadata", "set_xfer_handshake_metadata_pp_aware"),
}
"""Calls that a vLLM before 0.33 doesn't make when it sleeps and wakes."""


@pytest.fixture(autouse=True)
def engine():
    pytest.importorskip("vllm")
    vllm_version()
    from kv_vllm.driver.engine import VllmEngine

    return VllmEngine


def calls_of(engine_class, subject, seed, actions=60, **changed):
    """Every call of a history, to every half, and whether it went to its end. Only one engine has draft models."""
    random, calls = Random(seed), []
    config = replace(config_for(subject, random, "vllm"), drafter="text", **changed)
    world = World(
        config, subject, engine_class=engine_class, observe=lambda call: calls.append((call.side, call.method))
    )
    whole = True
    try:
        for _ in range(actions):
            world.act(random)
    except HistoryEnds:
        whole = False
    if whole:
        world.engine.check()
    left_out = ONLY_ONE_HAS | (OF_SLEEP if vllm_version() < (0, 33) else set())
    return [call for call in calls if call[1] not in left_out], whole


def same_calls(engine, subject, seed, in_vllm=None, **changed):
    """Both engines make the same calls, as long as vLLM's history is; returns how many that are.

    ``in_vllm``: the subject as vLLM loads it, if that is another class.
    """
    theirs, whole = calls_of(engine, in_vllm or subject, seed, **changed)
    ours, _ = calls_of(BuiltinEngine, subject, seed, **changed)
    assert theirs == (ours if whole else ours[: len(theirs)])
    return len(theirs)


@pytest.mark.parametrize("name", ["memory", "later", "patient"])
def test_both_engines_make_the_same_calls(name, engine):
    """The scheduler's and each worker's, in the same order: runners V1 and V2, drafts, several ranks."""
    compared = 0
    for seed in range(12):
        config = config_for(SUBJECTS[name], Random(seed), "vllm")
        if vllm_version() < (0, 33) and config.runner == 2 and config.spec_tokens:
            continue  # there the end of a step doesn't wait for drafts
        compared += same_calls(engine, SUBJECTS[name], seed)
    assert compared > 1000


@pytest.mark.parametrize("runner", [1, 2])
def test_who_loads_is_told_of_the_forward_pass_and_its_layers(runner, engine, monkeypatch):
    """vLLM's own connectors load nothing where there is none. In V2 it is there for loads in the step."""
    told, load = [], MemoryWorker.start_load_kv

    def noted(worker, context, **more):
        plan = worker._get_connector_metadata()
        works = plan.loads or (plan.stores and runner == 1)
        told.append((bool(works), sorted(context.attn_metadata or ())))
        load(worker, context, **more)

    monkeypatch.setattr(MemoryWorker, "start_load_kv", noted)
    for seed in range(3):
        calls_of(engine, SUBJECTS["memory"], seed, runner=runner)
    assert {works for works, _ in told} == {True, False}
    assert all("group0.layers.0" in layers for works, layers in told if works)
    assert [] in [layers for _, layers in told]


@pytest.mark.parametrize("name", ["memory", "later"])
def test_both_engines_give_their_devices_the_same_work(name, engine, monkeypatch):
    asked, seen = Counter(), Counter()

    def counted(method):
        ask = getattr(Device, method)
        monkeypatch.setattr(Device, method, lambda *args: asked.update([method]) or ask(*args))

    work = {"begin_step", "take_over", "zero", "copy_blocks", "poison", "read_loaded", "launch", "retire"}
    for method in work:
        counted(method)
    for seed in range(12):
        asked.clear()
        _, whole = calls_of(engine, SUBJECTS[name], seed)
        theirs = asked.copy()
        asked.clear()
        calls_of(BuiltinEngine, SUBJECTS[name], seed)
        if whole:
            assert theirs == asked
            seen += theirs
    assert seen.keys() >= work - ({"read_loaded"} if name == "later" else set())  # "memory" loads in the step


@pytest.mark.parametrize(
    ("name", "prefix_caching"), [("memory", False), ("later", False), ("p2p", False), ("p2p", True)]
)
def test_so_they_do_without_a_prefix_cache_and_with_one_that_forgets(name, prefix_caching, engine):
    """Where blocks are pulled a cache forgets half of what is held."""
    from kv_vllm.driver.subjects import OUR_SUBJECTS

    compared = 0
    for seed in range(12):
        config = config_for(SUBJECTS[name], Random(seed), "vllm")
        if vllm_version() < (0, 33) and config.runner == 2 and config.spec_tokens:
            continue
        in_vllm = OUR_SUBJECTS.get(f"our-{name}")
        compared += same_calls(engine, SUBJECTS[name], seed, in_vllm, prefix_caching=prefix_caching)
    assert compared > 1000


def test_a_connector_of_vllms_finds_the_layers_of_attention(engine):
    from kv_vllm.driver.subjects import VLLM_SUBJECTS

    world = World(WorldConfig(engine="vllm", layers=2), VLLM_SUBJECTS["vllm-example"])
    for connector in world.engine.connectors:
        layers = connector._vllm_config.compilation_config.static_forward_context
        assert [*layers] == ["group0.layers.0", "group0.layers.1"]


def test_an_engine_says_where_its_bootstrap_server_is(engine):
    first = World(WorldConfig(engine="vllm"), SUBJECTS["memory"]).engine
    second = World(WorldConfig(engine="vllm"), SUBJECTS["memory"]).engine
    [one, other] = (engine.address()["remote_bootstrap_addr"] for engine in (first, second))
    assert one.startswith("http://localhost:") and other.startswith("http://localhost:")
    assert one != other


def test_a_scheduler_of_vllms_that_cannot_be_made_is_a_crash(engine, monkeypatch):
    def raises(*args, **kwargs):
        raise ValueError("no such scheduler")

    monkeypatch.setattr("kv_vllm.driver.setup.make_scheduler", raises)
    failure = run_seed(SUBJECTS["memory"], 0, engine="vllm").failure
    assert "vLLM, the scheduler's constructor: ValueError: no such scheduler" in str(failure.violation)


def test_tickets_are_judged_in_vllm_too(engine, monkeypatch):
    """It is vLLM's request that comes with one."""
    from kv_sim.checkers.tickets import Tickets
    from kv_vllm.driver.subjects import OUR_SUBJECTS

    check, demanded = Tickets._check_match, []

    def checks(tickets, request, local, count, **more):
        issued = tickets._brought.get(request.request_id)
        if issued is not None and not issued.is_spent and issued.request.is_held and count:
            demanded.append(local > 0)
        check(tickets, request, local, count, **more)

    monkeypatch.setattr(Tickets, "_check_match", checks)
    for seed in range(100):
        assert run_seed(OUR_SUBJECTS["our-p2p"], seed, engine="vllm").failure is None
    assert sum(demanded) > 3
    assert len(demanded) > sum(demanded) + 5


def test_ours_pull_from_each_other_as_vllm_loads_them(engine, monkeypatch):
    from kv_sim.p2p import WorldWire
    from kv_vllm.driver.subjects import OUR_SUBJECTS

    poll, pulled = WorldWire.poll, []

    def polled(wire):
        ended = poll(wire)
        pulled.extend(ended.pulled)
        return ended

    monkeypatch.setattr(WorldWire, "poll", polled)
    subject, beyond = OUR_SUBJECTS["our-p2p"], []
    pull = WorldWire.pull

    def begun(wire, one):
        beyond.extend(part for part in one.parts[1:] if part.first > one.parts[0].first)
        pull(wire, one)

    monkeypatch.setattr(WorldWire, "pull", begun)
    seeds = [seed for seed in range(240) if seed < 60 or len(config_for(subject, Random(seed), "vllm").groups) > 1]
    for seed in seeds:
        assert run_seed(subject, seed, engine="vllm").failure is None
    assert len(pulled) > 20
    assert len(beyond) > 5, "nothing was pulled where a window had slid"


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("name", ["memory", "later", "patient"])
def test_sessions_get_the_same_calls_in_both(name, is_async, engine):
    """Without drafts: before 0.33 those after the last token are taken along."""
    world = {"sessions": True, "spec_tokens": 0, "role": "kv_both", "run_ahead": int(is_async)}
    asked = {**world, "async_scheduling": is_async}
    compared = 0
    for seed in range(8):
        compared += same_calls(engine, SUBJECTS[name], seed, **asked)
    assert compared > 1000


@pytest.mark.parametrize(("goes_on", "tokens"), [(False, 1), (True, 1), (False, 2)])
def test_a_history_ends_where_vllm_loses_a_session(goes_on, tokens, engine, monkeypatch):
    """It stops while it is preempted, by output that was under way; since 0.33 it waits for its next turn."""
    monkeypatch.setattr(engine, "goes_on_after_known_faults", goes_on)
    world = World(WorldConfig(engine="vllm", run_ahead=1, role="kv_producer"), SUBJECTS["memory"])
    twin = world.engine.add(RequestSpec("r1", 0, 7, 0, tokens, tokens, turns=(Turn(3, 1, 1),)))
    for kind, rank in ((Kind.SCHEDULE, {}), (Kind.EXECUTE, {"rank": 0})):
        assert world.apply(Action(kind, rank))
    world.engine.vllm._preempt_request(world.engine.vllm.running.pop(), 0.0)
    if tokens == 2:  # there is one more to come
        world.apply(Action(Kind.PROCESS))
        assert twin.status is Status.PREEMPTED
    elif vllm_version() < (0, 33) and not goes_on:
        with pytest.raises(HistoryEnds, match=r"^a session stops while it is preempted, and vLLM loses it$"):
            world.apply(Action(Kind.PROCESS))
    else:
        world.apply(Action(Kind.PROCESS))
        waits = bool(world.engine.vllm.waiting)
        assert (twin.status, waits) == (Status.WAITING_FOR_STREAMING_REQ, vllm_version() >= (0, 33))


@pytest.mark.parametrize("name", ["memory", "later"])
@pytest.mark.parametrize("is_async", [False, True])
def test_the_end_of_a_step_waits_for_drafts_in_both(name, is_async, engine):
    """With runner V1 in any vLLM, and some of the drafts are wrong."""
    drafts = {
        "spec_tokens": 2,
        "runner": 1,
        "role": "kv_both",
        "run_ahead": int(is_async),
        "async_scheduling": is_async,
    }
    compared = 0
    for seed in range(3):
        compared += same_calls(engine, SUBJECTS[name], seed, **drafts)
    assert compared > 1000


@pytest.mark.parametrize("name", ["memory", "later+memory"])
def test_a_history_is_a_function_of_its_seed(name):
    runs = [run_seed(SUBJECTS[name], 5, engine="vllm", actions=60) for _ in range(2)]
    assert runs[0].failure is None
    assert runs[0].digest == runs[1].digest
    assert runs[0].steps == runs[1].steps > 20


def test_wrong_bytes_are_found(monkeypatch):
    """A copy that moves nothing leaves a block with what was in it."""
    monkeypatch.setattr(Device, "move_page", lambda *args: None)
    failures = (run_seed(SUBJECTS["later"], seed, engine="vllm").failure for seed in range(25))
    assert Invariant.CONTENT in {failure.violation.invariant for failure in failures if failure is not None}


def test_a_wrong_token_is_found(engine, monkeypatch):
    attend = engine._attend

    def other_token(self, step, twin, *args):
        attend(self, step, twin, *args)
        step.tokens[twin.request_id] = [token + 1 for token in step.tokens.get(twin.request_id, [])]

    monkeypatch.setattr(engine, "_attend", other_token)
    failure = run_seed(SUBJECTS["memory"], 0, engine="vllm").failure
    assert failure is not None
    assert failure.violation.invariant is Invariant.CONTENT
    assert "the model gave" in str(failure.violation)


def test_whom_a_reset_preempted_is_known_at_once():
    world = World(WorldConfig(engine="vllm"), SUBJECTS["memory"])
    twin = world.engine.add(RequestSpec("r1", 0, 9, 0, 4, 4))
    world.apply(Action(Kind.STEP))
    assert (twin.status, twin.num_preemptions) == (Status.RUNNING, 0)
    assert world.engine.reset(running=True, connector=False)
    assert (twin.status, twin.num_preemptions) == (Status.PREEMPTED, 1)


def spec(name, tokens=10, **more):
    return {"spec": {**asdict(RequestSpec(name, 0, tokens, 0, 1, 1)), **more}}


def test_an_illegal_report_is_the_connectors_fault_and_not_a_crash_of_vllms(monkeypatch):
    from kv_sim.examples.memory import MemoryWorker

    monkeypatch.setattr(MemoryWorker, "get_finished", lambda self, ids: ({"nobody"}, set()))
    world = World(WorldConfig(engine="vllm"), SUBJECTS["memory"])
    world.apply(Action(Kind.ADD, spec("r1")))
    with pytest.raises(Violation, match="PROTOCOL  request nobody: finished_sending reports the end") as raised:
        world.apply(Action(Kind.STEP))
    assert raised.value.invariant is Invariant.PROTOCOL


ALONE = "a failed load is recomputed, after which vLLM itself goes wrong"
SHARED = "several requests share a block whose load failed, and vLLM counts it as computed for one of them"


@pytest.mark.parametrize(
    ("policy", "requests", "end"),
    [("recompute", 1, ALONE), ("recompute", 2, SHARED), ("fail", 1, None), ("fail", 2, SHARED)],
)
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_history_ends_where_vllm_goes_wrong_by_itself(policy, requests, end, goes_on, engine, monkeypatch):
    """A load within the step fails; of two requests with one beginning the second has the first one's blocks."""
    from kv_vllm.driver.subjects import OUR_SUBJECTS

    monkeypatch.setattr(engine, "goes_on_after_known_faults", goes_on)
    config = WorldConfig(engine="vllm", failure_policy=policy, max_step_tokens=64)
    world = World(config, OUR_SUBJECTS["our-offloading-in-step"])
    world.engine.add(RequestSpec("first", 0, 17, 0, 1, 1))
    for _ in range(4):
        world.apply(Action(Kind.STEP))
        world.apply(Action(Kind.SETTLE))
    assert world.engine.reset(running=False, connector=False)
    for number in range(requests):
        world.engine.add(RequestSpec(f"r{number}", 0, 16, 1 + number, 3, 3))
    assert world.apply(Action(Kind.SPOIL, {"rank": 0}))
    if end is None or goes_on:
        for _ in range(4):
            world.apply(Action(Kind.STEP))
        assert not world.engine.vllm.requests
        assert not world.engine.shadow.step_rights, "loads within steps that are over"
    else:
        with pytest.raises(HistoryEnds, match=f"^{end}$"):
            world.apply(Action(Kind.STEP))


@pytest.mark.parametrize(("spare", "goes_on"), [(0, False), (0, True), (1, False)])
def test_a_history_ends_where_loads_leave_no_room_for_each_other(spare, goes_on, engine, monkeypatch):
    """Each needs two blocks for its last token, and vLLM counts one."""
    from kv_vllm.driver.subjects import OUR_SUBJECTS

    monkeypatch.setattr(engine, "goes_on_after_known_faults", goes_on)
    groups = (GroupConfig(), GroupConfig("sliding", 8))
    config = WorldConfig(
        engine="vllm", groups=groups, num_blocks=26 + spare, max_step_tokens=8, host_slots=99, prefix_caching=False
    )
    world = World(config, OUR_SUBJECTS["our-offloading"])

    def go(*names):
        for name in names:
            world.engine.add(RequestSpec(name, 0, 40, 1, 1, 1))
        for _ in range(12):
            world.apply(Action(Kind.STEP))
            world.apply(Action(Kind.SETTLE))

    go("first")
    assert not world.engine.vllm.requests
    if spare:
        go("r1", "r2")
        assert not world.engine.vllm.requests
    elif goes_on:
        go("r1", "r2")
        assert sorted(world.engine.vllm.requests) == ["r1", "r2"]
    else:
        with pytest.raises(
            HistoryEnds, match=r"^loads left no room for the next chunks of requests before them, "
        ):
            go("r1", "r2")


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_of_their_own_processes_share_no_metadata(ranks):
    seen = []

    def observe(call):
        if call.method == "bind_connector_metadata":
            seen.extend(call.args)
        elif call.method == "build_connector_meta":
            seen.append(call.answer)

    world = World(WorldConfig(engine="vllm", tp_size=ranks), SUBJECTS["memory"], observe=observe)
    world.apply(Action(Kind.ADD, spec("r1")))
    world.apply(Action(Kind.STEP))
    assert len(seen) == 1 + ranks
    assert len({id(metadata) for metadata in seen}) == (1 + ranks if ranks > 1 else 1)


@pytest.mark.parametrize("ranks", [1, 2])
def test_who_executes_later_gets_what_was_said_before_the_next_step(ranks):
    told, bound = [], []

    def observe(call):
        if call.method == "build_connector_meta":
            told.append(call.answer)
            for metadata in told:
                metadata.steps = len(told)
        elif call.method == "bind_connector_metadata":
            bound.append(call.args[0].steps)

    world = World(WorldConfig(engine="vllm", tp_size=ranks, run_ahead=1), SUBJECTS["memory"], observe=observe)
    execute = Action(Kind.EXECUTE, {"rank": 0})
    for action in (Action(Kind.ADD, spec("r1")), *[Action(Kind.SCHEDULE)] * 2, execute, execute):
        assert world.apply(action)
    assert bound == [1, 2]


@pytest.mark.parametrize("conversation", [0, 187])
@pytest.mark.parametrize("limit", [18, 40])
def test_a_request_samples_what_it_was_made_for(conversation, limit, engine):
    """Also where its last token, at which it would stop, has come before."""
    from kv_vllm.driver.ledger import Twin

    asked = RequestSpec("r", conversation, 3, 0, 18, limit)
    output = Twin(asked, 4, 64).future[3:][:18]
    assert (output[-1] in output[:-1]) == (conversation == 187)
    world = World(WorldConfig(engine="vllm"), SUBJECTS["memory"])
    world.engine.add(asked)
    while world.engine.has_work:
        world.apply(Action(Kind.STEP))
    assert [twin.num_output_tokens for twin in world.engine.ledger.ended] == [18]


@pytest.mark.parametrize(("salt", "adapter"), [(None, None), ("s", None), (None, "a")])
def test_whose_a_request_is(salt, adapter, engine):
    from kv_vllm.driver.ledger import Twin
    from kv_vllm.driver.requests import request_of

    request = request_of(Twin(RequestSpec("r", 0, 9, 0, 1, 1, salt, adapter), 4, 64))
    assert request.cache_salt == salt
    lora = request.lora_request
    assert ([] if lora is None else [lora.lora_name]) == ([] if adapter is None else [adapter])


@pytest.mark.parametrize("sent", [None, {}, {"do_remote_prefill": -1}, "", [], 0, False, "text", ["a"], 7, True])
def test_of_what_a_client_sends_a_scheduler_gets_what_the_frontend_hands_on(sent, engine):
    """What is no object ends there, if it isn't empty: vLLM's own scheduler would fail at it, too. The request has
    it from its sampling parameters."""
    world = World(WorldConfig(engine="vllm"), SUBJECTS["memory"])
    twin = world.engine.add(RequestSpec("r", 0, 9, 0, 1, 1, kv_transfer_params=sent))
    got = None if sent and not isinstance(sent, dict) else sent
    request = world.engine.vllm.requests["r"]
    assert repr(twin.kv_transfer_params) == repr(request.kv_transfer_params) == repr(got)
    assert request.sampling_params.extra_args == (None if got is None else {"kv_transfer_params": got})


def test_whose_connector_it_is(engine):
    from kv_vllm.driver.classes import is_vllms
    from kv_vllm.driver.subjects import OUR_SUBJECTS, VLLM_SUBJECTS

    for theirs in (*VLLM_SUBJECTS.values(), *OUR_SUBJECTS.values()):
        assert is_vllms(theirs.kv_connector, theirs.module_path)
    for other in (SUBJECTS["memory"], Subject("MultiConnector")):
        assert not is_vllms(other.kv_connector, other.module_path)
    with pytest.raises(ConfigError, match=r"'Nobody' \(kv_vllm.driver.setup:Nobody"):
        is_vllms("Nobody", "kv_vllm.driver.setup")


def test_each_world_has_a_folder_of_its_own_as_long_as_it_lives(engine):
    """One for all its ranks, and all connectors of a MultiConnector."""
    from kv_vllm.driver.subjects import example, multi

    subject, config = multi(example("a"), example("b")), WorldConfig(engine="vllm", tp_size=2)
    worlds = [World(config, subject) for _ in range(2)]
    paths = [
        {Path(c._storage_path) for multi in world.engine.connectors for c in multi._connectors} for world in worlds
    ]
    (one, other) = ({path.parent for path in of_one} for of_one in paths)
    assert (len(one), len(other), len(one | other)) == (1, 1, 2)
    assert [{path.name for path in of_one} for of_one in paths] == [{"a", "b"}] * 2
    assert all(folder.is_dir() for folder in one | other)
    worlds.clear()
    gc.collect()
    assert not any(folder.exists() for folder in one | other)


@pytest.mark.parametrize("answer", [False, True])
def test_vllm_hears_what_the_driven_connector_is_like(answer, engine):
    from kv_vllm.driver.connector import DrivenConnector

    driven = object.__new__(DrivenConnector)
    inner = SimpleNamespace(supports_divergent_local_hybrid_hits=not answer)
    driven.inner = SimpleNamespace(requires_kv_delivery=answer, connector=inner)
    assert (driven.requires_kv_delivery, driven.supports_divergent_local_hybrid_hits) == (answer, not answer)


def test_a_step_takes_its_new_blocks_over_before_it_loads(engine, monkeypatch):
    """As with the testbed's workers: what was lost may write them no more."""
    told, steps = [], []

    def listen(name):
        called = getattr(Device, name)

        def hear(device, *args):
            told.append((name, list(args[0])))
            return called(device, *args)

        monkeypatch.setattr(Device, name, hear)

    for name in ("begin_step", "take_over", "poison"):
        listen(name)
    assert run_seed(SUBJECTS["later"], 0, engine="vllm").failure is None
    for place, (name, blocks) in enumerate(told):
        if name == "begin_step" and blocks:
            names = [name for name, _ in told[place + 1 :]]
            steps.append(("take_over", blocks) in told[place + 1 : place + 1 + names.index("poison")])
    assert len(steps) > 5 and all(steps)


def test_worlds_with_states_are_kept_in_each_of_vllms_ways(engine):
    """Every state, those that a repeated prompt needs, or one every so often; without states it is no matter."""
    from kv_sim.config import STATE
    from kv_vllm.driver.subjects import OUR_SUBJECTS
    from kv_vllm.vllm_world import kv_cache_config, vllm_config

    seen = set()
    for seed in range(200):
        world = config_for(OUR_SUBJECTS["our-offloading"], Random(seed), "vllm")
        told = vllm_config(world, None).cache_config.prefix_cache_retention_interval
        assert told == kv_cache_config(world).prefix_cache_retention_interval
        seen.add((STATE in world.groups, told and told // world.block_size))
    assert seen == {(False, None), (True, None), (True, 0), (True, 2)}


def test_what_no_vllm_can_be_is_not_asked_of_it(engine):
    config = WorldConfig(run_ahead=1, spec_tokens=2)
    fitted = engine.fit(config)
    assert (fitted.spec_tokens, fitted.silent) == (0, {"same_id"})
    assert engine.fit(WorldConfig(spec_tokens=2)).spec_tokens == 2


QUICK = ("ShortKeys", "LoadNotAwaited", "ReportsEveryEnd", "AsksForEver", "FirstSaveCounts", "NoFlush")
"""Planted bugs that a few histories find."""


@pytest.mark.parametrize("name", QUICK)
def test_planted_bugs_are_found(name):
    (planted,) = [planted for planted in PLANTED if planted.subject.kv_connector == name]
    failures = (run_seed(planted.subject, seed, engine="vllm").failure for seed in range(6))
    assert any(failure is not None for failure in failures)


class Joined:
    """What a worker says, as a class of which nobody can make one of two."""

    def aggregate(self, other):
        raise KeyError("nowhere")


class Nothing(Joined):
    """One that forgets to answer itself."""

    def aggregate(self, other):
        return None


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (Joined, "NO-CRASH  vLLM, what the workers report, joined: KeyError: 'nowhere' ("),
        (Nothing, "PROTOCOL  Nothing.aggregate answered None, expected the reports of two workers as one"),
    ],
)
def test_what_two_workers_say_and_cannot_be_joined_is_the_connectors_fault(monkeypatch, said, told):
    monkeypatch.setattr(MemoryWorker, "build_connector_worker_meta", lambda self: said())
    world = World(WorldConfig(engine="vllm", tp_size=2), SUBJECTS["memory"])
    with pytest.raises(Violation) as caught:
        world.run(Random(0), 20)
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize(("ranks", "is_told"), [(1, False), (2, True)])
def test_of_an_empty_step_without_a_report_one_process_tells_nothing(engine, ranks, is_told):
    made, told = World(WorldConfig(num_blocks=32, tp_size=ranks), SUBJECTS["later"], engine_class=engine), []
    made.engine.guard.update_connector_output = told.append
    made.engine.schedule(lambda request, drafts: 0)
    made.engine.finish_step()
    assert bool(told) is is_told


def test_what_a_single_worker_reports_reaches_the_scheduler_as_it_is(engine):
    made, told = World(WorldConfig(num_blocks=32), SUBJECTS["later"], engine_class=engine), []
    made.engine.guard.update_connector_output = told.append
    made.engine.add(RequestSpec("r1", 0, 10, 0, 2, 2))
    step = made.engine.schedule(lambda request, drafts: 0)
    made.engine.finish_step()
    assert told[0] is step.reports[0]
