"""Prompts of worlds are short, so hardly any waits before it offers what is new (kv-offload): here many do."""

from typing import Any

import pytest

from kv_offload.scheduler.state import progress
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.fuzz import run_seed


@pytest.mark.once
@pytest.mark.parametrize("name", ["offload-in-step-fenced", "offload-file", "offload+fenced"])
def test_whoever_waits_loses_nothing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    waiting, pass_over = [], progress.Progress.pass_over

    def counted(self: progress.Progress, *args: Any) -> None:
        pass_over(self, *args)
        waiting.extend(
            each for each in self.groups if self.next_end > (each.cursor + 1) * each.group.tokens_per_chunk
        )

    monkeypatch.setattr(progress, "PATIENCE", 1)
    monkeypatch.setattr(progress.Progress, "pass_over", counted)
    for seed in range(7):
        failure = run_seed(SUBJECTS[name], seed).failure
        assert failure is None, f"seed {seed}: {failure.violation}"
    assert len(waiting) > 9
