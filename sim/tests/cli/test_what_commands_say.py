"""Lines of the command line, compared whole."""

import io
import json
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from kv_api import ConfigError
from kv_sim.actions import Action, Kind
from kv_sim.cli.main import COMMANDS, main
from kv_sim.config import WorldConfig
from kv_sim.console.interrupts import Told, on_interrupt
from kv_sim.console.output import let_connectors_log_nothing, note, say
from kv_sim.console.selection import unclaimed
from kv_sim.engine.request_spec import RequestSpec
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
        ("fuzz --perfetto x", "--perfetto writes the history of one connector: name it with --connector"),
        ("fuzz --connector later --perfetto no/x", "--perfetto no/x: there is no such folder"),
        ("fuzz --connector later --perfetto .", "--perfetto .: this is a folder, expected the path of a file"),
        ("fuzz --histories 0", "--histories: more than 0, got 0"),
        ("campaign --minutes inf", "--minutes: a finite number, got inf"),
        (
            'fuzz --connector OffloadingConnector --extra {"cpu_bytes_to_use":1e6}',
            "--connector 'OffloadingConnector': CPUOffloadingSpec copies memory by itself, and a world's memory "
            "is written by its devices alone; the subject 'offload' is the same with copies of the testbed's "
            "(kv_sim.offload:WorldCPUOffloadingSpec)",
        ),
        ("campaign --minutes 1 --histories 1", "--minutes and --histories: give one of them"),
        (
            "replay-schedule s.jsonl --extra {}",
            "--extra, --traits, --serves-peers, --two-engines and --shares-store are about another connector: "
            "name it with --connector",
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
    assert out.splitlines()[1:] == [
        "t.json was not written, since no history failed; --seed N writes that of one seed"
    ]
    assert not (tmp_path / "t.json").exists()
    code, out, _ = run("fuzz", "--connector", "later", "--seed", "1", "--perfetto", "t.json")
    assert (code, len(out.splitlines())) == (0, 1)
    assert json.loads((tmp_path / "t.json").read_text())


@pytest.mark.once
def test_who_claims_nothing_is_told_of_all_claims(run: Callable[..., Result]) -> None:
    name = "broken_connectors:Hasty"
    _, out, _ = run("fuzz", "--connector", name, "--seed", "0")
    assert out.splitlines()[0] == (
        f"note: {name} claims no traits, so only plain worlds are tried; to claim some: --traits "
        "groups,states,unequal,fine,ranks,failures,losses,repeats,zeroing,reset,sleep,keeps,events,counts,"
        "clients,images"
    )
    _, out, _ = run("fuzz", "--connector", name, "--seed", "0", "--serves-peers")
    assert out.splitlines()[0].endswith(",counts,clients,images,holds,tickets")
    assert f"replay: kv-sim fuzz --connector {name} --serves-peers --seed 0 --log" in out.splitlines()


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


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OSError(28, "No space left on device"), 2, "kv-sim subjects: [Errno 28] No space left on device\n"),
        (OSError(13, "Permission denied", "a.json"), 2, "kv-sim subjects: a.json: Permission denied\n"),
        (OSError("so it is"), 2, "kv-sim subjects: so it is\n"),
        (ConfigError("not so"), 2, "kv-sim subjects: not so\n"),
        (KeyboardInterrupt(), 130, "note: interrupted\n"),
        (Told(), 130, ""),
        (BrokenPipeError(), 141, ""),
    ],
)
def test_what_ends_a_command(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, said: str
) -> None:
    def fail(options: Any) -> int:
        raise error

    monkeypatch.setitem(COMMANDS, "subjects", fail)  # type: ignore[arg-type]
    assert run("subjects") == (code, "", said)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (BrokenPipeError(), 141, ""),
        (OSError(28, "No space left on device"), 2, "kv-sim: standard output: No space left on device\n"),
    ],
)
def test_what_ends_the_versions(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, error: OSError, code: int, said: str
) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr("kv_sim.console.output.print", fail, raising=False)
    assert run("--version") == (code, "", said)


def test_ctrl_c_means_the_same_as_before_when_a_campaign_has_ended() -> None:
    def fail_within() -> None:
        with on_interrupt(signal.SIG_IGN):
            meant.append(signal.getsignal(signal.SIGINT))
            raise KeyError

    meant = [signal.getsignal(signal.SIGINT)]
    with pytest.raises(KeyError):
        fail_within()
    assert meant == [signal.getsignal(signal.SIGINT), signal.SIG_IGN]


def test_in_a_thread_no_interrupt_comes() -> None:
    ran: list[bool] = []

    def inside() -> None:
        with on_interrupt(signal.SIG_IGN):
            ran.append(False)
        ran.append(True)

    thread = Thread(target=inside)
    thread.start()
    thread.join()
    assert ran == [False, True]


def test_lines_are_there_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for them, at the other end of a pipe, sees them."""
    for stream, print_line, line in (("stdout", say, "x\n"), ("stderr", note, "note: x\n")):
        read = io.BytesIO()
        monkeypatch.setattr(sys, stream, io.TextIOWrapper(read))
        print_line("x")
        assert read.getvalue().decode() == line


def test_what_connectors_log_is_not_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    logging.getLogger("some.connector").warning("before")
    let_connectors_log_nothing()
    logging.getLogger("some.connector").warning("again")
    assert capsys.readouterr() == ("", "before\n")
