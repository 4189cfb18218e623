"""Histories that once broke something, in our packages or in the engine model; each must stay harmless.

``histories`` has schedule files as ``kv-sim`` saved them; a file's name says what was wrong.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kv_sim.actions import Action, Kind
from kv_sim.config import WorldConfig
from kv_sim.examples.catalogue import LATER, MEMORY, several
from kv_sim.failures.schedule_file import read_schedule
from kv_sim.fuzz import replay

KEPT = sorted((Path(__file__).parent / "histories").glob("*.jsonl"))


def request(name: str, conversation: int, tokens: int) -> Action:
    spec = {"request_id": name, "conversation": conversation, "shared_tokens": tokens}
    return Action(Kind.ADD, {"spec": {**spec, "own_tokens": 0, "output_tokens": 1, "max_tokens": 1}})


def do(kind: Kind, **args: Any) -> Action:
    return Action(kind, args)


STORE_IT = [do(Kind.STEP), do(Kind.STEP), do(Kind.SETTLE), do(Kind.STEP)]


def test_a_request_that_is_aborted_while_one_child_loads_is_not_stored_by_another() -> None:
    """MultiConnector handed every child the blocks that the loader was still filling."""
    big, small = (replace(LATER, extra_config={"host_slots": slots}) for slots in (16, 2))
    history = [
        request("r1", 0, 13),
        *STORE_IT,
        request("r2", 1, 13),  # takes the place of r1 in the small child
        *STORE_IT,
        do(Kind.RESET, running=False, connector=False),
        request("r3", 0, 13),
        do(Kind.STEP),
        do(Kind.ABORT, request="r3"),
        do(Kind.STEP),
        do(Kind.SETTLE),
    ]
    world, violation = replay(several(big, small), WorldConfig(num_blocks=32), history)
    assert violation is None
    assert len(world.history) == len(history), "an action of the kept history is no longer legal"


def test_children_that_know_several_groups_hear_of_the_end_beside_one_that_knows_one() -> None:
    """MemoryConnector had only ``request_finished_all_groups``, and kept every aborted request."""
    history = [request("r1", 0, 9), do(Kind.ABORT, request="r1")]
    _, violation = replay(several(MEMORY, LATER), WorldConfig(), history)
    assert violation is None


def test_there_are_kept_histories() -> None:
    assert KEPT


@pytest.mark.parametrize("file", KEPT, ids=lambda file: file.stem)
def test_a_kept_history_is_harmless(file: Path) -> None:
    schedule = read_schedule(file)
    assert schedule.violation is not None
    _, violation = replay(schedule.subject, schedule.config, schedule.history, schedule.without)
    assert violation is None
