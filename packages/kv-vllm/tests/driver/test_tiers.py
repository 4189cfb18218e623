"""With a vLLM: its manager of tiers in the testbed, with tiers that do right, that do wrong, and vLLM's own."""

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("kv_sim")

from kv_sim.actions import Action, Kind
from kv_sim.config import WorldConfig
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.failures.schedule_file import read_schedule
from kv_sim.fuzz import replay, run_seed
from kv_sim.guard import HistoryEnds
from kv_sim.subject import Trait
from kv_sim.world import World

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("a_vllm")]

SCHEDULES = Path(__file__).parents[1] / "schedules"
WORLD = WorldConfig(engine="vllm", prefix_caching=False, host_slots=3, num_blocks=40)


def with_tier(*listed, **options):
    from kv_vllm.driver.subjects import tiers

    return tiers(*listed, offload_prompt_only=False, **options)


def memory_tier(name="MemoryTier", module="kv_vllm.tiers", **options):
    return {"type": name, "module_path": module, **options}


def comes(name, conversation, tokens=12, samples=1):
    return Action(Kind.ADD, {"spec": RequestSpec(name, conversation, tokens, 0, samples, samples).to_json()})


QUIET = [Action(Kind.STEP, {}), Action(Kind.SETTLE, {})] * 8
PUSHED_OUT = [comes("a", 0), *QUIET, comes("b", 1), *QUIET, comes("c", 0)]
"""The second request takes the host's memory from the first one, whose prompt comes again."""


@pytest.mark.parametrize(
    "options",
    [{}, {"asks_first": True}, {"chunks": 5}, {"whole_requests": True}, {"fails_one_in": 3}],
    ids=str,
)
def test_a_tier_that_does_right_is_never_blamed(options):
    runs = [run_seed(with_tier(memory_tier(**options)), seed, engine="vllm") for seed in range(8)]
    assert [run.failure for run in runs if run.failure] == []
    assert sum(run.coverage.situations["match: asynchronous load"] for run in runs) > 5


def loads_in(subject):
    """How many loads the prompt that comes again is answered with, if nothing is wrong."""
    world, violation = replay(subject, WORLD, PUSHED_OUT)
    assert violation is None
    return world.coverage.situations["match: asynchronous load"]


def test_what_host_memory_has_lost_is_loaded_from_a_tier():
    assert loads_in(with_tier(memory_tier())) == 1
    assert loads_in(with_tier()) == 0


WRONG = {
    "Twice": "PROTOCOL  tier 'Twice': get_finished_jobs reports job 0, of which nothing is under way",
    "Elsewhere": "PROTOCOL  tier 'Elsewhere': rows of chunks [",
    "NotDrained": "PROTOCOL  tier 'NotDrained': drain_jobs has returned, and job 0 has no result in get_finished_",
    "ReadsLate": "CONTENT  request ",
    "LoadsLess": "CONTENT  request ",
    "OtherKeys": "PROTOCOL  tier 'OtherKeys': of job ",
    "FindsInVain": "WORK  request ",
    "SwapsKeys": "CONTENT  request ",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_tier_that_does_wrong_is_found(name):
    subject = with_tier(memory_tier(name, "kv_vllm_tiers"))
    _, violation = replay(subject, WORLD, PUSHED_OUT)
    assert str(violation).startswith(WRONG[name])


def test_one_that_says_what_it_never_keeps_is_found():
    _, violation = replay(with_tier({"type": "example"}), WORLD, PUSHED_OUT)
    assert str(violation).startswith("CONTENT  request c token 0: rank 0 block ")


def test_threads_of_a_tier_decide_nothing():
    for seed in (2, 5, 7):
        alone, threaded, again = (
            run_seed(with_tier(memory_tier(name, module)), seed, engine="vllm")
            for name, module in (
                ("MemoryTier", "kv_vllm.tiers"),
                *[("ByThread", "kv_vllm_tiers")] * 2,
            )
        )
        assert threaded.digest == again.digest
        assert threaded.failure is None is alone.failure


@pytest.mark.parametrize("kind", ["fs", "FilesGo", "FilesAreCut"])
def test_vllms_own_tier_of_files_holds(kind):
    threads = {"n_read_threads": 1, "n_write_threads": 1}
    subject = with_tier(memory_tier(kind, "kv_vllm_tiers", root_dir="{folder}", **threads))
    runs = [run_seed(subject, seed, engine="vllm") for seed in range(6)]
    assert [run.failure for run in runs if run.failure] == []
    assert sum(run.coverage.situations["match: asynchronous load"] for run in runs) > 5


def test_two_servers_have_one_folder_of_files_and_find_nothing_of_another_model():
    from kv_vllm.driver.subjects import VLLM_SUBJECTS

    traits = frozenset({Trait.KEEPS, Trait.RANKS, Trait.STRANGERS})
    subject = replace(VLLM_SUBJECTS["vllm-tiers-fs"], shares_store=True, engines=2, traits=traits)
    runs = [run_seed(subject, seed, engine="vllm", actions=40) for seed in range(12)]
    assert [run.failure for run in runs if run.failure] == []
    reached = sum((run.coverage.situations for run in runs), Counter())
    assert min(reached["a load of what another engine stored"], reached["a stranger's KV is not found"]) > 0


def test_two_tiers_read_the_same_rows_and_a_tier_is_asked_after_another():
    assert loads_in(with_tier(memory_tier(chunks=1), memory_tier())) == 1


def test_jobs_end_when_the_world_says():
    world = World(WORLD, with_tier(memory_tier()))
    world.apply(comes("a", 0))
    for _ in range(6):
        world.apply(Action(Kind.STEP, {}))
        for copy in world.engine.devices[0].copies.startable():
            if copy.errand is None:
                world.engine.devices[0].copies.advance(copy, copy.size)
    manager = world.engine.connectors[-1].connector_scheduler.manager
    assert len(manager._jobs) == len(world.engine.devices[0].copies.startable()) > 0
    world.apply(Action(Kind.SETTLE, {}))
    world.apply(Action(Kind.STEP, {}))
    assert not manager._jobs


def test_a_reset_has_all_jobs_end_first():
    subject = replace(with_tier(memory_tier()), traits=frozenset({Trait.RESET}))
    history = [comes("a", 0), Action(Kind.STEP, {}), Action(Kind.FINISH, {"rank": 0, "copy": 0})]
    history += [Action(Kind.STEP, {})] * 3
    world = World(WORLD, subject)
    for action in history:
        world.apply(action)
    world.apply(Action(Kind.SETTLE, {}))
    world.apply(Action(Kind.STEP, {}))
    manager = world.engine.connectors[-1].connector_scheduler.manager
    assert manager._jobs
    manager.reset_cache()
    assert not manager._jobs
    assert not world.engine.devices[0].copies.running


def test_who_drains_a_tier_drains_it_also_where_it_has_no_job():
    """It may have something else to wait for."""
    from kv_vllm.tiers.watch import TierWatch

    drained = []
    tier = SimpleNamespace(tier_type="some", drain_jobs=lambda: drained.append("it"))
    TierWatch(tier, None, SimpleNamespace(wait_for=lambda *errands: drained.append(errands))).drain_jobs()
    assert drained == ["it", ()]


def test_a_tier_may_call_its_own_methods():
    """It hears of its own jobs, as it does in a server, and the manager when the world says."""
    runs = [run_seed(with_tier(memory_tier("Hears", "kv_vllm_tiers")), seed, engine="vllm") for seed in range(8)]
    assert [run.failure for run in runs if run.failure] == []
    assert sum(run.coverage.situations["match: asynchronous load"] for run in runs) > 5


def test_what_a_thread_of_a_tier_looks_for_is_waited_for():
    from vllm.v1.kv_offload.tiering.async_lookup import LookupPhase

    from kv_vllm.tiers.watch import _answered

    answers = SimpleQueue()
    states = {"a": SimpleNamespace(phase=LookupPhase.IN_FLIGHT)}
    lookups = SimpleNamespace(_pending_results=answers, _lookup_state=states)

    def answer():
        Event().wait(0.05)
        answers.put("a")

    _answered(lookups, Thread(target=answer).start)()
    assert answers.get_nowait() == "a"


def test_what_vllms_tier_of_files_looks_for_is_waited_for():
    from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager

    from kv_vllm.driver.subjects import VLLM_SUBJECTS

    world = World(WORLD, VLLM_SUBJECTS["vllm-tiers-fs"])
    [watch] = world.engine.connectors[-1].connector_scheduler.manager.secondary_tiers
    [lookups] = [part for part in vars(watch.tier).values() if isinstance(part, AsyncLookupManager)]
    assert lookups.flush.__qualname__.startswith("_answered.")
    world.end()


# -- what is found can be loaded ----------------------------------------------------------------

LOSES = ["LosesAFile", "LosesAFileByThread"]
FOR_EVER = "was found for requests c, e, g, i, one after the other, and each time its load failed: "


def comes_again_and_again(*names):
    """The first prompt comes again under each name, and another one between two of them."""
    history = [comes("a", 0)]
    for name, other in zip(names, "bdfhj", strict=False):
        history += [*QUIET, comes(other, 1), *QUIET, comes(name, 0)]
    return history


def claiming(trait, name, **options):
    return replace(with_tier(memory_tier(name, "kv_vllm_tiers", **options)), traits=frozenset({trait}))


@pytest.mark.parametrize("name", LOSES)
def test_who_keeps_what_it_is_given_can_load_what_it_finds(name):
    _, violation = replay(claiming(Trait.KEEPS, name), WORLD, PUSHED_OUT)
    assert str(violation) == (
        f"HITS  tier '{name}': the load of 3 of 3 chunks for request c failed, although nothing else has failed: "
        "the tier found what it can't load"
    )


@pytest.mark.parametrize("name", LOSES)
def test_what_can_not_be_loaded_is_not_found_for_ever(name):
    """Also where nothing is kept for sure, though three loads in a row may fail."""
    subject = with_tier(memory_tier(name, "kv_vllm_tiers"))
    _, violation = replay(subject, WORLD, comes_again_and_again(*"ceg"))
    assert violation is None
    _, violation = replay(subject, WORLD, comes_again_and_again(*"cegi"))
    assert str(violation).startswith(f"HITS  tier '{name}': the same chunk {FOR_EVER}")


def test_loads_that_a_tier_cancels_when_it_is_drained_are_no_failures():
    subject = claiming(Trait.KEEPS, "Cancels")
    world, violation = replay(subject, WORLD, comes_again_and_again(*"cegi"))
    assert violation is None
    [watch] = world.engine.connectors[-1].connector_scheduler.manager.secondary_tiers
    assert watch._drained == set()


def test_what_another_engine_may_have_removed_need_not_be_loaded():
    subject = replace(claiming(Trait.KEEPS, "LosesAFile"), shares_store=True, engines=2)
    _, violation = replay(subject, replace(WORLD, engines=2), comes_again_and_again("c"))
    assert violation is None


@pytest.mark.parametrize("options", [{}, {"asks_first": True}, {"chunks": 5}, {"whole_requests": True}], ids=str)
def test_a_tier_that_keeps_is_never_blamed(options):
    subject = replace(with_tier(memory_tier(**options)), traits=frozenset({Trait.KEEPS, Trait.RANKS}))
    runs = [run_seed(subject, seed, engine="vllm") for seed in range(8)]
    assert [run.failure for run in runs if run.failure] == []
    assert sum(run.coverage.situations["match: asynchronous load"] for run in runs) > 5


def test_a_load_that_succeeds_begins_a_new_count():
    from kv_sim.memory.shadow import Shadow
    from kv_sim.violation import Referee, Violation
    from kv_vllm.tiers.watch import TierWatch

    rows = SimpleNamespace(device=SimpleNamespace(shadow=Shadow(1, Referee())))
    watch = TierWatch(SimpleNamespace(tier_type="some"), rows, None)

    def loads(request, *done):
        """Of two chunks these are loaded; a request is the same one if it is the same object."""
        watch._judge_load(SimpleNamespace(keys=["x", "y"], req_context=request), {*done})

    one, *others = (SimpleNamespace(req_id="r") for _ in range(8))
    for _ in range(9):
        loads(one)  # of one request, which is asked again: WORK
    for request in others[:2]:
        loads(request, "y")
    loads(others[2], "x")
    for request in others[3:6]:
        loads(request, "y")
    with pytest.raises(Violation, match="HITS  tier 'some': the same chunk was found for requests r, r, r, r"):
        loads(others[6], "y")


# -- tiers -------------------------------------------------------------------------------------


def test_worlds_that_come_one_after_another_have_rows_of_their_own():
    first, second = (World(WORLD, with_tier(memory_tier())) for _ in range(2))
    one, other = (world.engine.workers[0] for world in (first, second))
    assert one is not other
    from kv_vllm.tiers.rows import rows_of

    assert rows_of(second.engine.place.engine_id).device is second.engine.devices[0]


def test_a_tier_that_is_full_drops_what_was_used_longest_ago():
    from vllm.v1.kv_offload.tiering.base import TransferJob

    from kv_vllm.tiers import MemoryTier

    tier = MemoryTier(None, memoryview(bytearray(6)).cast("B", (1, 6)), "tier", chunks=2)

    def kept_after(key):
        tier.submit_store(TransferJob(1, (key,), np.array([0]), False, None))
        assert [result.success for result in tier.get_finished_jobs()] == [True]
        return "".join(key for key in "abcd" if tier.lookup(key, None).name == "HIT")

    assert [kept_after(key) for key in "abac"] == ["a", "ab", "ab", "ac"]
    tier.touch(["a", "z"], None)
    assert kept_after("d") == "ad"


@pytest.mark.parametrize("whole_requests", [False, True])
def test_a_tier_says_whether_it_wants_what_was_in_host_memory_before(whole_requests):
    from kv_vllm.tiers import MemoryTier

    rows = memoryview(bytearray(6)).cast("B", (1, 6))
    tier = MemoryTier(None, rows, "tier", whole_requests=whole_requests)
    assert tier.on_new_request(None).policy.name == ("REQUEST_LEVEL" if whole_requests else "CHUNK_LEVEL")


def test_a_tier_that_asks_first_knows_in_the_next_step_and_no_longer():
    from kv_vllm.tiers import MemoryTier

    tier, told = MemoryTier(None, memoryview(bytearray(6)).cast("B", (1, 6)), "tier", asks_first=True), []
    for _ in range(4):
        told.append(tier.lookup("a", None).name)
        tier.on_schedule_end(None)
    assert told == ["RETRY", "MISS", "RETRY", "MISS"]


def test_a_tier_says_of_a_load_that_fails_in_the_middle_what_it_has_loaded():
    from vllm.v1.kv_offload.tiering.base import TransferJob

    from kv_vllm.tiers import MemoryTier

    tier = MemoryTier(None, memoryview(bytearray(24)).cast("B", (4, 6)), "tier", fails_one_in=2)
    keys, chunks = ("a", "b", "c", "d"), np.array([2, 3, 0, 1])
    tier.submit_store(TransferJob(1, keys, chunks, False, None))
    tier._primary_kv_view.cast("B")[:] = bytes(range(24))
    assert [result.success for result in tier.get_finished_jobs()] == [True]
    tier._primary_kv_view.cast("B")[:] = bytes(24)
    tier.submit_load(TransferJob(2, keys, chunks, True, None))
    [result] = tier.get_finished_jobs()
    assert (result.success, result.successful_keys) == (False, ["a", "b"])
    assert bytes(tier._primary_kv_view) == bytes([*[0] * 12, *range(12, 24)])
    tier.submit_load(TransferJob(3, ("c", "it has none", "a", "b"), chunks, True, None))
    [result] = tier.get_finished_jobs()
    assert (result.success, result.successful_keys) == (False, ["c"])
    assert bytes(tier._primary_kv_view) == bytes([*[0] * 12, *range(6), *range(18, 24)])


# -- whose fault it is -------------------------------------------------------------------------


def test_a_tier_is_not_blamed_for_a_prompt_that_host_memory_has_no_room_for():
    schedule = read_schedule(SCHEDULES / "tiers-ask-again-for-good.jsonl")
    assert "ask again" in str(replay(schedule.subject, schedule.config, schedule.history).violation)
    with pytest.raises(HistoryEnds, match="host memory has too little room for a prompt's chunks"):
        World(schedule.config, with_tier(memory_tier())).replay(schedule.history)
    said = str(replay(with_tier(memory_tier("FindsInVain", "kv_vllm_tiers")), WORLD, PUSHED_OUT).violation)
    assert "ask again" in said, "a tier that loads in vain is"


@pytest.mark.parametrize(
    ("before", "after", "failed", "ends"), [(3, 0, 0, False), (0, 3, 0, True), (3, 3, 0, True), (0, 3, 1, False)]
)
def test_only_loads_since_it_was_first_asked_are_loads_in_turns(before, after, failed, ends, monkeypatch):
    """Of which none failed."""
    from kv_vllm.tiers import connector as module

    watch = SimpleNamespace(loads=Counter({True: before}))
    monkeypatch.setattr(module, "watches_of", lambda manager: [watch])
    answers = [(None, False), *[(0, False)] * 2, *[(None, False)] * (module.MOST_QUESTIONS + 1)]  # in a row
    left = iter(answers)
    monkeypatch.setattr(module.OffloadingConnector, "get_num_new_matched_tokens", lambda *given: next(left))
    made = object.__new__(module.TieredConnector)
    made._questions, made.connector_scheduler = Counter(), SimpleNamespace(manager=None)
    request = SimpleNamespace(request_id="a")
    for answer in answers[:-1]:
        assert made.get_num_new_matched_tokens(request, 0) == answer
        watch.loads += Counter({True: after, False: failed})
    with pytest.raises(HistoryEnds) if ends else nullcontext():
        made.get_num_new_matched_tokens(request, 0)


def test_a_tier_is_not_blamed_for_the_later_turns_of_a_session():
    schedule = read_schedule(SCHEDULES / "offloading-stores-a-session-wrongly.jsonl")
    subject = replace(with_tier(memory_tier()), traits=frozenset({Trait.KEEPS}))
    assert replay(subject, schedule.config, schedule.history).violation is None


def raising(method, error):
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler

    def raises(self, *args, **kwargs):
        raise error(3)

    raises.__qualname__ = f"{OffloadingConnectorScheduler.__name__}.{method}"
    raises.__code__ = raises.__code__.replace(co_qualname=raises.__qualname__)
    return OffloadingConnectorScheduler, method, raises


@pytest.mark.parametrize(
    "method", ["get_num_new_matched_tokens", "build_connector_meta", "update_connector_output", "reset_cache"]
)
@pytest.mark.parametrize("error", [AssertionError, KeyError])
def test_what_the_connector_itself_raises_ends_the_history(method, error, monkeypatch):
    monkeypatch.setattr(*raising(method, error))
    subject = replace(with_tier(memory_tier()), traits=frozenset({Trait.RESET}))
    reset = Action(Kind.RESET, {"running": True, "connector": True})
    said = f"vLLM's OffloadingConnector: {error.__name__} in OffloadingConnectorScheduler.{method}"
    with pytest.raises(HistoryEnds, match=said):
        World(WORLD, subject).replay([comes("a", 0), *QUIET, reset])


def test_what_a_tier_raises_is_its_own_fault(monkeypatch):
    from kv_vllm.tiers import MemoryTier

    def lookup(self, key, req_context):
        raise KeyError("no such thing")

    monkeypatch.setattr(MemoryTier, "lookup", lookup)
    _, violation = replay(with_tier(memory_tier()), WORLD, [comes("a", 0)])
    assert str(violation).startswith(
        "NO-CRASH  scheduler side, get_num_new_matched_tokens: KeyError: 'no such thing'"
    )
