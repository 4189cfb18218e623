"""What all names of kv_offload bring along: its two declared siblings, the standard library and nothing else."""

import subprocess
import sys

import kv_offload

CODE = """
import sys, traceback  # which brings a module, on 3.15, that is not among the names
before = set(sys.modules)
from kv_offload import *
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(" ".join(sorted(new - set(sys.stdlib_module_names))))
"""

PURE = """
import sys
import kv_factory
before = set(sys.modules)
from kv_offload import *
print(" ".join(sorted({"threading", "random", "asyncio", "multiprocessing"} & (set(sys.modules) - before))))
"""


def test_only_declared_packages_are_imported():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["kv_api", "kv_factory", "kv_offload"]


def test_no_threads_and_no_chance():
    done = subprocess.run([sys.executable, "-c", PURE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_public_names_are_there():
    assert all(getattr(kv_offload, name) is not None for name in kv_offload.__all__)
    assert {*kv_offload._LATER} < {*kv_offload.__all__}


def test_who_reads_names_and_options_imports_no_connector():
    listed = "assert {*kv_offload.__all__, '__name__'} <= {*dir(kv_offload)}"
    code = f"import sys, kv_offload; {listed}; kv_offload.parse_options({{}}); print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    own = [name for name in done.stdout.split() if name.split(".")[0] == "kv_offload"]
    assert own == ["kv_offload", "kv_offload.options"]
