"""A file that can't be written never hides what was found: that is said first, and the exit code is that of it."""

from pathlib import Path
from typing import Any

import pytest

from kv_sim import violation
from kv_sim.actions import Action, Kind
from kv_sim.cli.main import main
from kv_sim.config import WorldConfig
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.fuzz import run_seed
from kv_sim.violation import Violation
from kv_sim.watching.watch import NotWritten, WatchedWorld, Watcher

BROKEN = ["fuzz", "--connector", "broken_connectors:Hasty"]
FINE = ["fuzz", "--connector", "later"]
FULL = "x.json: the trace was not written: No space left on device"


@pytest.fixture
def disk_is_full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(place: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("kv_sim.watching.perfetto.whole_file", refuse)


@pytest.mark.usefixtures("disk_is_full")
@pytest.mark.parametrize("seeds", [["--seed", "0"], ["--histories", "3"]])
def test_a_failure_is_told_first(seeds: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*BROKEN, *seeds, "--perfetto", "x.json"]) == 1
    out, err = capfd.readouterr()
    assert [line.split()[0] for line in out.splitlines() if line[0] != " "][-4:] == [
        "FAIL",
        "shrunk",
        "replay:",
        "shrunk:",
    ]
    assert err == f"note: {FULL}\n"


@pytest.mark.usefixtures("disk_is_full")
def test_also_where_the_schedule_cannot_be_saved_either(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kv_sim.failures.telling.write_schedule", refuse)
    assert main([*BROKEN, "--seed", "0", "--perfetto", "x.json"]) == 1
    out, err = capfd.readouterr()
    assert "FAIL seed=0" in out
    assert err == f"note: {FULL}\nnote: the schedule was not saved: [Errno 28] No space left on device\n"


@pytest.mark.usefixtures("disk_is_full")
def test_a_schedule_that_fails(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*BROKEN, "--seed", "0"]) == 1
    (file,) = Path().glob("*.jsonl")
    capfd.readouterr()
    assert main(["replay-schedule", str(file), "--perfetto", "x.json"]) == 1
    out, err = capfd.readouterr()
    assert out.startswith("FAIL actions=")
    assert "the same violation as in the file" in out
    assert err == f"note: {FULL}\n"


@pytest.mark.usefixtures("disk_is_full")
def test_where_nothing_is_wrong_the_file_is(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*FINE, "--seed", "0", "--perfetto", "x.json"]) == 2
    assert capfd.readouterr().err == f"kv-sim fuzz: {FULL}\n"


@pytest.mark.usefixtures("disk_is_full")
def test_a_failure_of_the_testbed_stays_one(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def rest(world: object) -> None:
        raise violation.TestbedError("no rest")

    monkeypatch.setattr("kv_sim.world.World.rest", rest)
    assert main([*FINE, "--seed", "0", "--perfetto", "x.json"]) == 3
    out, err = capfd.readouterr()
    assert "TESTBED seed=0  TestbedError: no rest" in out
    assert FULL in err


def test_a_folder_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*BROKEN, "--seed", "0"]) == 1
    (file,) = Path().glob("*.jsonl")
    capfd.readouterr()
    for command in ([*BROKEN, "--seed", "0"], ["replay-schedule", str(file)]):
        assert main([*command, "--perfetto", "."]) == 2
        out, err = capfd.readouterr()
        assert out == ""
        assert err == f"kv-sim {command[0]}: --perfetto .: this is a folder, expected the path of a file\n"


class Unable(Watcher):
    """Hears of everything, and can't keep it."""

    def __init__(self) -> None:
        self.heard: list[Violation | None] = []

    def ends(self, violation: Violation | None) -> None:
        self.heard.append(violation)
        raise NotWritten("f: no room")


def test_in_a_script_the_violation_has_the_note() -> None:
    unable, other = Unable(), Unable()
    made = WatchedWorld(WorldConfig(), SUBJECTS["memory"], watchers=[unable, other])
    half: Any = made.engine.connectors[-1].side  # type: ignore[attr-defined]
    half.on_new_request = lambda request: {}["nowhere"]
    with pytest.raises(Violation) as raised:
        made.replay([Action(Kind.ADD, {"spec": RequestSpec("r1", 0, 5, 0, 1, 1).to_json()})])
    assert raised.value.notes == ["f: no room", "f: no room"]
    assert unable.heard == other.heard == [raised.value]
    assert Violation(raised.value.invariant, "").notes == []


def test_in_a_script_a_history_in_which_nothing_is_wrong_raises() -> None:
    with pytest.raises(NotWritten, match="f: no room"):
        run_seed(
            SUBJECTS["memory"],
            0,
            make_world=lambda *args, **kwargs: WatchedWorld(*args, **kwargs, watchers=[Unable()]),
        )
