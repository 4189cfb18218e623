"""What importing each module brings along: vLLM and torch only where they are said to be."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import kv_vllm

CODE = """
import sys, traceback  # which brings a module, on 3.15, that is not among the names
before = set(sys.modules)
import {module}, kv_vllm
assert {{*kv_vllm.__all__, "__name__"}} <= {{*dir(kv_vllm)}}
new = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(" ".join(sorted(new - set(sys.stdlib_module_names))))
"""

MODULES = [
    "kv_vllm",
    "kv_vllm.__main__",
    "kv_vllm.installed",
    "kv_vllm.differential.trace",
    "kv_vllm.differential.comparison",
    "kv_vllm.drift.compare",
    "kv_vllm.drift.intended",
    "kv_vllm.versions",
    "kv_vllm.handing_on",
    "kv_vllm.recording.schedule",
    "kv_vllm.recording.traffic",
    "kv_vllm.recording.world",
    "kv_vllm.smoke.run",
    "kv_vllm.smoke.tiny_model",
]


def imported_by(module):
    done = subprocess.run([sys.executable, "-c", CODE.format(module=module)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("module", MODULES)
def test_what_needs_neither_vllm_nor_the_testbed_imports_neither(module):
    assert imported_by(module) == ["kv_api", "kv_vllm"]


@pytest.mark.parametrize(
    "module",
    [
        "differential.recorder",
        "differential.situations",
        "differential.matrix",
        "differential.run",
        "driver.hunt",
        "driver.subjects",
        "driver.ledger",
    ],
)
def test_what_needs_the_testbed_imports_no_vllm(module):
    modules = imported_by(f"kv_vllm.{module}")
    assert "kv_sim" in modules
    assert not {"vllm", "torch"} & set(modules)


@pytest.mark.parametrize(
    ("folder", "others"),
    [
        ("connectors", {"handing_on", "refused", "translate", "versions"}),
        ("recording", {"handing_on", "refused", "translate", "versions"}),
        ("smoke", {"installed"}),
        ("drift", {"installed"}),
        ("differential", {"vllm_scheduler", "vllm_world"}),
        ("driver", {"handing_on", "installed", "vllm_scheduler", "vllm_world"}),
        ("driver/surroundings", set()),
    ],
)
def test_folders_know_nothing_of_each_other(folder, others):
    above, own = f"kv_vllm/{folder}".replace("/", ".").rsplit(".", 1)
    found = set()
    for file in (Path(kv_vllm.__file__).parent / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{above}."):
                found.add(node.module.removeprefix(f"{above}.").split(".")[0])
    assert found - {own} == others
