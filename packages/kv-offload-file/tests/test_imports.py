"""Who decides brings no numpy and owns no thread, until somebody makes a worker."""

import subprocess
import sys
from types import ModuleType

import pytest

import kv_offload_file

CODE = """
import sys, pathlib, traceback, tempfile, secrets
before = set(sys.modules)
{code}
new = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(" ".join(sorted(new - set(sys.stdlib_module_names))))
"""

MANAGER = """
from kv_api import OffloadingCacheConfig, OffloadingConfig, OffloadingGroupConfig
from kv_api import OffloadingModelConfig, OffloadingParallelConfig
from kv_offload_file import FileOffloadingSpec
with tempfile.TemporaryDirectory() as folder:
    config = OffloadingConfig(
        (OffloadingGroupConfig(16, ("a",), 0),), 64, False,
        dict(file_dir=folder, file_bytes_to_use=10**6), "engine",
        OffloadingModelConfig("model", "float16"), OffloadingCacheConfig(16, 1),
        OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, False),
    )
    FileOffloadingSpec(config).get_manager().shutdown()
"""


@pytest.mark.parametrize("code", ["import kv_offload_file", MANAGER])
def test_a_scheduler_needs_no_numpy(code):
    command = [sys.executable, "-c", CODE.format(code=code)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["kv_api", "kv_offload_cpu", "kv_offload_file"]


def test_the_public_names_are_those_of_the_package():
    named = {name for name, value in vars(kv_offload_file).items() if not isinstance(value, ModuleType)}
    assert {*kv_offload_file.__all__} == {name for name in named if not name.startswith("_")}
