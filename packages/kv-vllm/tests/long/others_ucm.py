"""UCM's connector under the testbed, without a GPU. Run by the session ``vllm-long``.

``kv_vllm_ucm`` has what it needs of a GPU, ``kv_vllm_ucm_store`` a store for it, and ``kv_vllm_ucm_mended``
variants without the mistakes that are shown here. ``docs/others/ucm.md`` tells of them.
"""

from dataclasses import replace

import kv_vllm_ucm_mended as mended
import pytest
from kv_vllm_gpu import Stream
from kv_vllm_short_histories import comes, loads_in_history, rests, settles, what_is_wrong
from kv_vllm_ucm import LOGGED, OnCpu

from kv_sim.actions import Action, Kind
from kv_sim.config import STATE, GroupConfig, WorldConfig
from kv_sim.engine.request_spec import Turn
from kv_sim.guard import NotCreated
from kv_sim.history import draws
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

CONFIG = WorldConfig(
    engine="vllm",
    prefix_caching=False,
    num_blocks=24,
    block_size=4,
    layers=2,
    max_step_tokens=64,
    failure_policy="fail",
)
UCM = Subject(OnCpu.__name__, OnCpu.__module__, traits=frozenset())
MENDED = replace(UCM, kv_connector="Mended", module_path=mended.__name__)
WHOLE = {"use_layerwise": False}
LATER = {"use_layerwise": False, "use_request_async_load": True}
BY_LAYER = {"use_layerwise": True}
"""As it is if nothing else is said."""
STEP, SETTLE = Action(Kind.STEP), Action(Kind.SETTLE)
PREEMPT = Action(Kind.RESET, {"running": True, "connector": False})
FORGET = Action(Kind.RESET, {"running": False, "connector": False})
WINDOW = GroupConfig("sliding", 5)
STATES = replace(CONFIG, groups=(GroupConfig(), STATE))
STORED = [comes("r1"), rests]
SIX_STEPS = [lambda world: world.apply(STEP) or True, settles] * 6
"""If there is something to do; copies end in between."""
LONGER = [comes("r1", 17), rests, comes("r2", 17)]


def found_in(actions, config=CONFIG, subject=UCM, settings=WHOLE, *, without=(), **more):
    """What is wrong when everything has come to rest after these. A function gets the world."""
    told = replace(subject, extra_config={**settings, **more})
    return what_is_wrong(told, config, actions, without=without)


def without(name):
    """UCM's without one mistake."""
    return replace(MENDED, kv_connector=name)


def test_what_was_stored_is_loaded():
    loads = []

    def is_loading(world):
        loads.extend(world.engine.devices[0].copies.running.values())
        return True

    assert found_in([*STORED, comes("r2"), STEP, is_loading], settings=LATER) is None
    assert [len(load.pairs) for load in loads] == [2]
    assert LOGGED == []


def test_a_dump_before_its_step_would_be_seen(monkeypatch):
    """So what holds is shown: without what orders its copies it breaks."""
    monkeypatch.setattr(Stream, "wait_event", lambda stream, event: None)
    found = found_in([*STORED, comes("r2")])
    assert found.startswith(("OWNERSHIP  ", "CONTENT  ")), found


@pytest.mark.parametrize("whose", [{"adapter": "s"}, {"salt": "s"}], ids=str)
def test_keys_are_of_all_that_vllms_hashes_are_of(whose):
    assert found_in([*STORED, comes("r2", **whose)]) is None


def test_it_asks_what_vllm_no_longer_says(monkeypatch):
    """So with vLLM 0.32 no worker begins."""
    monkeypatch.setattr(OnCpu, "AS_IT_WAS", staticmethod(lambda kv_cache_config: kv_cache_config))
    with pytest.raises(NotCreated, match="'KVCacheTensor' object has no attribute 'shared_by'"):
        found_in([])


@pytest.mark.parametrize("runner", [1, 2])
def test_layers_are_loaded_again_in_the_next_step(runner):
    """vLLM says what to load after the forward pass, if that needs none of it; until then the last plan holds."""
    config = replace(CONFIG, runner=runner)
    found = found_in([*STORED, comes("r2", samples=3)], config, settings=BY_LAYER)
    assert found is not None and found.endswith("none was announced, or it has ended"), found
    history = [*STORED, comes("r2"), STEP, comes("r3", conversation=1)]
    found = found_in(history, config, settings=BY_LAYER, without=[Invariant.OWNERSHIP])
    assert found is not None and found.startswith("NO-CRASH  worker 0 side, wait_for_layer_load: KeyError: 'r2'")
    for left in (history, [*STORED, comes("r2", samples=3)]):
        assert found_in(left, config, without("ForgetsLayers"), BY_LAYER) is None
        assert found_in(left, replace(config, layers=1), settings=BY_LAYER) is None, "there is no next layer"


@pytest.mark.parametrize("settings", [WHOLE, BY_LAYER], ids=str)
def test_of_several_groups_the_blocks_of_the_first_are_loaded(settings):
    """It says that it takes them, and has connectors for some kinds; all others get that for one group."""
    config = replace(CONFIG, groups=(GroupConfig(), WINDOW))
    found = found_in(LONGER, config, settings=settings)
    assert found is not None and found.startswith("CONTENT  request r2 token "), found
    assert " holds poison, not written since it was allocated (group 1, " in found, found


@pytest.mark.parametrize("settings", [WHOLE, LATER])
def test_a_state_is_loaded_only_where_the_request_goes_on(settings):
    """And not at the end of the hit, where vLLM's prefix cache has it for others."""
    config = replace(STATES, prefix_caching=True)
    history = [comes("r1", 17), *SIX_STEPS, FORGET, comes("r2", 17), *SIX_STEPS]
    assert found_in(history, config, settings=settings) is None
    found = found_in([*history, comes("r3", 17), *SIX_STEPS], config, settings=settings)
    assert found is not None and found.startswith("CONTENT  request r3 token 15: "), found
    assert " holds poison, not written since it was allocated (group 1, " in found, found
    assert found.endswith("which goes on from this state)"), found


def test_nobody_waits_for_dumps_of_layers_beside_states():
    """Their plan is dropped by `start_load_kv`, which vLLM calls after the forward pass."""
    found = found_in([comes("r1")], STATES, settings=BY_LAYER)
    assert found is not None and found.startswith("CONSERVATION  request r1 has ended, "), found
    assert "_dump_blocks_by_request" in found, found


def test_who_wants_logprobs_of_its_prompt_is_loaded():
    """vLLM drops the answer, and computes everything."""
    history = [*STORED, comes("r2", skip_reading_prefix_cache=True)]
    found = found_in(history)
    assert found is not None and found.startswith("OWNERSHIP  rank 0 block "), found
    assert found.endswith("writes it while step 3 is still using it"), found
    assert found_in(history, subject=without("AsksForNoneWhoReadsNone")) is None


def test_the_next_turn_of_a_session_loads_again_what_the_first_one_found():
    history = [*STORED, comes("r2", turns=(Turn(5, 1, 1),))]
    found = found_in(history)
    assert found is not None and found.endswith("writes it while step 4 is still using it"), found
    assert found_in(history, subject=without("LoadsOnce")) is None


def test_who_was_preempted_and_ends_while_it_loads_is_freed_twice():
    """Its dumps have ended, and it is held for them until it has."""
    history = [comes("r1", 13, 5), STEP, STEP, SETTLE, STEP, PREEMPT, STEP, Action(Kind.ABORT, {"request": "r1"})]
    found = found_in(history, settings=LATER)
    assert found is not None and found.startswith(
        "PROTOCOL  request r1: request_finished holds its blocks for a store while its load"
    ), found
    found = found_in(history, settings=LATER, without=[Invariant.PROTOCOL])
    assert found.startswith("NO-CRASH  vLLM, update_from_output: AssertionError: "), found
    assert found_in(history, subject=without("HoldsWhatIsDumped"), settings=LATER) is None


def test_what_a_window_has_left_is_loaded_into_the_null_block():
    """In a model that has only windows."""
    config = replace(CONFIG, groups=(WINDOW,))
    found = found_in(LONGER, config)
    assert found == "OWNERSHIP  rank 0: load copy 1 touches the null block 0"
    assert found_in(LONGER, config, without("LeavesNullAlone")) is None


def test_blocks_that_are_computed_anew_are_loaded():
    """With so many drafts that a whole block of what was found is: vLLM is told of a block less."""
    config = replace(CONFIG, drafter="eagle", spec_tokens=5)
    found = found_in(LONGER, config, settings=BY_LAYER)
    assert found is not None and found.startswith("OWNERSHIP  rank 0 block "), found
    assert found_in(LONGER, config, MENDED, BY_LAYER) is None


@pytest.mark.parametrize("settings", [WHOLE, LATER, BY_LAYER], ids=str)
def test_a_load_that_fails_fails_its_request_alone(settings):
    """UCM names the blocks that the request computes in that step, too, which are lost with it."""
    assert found_in([*STORED, comes("r2", 13)], settings=settings, fails=2) is None
    assert "it didn't come through" in LOGGED[0]


@pytest.mark.parametrize(
    ("traits", "settings"),
    [
        (set(), BY_LAYER),
        ({Trait.RESET}, LATER),
        ({Trait.FAILURES}, WHOLE),
        ({Trait.FINE}, WHOLE),
        (set(), {**LATER, "room": 6, "fails": 5}),
        (set(), {**BY_LAYER, "room": 6, "fails": 5}),
    ],
    ids=str,
)
def test_without_these_it_holds(traits, settings, monkeypatch):
    """In worlds without a draft model."""
    monkeypatch.setattr(draws, "with_drafter", lambda config: config)
    subject = replace(MENDED, traits=frozenset(traits), extra_config=settings)
    assert sum(loads_in_history(subject, seed) for seed in range(6)) > 2
