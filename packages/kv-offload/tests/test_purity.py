"""What importing kv_offload brings along: its two declared siblings, the standard library and nothing else."""

import subprocess
import sys
from types import ModuleType

import kv_offload

CODE = """
import sys, traceback  # which brings a module, on 3.15, that is not among the names
before = set(sys.modules)
import kv_offload
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(" ".join(sorted(new - set(sys.stdlib_module_names))))
"""

PURE = """
import sys
import kv_factory
before = set(sys.modules)
import kv_offload
print(" ".join(sorted({"threading", "random", "asyncio", "multiprocessing"} & (set(sys.modules) - before))))
"""


def test_only_declared_packages_are_imported():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["kv_api", "kv_factory", "kv_offload"]


def test_no_threads_and_no_chance():
    done = subprocess.run([sys.executable, "-c", PURE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_public_names_are_those_of_the_package():
    named = {name for name, value in vars(kv_offload).items() if not isinstance(value, ModuleType)}
    assert {*kv_offload.__all__} == {name for name in named if not name.startswith("_")}
