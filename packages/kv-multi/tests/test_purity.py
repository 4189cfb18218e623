"""What importing kv_multi brings along: its two declared siblings, the standard library and nothing else."""

import subprocess
import sys
from types import ModuleType

import kv_multi

CODE = """
import sys, traceback  # which brings a module, on 3.15, that is not among the names
before = set(sys.modules)
import kv_multi
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(" ".join(sorted(new - set(sys.stdlib_module_names))))
"""


def test_only_declared_packages_are_imported():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["kv_api", "kv_factory", "kv_multi"]


def test_the_public_names_are_those_of_the_package():
    named = {name for name, value in vars(kv_multi).items() if not isinstance(value, ModuleType)}
    assert {*kv_multi.__all__} == {name for name in named if not name.startswith("_")}
