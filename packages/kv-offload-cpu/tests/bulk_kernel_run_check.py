"""The kernel of bulk copies on the host, by a compiler for hosts: which bytes go where, and what it waits for.

``nox -s kernel`` runs it, with the compiler that the package ziglang brings. It isn't named like a test file, so
that no other run collects it.
"""

import ctypes
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_offload_cpu_built import ALWAYS, HostDriver, Text, built, check_that_it_fails
from kv_offload_cpu_kernels import check_a_job

from kv_offload_cpu import Direction
from kv_offload_cpu.copy.cuda import bulk_call
from kv_offload_cpu.copy.cuda.bulk_call import LANES, WARPS, BulkKernel
from kv_offload_cpu.copy.cuda.methods.page_table import STEP_BYTES, Kernels

TEXT = Text("bulk_kernel.cu")


def built_for(folder, lanes, text=TEXT):
    """The kernel for so many threads of a warp that have a buffer."""
    return built(folder, text, "kv_offload_cpu_bulk.h", f"-DSTEP_BYTES={STEP_BYTES}", f"-DLANES={lanes}")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """By the threads of a warp that have a buffer: as many as there are, and one, which has several steps."""
    return {lanes: built_for(tmp_path_factory.mktemp("kernel"), lanes) for lanes in (1, LANES)}


class Driver(HostDriver):
    """Its copies are made early or late."""

    def __init__(self, run, early, warps=WARPS):
        super().__init__(Kernels.BULK)
        self.function, self.warps = 7, warps
        self._run, self._early = run, early
        self.is_late = False

    def make(self, steps, count, *, word, is_store):
        return BulkKernel(self, steps, count, is_store=is_store)

    def run(self, function, job, grid, threads, shared):
        assert (function, grid[1]) == (7, 1)
        is_late = ctypes.c_int()
        problem = self._run(job, grid[0], threads, shared, self._early, ctypes.byref(is_late))
        self.is_late |= bool(is_late.value)
        return problem


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
    "the_other_way": ("return {in_slot, in_tensor,", "return {in_tensor, in_slot,"),
    "without_the_offset": (" + offset * page_bytes", ""),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_kernel_that_is_wrong_is_found(name, tmp_path):
    check_that_it_fails(any_job, check_any_job, {1: built_for(tmp_path, 1, TEXT.broken(*BREAKS[name]))})
