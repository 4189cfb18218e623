"""``kv-sim subjects``; and the command as a process, of which nothing depends on which it is."""

import json
import logging
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace

import pytest
from kv_sim_command_lines import Result

from kv_sim.cli.main import COMMANDS
from kv_sim.cli.start import start
from kv_sim.cli.subjects import subject_lines
from kv_sim.console import values
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.fuzz import run_seed
from kv_sim.subject import Subject, Trait


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
    monkeypatch.setattr(values, "sys", python)  # whatever it was told when it was started
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


COMMAND = [sys.executable, "-c", "import sys; from kv_sim.cli.main import main; sys.exit(main())"]


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
def test_the_module_is_the_command(kv_sim: Callable[[str], Result], tmp_path: Path) -> None:
    """Also where it starts processes, which import the module that was started."""
    line = "replay mooncake-synthetic --requests 50 --capacity 100blocks,200blocks"
    code, out, err = kv_sim(f"kv-sim {line}")
    started = [sys.executable, "-m", "kv_sim", *line.split(), "--jobs", "2"]
    module = subprocess.run(started, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (code, err) == (0, "")
    assert (module.returncode, module.stdout, module.stderr) == (0, out, "")
    wrong = [sys.executable, "-m", "kv_sim", "replay", "no.jsonl"]
    assert subprocess.run(wrong, cwd=tmp_path, capture_output=True, check=False).returncode == 2


WITHOUT = """
import os, signal, sys
for module in ("fcntl", "pwd", "resource", "termios"):
    sys.modules[module] = None
for name in ("chown", "fork", "pread", "preadv", "sched_getaffinity", "statvfs", "O_DIRECT"):
    vars(os).pop(name, None)
for name in ("pthread_sigmask", "setitimer", "SIGALRM", "SIGHUP", "SIGKILL", "SIGPIPE"):
    delattr(signal, name)
from kv_sim.cli.main import main
for line in sys.argv[1:]:
    assert main(line.split()) == 0
"""
"""Much of what Windows hasn't."""


@pytest.mark.once
def test_what_only_unix_has_is_not_needed(tmp_path: Path) -> None:
    (tmp_path / "replay.json").touch()
    replay = "replay mooncake-synthetic --requests 50 --capacity 100blocks,200blocks --jobs 2 --json replay.json"
    command = [sys.executable, "-c", WITHOUT, "fuzz --seed 3 --actions 5", replay]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\noffload-file: 1 histories, " in done.stdout
    assert json.loads((tmp_path / "replay.json").read_text())["requests"] == 50


TYPED = """
import sys
from kv_sim.cli.main import COMMANDS
from kv_sim.cli.options import parse
for line in ("fuzz --seed 3", "replay a --fidelity cache", "size a", "conform a", "zoo", "campaign", "subjects"):
    parse(COMMANDS, line.split())
print({"numpy", "kv_sim.guard", "kv_sim.engine"} & sys.modules.keys())
"""


@pytest.mark.once
def test_what_is_typed_is_understood_before_anything_large_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", TYPED], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("set()\n", "")


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
    nothing = "note: no match found any tokens, so no load was tried: does the connector store what it should?\n"
    lazy = "kv-sim fuzz --connector broken_connectors:Lazy"
    code, out, err = kv_sim(f"{lazy} --histories 10")
    assert (code, "nothing is wrong" in out, err) == (0, True, nothing)
    assert kv_sim(f"{lazy} --histories 9")[2] == ""
    assert kv_sim("kv-sim fuzz --connector memory --histories 10")[2] == ""


@pytest.mark.parametrize("command", ["replay-schedule x.jsonl", "replay mooncake-synthetic", "growth memory"])
def test_what_goes_wrong_in_any_command_is_no_answer(
    command: str, kv_sim: Callable[[str], Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(options: object) -> int:
        raise ZeroDivisionError("ours")

    monkeypatch.setitem(COMMANDS, command.split()[0], broken)
    code, out, err = kv_sim(f"kv-sim {command}")
    assert (code, out) == (3, "")
    assert err.startswith("Traceback ")
    end = f"ZeroDivisionError: ours\nkv-sim {command.split()[0]}: kv-sim itself failed: please report it\n"
    assert err.endswith(end)


def test_a_command_may_be_interrupted_while_it_is_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(MetaPathFinder):
        def find_spec(self, name: str, *args: object) -> None:
            if name == "kv_sim.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "kv_sim.cli.main")
    monkeypatch.delattr("kv_sim.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    assert (start(), capsys.readouterr().err) == (130, "note: interrupted\n")


def test_the_script_begins_where_the_module_does() -> None:
    [script] = entry_points(group="console_scripts", name="kv-sim")
    assert script.value == "kv_sim.cli.start:start"
