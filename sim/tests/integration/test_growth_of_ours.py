"""What our connectors do in the scheduler doesn't grow with the length of a prompt, nor with what came before."""

import re
from functools import cache
from pathlib import Path

import pytest

from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.growth.command import growth_of
from kv_sim.growth.kept import ROUNDS
from kv_sim.growth.models import MODELS, models_for
from kv_sim.growth.situations import SITUATIONS, UnitWork

OURS = [
    (name, model)
    for name in ("offload", "offload-held", "later+offload", "patient")
    for model in models_for(SUBJECTS[name])
]

MOST_OF_OURS = 1.25
"""How much more work a unit may be in the second size than in the first, which is a quarter of it: less than what
`kv-sim growth` lets pass, and found out in less time."""
STORED, BEING_STORED = "a prompt that was stored", "a prompt that is being stored"
NOBODY_WAITS = {"offload-held", "later+offload", "patient"}
"""What they are storing is on the GPU still, or with another connector, or isn't looked for."""


@cache
def works_of(name: str, model: str, situation: str, part: int = 1) -> list[UnitWork]:
    """In the first two sizes, or a part of them: the third takes longer than both, and shows the same."""
    row = SITUATIONS[situation]
    return [row.measure(SUBJECTS[name], MODELS[model], size // part) for size in row.sizes[:2]]


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize(("name", "model"), OURS)
def test_ours_do_not_grow(name: str, model: str, situation: str) -> None:
    works = works_of(name, model, situation)
    assert growth_of(works) <= MOST_OF_OURS, f"{name}, {model}, {situation}: {works}"
    is_quiet = situation == BEING_STORED and name in NOBODY_WAITS
    assert all(one.work for one in works) is not is_quiet


@pytest.mark.parametrize("situation", [STORED, BEING_STORED])
def test_a_slow_medium_does_not_either(situation: str) -> None:
    """It takes a step for each chunk, and whoever waits for what is being stored asks again in each."""
    few, many = works_of("offload-file", "full attention", situation, part=2)
    assert growth_of([few, many]) <= MOST_OF_OURS, (few, many)
    assert few.work


@pytest.mark.parametrize(
    ("model", "most"),
    [("full attention", 25), ("full attention and a window", 70), ("full attention and states", 70)],
)
def test_a_block_that_is_found_is_nearly_free(model: str, most: int) -> None:
    """What a medium has is told, checked and planned by ranges; only its source is asked for chunk by chunk.

    With several groups the order of a batch is, too.
    """
    works, blocks = works_of("offload", model, STORED), SITUATIONS[STORED].sizes
    few, many = (one.work * count for one, count in zip(works, blocks, strict=False))
    assert (many - few) / (blocks[1] - blocks[0]) < most


def test_the_documentation_shows_these_models_and_situations() -> None:
    text = (Path(__file__).parents[3] / "docs" / "growth.md").read_text(encoding="utf-8")
    _, _, printed = text.partition("$ kv-sim growth memory\n")
    works, _, kept = printed.partition("nothing grows\n")[0].partition("objects that each side still holds")
    rows = works.splitlines()[1:]
    models_for_memory = [*models_for(SUBJECTS["memory"])]
    tried = [name for model in models_for_memory for name in (model, *SITUATIONS)]
    assert [row.strip().split("  ")[0] for row in rows] == tried
    for row in rows:
        name, of, *works, unit, _ = re.split(r"  +", row.strip())
        if name in SITUATIONS:
            known = SITUATIONS[name]
            assert (of, unit) == (known.of, known.unit)
            assert tuple(int(work.partition(":")[0]) for work in works) == known.sizes
    _, *sides = kept.splitlines()
    shown = [re.split(r"  +", row.strip()) for row in sides]
    rounds = [f"{count} rounds" for count in ROUNDS]
    of_both_prompts = [row[0] for row in shown if row[1:] == [*rounds, "a round"]]
    assert of_both_prompts == models_for_memory * 2
    assert [row[0] for row in shown if row[-1] == "0.00"] == ["scheduler's side", "worker's side"] * 4
