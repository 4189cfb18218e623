"""With a vLLM: its MoRIIOConnector over what stands for mori, by which nothing is in order that nobody ordered."""

from dataclasses import replace
from random import Random

import pytest

pytest.importorskip("kv_sim")

from kv_sim.actions import Action, Kind
from kv_sim.history.draws import config_for
from kv_sim.subject import Subject

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("a_vllm")]


def found_in(name, settings, histories, **changes):
    """What is wrong when the two engines of a world have come to rest."""
    from kv_vllm_short_histories import CONFIG, what_is_wrong

    subject = Subject(name, "kv_vllm_moriio", settings, frozenset(), serves_peers=True, engines=2)
    return what_is_wrong(subject, replace(CONFIG, **changes), histories)


def goes_over():
    """A prompt is computed at one engine, and goes on at the other."""
    from kv_vllm_short_histories import bearer, held

    return [*held("r1"), bearer("r1")]


@pytest.mark.parametrize("read_mode", [True, False], ids=["reads", "pushes"])
def test_what_it_waits_for_is_seen(read_mode, monkeypatch):
    """Without that it breaks; so what holds is shown."""
    settings = {"read_mode": read_mode}
    assert found_in("OnCpu", settings, goes_over()) is None
    from kv_vllm_moriio import moriio_engine

    monkeypatch.setattr(moriio_engine.MoRIIOWrapper, "waiting_for_transfer_complete", lambda *said, **more: None)
    assert found_in("OnCpu", settings, goes_over()).startswith(("OWNERSHIP  engine ", "CONTENT  engine 1 "))


def test_that_a_push_comes_after_the_step_is_seen(monkeypatch):
    from kv_vllm_short_histories import comes, settles

    def waits(world):
        ticket = {"do_remote_prefill": True, "do_remote_decode": False, "transfer_id": "transfer-1"}
        world.engines[1].params_for = lambda request: {**ticket}
        return world.apply(comes("r1-00000001", engine=1)) and world.apply(Action(Kind.STEP, {"engine": 1}))

    pushed = [Action(Kind.SCHEDULE), Action(Kind.EXECUTE, {"rank": 0}), Action(Kind.SCHEDULE)]
    history = [waits, comes("r1"), *pushed, Action(Kind.EXECUTE, {"rank": 0}), settles]
    settings, ahead = {"read_mode": False}, {"run_ahead": 2, "async_scheduling": True, "max_step_tokens": 4}
    assert found_in("AtOnce", settings, history, **ahead) is None
    import kv_vllm_moriio

    monkeypatch.setattr(kv_vllm_moriio.Event, "synchronize", lambda event: None)
    found = found_in("AtOnce", settings, history, **ahead)
    assert found.endswith("transfer 0 reads it before step 3, which writes it, has retired"), found


def test_an_engine_holds_or_pulls():
    """One that does both is drawn for no connector whose class says that it can't."""
    subject = Subject("OnCpu", "kv_vllm_moriio", traits=frozenset(), serves_peers=True, engines=2)
    drawn = {config_for(subject, Random(seed), "vllm").role for seed in range(20)}
    assert drawn == {"kv_producer", "kv_consumer"}
