"""vLLM's own tests of what these packages re-implement, against our classes. Run by the session `vllm-long`.

They come from vLLM's source distribution, whose tests lie in the folder that VLLM_TESTS names, and run in a
process of their own, where a plugin (`kv_vllm_shim`) puts our classes in the place of vLLM's. What becomes of each
is in `vllms_tests.txt`: those that reach into private attributes, or differ on purpose, with the tests of ours for
what they are about.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kv_vllm_table import FILE, names_of_tests, read_table

pytestmark = [pytest.mark.vllm]

SUPPORT = Path(__file__).parents[1] / "support"
ROWS = read_table(FILE.read_text())
OPT = {"architectures": ["OPTForCausalLM"], "model_type": "opt", "max_position_embeddings": 2048}
"""What vLLM's tests read of the model for which they make configurations; the rest is transformers' default."""


@pytest.fixture(scope="module")
def folder():
    """vLLM's tests, and a model of the name that they ask the network for."""
    found = os.environ.get("VLLM_TESTS")
    assert found, "VLLM_TESTS: not set; it names the folder with the tests of vLLM's source distribution"
    model = Path(found, "facebook", "opt-125m")
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text(json.dumps(OPT))
    return Path(found)


def run(folder, files, outcomes):
    """Run pytest over vLLM's tests; gives what it says, and by test what became of its cases."""
    path = os.pathsep.join([str(SUPPORT), str(folder), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "-pkv_vllm_shim", "-pno:cacheprovider", "-pno:asyncio"]
    command += [f"-c{os.devnull}", f"--rootdir={folder}", "--noconftest", "-Wignore", "--tb=line"]
    settings = {"PYTHONPATH": path, "OUTCOMES": str(outcomes), "PYTHONSAFEPATH": "1", "HF_HUB_OFFLINE": "1"}
    settings |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    done = subprocess.run(
        [*command, *files], cwd=folder, env={**os.environ, **settings}, capture_output=True, text=True
    )
    return done.stdout + done.stderr, json.loads(outcomes.read_text()) if outcomes.exists() else {}


def names_in(folder, files):
    """All tests of some files."""
    return [f"{file}::{name}" for file in files for name in names_of_tests((folder / file).read_text())]


def verdict(cases):
    """What is said of a test with such cases."""
    if "failed" in cases:
        return "fails"
    return "passes" if "passed" in cases else "skips"


def row_of(test):
    """The row of a test: its own, or that of its class."""
    [row] = [row for row in ROWS if row.name in (test, test.rpartition("::")[0])]
    return row


def test_every_one_is_in_the_table(folder):
    files = sorted({row.file for row in ROWS})
    tests = names_in(folder, files)
    listed = {row.name for row in ROWS}
    classes = {name.rpartition("::")[0] for name in tests}
    assert [name for name in tests if not listed & {name, name.rpartition("::")[0]}] == []
    assert listed - set(tests) - classes == set()


def test_they_end_as_the_table_says(folder, tmp_path):
    files = sorted({row.file for row in ROWS if row.verdict != "not run"})
    told, outcomes = run(folder, files, tmp_path / "outcomes.json")
    assert outcomes, told
    ended = {name: verdict(cases) for name, cases in outcomes.items()}
    assert {name: found for name, found in ended.items() if row_of(name).verdict != found} == {}, told
    run_tests = {name for row in ROWS for name in ended if row is row_of(name)}
    assert run_tests == {
        f"{file}::{name}" for file in files for name in names_of_tests((folder / file).read_text())
    }
