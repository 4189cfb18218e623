"""vLLM's UMBPStoreConnector under the testbed, without a GPU and without MORI. Run by the session ``vllm-long``.

vLLM has it since 0.33. ``kv_vllm_umbp`` has a runtime for it, and ``kv_vllm_umbp_mended`` a variant without the
mistakes that are shown here. ``docs/others/umbp.md`` tells of them.
"""

from dataclasses import replace

import pytest
from kv_vllm_gpu import Stream
from kv_vllm_short_histories import comes, loads_in_history, rests, what_is_wrong
from kv_vllm_umbp import POOLS, OnCpu
from kv_vllm_umbp_mended import Mended

from kv_sim.actions import Action, Kind
from kv_sim.cli.main import main as kv_sim
from kv_sim.config import WorldConfig
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

CONFIG = WorldConfig(engine="vllm", prefix_caching=False)
STORE = Subject(OnCpu.__name__, OnCpu.__module__, traits=frozenset())
MENDED = replace(STORE, kv_connector=Mended.__name__, module_path=Mended.__module__)
PLACES = frozenset({Trait.RANKS, Trait.ZEROING, Trait.FAILURES})
GROUPS = frozenset({Trait.GROUPS, Trait.STATES, Trait.FINE})
TELLS = frozenset({Trait.KEEPS, Trait.EVENTS})
STEP, SETTLE = Action(Kind.STEP), Action(Kind.SETTLE)
STORED = [comes("r1"), rests]


def found_in(actions, config=CONFIG, subject=STORE, *, traits=None, **settings):
    """What is wrong when everything has come to rest after these. A function gets the world."""
    told = replace(subject, extra_config=settings, traits=subject.traits if traits is None else traits)
    return what_is_wrong(told, config, actions)


def test_what_was_stored_is_loaded():
    loads = []

    def is_loading(world):
        loads.extend(world.engine.devices[0].copies.running)
        return True

    assert found_in([*STORED, comes("r2"), STEP, is_loading]) is None
    assert len(loads) == 2


def test_a_store_before_its_step_would_be_seen(monkeypatch):
    """So what holds is shown: without what orders its copies it breaks."""
    monkeypatch.setattr(Stream, "wait_event", lambda stream, event: None)
    found = found_in([*STORED, comes("r2")])
    assert found.startswith(("OWNERSHIP  ", "CONTENT  ")), found


# -- events ------------------------------------------------------------------------------------


def test_events_do_not_tell_the_adapter():
    history = [comes("r1", adapter="s")]
    found = found_in(history, traits=TELLS)
    assert found.startswith("ACCOUNTING  an event for blocks "), found
    assert found.endswith("4, 's')"), found
    assert found_in(history, subject=MENDED, traits=TELLS) is None


def test_events_do_not_tell_of_a_reset():
    reset = Action(Kind.RESET, {"running": False, "connector": True})
    found = found_in([*STORED, reset, comes("r2")], subject=MENDED, traits=TELLS | {Trait.RESET})
    assert found.startswith("ACCOUNTING  an event stores block "), found
    assert found.endswith("but an earlier event stored it, and no event has removed it since"), found


def test_events_remove_what_none_has_stored():
    """What goes before it was told, or of a second rank: workers tell what went, the scheduler what came."""
    another = comes("r2", 17, conversation=1)
    history, traits = [comes("r1", 17), STEP, SETTLE, another, STEP, rests], frozenset({Trait.EVENTS})
    found = found_in(history, traits=traits, evicts=2)
    assert found.startswith("ACCOUNTING  an event removes block "), found
    assert found.endswith("but no event has stored it there"), found
    assert found_in(history, subject=MENDED, traits=traits, evicts=2) is None


# -- what is kept ------------------------------------------------------------------------------


@pytest.mark.parametrize(("fails", "kept"), [(0, 4), (4, 0)])
def test_where_one_key_fails_none_of_its_step_is_published(fails, kept):
    """One of four: the others have been copied, and are let go of."""
    assert found_in([comes("r1", 17)], fails=fails) is None
    [pool] = POOLS.values()
    assert len(pool.values) == kept


@pytest.mark.parametrize(("stranger", "loads"), [("none", 1), ("path", 0), ("dtype", 0), ("model", 0)])
def test_what_one_engine_stored_another_loads_if_it_serves_the_same(stranger, loads):
    """They have a store together."""
    subject = replace(STORE, shares_store=True, engines=2)
    config, matches = replace(CONFIG, engines=2, role="kv_both", stranger=stranger), []

    def looks(world):
        matches.append(world.coverage.situations["match: asynchronous load"])
        return True

    history = [*STORED, comes("r2", engine=1), Action(Kind.STEP, {"engine": 1}), looks]
    assert found_in(history, config, subject) is None
    assert matches == [loads]


# -- everything else holds ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("traits", "settings"),
    [
        (PLACES | GROUPS, {}),
        (PLACES | {Trait.RESET}, {"lookup_async": True}),
        (PLACES, {"fails": 9, "evicts": 7}),
        (GROUPS | {Trait.FAILURES}, {"enable_partial_hash_hits": True, "room": 12}),
        (GROUPS | TELLS, {"save_decode_cache": True}),
        (PLACES, {"load_async": False}),
    ],
    ids=["plain", "asks later", "failing", "in parts of blocks", "tells", "at once"],
)
def test_without_these_it_holds(traits, settings):
    subject = replace(MENDED, traits=traits, extra_config=settings)
    # Of several ranks one may have put a block, and another not, when a put fails.
    assert sum(loads_in_history(subject, seed, without={Invariant.GEOMETRY}) for seed in range(12)) > 5


def test_the_command(capsys):
    typed = ["--connector", f"{Mended.__module__}:Mended", "--histories", "3"]
    assert kv_sim(["fuzz", *typed, "--engine", "vllm"]) == 0
    assert "Mended: 3 histories, " in capsys.readouterr().out
