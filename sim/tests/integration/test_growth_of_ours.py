"""What our connectors do in the scheduler doesn't grow with the length of a prompt, nor with what came before."""

from pathlib import Path

import pytest

from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.growth.command import MOST, growth_of
from kv_sim.growth.situations import SITUATIONS


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("name", ["offload", "offload-held", "later+offload", "patient"])
def test_ours_do_not_grow(name: str, situation: str) -> None:
    row = SITUATIONS[situation]
    works = [row.measure(SUBJECTS[name], size) for size in (row.sizes[0], row.sizes[-1])]
    assert growth_of(works) <= MOST, f"{name}, {situation}: {works}"
    assert all(one.work for one in works)


def test_a_block_that_is_found_is_nearly_free() -> None:
    """What a medium has is told, checked and planned by ranges; only its source is asked for chunk by chunk."""
    row = SITUATIONS["a prompt that was stored"]
    few, many = (row.measure(SUBJECTS["offload"], size) for size in row.sizes[1:])
    blocks = row.sizes[1:]
    assert (many.work * blocks[1] - few.work * blocks[0]) / (blocks[1] - blocks[0]) < 25


def test_the_documentation_shows_these_situations() -> None:
    text = (Path(__file__).parents[3] / "docs" / "testbed.md").read_text(encoding="utf-8")
    _, _, printed = text.partition("$ kv-sim growth later\n")
    rows = printed.partition("nothing grows\n")[0].splitlines()[2:]
    assert [row.split("  ")[0] for row in rows] == [*SITUATIONS]
