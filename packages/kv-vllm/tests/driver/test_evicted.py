"""Stores when vLLM's pool is about to give blocks away: its queue of free blocks, and who is preempted."""

from collections import Counter

import pytest

pytest.importorskip("kv_sim")

from kv_offload.scheduler.state.evictions import Evictions
from kv_sim.fuzz import run_seed
from kv_vllm.driver.subjects import OUR_SUBJECTS

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("a_vllm")]


def test_what_comes_up_is_stored_and_loaded(monkeypatch):
    counts = Counter()
    real = Evictions.take_due

    def counted(self):
        due = real(self)
        counts["offered"] += sum(len(chunks) for _, by_place in due for chunks in by_place)
        return due

    monkeypatch.setattr(Evictions, "take_due", counted)
    for seed in range(12):
        run = run_seed(OUR_SUBJECTS["our-offloading-evicted"], seed, engine="vllm")
        assert run.failure is None, run.failure.violation
        counts["loads"] += run.coverage.situations["match: asynchronous load"]
    assert counts["offered"] > 20
    assert counts["loads"] > 0
