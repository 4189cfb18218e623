"""vllm-kvblockd's connector under the testbed, without its daemon. Run by the session ``vllm-long``.

``kv_vllm_kvblockd`` has what it needs, and ``kv_vllm_kvblockd_mended`` a variant without most of the mistakes that
are shown here. ``docs/others/kvblockd.md`` tells of them.
"""

import json
from dataclasses import replace

import pytest
from kv_vllm_kvblockd import STORES, OnCpu
from kv_vllm_kvblockd_mended import Mended
from kv_vllm_short_histories import comes, rests, what_is_wrong

from kv_sim.cli.main import main as kv_sim
from kv_sim.config import WorldConfig
from kv_sim.history import draws
from kv_sim.subject import Subject, Trait

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

CONFIG = WorldConfig(engine="vllm", prefix_caching=False, num_blocks=24, block_size=4, max_step_tokens=64)
KVBLOCKD = Subject(OnCpu.__name__, OnCpu.__module__, {}, traits=frozenset())
MENDED = replace(KVBLOCKD, kv_connector=Mended.__name__, module_path=Mended.__module__)


def found_in(actions, config=CONFIG, subject=MENDED, *, traits=(), **settings):
    """What is wrong when everything has come to rest after these. A function gets the world."""
    return what_is_wrong(replace(subject, extra_config=settings, traits=frozenset(traits)), config, actions)


def stays(world):
    """From now on nothing goes any more."""
    for store in STORES.values():
        store.goes = 0
    return True


def test_what_was_stored_is_loaded():
    loads = []

    def counts(world):
        loads.append(world.coverage.situations["match: load in the step"])
        return True

    assert found_in([comes("r1"), rests, comes("r2"), rests, counts]) is None
    assert loads == [1]


@pytest.mark.parametrize(("subject", "is_wrong"), [(KVBLOCKD, True), (MENDED, False)], ids=["it", "mended"])
def test_what_was_computed_from_what_did_not_come_is_stored(subject, is_wrong):
    """And never written again, since the store takes a key once."""
    config = replace(CONFIG, failure_policy="fail")
    history = [comes("r1", 5), rests, comes("r2", 13), rests, stays, comes("r3", 5), rests, comes("r4", 13)]
    # The worker's cache of keys is another matter.
    found = what_is_wrong(replace(subject, extra_config={"goes": 1}), config, history, without=["CONSERVATION"])
    assert (found is not None and found.startswith("CONTENT  request r4 token 4: ")) is is_wrong, found


def test_a_worker_remembers_who_has_ended():
    found = found_in([comes("r1", 5)], subject=KVBLOCKD)
    assert found is not None and found.startswith("CONSERVATION  request r1 has ended, "), found
    assert "OnCpu._chain_cache (a key) still remembers it" in found, found


@pytest.mark.parametrize(("subject", "is_wrong"), [(KVBLOCKD, True), (MENDED, False)], ids=["it", "mended"])
def test_who_has_the_name_of_another_gets_its_keys(subject, is_wrong):
    """Names come again where VLLM_DISABLE_REQUEST_ID_RANDOMIZATION is set, and clients choose them."""
    history = [comes("r1"), rests, comes("r2", conversation=1), rests, comes("r1", conversation=1)]
    found = what_is_wrong(replace(subject, extra_config={}), CONFIG, history, without=["CONSERVATION"])
    assert (found is not None and found.startswith("CONTENT  request r1 token ")) is is_wrong, found


def test_the_last_block_of_a_prompt_is_not_stored_if_the_prompt_fills_it():
    """Though a prompt that goes on could load it, as the testbed tries with one of 21 blocks."""
    full = replace(MENDED, evicts_oldest=True)  # which it does: it has room for all
    found = found_in([comes("r1", 8)], subject=full, traits=[Trait.KEEPS])
    assert found is not None and found.startswith(
        "HITS  request unseen is repeated at rest: 80 of its first 84 "
    ), found


def test_it_does_not_look_which_model_is_a_draft_model():
    """vLLM's connector finds a chunk less of that, since what is kept of a token depends on the next one."""
    config = replace(CONFIG, drafter="mtp", spec_tokens=1)
    found = found_in([comes("r1", 5)], config, traits=[Trait.KEEPS])
    assert found is not None and "a draft model's KV of a token depends on the next token" in found, found


@pytest.mark.parametrize(
    ("traits", "settings", "more"),
    [
        ("images,zeroing,sleep", {"kvblockd_async_lookup": True}, []),
        ("images,clients", {"goes": 5}, []),
        ("images", {"room": 6, "evicts": 4, "breaks": 40}, []),
        ("images", {"kvblockd_async_store": True}, []),
        ("strangers", {"kvblockd_namespace": "{folder}"}, ["--shares-store"]),
    ],
    ids=str,
)
def test_nothing_else_is_found(traits, settings, more, monkeypatch, tmp_path, capsys):
    """In worlds without a draft model."""
    monkeypatch.setattr(draws, "with_drafter", lambda config: config)
    monkeypatch.chdir(tmp_path)
    asked = ["--engine", "vllm", "--connector", "kv_vllm_kvblockd_mended:Mended", "--traits", traits, *more]
    assert kv_sim(["fuzz", *asked, "--histories", "15", "--extra", json.dumps(settings)]) == 0, (
        capsys.readouterr().out
    )
