"""What importing kv_offload_cpu brings along: kv_api and the standard library, until somebody makes a worker."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import kv_offload_cpu

CODE = """
import sys, pathlib, traceback  # which bring, on 3.14 and 3.15, what is looked for here
before = set(sys.modules)
{code}
new = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(" ".join(sorted(new - set(sys.stdlib_module_names))))
impure = {{"time", "threading", "random", "asyncio", "multiprocessing", "concurrent", "fcntl"}}
print(" ".join(sorted(new & impure)))
"""

CONFIG = """
from kv_api import OffloadingCacheConfig, OffloadingConfig, OffloadingGroupConfig
from kv_api import OffloadingModelConfig, OffloadingParallelConfig
from kv_offload_cpu import CPUOffloadingSpec
config = OffloadingConfig(
    (OffloadingGroupConfig(16, ("a",), 0),), 64, False, dict(cpu_bytes_to_use=8192), "engine",
    OffloadingModelConfig("model", "float16"), OffloadingCacheConfig(16, 1),
    OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, False),
)
CPUOffloadingSpec(config).get_manager()
"""


def imports():
    """Each module that a file of the package imports, with the file."""
    root = Path(kv_offload_cpu.__file__).parent
    for file in root.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for name in names:
                yield file.relative_to(root).as_posix(), name


def imported_by(code):
    command = [sys.executable, "-c", CODE.format(code=code)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [line.split() for line in done.stdout.split("\n")[:2]]


@pytest.mark.parametrize("code", ["import kv_offload_cpu", CONFIG])
def test_a_scheduler_imports_only_the_interface(code):
    assert imported_by(code) == [["kv_api", "kv_offload_cpu"], []]


def test_a_worker_imports_numpy_and_owns_no_thread():
    outside, impure = imported_by("from kv_offload_cpu import CPUOffloadingWorker, Direction")
    # These two bring what they like.
    others, their_impure = imported_by("import numpy, logging")
    assert set(outside) == {"kv_api", "kv_offload_cpu", *others}
    assert set(impure) <= set(their_impure)


def test_llvmlite_is_imported_by_who_wants_to_stream():
    outside, _ = imported_by("from kv_offload_cpu.copy.choose import make_copy_engine")
    assert "llvmlite" not in outside
    by_host = "from kv_offload_cpu.copy.choose import *; host_mover(CopyEngineChoice.{})"
    assert ["llvmlite" in imported_by(by_host.format(name))[0] for name in ("HOST", "AUTO")] == [False, True]


def test_torch_and_its_kin_have_one_file_each_and_only_what_acts_owns_threads_and_clocks():
    owners = {
        "torch": set(),
        "triton": set(),
        "cuda": set(),
        "llvmlite": set(),
        "threading": set(),
        "concurrent": set(),
        "time": set(),
        "fcntl": set(),
    }
    for file, name in imports():
        if (top := name.partition(".")[0]) in owners:
            owners[top].add(file)
    assert owners == {
        "torch": {"copy/cuda/torch_driver.py"},
        "triton": {"copy/cuda/gather_kernel.py"},
        "cuda": set(),  # by name, where it is first needed
        "llvmlite": {"copy/compiled.py"},
        "threading": {"copy/cuda/call_loop.py", "copy/host/engine.py"},
        "concurrent": {"copy/host/engine.py", "copy/host/moves.py"},
        "time": {"copy/host/engine.py", "copy/cuda/giver.py", "copy/cuda/trial.py", "shared_region.py"},
        "fcntl": {"shared_region.py"},
    }


@pytest.mark.parametrize(
    ("folder", "others"),
    [
        ("slots", set()),
        ("policy", {"slots.columns", "slots.pick", "slots.pins"}),
        (
            "chunks",
            {
                "load_store_spec",
                "policy",
                "policy.base",
                "slots.columns",
                "slots.free",
                "slots.pick",
                "slots.pins",
                "stats",
            },
        ),
        ("copy/ranges", {"copy.engine", "sizing"}),
        (
            "copy/host",
            {
                "copy.compiled",
                "copy.engine",
                "copy.ranges.addresses",
                "copy.ranges.descriptors",
                "copy.ranges.tensors",
            },
        ),
    ],
)
def test_a_folder_knows_of_others_what_its_floor_allows(folder, others):
    assert outside(folder) == others


def test_the_engines_know_nothing_of_each_other_and_methods_only_their_engine():
    assert {name.rpartition(".")[0] for name in outside("copy/cuda")} == {"", "copy", "copy.ranges"}
    inside = {name for name in outside("copy/cuda/methods") if name.startswith("copy.cuda")}
    assert inside == {"copy.cuda.engine"}


def outside(folder):
    """What the files of a folder import of the package, but not of the folder."""
    package, here = "kv_offload_cpu.", folder.replace("/", ".")
    names = {name for file, name in imports() if file.startswith(f"{folder}/") and name.startswith(package)}
    return {name.removeprefix(package) for name in names if not name.startswith(f"{package}{here}.")}


def test_every_public_name_is_there(monkeypatch):
    monkeypatch.delitem(vars(kv_offload_cpu), "CopyEngine", raising=False)
    assert {"CopyEngine", "__name__"} <= {*dir(kv_offload_cpu)}, "listed before it is imported"
    assert all(getattr(kv_offload_cpu, name) is not None for name in kv_offload_cpu.__all__)
    assert set(kv_offload_cpu.__all__) <= set(dir(kv_offload_cpu))
    with pytest.raises(AttributeError, match="has no attribute 'CPUOffloadingWorkers'"):
        kv_offload_cpu.CPUOffloadingWorkers  # noqa: B018
