"""The command line: exit codes, the lines to paste, and that what they say is true."""

import json
import logging
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kv_factory import Offer, Target
from kv_sim.command import selection
from kv_sim.command.cli import main
from kv_sim.command.subjects import subject_lines
from kv_sim.command.values import check_folder
from kv_sim.engines import ENGINES
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.examples.later import LaterScheduler
from kv_sim.failures.report import action_lines
from kv_sim.failures.schedule_file import read_schedule
from kv_sim.fuzz import Run, run_seed
from kv_sim.subject import Subject, Trait

HASTY = "broken_connectors:Hasty"

Result = tuple[int, str, str]


@pytest.fixture
def kv_sim(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[str], Result]:
    """Runs a command line in an empty folder, with the connectors beside this file at hand."""
    monkeypatch.chdir(tmp_path)

    def run(line: str) -> Result:
        words = shlex.split(line)
        assert words[0] == "kv-sim"
        try:
            code = main(words[1:])
        except SystemExit as error:
            code = int(str(error.code))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


# -- fuzz --------------------------------------------------------------------------------------


def test_a_sound_connector_passes(kv_sim: Callable[[str], Result], tmp_path: Path) -> None:
    code, out, _ = kv_sim("kv-sim fuzz --connector later --histories 5")
    assert code == 0
    assert re.fullmatch(r"later: 5 histories, \d+ engine steps, nothing is wrong\n", out)
    assert not list(tmp_path.iterdir())


@pytest.mark.once
def test_all_subjects_are_run_by_default(kv_sim: Callable[[str], Result]) -> None:
    _, out, _ = kv_sim("kv-sim fuzz --histories 2 --actions 10")
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
    ["", "--extra '{\"a\": 1}' --traits ranks", "--actions 20 --without HITS WORK"],
    ids=lambda asked: asked[:9],
)
def test_a_failure_of_the_testbed_itself(
    asked: str, kv_sim: Callable[[str], Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its line to paste runs the same world again."""

    def run_seed(*args: Any, **options: Any) -> Run:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("kv_sim.command.cli.run_seed", run_seed)
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
    monkeypatch.setattr(os, "access", lambda path, mode: not (path == tmp_path and mode & os.W_OK))  # root may
    refused = f"kv-sim {name}: --save a/b: it can't be made in {tmp_path}\n"
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
    monkeypatch.setattr("kv_sim.command.cli.run_seed", run)
    monkeypatch.setattr("kv_sim.conformance.scenarios.run_seed", run)
    code, out, err = kv_sim(f"kv-sim {command}")
    assert code == 130
    assert out.startswith(table) and len(out.splitlines()) == len(table.splitlines())
    assert err == f"note: interrupted in scheduler side, request_finished, {where.format(begun[2])}\n"


@pytest.mark.once
def test_a_checker_can_be_switched_off(kv_sim: Callable[[str], Result], tmp_path: Path) -> None:
    _, out, _ = kv_sim(f"kv-sim fuzz --connector {HASTY} --seeds 0-50 --without protocol OWNERSHIP")
    head, shrunk, *_, replay_line, schedule_line = out.splitlines()[1:]
    assert "PROTOCOL" not in head
    assert "OWNERSHIP" not in head
    assert int(shrunk.split()[2]) < int(re.findall(r"actions=(\d+)", head)[0]), "it was shrunk without them, too"
    assert replay_line.endswith("--without OWNERSHIP PROTOCOL --log")
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


MISUSES = [
    ("fuzz --connector latr", "unknown connector 'latr'; known: flaky-busy+later, flaky-patient+memory, "),
    ("fuzz --connector latr", "did you mean 'later'?"),
    ("fuzz --connector :Later", "expected module:Class"),
    ("fuzz --connector no.such:Later", "there is no module 'no'"),
    ("fuzz --connector kv_sim.examples.later:LaterConector", "did you mean 'LaterConnector'?"),
    ("fuzz --connector kv_sim.world:World", "World is no connector"),
    ("fuzz --connector broken_connectors:Homeless", "can't be created: worker side: KeyError: 'home' (broken_"),
    ("fuzz --connector MultiConnector", "connectors: expected a non-empty list"),
    ("fuzz --connector later --extra '[1'", "--extra: no JSON: Expecting ',' delimiter at column 3"),
    *(
        (
            f"{command}memory --spec nowhere:Nothing",
            "memory takes no offloading medium, so 'Nothing' would not be ",
        )
        for command in ("conform ", "growth ")
    ),
    (
        "conform p2p+offload --spec kv_sim.offload:WorldCPUOffloadingSpec",
        "p2p+offload takes no offloading medium, so 'WorldCPUOffloadingSpec' would not be tried; OffloadingConn",
    ),
    (
        """fuzz --connector later --extra '{"spec_name": "X"}'""",
        "later takes no offloading medium, so 'X' would not",
    ),
    ("conform --spec nowhere:Nothing", "there is no module 'nowhere'"),
    ("conform offload --spec nowhere:Nothing", "there is no module 'nowhere'"),
    ("fuzz --connector later --extra 3", "--extra: expected an object, got 3 (a whole number)"),
    ("fuzz --connector OffloadingConnector", "CPUOffloadingSpec copies memory by itself, and a world's memory is"),
    (
        """conform --spec FileOffloadingSpec --extra '{"file_dir": "nowhere", "file_bytes_to_use": 1e6}'""",
        "FileOffloadingSpec copies memory by itself, and a world's memory is written by its devices alone; the "
        "subject 'offload-file' is the same with copies of the testbed's (kv_sim.offload_file:WorldFileOffl",
    ),
    (
        """fuzz --connector MultiConnector --extra '{"connectors": [{"kv_connector": "MultiConnector",
        "kv_connector_extra_config": {"connectors": [{"kv_connector": "OffloadingConnector",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 1e6}}]}}]}'""",
        "the subject 'offload' is the same with copies of the testbed's (kv_sim.offload:WorldCPUOffloadingSpec)",
    ),
    (f"fuzz --connector later --extra {100_000 * '['}", "--extra: no JSON that can be read: "),
    (
        f"fuzz --connector later --extra 1{5000 * '0'}",
        "--extra: no JSON that can be read: Exceeds the limit (4300 digits)",
    ),
    (
        """fuzz --connector MultiConnector --extra '{"connectors": 7}'""",
        "connectors: expected a non-empty list of KVTransferConfig mappings, got 7 (int)",
    ),
    (
        """fuzz --connector MultiConnector --extra '{"connectors": [7]}'""",
        "connectors[0]: expected a mapping, got 7 (int)",
    ),
    (
        """fuzz --connector MultiConnector
        --extra '{"connectors": [{"kv_connector": "x", "kv_connector_extra_config": 3}]}'""",
        "connectors[0].kv_connector_extra_config: expected dict, got 3 (int)",
    ),
    ("fuzz --connector later --traits rank", "--traits: unknown trait 'rank'; known: counts, events, failures"),
    ("fuzz --connector later --traits rank", "did you mean 'ranks'?"),
    ("fuzz --connector later --traits ,", "--traits: expected names"),
    ("fuzz --connector later --traits groups", "with several KV cache groups"),
    ("fuzz --extra {}", "--extra is about one connector"),
    ("fuzz --traits ranks", "--traits is about one connector"),
    ("fuzz --seed x", "--seed: a seed is a whole number or 0x…, got 'x'"),
    ("fuzz --seeds 7", "--seeds: expected A-B, got '7'"),
    ("fuzz --seeds 7-3", "--seeds: 3 comes before 7"),
    ("fuzz --seeds 1-2 --seed 1", "--seeds names every seed already"),
    ("fuzz --histories 0", "--histories: more than 0, got 0"),
    ("fuzz --actions -1", "--actions: more than 0, got -1"),
    ("fuzz --without CONTNT", "unknown checker 'CONTNT'; known: CONTENT, "),
    ("fuzz --without CONTNT", "did you mean 'CONTENT'?"),
    ("fuzz --perfetto x.json", "--perfetto writes one history"),
    ("fuzz --connector later --perfetto no/x.json", "there is no such folder"),
    ("fuzz --engine vlm", "unknown engine 'vlm'; known: builtin"),
    ("fuzz --engine buildin", "did you mean 'builtin'?"),
    ("campaign --engine buildin", "did you mean 'builtin'?"),
    ("replay-schedule no.jsonl", "no.jsonl: No such file"),
    ("campaign --jobs 0", "--jobs: more than 0, got 0"),
    ("campaign --minutes nan --jobs 1", "--minutes: a finite number, got nan"),
    ("campaign --minutes inf --jobs 1", "--minutes: a finite number, got inf"),
    ("campaign --minutes 1 --histories 1", "--minutes and --histories: give one of them"),
    ("fuz", "invalid choice: 'fuz'"),
    ("", "required: COMMAND"),
]


@pytest.mark.parametrize(("line", "message"), MISUSES)
def test_a_misuse_is_explained(kv_sim: Callable[[str], Result], line: str, message: str) -> None:
    code, out, err = kv_sim(f"kv-sim {line}")
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert "FAIL" not in out


@pytest.mark.parametrize(
    ("line", "usage", "unknown"),
    [
        ("fuzz --histor 3", "kv-sim fuzz", "--histor 3"),
        ("fuzz later", "kv-sim fuzz", "later"),
        (
            "replay mooncake-synthetic --max-running 40 --x --tp-size=2",
            "kv-sim replay",
            "--max-running 40 --x --tp-size=2; of --fidelity engine: --max-running and --tp-size",
        ),
        ("size mooncake-synthetic --goal x", "kv-sim size", "--goal x; of --fidelity engine: --goal"),
        ("replay mooncake-synthetic --gpu H100", "kv-sim replay", "--gpu H100; of --fidelity engine: --gpu"),
        ("size mooncake-synthetic --fidelity engine --gaol x", "kv-sim size", "--gaol x"),
        ("replay mooncake-synthetic --limit 3", "kv-sim replay", "--limit 3"),
        ("conform later twice", "kv-sim conform", "twice"),
        ("--log fuzz", "kv-sim [-h] [--version] COMMAND", "--log"),
    ],
)
def test_what_a_command_does_not_know_is_refused_with_its_usage(
    kv_sim: Callable[[str], Result], line: str, usage: str, unknown: str
) -> None:
    code, out, err = kv_sim(f"kv-sim {line}")
    assert (code, out) == (2, "")
    assert err.startswith(f"usage: {usage} ")
    assert err.endswith(f"error: unrecognized arguments: {unknown}\n")


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
        ENGINES.register("builtin", "kv_sim.engine.engine", "Engine")
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
        code, out, _ = kv_sim("kv-sim campaign --engine strange --histories 1 --jobs 1")
        assert f"{len(SUBJECTS)} histories" in out
    code, _, err = kv_sim(f"kv-sim replay-schedule {file}")
    assert code == 2
    assert "unknown engine 'strange'; known: builtin" in err


def test_a_commit_is_a_seed(kv_sim: Callable[[str], Result]) -> None:
    commit = "0x" + "c0ffee" * 6
    code, out, _ = kv_sim(f"kv-sim fuzz --connector memory --seed {commit} --digest")
    assert code == 0
    assert re.fullmatch(rf"memory {int(commit, 16)} [0-9a-f]{{32}}\n", out)


# -- replay-schedule ---------------------------------------------------------------------------


@pytest.fixture
def schedule(kv_sim: Callable[[str], Result], tmp_path: Path) -> Path:
    kv_sim(f"kv-sim fuzz --connector {HASTY} --traits failures --seed 0")
    [file] = tmp_path.iterdir()
    return file


def test_a_schedule_can_be_replayed_onto_another_connector(
    kv_sim: Callable[[str], Result], schedule: Path
) -> None:
    code, out, _ = kv_sim(f"kv-sim replay-schedule {schedule} --connector later")
    assert code == 0
    assert re.search(r"^passes: \d+ actions, nothing is wrong; the file says: [A-Z-]+  ", out, re.MULTILINE)


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
    schedule.write_text(text.replace(said, "CONTENT  something else"))
    code, out, _ = kv_sim(f"kv-sim replay-schedule {schedule}")
    assert code == 1
    assert out.endswith("a different violation: the file says: CONTENT  something else\n")
    invariant = said.split()[0]
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
    group = '{"kind": "full", "window": 0}'
    schedule.write_text(text.replace(f"[{group}]", f"[{group}, {group}]"))
    code, _, err = kv_sim(f"kv-sim replay-schedule {schedule} --connector later")
    assert code == 2
    assert "LaterConnector can't be used with several KV cache groups" in err


def test_traits_of_the_file_are_not_changed(kv_sim: Callable[[str], Result], schedule: Path) -> None:
    code, _, err = kv_sim(f"kv-sim replay-schedule {schedule} --traits ranks")
    assert code == 2
    assert "name it with --connector" in err


# -- subjects, digests, processes --------------------------------------------------------------


def test_subjects_are_listed_with_their_claims(kv_sim: Callable[[str], Result]) -> None:
    code, out, _ = kv_sim("kv-sim subjects")
    assert code == 0
    for name, subject in SUBJECTS.items():
        assert re.search(rf"^{re.escape(name)} +{subject.kv_connector}", out, re.MULTILINE)
    claims = re.findall(r"claims: (.*)", out)
    assert claims[0].split(", ") == [trait.value for trait in Trait if trait in SUBJECTS["memory"].traits]


def test_a_subject_is_listed_with_its_settings_and_what_it_is_made_of() -> None:
    several = {"load_policy": "longest", "connectors": [{"kv_connector": "One"}, {"kv_connector": "Other"}]}
    subjects = {
        "plain": Subject("Plain", traits=frozenset()),
        "both": Subject("Multi", "some.module", several, traits=frozenset({Trait.RANKS, Trait.FAILURES})),
    }
    assert subject_lines(subjects) == [
        "plain  Plain (installed)",
        "       claims: none",
        "both   Multi over One, Other (some.module)",
        f"       claims: {', '.join(t.value for t in Trait if t in (Trait.RANKS, Trait.FAILURES))}",
        '       extra config: {"load_policy": "longest"}',
    ]


def test_what_lies_in_this_folder_can_be_named_and_logs_nothing(
    kv_sim: Callable[[str], Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    python = SimpleNamespace(flags=SimpleNamespace(safe_path=False), path=sys.path, modules=sys.modules)
    monkeypatch.setattr(selection, "sys", python)  # whatever it was told when it was started
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    (tmp_path / "lies_in_this_folder.py").write_text(
        "import logging\n"
        "from kv_sim.examples.memory import MemoryConnector\n"
        "class Mine(MemoryConnector):\n"
        "    def __init__(self, *args, **kwargs):\n"
        "        logging.getLogger('mine').warning('here')\n"
        "        super().__init__(*args, **kwargs)\n"
    )
    code, out, err = kv_sim("kv-sim fuzz --connector lies_in_this_folder:Mine --traits none --seed 3 --actions 5")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].startswith("lies_in_this_folder:Mine: 1 histories, ")


COMMAND = [sys.executable, "-c", "import sys; from kv_sim.command.cli import main; sys.exit(main())"]


def run_process(line: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *shlex.split(line)],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.once
def test_the_module_is_the_command(tmp_path: Path) -> None:
    """Also where it starts processes, which import the module that was started."""
    line = "replay mooncake-synthetic --requests 50 --capacity 100blocks,200blocks --jobs 2"
    command = run_process(line, tmp_path)
    module = subprocess.run(
        [sys.executable, "-m", "kv_sim", *line.split()], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (command.returncode, command.stderr) == (0, "")
    assert (module.returncode, module.stdout, module.stderr) == (0, command.stdout, "")
    wrong = [sys.executable, "-m", "kv_sim", "replay", "no.jsonl"]
    assert subprocess.run(wrong, cwd=tmp_path, capture_output=True, check=False).returncode == 2


@pytest.mark.once
def test_a_digest_does_not_depend_on_the_process(tmp_path: Path) -> None:
    short = "fuzz --seed 3 --actions 12 --digest"
    runs = [run_process(short, tmp_path, PYTHONHASHSEED=seed) for seed in ("1", "2")]
    assert runs[0].stdout == runs[1].stdout
    assert not runs[0].stderr
    lines = [line.split() for line in runs[0].stdout.splitlines() if re.search(r" [0-9a-f]{32}$", line)]
    digests = {name: digest for name, _, digest in lines}
    assert digests.keys() == SUBJECTS.keys()
    assert len(set(digests.values())) > len(SUBJECTS) / 2
    assert digests["memory"] == run_seed(SUBJECTS["memory"], 3, actions=12).digest


@pytest.mark.once
def test_a_log_does_not_depend_on_the_process(tmp_path: Path) -> None:
    log = "fuzz --connector later+offload --seed 5 --log"
    runs = [run_process(log, tmp_path, PYTHONHASHSEED=seed) for seed in ("1", "2")]
    assert runs[0].stdout == runs[1].stdout
    assert len(runs[0].stdout.splitlines()) > 100


def test_a_reader_may_leave_early(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "fuzz", "--seed", "5", "--log"],  # more than a pipe holds
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    process.wait(timeout=60)
    assert errors == ""
    assert process.returncode == 141


@pytest.mark.once
def test_that_nothing_was_ever_found_is_said(kv_sim: Callable[[str], Result]) -> None:
    """After as many histories as should have shown a load; a connector that stores nothing breaks nothing."""
    nothing = "note: no match ever found anything, so no load was tried: does it store what it should?\n"
    lazy = "kv-sim fuzz --connector broken_connectors:Lazy"
    code, out, err = kv_sim(f"{lazy} --histories 10")
    assert (code, "nothing is wrong" in out, err) == (0, True, nothing)
    assert kv_sim(f"{lazy} --histories 9")[2] == ""
    assert kv_sim("kv-sim fuzz --connector memory --histories 10")[2] == ""
