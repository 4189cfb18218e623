"""The kernel of bulk copies on the host, by a compiler for hosts: which bytes go where, and what it waits for.

``nox -s kernel`` runs it, with the compiler that the package ziglang brings. It isn't named like a test file, so
that no other run collects it.
"""

import ctypes
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kv_offload_cpu_kernels import check_a_job

from kv_offload_cpu import Direction
from kv_offload_cpu.copy.cuda import bulk_call
from kv_offload_cpu.copy.cuda.bulk_call import LANES, WARPS, BulkKernel
from kv_offload_cpu.copy.cuda.methods.page_table import COLUMNS, STEP_BYTES, Kernels

ALWAYS = {"max_examples": 100, "deadline": None, "suppress_health_check": list(HealthCheck)}

SHIM = Path(__file__).parent / "support" / "kv_offload_cpu_bulk.h"
SOURCE = (files("kv_offload_cpu.copy.cuda") / "bulk_kernel.cu").read_text()


def built(folder, lanes, source=SOURCE):
    """The function of a source that runs all threads of a launch."""
    (folder / "kernel.cpp").write_text(source)
    defined = (f"-DSTEP_BYTES={STEP_BYTES}", f"-DLANES={lanes}", f'-DPRIMITIVES="{SHIM}"')
    command = [sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC", "-O1", "-std=c++17", *defined]
    subprocess.run([*command, str(folder / "kernel.cpp"), "-o", str(folder / "kernel.so")], check=True)
    run = ctypes.CDLL(str(folder / "kernel.so")).run
    run.restype = ctypes.c_char_p
    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """By the threads of a warp that have a buffer: as many as there are, and one, which has several steps."""
    return {lanes: built(tmp_path_factory.mktemp("kernel"), lanes) for lanes in (1, LANES)}


class Numbers(SimpleNamespace):
    """A tensor."""

    def data_ptr(self):
        return self.numbers.ctypes.data


class Driver:
    """Tables on the host, and kernels on it, whose copies are made early or late."""

    def __init__(self, run, early, warps=WARPS):
        self.mapped_shift = 0
        self.launched = []
        self.function, self.warps = 7, warps
        self._run, self._early = run, early
        self.is_late = False

    def new_table(self, num_rows):
        return Numbers(numbers=np.zeros(COLUMNS * num_rows, np.int64))

    def new_steps(self, numbers, count, word, kernels):
        assert kernels is Kernels.BULK
        steps = Numbers(numbers=numbers)
        return {way: BulkKernel(self, steps, count, is_store=way is Direction.STORE) for way in Direction}

    def upload(self, stream, table, num_rows):
        table.on_device = Numbers(numbers=table.numbers[: COLUMNS * num_rows].copy())

    def run_kernel(self, stream, launch):
        self.launched.append(launch.steps.word)
        kernel = launch.steps.on_device[launch.direction]
        table = launch.table.on_device.data_ptr()
        call = kernel.call(7, table, launch.num_rows, launch.rows, launch.programs)
        self.cuLaunchKernel(*call.arguments)

    def cuLaunchKernel(self, function, *shape_and_rest):
        programs, _, _, threads, _, _, shared, _, arguments, _ = shape_and_rest
        job = ctypes.c_void_p(ctypes.c_void_p.from_address(arguments).value)
        is_late = ctypes.c_int()
        problem = self._run(job, programs, threads, shared, self._early, ctypes.byref(is_late))
        assert problem is None, problem.decode()
        self.is_late |= bool(is_late.value)


def check_any_job(runs, programs, direction, early, data):
    lanes = data.draw(st.sampled_from(sorted(runs)))
    driver = Driver(runs[lanes], early, {way: data.draw(st.integers(1, 6)) for way in WARPS})
    with patch.object(bulk_call, "LANES", lanes):
        check_a_job(data, driver, direction, [16], programs, Kernels.BULK)
    if direction is Direction.STORE:
        assert not driver.is_late, "more under way than there are buffers"


any_job = given(st.integers(1, 3), st.sampled_from(Direction), st.integers(0, 3), st.data())


@settings(**ALWAYS)
@any_job
def test_the_kernel_moves_what_the_job_is_made_of(runs, programs, direction, early, data):
    check_any_job(runs, programs, direction, early, data)


BREAKS = {
    "fills_without_waiting": ("        wait_until_filled(barrier, round++);\n", ""),
    "waits_for_the_round_before": ("round++)", "++round)"),
    "fills_before_it_was_read": ("            wait_until_read();", "            ;"),
    "stores_beside_what_has_not_arrived": ("            wait_until_arrived();", "            wait_until_read();"),
    "ends_before_it_arrived": ("    }\n    wait_until_arrived();\n", "    }\n"),
    "threads_share_a_buffer": ("room + mine * STEP_BYTES)", "room + mine / 2 * STEP_BYTES)"),
    "threads_share_a_barrier": ("mine * 8)", "mine / 2 * 8)"),
    "leaves_a_step_out": ("item < job.num_items", "item + 1 < job.num_items"),
    "begins_at_the_first_row": ("job.table + job.begin + page", "job.table + page"),
    "the_other_way": ("job.is_store ? in_tensor : in_slot", "job.is_store ? in_slot : in_tensor"),
    "without_the_offset": (" + offset * page_bytes", ""),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_kernel_that_is_wrong_is_found(name, tmp_path):
    before, after = BREAKS[name]
    assert SOURCE.count(before) == 1
    broken = {1: built(tmp_path, 1, SOURCE.replace(before, after))}
    is_enough = settings(**ALWAYS, phases=[Phase.generate], report_multiple_bugs=False, database=None)
    with pytest.raises(AssertionError):
        is_enough(any_job(check_any_job))(broken)
