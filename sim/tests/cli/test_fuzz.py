"""``kv-sim fuzz``: exit codes, the lines to paste, and that what they say is true."""

import json
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kv_sim_command_lines import HASTY, Result

from kv_factory import Offer, Target
from kv_sim.console.values import check_folder
from kv_sim.engines import ENGINES
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.examples.later import LaterScheduler
from kv_sim.failures.schedule_file import read_schedule
from kv_sim.fuzz import Run, run_seed
from kv_sim.subject import Subject


def test_a_sound_connector_passes(kv_sim: Callable[[str], Result], tmp_path: Path) -> None:
    code, out, _ = kv_sim("kv-sim fuzz --connector later --histories 5")
    assert code == 0
    assert re.fullmatch(r"later: 5 histories, \d+ engine steps, nothing is wrong\n", out)
    assert not list(tmp_path.iterdir())


def test_what_takes_long_says_how_far_it_is(
    kv_sim: Callable[[str], Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, 1.0, 31.0, 31.0, 61.0])
    monkeypatch.setattr("kv_sim.failures.deadline.monotonic", lambda: next(times, 91.0))
    code, out, err = kv_sim("kv-sim fuzz --connector memory --histories 3")
    assert (code, out.count("\n")) == (0, 1), "what is parsed is as ever"
    assert [line for line in err.splitlines() if "so far" in line] == ["note: memory: 2 of 3 histories so far"]


@pytest.mark.once
def test_all_subjects_are_run_by_default(kv_sim: Callable[[str], Result]) -> None:
    _, out, _ = kv_sim("kv-sim fuzz --histories 1 --actions 1")
    assert [line.partition(":")[0] for line in out.splitlines()] == list(SUBJECTS)


def test_a_failure_is_two_lines_to_paste(kv_sim: Callable[[str], Result], tmp_path: Path) -> None:
    code, out, _ = kv_sim(f"kv-sim fuzz --connector {HASTY} --traits ranks,failures --seeds 0-50")
    assert code == 1
    head, shrunk, *actions, replay_line, schedule_line = out.splitlines()
    found = re.fullmatch(r"FAIL seed=(\d+) actions=(\d+)  ([A-Z-]+)  request .*", head)
    assert found is not None, head
    seed, number, invariant = found.groups()
    count = int(re.findall(r"shrunk to (\d+) action", shrunk)[0])
    assert count <= int(number)
    assert [int(line.split()[0]) for line in actions] == list(range(1, count + 1))
    assert replay_line.startswith(
        "replay: kv-sim fuzz --connector broken_connectors:Hasty --traits ranks,failures"
    )
    assert schedule_line == f"shrunk: kv-sim replay-schedule fail-broken_connectors_Hasty-{seed}.jsonl"

    code, again, _ = kv_sim(replay_line.removeprefix("replay: "))
    assert code == 1
    assert head in again.splitlines()

    code, replayed, _ = kv_sim(schedule_line.removeprefix("shrunk: "))
    assert code == 1
    assert replayed.startswith(f"FAIL actions={count}  {invariant}  ")
    assert replayed.endswith("the same violation as in the file\n")
    schedule = read_schedule(tmp_path / f"fail-broken_connectors_Hasty-{seed}.jsonl")
    assert schedule.seed == int(seed)
    assert schedule.violation in replayed


@pytest.mark.once
def test_a_failure_never_replaces_a_file(kv_sim: Callable[[str], Result], tmp_path: Path) -> None:
    kv_sim(f"kv-sim fuzz --connector {HASTY} --seed 0 --save out")
    [file] = (tmp_path / "out").iterdir()
    before = file.read_text()
    kv_sim(f"kv-sim fuzz --connector {HASTY} --seed 0 --save out")
    assert list((tmp_path / "out").iterdir()) == [file]
    file.write_text("mine")
    _, out, _ = kv_sim(f"kv-sim fuzz --connector {HASTY} --seed 0 --save out")
    assert file.read_text() == "mine"
    second = file.with_name(f"{file.stem}-2.jsonl")
    assert second.read_text() == before
    assert f"kv-sim replay-schedule out/{second.name}" in out


@pytest.mark.parametrize(
    "asked",
    ["", "--extra '{\"a\": 1}' --traits ranks", "--actions 20 --without HITS,WORK"],
    ids=lambda asked: asked[:9],
)
def test_a_failure_of_the_testbed_itself(
    asked: str, kv_sim: Callable[[str], Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its line to paste runs the same world again."""

    def run_seed(*args: Any, **options: Any) -> Run:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("kv_sim.cli.fuzz.run_seed", run_seed)
    code, out, err = kv_sim(f"kv-sim fuzz --connector later --seeds 4-9 {asked}")
    before, _, after = asked.partition("--actions 20")
    words = shlex.split(
        f"kv-sim fuzz --connector later {before} --seed 4 {'--actions 20' if after else ''} {after} --log"
    )
    assert (code, out) == (3, f"TESTBED seed=4  ZeroDivisionError: ours\nreplay: {shlex.join(words)}\n")
    assert err.startswith("Traceback ") and err.endswith("\nZeroDivisionError: ours\n")


def test_one_history_is_watched_while_it_runs(kv_sim: Callable[[str], Result], tmp_path: Path) -> None:
    code, out, _ = kv_sim("kv-sim fuzz --connector later --seed 3 --log --perfetto trace.json")
    assert code == 0
    assert len(out.splitlines()) > 20
    assert json.loads((tmp_path / "trace.json").read_text())


@pytest.mark.parametrize("seeds", ["--seed 0", "--seeds 0-1", "--seeds 0-50"])
def test_a_history_that_fails_is_watched_once(seeds: str, kv_sim: Callable[[str], Result], tmp_path: Path) -> None:
    code, out, _ = kv_sim(f"kv-sim fuzz --connector {HASTY} {seeds} --log")
    assert (code, out.count("\nworld     ")) == (1, 1)
    code, out, _ = kv_sim(f"kv-sim fuzz --connector {HASTY} {seeds} --perfetto trace.json")
    assert (code, out.count("\nworld     ")) == (1, 0)
    assert json.loads((tmp_path / "trace.json").read_text())


@pytest.mark.once
def test_what_ran_is_counted(kv_sim: Callable[[str], Result]) -> None:
    steps = sum(run_seed(SUBJECTS["later"], seed).steps for seed in (3, 4, 5))
    said = f"later: 3 histories, {steps} engine steps, nothing is wrong\n"
    assert kv_sim("kv-sim fuzz --connector later --seeds 3-5") == (0, said, "")


@pytest.mark.parametrize("command", ["fuzz --connector", "conform"])
def test_a_failure_that_cannot_be_saved_is_told_all_the_same(
    command: str, kv_sim: Callable[[str], Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*args: object) -> Path:
        raise OSError(30, "Read-only file system", "out/x.jsonl")

    monkeypatch.setattr("kv_sim.failures.telling.write_schedule", write)
    code, out, err = kv_sim(f"kv-sim {command} {HASTY} --save out")
    assert code == 1
    assert re.search(r"^FAIL seed=\d+ actions=\d+  [A-Z-]+  ", out, re.MULTILINE)
    assert "\nshrunk to " in out and "\nreplay: kv-sim fuzz" in out and "\nshrunk: " not in out
    assert err == "note: the schedule was not saved: [Errno 30] Read-only file system: 'out/x.jsonl'\n"


@pytest.mark.parametrize("command", [f"fuzz --connector {HASTY}", f"conform {HASTY}", "campaign --histories 1"])
def test_where_nothing_can_be_saved_nothing_runs(
    command: str, kv_sim: Callable[[str], Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("mine")
    name = command.split()[0]
    refused = f"kv-sim {name}: --save file: file is no folder\n"
    assert kv_sim(f"kv-sim {command} --save file") == (2, "", refused)
    refused = f"kv-sim {name}: --save file/in/it: {tmp_path}/file is no folder\n"
    assert kv_sim(f"kv-sim {command} --save file/in/it") == (2, "", refused)
    (tmp_path / "leads").symlink_to("nowhere")
    refused = f"kv-sim {name}: --save leads: leads is no folder\n"
    assert kv_sim(f"kv-sim {command} --save leads") == (2, "", refused)
    for lacks in (os.W_OK, os.X_OK):  # which root never does
        monkeypatch.setattr(os, "access", lambda path, mode, lacks=lacks: not (path == tmp_path and mode & lacks))
        refused = f"kv-sim {name}: --save a/b: no permission to create it in {tmp_path}\n"
        assert kv_sim(f"kv-sim {command} --save a/b") == (2, "", refused)
    check_folder("--save", str(tmp_path))  # where one works already is no reason not to run


@pytest.mark.parametrize(
    ("command", "table", "where"),
    [
        ("fuzz --connector later --seeds 10-20", "", "while seed {} of later ran; 2 histories of it done before"),
        (
            "conform later --seed 10 --traits ranks --histories 2 --probe",
            "scenario  claim  histories  steps  result\nplain     made           2",
            "while seed {} of the scenario ranks ran; 0 histories of it done before",
        ),
        ("conform later --seed 11", "", "while seed {} of the scenario plain ran; 2 histories of it done before"),
    ],
)
def test_an_interrupt_says_where_it_was(
    command: str, table: str, where: str, kv_sim: Callable[[str], Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    def run(subject: Subject, seed: int, **options: Any) -> Run:
        begun.append(seed)
        return run_seed(subject, seed, **options)

    ended = LaterScheduler.request_finished

    def interrupted(*args: Any) -> Any:
        if len(begun) == 3:
            raise KeyboardInterrupt
        return ended(*args)

    monkeypatch.setattr(LaterScheduler, "request_finished", interrupted)
    monkeypatch.setattr("kv_sim.cli.fuzz.run_seed", run)
    monkeypatch.setattr("kv_sim.conformance.scenarios.run_seed", run)
    code, out, err = kv_sim(f"kv-sim {command}")
    assert code == 130
    assert out.startswith(table) and len(out.splitlines()) == len(table.splitlines())
    assert err == f"note: interrupted in scheduler side, request_finished, {where.format(begun[2])}\n"


@pytest.mark.once
def test_a_checker_can_be_switched_off(kv_sim: Callable[[str], Result], tmp_path: Path) -> None:
    _, out, _ = kv_sim(f"kv-sim fuzz --connector {HASTY} --seeds 0-50 --without protocol,OWNERSHIP")
    head, shrunk, *_, replay_line, schedule_line = out.splitlines()[1:]
    assert "PROTOCOL" not in head
    assert "OWNERSHIP" not in head
    assert int(shrunk.split()[2]) < int(re.findall(r"actions=(\d+)", head)[0]), "it was shrunk without them, too"
    assert replay_line.endswith("--without OWNERSHIP,PROTOCOL --log")
    [file] = tmp_path.iterdir()
    assert read_schedule(file).without == {"PROTOCOL", "OWNERSHIP"}
    _, out, _ = kv_sim(schedule_line.removeprefix("shrunk: "))
    assert out.endswith("the same violation as in the file\n")


def test_a_connector_that_breaks_while_it_is_set_up(kv_sim: Callable[[str], Result]) -> None:
    code, out, _ = kv_sim("kv-sim fuzz --connector broken_connectors:Stillborn --traits ranks")
    assert code == 1
    assert "FAIL seed=0 actions=0  NO-CRASH  worker 0 side, register_kv_caches: RuntimeError: no caches" in out
    code, out, _ = kv_sim(out.splitlines()[-1].removeprefix("shrunk: "))
    assert code == 1
    assert "the same violation as in the file" in out


def test_the_log_is_that_of_the_failure(kv_sim: Callable[[str], Result]) -> None:
    _, out, _ = kv_sim(f"kv-sim fuzz --connector {HASTY} --seeds 0-50 --log")
    assert out.splitlines()[1] == "connector Hasty"
    assert out.count("\nworld     ") == 1
    assert "\nFAIL      " in out


def test_a_plain_connector_is_told_of_traits(kv_sim: Callable[[str], Result]) -> None:
    _, out, _ = kv_sim("kv-sim fuzz --connector kv_sim.examples.later:LaterConnector --histories 2")
    assert out.startswith("note: kv_sim.examples.later:LaterConnector claims no traits")
    _, out, _ = kv_sim("kv-sim fuzz --connector later --traits none --histories 2")
    assert out.startswith("note: later claims no traits")


def test_extra_config_reaches_the_connector(kv_sim: Callable[[str], Result], tmp_path: Path) -> None:
    """Fewer host slots than it has: the copies leave their room, and GEOMETRY or OWNERSHIP says so."""
    code, out, _ = kv_sim("""kv-sim fuzz --connector later --extra '{"host_slots": "many"}' --seed 3""")
    assert code == 1
    assert "invalid literal for int() with base 10: 'many'" in out
    assert """--extra '{"host_slots": "many"}'""" in out
    [file] = tmp_path.iterdir()
    assert read_schedule(file).subject.extra_config == {"host_slots": "many"}


@pytest.mark.once
def test_what_can_be_created_in_some_worlds_only_is_a_crash(kv_sim: Callable[[str], Result]) -> None:
    choosy = "kv-sim fuzz --connector broken_connectors:Choosy"
    code, out, _ = kv_sim(f"{choosy} --traits ranks --histories 20")
    assert code == 1
    assert "shrunk to 0 actions" in out
    assert "NO-CRASH  worker side: RuntimeError: one rank is enough (broken_connectors.py:" in out
    code, out, _ = kv_sim(f"{choosy} --histories 3")
    assert code == 0
    code, out, _ = kv_sim(f"{choosy} --traits ranks --histories 20 --without NO-CRASH")
    assert code == 0


@pytest.mark.once
def test_an_engine_of_another_package(kv_sim: Callable[[str], Result]) -> None:
    """It is found by name, makes the worlds fit, and a schedule remembers it."""
    offer = Offer("strange", Target("strange_engine", "StrangeEngine"), "a test")
    with ENGINES.isolated([offer]):
        ENGINES.register("builtin", "kv_sim.engine.builtin", "BuiltinEngine")
        code, out, _ = kv_sim("kv-sim fuzz --connector broken_connectors:Hasty --engine strange --seed 3")
        assert code == 1
        assert "kv-sim fuzz --connector broken_connectors:Hasty --engine strange --seed 3 --log" in out
        file = next(iter(Path().glob("*.jsonl")))
        world = json.loads(file.read_text().splitlines()[0])["world"]
        assert (world["engine"], world["block_size"]) == ("strange", 3)
        code, out, _ = kv_sim(f"kv-sim replay-schedule {file}")
        assert (code, "the same violation as in the file" in out) == (1, True)
        code, out, _ = kv_sim(f"kv-sim replay-schedule {file} --engine builtin")
        assert code == 1
        code, out, _ = kv_sim("kv-sim campaign --engine strange --histories 1 --actions 5 --jobs 1")
        assert f"{len(SUBJECTS)} histories" in out
    code, _, err = kv_sim(f"kv-sim replay-schedule {file}")
    assert code == 2
    assert "unknown engine 'strange'; known: builtin" in err


def test_a_commit_is_a_seed(kv_sim: Callable[[str], Result]) -> None:
    commit = "0x" + "c0ffee" * 6
    code, out, _ = kv_sim(f"kv-sim fuzz --connector memory --seed {commit} --digest")
    assert code == 0
    assert re.fullmatch(rf"memory {int(commit, 16)} [0-9a-f]{{32}}\n", out)
