"""vLLM's MooncakeStoreConnector under the testbed, without a GPU. Run by the session ``vllm-long``.

``kv_vllm_mooncake_store`` has what it needs, over a store in memory, and ``kv_vllm_mooncake_store_mended`` a
variant without the mistakes that are shown here. ``docs/others/mooncake_store.md`` tells of them.
"""

from dataclasses import replace

import pytest
from kv_vllm_mooncake_pool import FAILED, Store
from kv_vllm_mooncake_store import POOLS, Event, OnCpu
from kv_vllm_mooncake_store_mended import Mended
from kv_vllm_short_histories import comes, loads_in_history, rests, what_is_wrong
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import worker as vllms_worker

from kv_sim.actions import Action, Kind
from kv_sim.cli.main import main as kv_sim
from kv_sim.config import WorldConfig
from kv_sim.engine.request_spec import Turn
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

CONFIG = WorldConfig(engine="vllm", prefix_caching=False)
STORE = Subject(OnCpu.__name__, OnCpu.__module__, traits=frozenset())
MENDED = replace(STORE, kv_connector=Mended.__name__, module_path=Mended.__module__)
PLACES = frozenset({Trait.RANKS, Trait.ZEROING, Trait.RESET})
GROUPS = frozenset({Trait.GROUPS, Trait.STATES, Trait.FINE})
KEEPS = frozenset({Trait.KEEPS})
TELLS = KEEPS | {Trait.EVENTS}
STEP, SETTLE = Action(Kind.STEP), Action(Kind.SETTLE)
ELSEWHERE = Action(Kind.STEP, {"engine": 1})


def found_in(actions, config=CONFIG, subject=STORE, *, without=(), traits=None, **settings):
    """What is wrong when everything has come to rest after these. A function gets the world."""
    told = replace(subject, extra_config=settings, traits=subject.traits if traits is None else traits)
    return what_is_wrong(told, config, actions, without=without)


STORED = [comes("r1"), rests]


def test_what_was_stored_is_loaded():
    loads = []

    def is_loading(world):
        loads.extend(world.engine.devices[0].copies.running)
        return True

    assert found_in([*STORED, comes("r2"), STEP, is_loading]) is None
    assert len(loads) == 2


@pytest.mark.parametrize("runner", [1, 2])
def test_what_is_preempted_and_resumes_in_the_next_step_is_forgotten(runner):
    """With the step in which it was allocated anew."""
    config = replace(CONFIG, runner=runner)
    reset = Action(Kind.RESET, {"running": True, "connector": False})
    history = [comes("r1", 1, 5), STEP, reset]
    found = found_in(history, config)
    error = "TypeError: 'NoneType'" if runner == 1 else "AssertionError: "
    assert found.startswith(f"NO-CRASH  scheduler side, build_connector_meta: {error}"), found
    assert found_in(history, config, MENDED) is None


SESSION = comes("r2", 1, turns=(Turn(1, 1, 1), Turn(2, 1, 1)))


def test_a_token_that_is_only_tried_is_stored_as_if_it_were_known():
    """Of who is new, as a turn of a session is, drafts are counted; there is a hash if the thread is late."""
    config = replace(CONFIG, block_size=2, async_scheduling=True, run_ahead=1, spec_tokens=2, sessions=True)
    history = [comes("r1", 1), STEP, SESSION]
    found = found_in(history, config, lags=1)
    assert found.startswith("OWNERSHIP  rank 0 block 2 (of request r2): store copy 1 reads it before step "), found
    assert found_in(history, config, MENDED, lags=1) is None


def test_what_was_found_before_a_reset_is_told_after_it():
    """Where a lookup is answered in a later step."""
    reset = Action(Kind.RESET, {"running": False, "connector": True})
    history, traits = [*STORED, comes("r2"), STEP, reset, STEP], KEEPS | {Trait.RESET}
    found = found_in(history, traits=traits, lookup_async=True)
    assert found.startswith("HITS  request r2: get_num_new_matched_tokens(…, 0) found 8 tokens, but no request"), (
        found
    )
    assert found_in(history, subject=MENDED, traits=traits, lookup_async=True) is None


PRODUCER = WorldConfig(
    engine="vllm",
    prefix_caching=False,
    max_running=2,
    max_step_tokens=4,
    run_ahead=1,
    spec_tokens=2,
    role="kv_producer",
)


@pytest.mark.parametrize("role", ["kv_producer", "kv_both"])
def test_a_producer_loads_into_what_a_step_under_way_computes(role):
    """Blocks of who has ended are given away at once, except where vLLM believes that something is loaded."""
    history = [
        *(comes("r1", 5, 4, 1, adapter="s"), STEP, comes("r2", 4, 1, 1), STEP, STEP),
        *(comes("r3", 5, 1, 1, adapter="s"), SETTLE, Action(Kind.STEP, {"rejects": {"r1": 1}}), STEP),
    ]
    found = found_in(history, replace(PRODUCER, role=role))
    if role == "kv_both":
        assert found is None
    else:
        assert found.startswith("OWNERSHIP  rank 0 block 4 (of request r3): step 4 computes into it while load")
        assert found_in(history, PRODUCER, MENDED) is None


# -- events ------------------------------------------------------------------------------------


def test_events_do_not_tell_the_adapter():
    history = [comes("r1", adapter="s")]
    found = found_in(history, traits=TELLS)
    assert found.startswith("ACCOUNTING  an event for blocks "), found
    assert found.endswith("4, 's')"), found
    assert found_in(history, subject=MENDED, traits=TELLS) is None


@pytest.mark.parametrize("how", ["reset", "evicted"])
def test_events_do_not_tell_what_is_gone(how):
    reset = Action(Kind.RESET, {"running": False, "connector": True})
    history = [*STORED, reset if how == "reset" else gone, comes("r2")]
    found = found_in(history, subject=MENDED, traits=TELLS | {Trait.RESET})
    assert found.startswith("ACCOUNTING  an event stores block "), found
    assert found.endswith("but an earlier event stored it, and no event has removed it since"), found


def gone(world):
    """The store needs the room."""
    [pool] = POOLS.values()
    pool.values.clear()
    return True


# -- several ranks, and a disk -----------------------------------------------------------------


def kept_after_reset(config, subject=STORE):
    """What is there when the store was reset, and all has come to rest."""

    def resets(world):
        return world.engine.vllm.reset_connector_cache()

    assert found_in([comes("r1"), STEP, STEP, resets, rests], config, subject, lags=9) is None
    [pool] = POOLS.values()
    return sorted({key.split("@")[1] for key in pool.values})


def test_a_reset_waits_for_the_first_rank_alone():
    """What others have yet to put stays, and is taken for that of which the first rank puts its part anew."""
    assert kept_after_reset(CONFIG) == []
    two = replace(CONFIG, tp_size=2)
    assert kept_after_reset(two) == ["tp_rank:1"]
    assert kept_after_reset(two, MENDED) == []


def test_of_a_load_in_parts_those_after_one_that_fails_are_not_told(monkeypatch):
    """With a disk behind the store. A rank that isn't the first begins with the second block."""
    monkeypatch.setattr(vllms_worker, "DEFAULT_MOONCAKE_DISK_STAGING_BUFFER_BYTES", 14_000)
    begin, report = Store._begin_get, vllms_worker.KVCacheStoreRecvingThread._report_load_error
    asked, told = [], []

    def fails(store, key, *where):
        asked.append(key.split("@")[1])
        is_first = asked[-1] == "tp_rank:1" and asked.count("tp_rank:1") == 1
        return (FAILED, None, None) if is_first else begin(store, key, *where)

    def reports(thread, req_id, block_ids):
        told.append((thread.tp_rank, len(block_ids)))
        report(thread, req_id, block_ids)

    monkeypatch.setattr(Store, "_begin_get", fails)
    monkeypatch.setattr(vllms_worker.KVCacheStoreRecvingThread, "_report_load_error", reports)
    config = replace(CONFIG, tp_size=2, failure_policy="fail")
    assert found_in([comes("r1", 13), rests, comes("r2", 13)], config, disk=True) is None
    assert [asked.count(f"tp_rank:{rank}") for rank in range(2)] == [3, 1]
    assert told == [(1, 1)]


def test_a_model_is_known_by_the_end_of_its_path():
    """Two whose paths end alike have one name, and load each other's blocks."""
    subject = replace(STORE, shares_store=True, engines=2)
    config = replace(CONFIG, engines=2, role="kv_both", stranger="path")
    history = [*STORED, comes("r2", engine=1), ELSEWHERE]
    assert "of request r1, of another model" in found_in(history, config, subject)
    assert found_in(history, replace(config, stranger="model"), subject) is None
    mended = replace(MENDED, shares_store=True, engines=2)
    assert found_in(history, config, mended) is None


def test_of_which_type_numbers_are_is_in_no_key():
    """The same model in two types loads each other's blocks."""
    subject = replace(STORE, shares_store=True, engines=2)
    config = replace(CONFIG, engines=2, role="kv_both", stranger="dtype")
    history = [*STORED, comes("r2", engine=1), ELSEWHERE]
    assert "of request r1, of another data type" in found_in(history, config, subject)
    assert found_in(history, config, replace(MENDED, shares_store=True, engines=2)) is None


# -- everything else holds ---------------------------------------------------------------------

SILENT = frozenset({Invariant.GEOMETRY})
"""Of several ranks one may have put a block, and another not: its put fails, or comes after a preemption."""


@pytest.mark.parametrize(
    ("traits", "settings"),
    [
        (PLACES, {}),
        (PLACES | GROUPS, {"lags": 2}),
        (PLACES, {"fails": 4}),
        (PLACES, {"evicts": 3, "lookup_async": True}),
        (PLACES, {"room": 6}),
        (TELLS | GROUPS, {"save_decode_cache": True}),
    ],
    ids=["plain", "late", "failing", "evicting", "full", "tells"],
)
def test_without_these_it_holds(traits, settings):
    subject = replace(MENDED, traits=traits, extra_config=settings)
    assert sum(loads_in_history(subject, seed, without=SILENT) for seed in range(12)) > 10


def test_what_one_engine_stored_another_loads():
    """They have a store together."""
    subject = replace(MENDED, shares_store=True, engines=2)
    config = replace(CONFIG, engines=2, role="kv_both")
    matches = []

    def looks(world):
        matches.append(world.coverage.situations["a load of what another engine stored"])
        return True

    history = [comes("r1"), rests, comes("r2", engine=1), ELSEWHERE, looks]
    assert found_in(history, config, subject) is None
    assert matches == [1]


def test_a_store_before_its_step_would_be_seen(monkeypatch):
    """So what holds is shown: without what orders its copies it breaks."""
    monkeypatch.setattr(Event, "synchronize", lambda event: None)
    found = found_in([*STORED, comes("r2")])
    assert found.startswith(("OWNERSHIP  ", "CONTENT  ")), found


def test_the_command(capsys):
    typed = ["--connector", f"{Mended.__module__}:Mended", "--histories", "3"]
    assert kv_sim(["fuzz", *typed, "--engine", "vllm"]) == 0
    assert "Mended: 3 histories, " in capsys.readouterr().out
