"""vLLM's SimpleCPUOffloadConnector under the testbed, without a GPU. Run by the session ``vllm-long``.

``kv_vllm_simple`` has what it needs of one, and a variant without the mistakes that are shown here.
``docs/others/simple.md`` tells of them.
"""

import json
from dataclasses import replace
from random import Random

import kv_vllm_gpu
import pytest
from kv_vllm_short_histories import comes, loads_in_history
from kv_vllm_simple import OnCpu
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.distributed.kv_transfer.kv_connector.v1.simple_cpu_offload_connector import SimpleCPUOffloadConnector
from vllm.v1.simple_kv_offload import copy_backend, disk_backend

from kv_sim.actions import Action, Kind
from kv_sim.cli.main import main as kv_sim
from kv_sim.config import STATE, GroupConfig, WorldConfig
from kv_sim.engine.request_spec import Turn
from kv_sim.fuzz import replay
from kv_sim.history.draws import config_for
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Violation
from kv_vllm.installed import vllm_version

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

CONFIG = WorldConfig(engine="vllm")
KEEPS = frozenset({Trait.KEEPS})
EVENTS = KEEPS | {Trait.EVENTS}
PLACES = frozenset({Trait.GROUPS, Trait.STATES, Trait.FINE, Trait.RANKS, Trait.ZEROING, Trait.RESET})
SIMPLE = Subject(OnCpu.__name__, OnCpu.__module__, traits=frozenset())
DISK = {
    "kv_offload_backend": "disk",
    "disk_path": "{folder}/disk",
    "disk_capacity_bytes": 4096,
    "use_page_cache": True,
}
STEP = Action(Kind.STEP)


def found_in(actions, config=CONFIG, *, name="OnCpu", traits=KEEPS, **settings):
    """What is wrong when everything has come to rest and to an end after these."""
    subject = replace(SIMPLE, kv_connector=name, traits=traits, extra_config=settings)
    _, violation = replay(subject, config, actions)
    return None if violation is None else str(violation)


def history(subject, seed):
    """One of those that a hunt takes, with a prefix cache: without, the connector does nothing.

    None whose only group is a window: there it doesn't begin.
    """
    groups = config_for(subject, Random(seed), "vllm").groups
    return loads_in_history(subject, seed, prefix_caching=True) if groups[0].kind == "full" else 0


def test_with_a_window_alone_it_does_not_begin():
    found = found_in([], replace(CONFIG, groups=(GroupConfig("sliding", 5),)))
    assert found.startswith("NO-CRASH  ") and "in SimpleCPUOffloadScheduler.__init__" in found, found


# -- what is kept, and told --------------------------------------------------------------------

SESSION = [comes("r1", 1, turns=(Turn(16, 1, 1), Turn(1, 1, 1))), *[Action(Kind.TURN, {"request": "r1"})] * 3]


def test_before_0_33_a_block_of_a_session_is_stored_twice_and_another_never():
    """Each turn comes with its whole table, which is put behind the one that it had; since then in its place."""
    config = replace(CONFIG, block_size=8)
    found = found_in(SESSION, config)
    if vllm_version() < (0, 33):
        assert found.startswith("HITS  request r1 is repeated at rest: 8 of its 18 tokens are found"), found
    else:
        assert found is None, found
    assert found_in(SESSION, config, name="Mended") is None


def test_what_has_left_a_window_is_taken_for_the_requests_and_told_with_its_tokens():
    """Its tables know no block that was freed, and here the request itself has got it, for another group."""
    config = replace(CONFIG, num_blocks=48, groups=(GroupConfig(), GroupConfig("sliding", 11), STATE))
    traits = EVENTS | {Trait.GROUPS, Trait.STATES}
    found = found_in([comes("r1", 36)], config, traits=traits)
    assert found.startswith("ACCOUNTING  an event for blocks ["), found
    assert "has (parent, tokens, block size, adapter)" in found
    assert found_in([comes("r1", 36)], config, traits=traits, name="Mended") is None


def test_one_prompt_of_two_is_stored_twice():
    """The second one computes it, too, since it wants what only who computes can tell."""
    both = [comes("r1"), comes("r2", skip_reading_prefix_cache=True)]
    found = found_in(both, traits=EVENTS)
    assert found.startswith("ACCOUNTING  an event stores block "), found
    assert found.endswith("but an earlier event stored it, and no event has removed it since")
    assert found_in(both, traits=EVENTS, name="Mended") is None


# -- the disk ----------------------------------------------------------------------------------


def test_nobody_ends_it_and_its_file_stays(tmp_path):
    """The class has no ``shutdown``, so that of its disk, which takes the file away, is never called."""
    assert SimpleCPUOffloadConnector.shutdown is KVConnectorBase_V1.shutdown
    settings = {**DISK, "disk_path": f"{tmp_path}/disk"}
    found = found_in([comes("r1")], name="Unended", **settings)
    assert found.startswith("CONSERVATION  every side was shut down, but these are still open: "), found
    [file] = tmp_path.iterdir()
    assert any(file.read_bytes())
    file.unlink()
    assert found_in([comes("r1")], **settings) is None
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("call", ["preadv", "pwritev"])
def test_an_error_of_the_disk_ends_its_thread_and_nobody_is_told(call, monkeypatch):
    """A load that fails is waited for for ever, and so is a store: an engine without requests goes on."""

    def fails(*args):
        raise OSError(28, "No space left on device")

    settle, forgets = Action(Kind.SETTLE), Action(Kind.RESET, {"running": False, "connector": False})
    actions = [comes("r1"), STEP, settle, STEP, settle, STEP, settle, STEP, forgets, comes("r2")]
    assert found_in(actions, traits=frozenset(), **DISK) is None
    monkeypatch.setattr(disk_backend.os, call, fails)
    found = found_in(actions, traits=frozenset(), **DISK)
    assert found.startswith("LIVENESS  "), found


# -- everything else holds ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "traits", "settings"),
    [
        ("OnCpu", PLACES, {}),
        ("OnCpu", PLACES, {"lags": True}),
        ("OnCpu", PLACES, {"lags": True, "lazy_offload": True}),
        ("OnCpu", PLACES, DISK),
        ("OnCpu", PLACES, {**DISK, "lazy_offload": True}),
        ("OnCpu", PLACES, {"cpu_bytes_to_use_per_rank": 400}),
        ("Mended", EVENTS, {}),
    ],
    ids=["eager", "late", "late-lazy", "disk", "disk-lazy", "evicting", "exact"],
)
def test_without_these_it_holds(name, traits, settings):
    subject = replace(SIMPLE, kv_connector=name, traits=traits, extra_config={"forgets": 3, **settings})
    assert sum(history(subject, seed) for seed in range(15)) > 15


@pytest.mark.parametrize("mistake", ["reads at any time", "waits for no step", "has always ended"])
def test_a_copy_out_of_order_would_be_seen(mistake, monkeypatch):
    """So what holds is shown: without any of what orders its copies it breaks."""
    if mistake == "reads at any time":
        monkeypatch.setattr(copy_backend, "CU_MEMCPY_SRC_ACCESS_ORDER_STREAM", 3)
    elif mistake == "waits for no step":
        monkeypatch.setattr(kv_vllm_gpu.Stream, "wait_event", lambda stream, event: None)
    else:
        monkeypatch.setattr(kv_vllm_gpu.Event, "query", lambda event: True)
    subject = replace(SIMPLE, extra_config={"forgets": 3})
    with pytest.raises(Violation, match=r"OWNERSHIP  "):
        [history(subject, seed) for seed in range(15)]


def test_the_command(capsys):
    typed = ["--connector", "kv_vllm_simple:Mended", "--extra", json.dumps({"forgets": 3}), "--histories", "3"]
    assert kv_sim(["fuzz", *typed, "--engine", "vllm"]) == 0
    assert "Mended: 3 histories, " in capsys.readouterr().out
