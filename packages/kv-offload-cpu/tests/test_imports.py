"""What importing kv_offload_cpu brings along: kv_api and the standard library."""

import subprocess
import sys

CODE = """
import sys
before = set(sys.modules)
import kv_offload_cpu
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(" ".join(sorted(new - set(sys.stdlib_module_names))))
print(" ".join(sorted(new & {"time", "threading", "random", "asyncio", "multiprocessing", "concurrent"})))
"""


def test_only_the_interface_is_imported():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    outside, impure = done.stdout.split("\n")[:2]
    assert outside.split() == ["kv_api", "kv_offload_cpu"]
    assert impure.split() == []
