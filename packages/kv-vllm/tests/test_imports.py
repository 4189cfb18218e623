"""What importing each module brings along: vLLM and torch only where they are said to be."""

import subprocess
import sys

import pytest

CODE = """
import sys, traceback  # which brings a module, on 3.15, that is not among the names
before = set(sys.modules)
import {module}
new = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(" ".join(sorted(new - set(sys.stdlib_module_names))))
"""

NEEDS = {
    "kv_vllm": [],
    "kv_vllm.__main__": [],
    "kv_vllm.installed": [],
    "kv_vllm.trace": [],
    "kv_vllm.comparison": [],
    "kv_vllm.drift": ["kv_api"],
    "kv_vllm.drift_intended": [],
    "kv_vllm.versions": ["kv_api"],
    "kv_vllm.handing_on": ["kv_api"],
    "kv_vllm.record_schedule": ["kv_api"],
    "kv_vllm.smoke": [],
    "kv_vllm.tiny_model": [],
}


def imported_by(module):
    done = subprocess.run([sys.executable, "-c", CODE.format(module=module)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("module", NEEDS)
def test_what_needs_neither_vllm_nor_the_testbed_imports_neither(module):
    assert imported_by(module) == sorted(["kv_vllm", *NEEDS[module]])


@pytest.mark.parametrize(
    "module", ["recorder", "situations", "matrix", "differential", "hunt", "subjects", "driver_ledger"]
)
def test_what_needs_the_testbed_imports_no_vllm(module):
    modules = imported_by(f"kv_vllm.{module}")
    assert "kv_sim" in modules
    assert not {"vllm", "torch"} & set(modules)
