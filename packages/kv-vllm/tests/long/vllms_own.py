"""vLLM's own tests of what these packages re-implement, against our classes. Run by the session `vllm-long`.

They come from vLLM's source distribution, whose tests lie in the folder that VLLM_TESTS names, and run in a
process of their own, where a plugin (`kv_vllm_shim`) puts our classes in the place of vLLM's. What reaches into
private attributes, or differs on purpose, is listed in `left_out.txt`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.vllm]

HERE = Path(__file__).parent
FILES = ["tests/v1/kv_offload/cpu/test_manager.py", "tests/v1/kv_connector/unit/test_output_aggregator.py"]
LIST = HERE / "left_out.txt"
LEFT_OUT = [line.split("\t")[0] for line in LIST.read_text().splitlines() if not line.startswith("#")]


def run(*arguments, **environment):
    """Run pytest over vLLM's tests; gives its exit code and what it says."""
    folder = os.environ.get("VLLM_TESTS")
    assert folder, "VLLM_TESTS: not set; it names the folder with the tests of vLLM's source distribution"
    path = os.pathsep.join([str(HERE.parent / "support"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "-pkv_vllm_shim", "-pno:cacheprovider", "-pno:asyncio"]
    command += [f"-c{os.devnull}", f"--rootdir={folder}", "--noconftest", "-Wignore", "--tb=line"]
    environment = {**os.environ, "PYTHONPATH": path, **environment}
    done = subprocess.run([*command, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout


def test_vllms_own_tests_pass_on_our_classes():
    code, told = run(*FILES, LEFT_OUT=str(LIST))
    assert code == 0, told
    assert " passed" in told and "failed" not in told


def test_what_is_left_out_would_fail():
    _, told = run(*LEFT_OUT)
    passed = [name for name in LEFT_OUT if f"FAILED {name}" not in told]
    assert not passed, told
