"""vLLM's MoRIIOConnector between two engines of the testbed, without a GPU and without AMD's mori.

Run by the session ``vllm-long``. ``kv_vllm_moriio`` has what it needs of both, and ``kv_vllm_moriio_mended`` a
variant without the mistakes that are shown here. ``docs/moriio.md`` tells of them.
"""

from dataclasses import replace

import pytest
from kv_vllm_moriio import WORLD, AtOnce, OnCpu, moriio_connector
from kv_vllm_moriio_io import Session, Status, StatusCode, Wire
from kv_vllm_moriio_mended import Mended
from kv_vllm_short_histories import CONFIG, bearer, comes, held, rests, what_is_wrong

from kv_sim.actions import Action, Kind
from kv_sim.config import GroupConfig
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant
from kv_vllm.installed import vllm_version

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

IS_NEWER = vllm_version() >= (0, 33)
READS = Subject(OnCpu.__name__, OnCpu.__module__, traits=frozenset(), serves_peers=True, engines=2)
PUSHES = replace(READS, extra_config={"read_mode": False})
AT_ONCE = replace(PUSHES, kv_connector=AtOnce.__name__)
STEP = Action(Kind.STEP)
THERE = Action(Kind.STEP, {"engine": 1})
SLOW = replace(CONFIG, max_step_tokens=4)


def mended(subject):
    return replace(subject, kv_connector=Mended.__name__, module_path=Mended.__module__)


def found_in(subject, actions, config=CONFIG, *, without=(), **settings):
    told = replace(subject, extra_config={**subject.extra_config, **settings})
    return what_is_wrong(told, config, actions, without=without)


def goes_on(name, tokens=9, samples=3, **more):
    """Who comes to the second engine with a ticket, and samples more than one."""
    return comes(f"{name}-00000001", tokens, samples, engine=1, **more)


PREEMPT = Action(Kind.RESET, {"running": True, "connector": False})
