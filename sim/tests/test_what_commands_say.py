"""Lines of the command line, compared whole."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kv_sim.actions import Action, Kind
from kv_sim.command.cli import main
from kv_sim.command.selection import unclaimed
from kv_sim.config import WorldConfig
from kv_sim.engine.request import RequestSpec
from kv_sim.examples.catalogue import LATER
from kv_sim.failures.schedule_file import Schedule, write_schedule
from kv_sim.subject import Trait

Result = tuple[int, str, str]


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Result:
        code = main([*words])
        return code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("fuzz --perfetto x", "--perfetto writes one history: name its connector with --connector"),
        ("fuzz --connector later --perfetto no/x", "--perfetto no/x: there is no such folder"),
        ("fuzz --connector later --perfetto .", "--perfetto .: this is a folder, and a file is written"),
        ("campaign --minutes 1 --histories 1", "--minutes and --histories: give one of them"),
        (
            "replay-schedule s.jsonl --extra {}",
            "--extra and --traits are about another connector: name it with --connector",
        ),
    ],
)
def test_what_is_refused(run: Callable[..., Result], tmp_path: Path, words: str, message: str) -> None:
    write_schedule(Schedule(LATER, WorldConfig(), []), tmp_path, "s")
    command, *options = words.split()
    assert run(command, *options) == (2, "", f"kv-sim {command}: {message}\n")


def test_a_trace_that_was_not_written_is_said(run: Callable[..., Result], tmp_path: Path) -> None:
    code, out, err = run("fuzz", "--connector", "later", "--seeds", "1-2", "--perfetto", "t.json")
    assert (code, err) == (0, "")
    assert out.splitlines()[1:] == ["t.json was not written: no history failed; --seed N writes that one's"]
    assert not (tmp_path / "t.json").exists()
    code, out, _ = run("fuzz", "--connector", "later", "--seed", "1", "--perfetto", "t.json")
    assert (code, len(out.splitlines())) == (0, 1)
    assert json.loads((tmp_path / "t.json").read_text())


def test_who_claims_nothing_is_told_of_all_claims(run: Callable[..., Result]) -> None:
    name = "broken_connectors:Hasty"
    _, out, _ = run("fuzz", "--connector", name, "--seed", "0")
    assert out.splitlines()[0] == (
        f"note: {name} claims no traits, so its worlds are plain; "
        "--traits groups,states,fine,ranks,failures,losses,repeats,zeroing,reset,keeps,events,counts"
    )


@pytest.mark.parametrize(
    ("violation", "said"), [(None, ""), ("HITS  a hit is gone", "; the file says: HITS  a hit is gone")]
)
def test_a_schedule_that_passes(
    run: Callable[..., Result], tmp_path: Path, violation: str | None, said: str
) -> None:
    spec = RequestSpec("r1", 0, 4, 0, 1, 1).to_json()
    history = [Action(Kind.ADD, {"spec": spec}), Action(Kind.ABORT, {"request": "r9"})]
    write_schedule(Schedule(LATER, WorldConfig(), history, violation), tmp_path, "s")
    assert run("replay-schedule", "s.jsonl") == (
        0,
        f"note: 1 of 2 actions were not legal here and were skipped\npasses: 1 actions, nothing is wrong{said}\n",
        "",
    )


def test_without_arguments_the_program_s_own_are_taken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["kv-sim", "subjects"])
    assert main() == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("kind", [Kind.LOSE, Kind.FIND])
def test_what_only_who_withstands_losses_can_replay(kind: Kind) -> None:
    schedule = Schedule(LATER, WorldConfig(), [Action(kind, {"rank": 0, "copy": 0})])
    assert unclaimed(schedule) == [f"{Trait.LOSSES.value} (a copy is lost)"]
