"""``kv-sim replay-schedule``: what a file holds, as it is or onto another connector."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from kv_sim_command_lines import HASTY, Result

from kv_sim.failures.report import action_lines
from kv_sim.failures.schedule_file import read_schedule
from kv_sim.violation import Invariant


@pytest.fixture
def schedule(kv_sim: Callable[[str], Result], tmp_path: Path) -> Path:
    kv_sim(f"kv-sim fuzz --connector {HASTY} --traits failures --seed 0")
    [file] = tmp_path.iterdir()
    return file


def test_a_schedule_can_be_replayed_onto_another_connector(
    kv_sim: Callable[[str], Result], schedule: Path
) -> None:
    count = len(read_schedule(schedule).history)
    code, out, _ = kv_sim(f"kv-sim replay-schedule {schedule} --connector later")
    assert code == 0
    assert re.search(rf"^passes: {count} actions, nothing is wrong; the file says: [A-Z-]+  ", out, re.MULTILINE)


def test_a_schedule_that_fails_is_listed_unless_it_was_logged(
    kv_sim: Callable[[str], Result], schedule: Path
) -> None:
    listed = action_lines(read_schedule(schedule).history)
    code, out, _ = kv_sim(f"kv-sim replay-schedule {schedule}")
    first, *lines, last = out.splitlines()
    assert (code, last, lines) == (1, "the same violation as in the file", listed)
    assert first.startswith(f"FAIL actions={len(read_schedule(schedule).history)}  ")
    code, out, _ = kv_sim(f"kv-sim replay-schedule {schedule} --log")
    assert code == 1 and first in out.splitlines() and listed[-1] not in out.splitlines()


def test_a_different_violation_is_told_apart(kv_sim: Callable[[str], Result], schedule: Path) -> None:
    text, said = schedule.read_text(), read_schedule(schedule).violation
    assert said is not None
    invariant = said.split()[0]
    others = (min(set(Invariant) - {invariant}), max(set(Invariant) - {invariant}))
    assert others[0] < invariant < others[1]
    for other in others:
        schedule.write_text(text.replace(said, f"{other}  something else"))
        code, out, _ = kv_sim(f"kv-sim replay-schedule {schedule}")
        assert code == 1
        assert out.endswith(f"a different violation: the file says: {other}  something else\n")
    schedule.write_text(text.replace(said, f"{invariant}  in other words"))
    code, out, _ = kv_sim(f"kv-sim replay-schedule {schedule}")
    assert code == 1
    assert out.endswith(f"the same invariant as in the file, in other words: {invariant}  in other words\n")
    schedule.write_text(text.replace(json.dumps(said), "null"))
    code, out, _ = kv_sim(f"kv-sim replay-schedule {schedule}")
    assert code == 1
    assert out.endswith("the file names no violation\n")


def test_what_a_connector_does_not_claim_is_noted(kv_sim: Callable[[str], Result], schedule: Path) -> None:
    lines = schedule.read_text().splitlines()
    schedule.write_text(
        "\n".join([lines[0].replace('"tp_size": 1', '"tp_size": 2'), *lines[1:], '{"action": "settle"}'])
    )
    code, out, _ = kv_sim(f"kv-sim replay-schedule {schedule} --connector later --traits none")
    assert code == 0
    assert "note: LaterConnector doesn't claim what this schedule needs: ranks (its world has 2 ranks)" in out
    assert "note: 1 of " in out
    assert "actions were not legal here and were skipped" in out


def test_groups_are_refused_where_there_can_be_one(kv_sim: Callable[[str], Result], schedule: Path) -> None:
    text = schedule.read_text()
    group = '{"kind": "full", "window": 0, "parts": 1}'
    schedule.write_text(text.replace(f"[{group}]", f"[{group}, {group}]"))
    code, _, err = kv_sim(f"kv-sim replay-schedule {schedule} --connector later")
    assert code == 2
    assert "LaterConnector can't be used with several KV cache groups" in err


def test_traits_of_the_file_are_not_changed(kv_sim: Callable[[str], Result], schedule: Path) -> None:
    code, _, err = kv_sim(f"kv-sim replay-schedule {schedule} --traits ranks")
    assert code == 2
    assert "name it with --connector" in err
