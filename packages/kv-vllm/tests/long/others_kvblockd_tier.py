"""vllm-kvblockd's tier for vLLM under the testbed, without its daemon. Run by the session ``vllm-long``.

``kv_vllm_kvblockd_tier`` has what it needs, and a variant without the mistakes that are shown here.
``docs/others/kvblockd.md`` tells of them.
"""

import json
from dataclasses import replace

import pytest
from kv_vllm_kvblockd_tier import STORES
from kv_vllm_short_histories import comes, rests, settles, what_is_wrong

from kv_sim.actions import Action, Kind
from kv_sim.cli.main import main as kv_sim
from kv_sim.config import WorldConfig
from kv_vllm.driver.subjects import tiers

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

CONFIG = WorldConfig(engine="vllm", prefix_caching=False, host_slots=3, num_blocks=40)


def steps(world):
    """A step, if there is anything to do."""
    return world.apply(Action(Kind.STEP)) or True


QUIET = [steps, settles] * 8
PUSHED_OUT = [comes("a", 12), *QUIET, comes("b", 12, conversation=1), *QUIET, comes("c", 12)]
"""The second request takes the host's memory from the first one, whose prompt comes again."""
NAMES = ["Kvblockd", "MendedKvblockd"]


def with_tier(name, **more):
    """vLLM's connector over it, with a thread for each direction."""
    own = {"namespace": "{folder}", "n_read_threads": 1, "n_write_threads": 1}
    return {"type": name, "module_path": "kv_vllm_kvblockd_tier", **own, **more}


def found_in(history, listed, config=CONFIG, **changed):
    """What is wrong with this tier."""
    return what_is_wrong(replace(tiers(listed), **changed), config, history)


def test_as_it_is_it_does_not_begin(capsys):
    listed = {"secondary_tiers": [{"type": "KvblockdTierManager", "module_path": "vllm_kvblockd.tier_manager"}]}
    asked = ["conform", "--engine", "vllm", "vllm-tiers", "--histories", "1", "--extra", json.dumps(listed)]
    assert kv_sim(asked) == 2
    assert "unexpected keyword argument 'backpressure_detector'" in capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
def test_what_host_memory_has_lost_is_loaded(name):
    loads = []

    def counts(world):
        loads.append(world.coverage.situations["match: asynchronous load"])
        assert any(store.blobs for store in STORES.values())
        return True

    assert found_in([*PUSHED_OUT, rests, counts], with_tier(name)) is None
    assert loads == [1]


def test_what_is_gone_is_found_again_and_again():
    """By the request that has found it once: of what couldn't be loaded the tier keeps its first answer."""
    gone = {"store": {"goes": 1}}
    found = found_in(PUSHED_OUT, with_tier("Kvblockd", **gone))
    asks_again = "WORK  request c: get_num_new_matched_tokens answered 'ask ag"
    assert found is not None and found.startswith(asks_again), found
    assert found_in(PUSHED_OUT, with_tier("MendedKvblockd", **gone)) is None


@pytest.mark.parametrize("stranger", ["model", "dtype"])
def test_it_does_not_know_which_model_it_serves(stranger):
    """vLLM's specs have another configuration since 0.26, in which it finds none."""
    config = replace(CONFIG, engines=2, role="kv_both", stranger=stranger)
    history = [comes("a", 12), rests, comes("b", 12, engine=1)]
    shared = {"shares_store": True, "engines": 2}
    found = found_in(history, with_tier("Kvblockd"), config, **shared)
    assert found is not None and found.startswith("CONTENT  engine 1 request b token 0: "), found
    assert ", of another " in found, found
    assert found_in(history, with_tier("MendedKvblockd"), config, **shared) is None


@pytest.mark.parametrize(
    ("traits", "settings", "more"),
    [
        ("ranks,keeps", {}, []),
        ("groups,reset", {"store": {"goes": 3, "breaks": 9}}, []),
        ("ranks,strangers", {}, ["--shares-store"]),
    ],
    ids=str,
)
def test_nothing_else_is_found(traits, settings, more, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    listed = {"secondary_tiers": [with_tier("MendedKvblockd", **settings)]}
    asked = ["--engine", "vllm", "--connector", "vllm-tiers", "--traits", traits, "--histories", "15", *more]
    assert kv_sim(["fuzz", *asked, "--extra", json.dumps(listed)]) == 0, capsys.readouterr().out
