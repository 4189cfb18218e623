"""A step waits for a copy only where it gets a block that the copy uses: a fence too many breaks no invariant."""

from dataclasses import replace
from typing import Any

import pytest

from kv_sim.engine.builtin import BuiltinEngine
from kv_sim.engine.output import Step
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.fuzz import run_seed
from kv_sim.subject import Trait

WAITS_FOR_OTHER_REASONS = {Trait.RESET, Trait.FAILURES, Trait.LOSSES}
"""All copies before a medium forgets, and stores of what was loaded wrongly."""


SEEDS = (0, 1, 4, 5, 7, 14, 15, 16, 20, 21, 24)
"""Of the first thirty those in whose worlds steps wait, for time's sake."""


class Fences:
    """What the steps of one world wait for."""

    def __init__(self) -> None:
        self.count = 0
        self.needless: list[str] = []
        self._blocks: dict[int, set[int]] = {}

    def note(self, step: Step) -> None:
        meta: Any = step.output.kv_connector_metadata
        for job_id, job in {**meta.store_jobs, **meta.load_jobs}.items():
            self._blocks[job_id] = {*job.gpu_spec.block_ids}
        for job_id in sorted(meta.jobs_to_flush):
            self.count += 1
            blocks = self._blocks[job_id]
            if blocks.isdisjoint(step.new_blocks):
                self.needless.append(f"step {step.number} gets {step.new_blocks}, job {job_id} uses {blocks}")


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> list[Fences]:
    """Notes the fences of the world that was added last."""
    worlds: list[Fences] = []
    schedule = BuiltinEngine.schedule

    def noted(engine: BuiltinEngine, *arguments: Any) -> Step:
        step = schedule(engine, *arguments)
        worlds[-1].note(step)
        return step

    monkeypatch.setattr(BuiltinEngine, "schedule", noted)
    return worlds


@pytest.mark.parametrize("name", ["offload", "offload-chunks", "offload-in-step-fenced"])
def test_no_fence_is_needless(name: str, worlds: list[Fences]) -> None:
    subject = SUBJECTS[name]
    subject = replace(subject, traits=subject.traits - WAITS_FOR_OTHER_REASONS)
    for seed in SEEDS:
        worlds.append(Fences())
        assert run_seed(subject, seed).failure is None
        assert worlds[-1].needless == [], f"seed {seed}"
    assert sum(world.count for world in worlds) > 20
