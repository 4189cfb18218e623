"""A connector's claims, tried one by one by pytest in a folder of somebody's own."""

import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kv_sim.cli.main import main
from kv_sim.conformance.items import Conformance
from kv_sim.failures.schedule_file import read_schedule
from kv_sim.pytest_plugin import pytest_addoption, pytest_configure
from kv_sim.subject import Trait

CONNECTORS = Path(__file__).parents[1] / "support" / "broken_connectors.py"
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run_pytest(tmp_path: Path) -> Run:
    """Runs pytest, as a user would, in a folder that has connectors in ``mine.py`` and nothing else."""
    (tmp_path / "mine.py").write_text(CONNECTORS.read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\n")  # or one further up would count

    def run(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "pytest", "-pno:cacheprovider", f"--rootdir={tmp_path}", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    return run


def test_a_sound_connector_passes_and_is_told_what_was_tried(run_pytest: Run) -> None:
    code, out = run_pytest("--kv-connector=later", "--kv-traits=ranks,failures", "--kv-histories=2")
    assert code == 0, out
    assert "4 passed" in out
    assert "conformance of later" in out
    for name in ("plain", "ranks", "failures", "together"):
        assert any(line.startswith(f"{name} ") and line.endswith("holds") for line in out.splitlines()), name
    assert "a copy fails" in out
    assert (
        "not claimed, so not tried: groups, states, unequal, fine, losses, repeats, zeroing, reset, sleep, keeps, "
        "events" in out
    )


def test_a_broken_one_fails_with_lines_to_paste(run_pytest: Run, tmp_path: Path) -> None:
    code, out = run_pytest("--kv-connector=mine:Hasty", "--kv-traits=ranks", "--kv-histories=3", "-k", "ranks")
    assert code == 1, out
    assert "1 failed, 1 deselected" in out
    assert "replay: kv-sim fuzz --connector mine:Hasty --traits ranks --seed" in out
    assert "Traceback" not in out
    [file] = tmp_path.glob("*.jsonl")
    assert read_schedule(file).invariant in ("PROTOCOL", "OWNERSHIP")


def test_a_failure_that_cannot_be_saved_is_told_all_the_same(run_pytest: Run, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "from kv_sim.failures import telling\n\n\n"
        "def write(*args):\n    raise OSError(30, 'Read-only file system')\n\n\n"
        "telling.write_schedule = write\n"
    )
    code, out = run_pytest("--kv-connector=mine:Hasty", "--kv-histories=3")
    assert code == 1, out
    assert "\nFAIL seed=" in out and "\nreplay: kv-sim fuzz --connector mine:Hasty" in out
    assert "\nnote: the schedule was not saved: [Errno 30] Read-only file system\n" in out
    assert "Traceback" not in out


@pytest.mark.parametrize(
    ("connector", "options"),
    [
        ("later", ["--traits=ranks,failures", "--histories=2", "--seed=0x20"]),
        ("mine:Hasty", ["--histories=2", '--extra={"a": 1}', "--save=saved"]),
    ],
)
def test_it_says_what_kv_sim_conform_says(
    connector: str,
    options: list[str],
    run_pytest: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    code = main(["conform", connector, *options])
    *failure, summary = capsys.readouterr().out.split("\n\n", maxsplit=1 if code else 0)
    failed, out = run_pytest(f"--kv-connector={connector}", *(text.replace("--", "--kv-", 1) for text in options))
    assert failed == code
    _, head, said = out.partition(f" conformance of {connector} ")
    lines = said.splitlines()[1:]
    end = next(index for index, line in enumerate(lines) if line.startswith("==="))
    assert head and lines[:end] == summary.splitlines() + [""] * (not failed)
    for text in failure:
        assert f"_ {connector}[plain] _" in out and f"\n{text}\n" in out


def test_the_users_own_warnings_as_errors_are_survived(run_pytest: Run, tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    code, out = run_pytest("--kv-connector=memory", "--kv-histories=1")
    assert code == 0, out


def test_without_the_option_nothing_is_imported(run_pytest: Run, tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "import sys\n\n\ndef test_it():\n"
        "    assert 'kv_sim.pytest_plugin' in sys.modules\n"
        "    assert not {'numpy', 'kv_api', 'kv_factory', 'kv_sim.world'} & set(sys.modules)\n"
    )
    code, out = run_pytest()
    assert (code, "1 passed" in out) == (0, True), out


def test_the_users_own_tests_run_beside(run_pytest: Run, tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("def test_it():\n    pass\n")
    code, out = run_pytest("--kv-connector=memory", "--kv-traits=none", "--kv-histories=1")
    assert (code, "2 passed" in out) == (0, True), out


def test_a_medium_is_driven_below_the_offloading_connector(run_pytest: Run) -> None:
    spec = "--kv-spec=kv_sim.offload:WorldCPUOffloadingSpec"
    code, out = run_pytest(spec, "--kv-traits=ranks,keeps", "--kv-histories=3")
    assert code == 0, out
    assert "conformance of kv_sim.offload:WorldCPUOffloadingSpec" in out
    assert "no match found any tokens" not in out


Configure = Callable[..., pytest.Config]


@pytest.fixture
def configure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configure:
    """pytest's configuration with some arguments, in a folder that has connectors in ``mine.py``."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "mine.py").write_text(CONNECTORS.read_text())

    def with_arguments(*arguments: str) -> pytest.Config:
        parser = ArgumentParser()
        group = SimpleNamespace(addoption=parser.add_argument)
        pytest_addoption(SimpleNamespace(getgroup=lambda name, description: group))  # type: ignore[arg-type]
        asked = vars(parser.parse_args(arguments))
        return SimpleNamespace(  # type: ignore[return-value]
            getoption=lambda name: asked[name.lstrip("-").replace("-", "_")], rootpath=tmp_path
        )

    return with_arguments


def test_what_is_not_asked_for_is_as_usual(configure: Configure, tmp_path: Path) -> None:
    usual = Conformance(configure("--kv-connector=mine:Hasty"))
    assert (usual.name, usual.extra, usual.subject.traits) == ("mine:Hasty", None, frozenset())
    assert (usual.start, usual.histories, usual.folder) == (0, 100, tmp_path)
    told = [
        "--kv-traits=ranks",
        "--kv-histories=1",
        "--kv-seed=0x1f",
        "--kv-save=elsewhere",
        '--kv-extra={"a": 1}',
    ]
    asked = Conformance(configure("--kv-connector=later", *told))
    assert (asked.name, asked.extra, asked.subject.traits) == ("later", '{"a": 1}', {Trait.RANKS})
    assert (asked.start, asked.histories, asked.folder) == (31, 1, Path("elsewhere"))
    assert asked.subject.extra_config["a"] == 1
    for told, engines in ([], None), (["--kv-serves-peers"], 1), (["--kv-two-engines"], 2):
        subject = Conformance(configure("--kv-connector=memory", "--kv-engine=builtin", *told)).subject
        assert subject.serves_peers is (engines is not None)
        assert subject.engines == (engines or 1)
    subject = Conformance(configure("--kv-connector=memory", "--kv-shares-store")).subject
    assert (subject.shares_store, subject.engines, subject.serves_peers) == (True, 2, False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kv-connector=mine:Hastyy"], "did you mean 'Hasty'?"),
        (["--kv-connector=mine:Homeless"], "can't create it: worker side: KeyError: 'home'"),
        (["--kv-connector=mine:Hasty", "--kv-traits=rank"], "did you mean 'ranks'?"),
        (["--kv-connector=mine:Hasty", "--kv-extra=3"], "expected an object, got 3 (a whole number)"),
        (["--kv-connector=mine:Hasty", "--kv-histories=0"], "--kv-histories: more than 0, got 0"),
        (["--kv-connector=mine:Hasty", f"--kv-save={__file__}"], f"--kv-save {__file__}: {__file__} is no folder"),
        (["--kv-connector=mine:Hasty", "--kv-seed=x"], "--kv-seed: a seed is a whole number"),
        (["--kv-spec=nowhere"], "unknown offloading spec 'nowhere'; known: "),
        (
            ["--kv-connector=memory", "--kv-spec=a:Spec"],
            "memory uses no offloading medium, so 'Spec' would not",
        ),
        (["--kv-spec=nowhere:Spec"], "there is no module 'nowhere'"),
    ],
)
def test_what_is_asked_for_is_checked(arguments: list[str], message: str, configure: Configure) -> None:
    with pytest.raises(pytest.UsageError) as raised:
        Conformance(configure(*arguments))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--kv-extra={}"], "extra"),
        (["--kv-traits=ranks"], "traits"),
        (["--kv-serves-peers"], "serves-peers"),
        (["--kv-two-engines"], "serves-peers"),
        (["--kv-shares-store"], "shares-store"),
        (["--kv-engine=builtin"], "engine"),
        (["--kv-histories=3"], "histories"),
        (["--kv-histories=0"], "histories"),
        (["--kv-extra="], "extra"),
        (["--kv-seed=1"], "seed"),
        (["--kv-save=."], "save"),
        (["--kv-save=.", "--kv-seed=1"], "seed"),
    ],
)
def test_what_is_said_of_no_connector_is_a_usage_error(
    options: list[str], named: str, configure: Configure
) -> None:
    with pytest.raises(pytest.UsageError) as raised:
        pytest_configure(configure(*options))
    assert str(raised.value) == f"--kv-{named}: of which connector? Say --kv-connector or --kv-spec"


def test_what_lies_in_the_rootdir_is_found(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: Any = configure("--kv-connector=mine:Hasty")
    elsewhere = [place for place in sys.path if place != str(tmp_path)]
    monkeypatch.setattr(sys, "path", [*elsewhere])
    added = []
    config.pluginmanager = SimpleNamespace(register=lambda plugin, name: added.append((plugin.name, name)))
    for _ in range(2):
        pytest_configure(config)
    assert sys.path == [*elsewhere, str(tmp_path)]
    assert added == [("mine:Hasty", "kv-sim-conformance")] * 2


def test_a_misuse_is_a_usage_error(run_pytest: Run) -> None:
    code, out = run_pytest("--kv-connector=mine:Homeless")
    assert code == 4, out
    assert "can't create it: worker side: KeyError: 'home'" in out
    assert "Traceback" not in out
