"""The kernel for buffers on the host, by a compiler for hosts: which bytes go where, and in which words.

``nox -s kernel`` runs it, with the compiler that the package ziglang brings. It isn't named like a test file, so
that no other run collects it.
"""

import ctypes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_offload_cpu_built import ALWAYS, HostDriver, Text, built, check_that_it_fails
from kv_offload_cpu_kernels import aligned, check_a_job

from kv_offload_cpu import Direction
from kv_offload_cpu.copy.cuda.methods.page_table import STEP_BYTES, Kernels, Launch, Steps, columns_of
from kv_offload_cpu.copy.cuda.plain_call import WIDTHS, WORDS, PlainKernel

TEXT = Text("plain_kernel.cu")

WIDE = {
    unit: [0, 0, 1600 // unit, STEP_BYTES // unit - 1, STEP_BYTES // unit, STEP_BYTES // unit + 1, 8208 // unit]
    for unit in WIDTHS
}
"""Pages of a part of a step, of several parts, and of several steps."""


def built_plain(folder, text=TEXT, words=WORDS):
    return built(folder, text, "kv_offload_cpu_plain.h", f"-DWORDS={words}")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return built_plain(tmp_path_factory.mktemp("kernel"))


class Driver(HostDriver):
    """Functions are the widths of their words."""

    def __init__(self, run):
        super().__init__(Kernels.PLAIN)
        self._run = run

    def make(self, steps, count, *, word, is_store):
        return PlainKernel(word, steps, count, is_store=is_store, word=word)

    def run(self, function, job, grid, threads, shared):
        assert shared == 0
        places = (ctypes.c_uint64 * (2 * len(self.places)))(*[end for place in self.places for end in place])
        return self._run(job, function, *grid, threads, places, len(self.places))


def check_any_job(run, direction, data):
    check_a_job(data, Driver(run), direction, WIDTHS, 1, Kernels.PLAIN, WIDE)


any_job = given(st.sampled_from(Direction), st.data())


@settings(**ALWAYS)
@any_job
def test_the_kernel_moves_what_the_job_is_made_of(run, direction, data):
    check_any_job(run, direction, data)


FAR = 1 << 35


def check_far(run, direction):
    """A page whose block, slot and offset are beyond 32 bits, each by itself."""
    in_tensor, in_slot = (aligned(STEP_BYTES, seed) for seed in (1, 2))
    source, target = (in_tensor, in_slot) if direction is Direction.STORE else (in_slot, in_tensor)
    expected, driver = source.copy(), Driver(run)
    driver.places = [(array.ctypes.data, array.ctypes.data + STEP_BYTES) for array in (in_tensor, in_slot)]
    numbers = np.array([in_tensor.ctypes.data - FAR, STEP_BYTES, FAR, STEP_BYTES, STEP_BYTES], np.int64)
    steps, table = Steps(driver.new_steps(numbers, 1, 16, Kernels.PLAIN), 1, 16), driver.new_table(1)
    columns_of(table, 1)[:] = [[FAR // STEP_BYTES], [in_slot.ctypes.data - 2 * FAR], [FAR // STEP_BYTES]]
    driver.upload(None, table, 1)
    driver.run_kernel(None, Launch(direction, table, 1, range(1), steps, 1))
    assert np.array_equal(target, expected)


@pytest.mark.parametrize("direction", Direction)
def test_a_cache_may_be_larger_than_4_gib(run, direction):
    check_far(run, direction)


SHORT = ["block * stride", "offset * page_bytes", "slot + place"]


@pytest.mark.parametrize("sum_", SHORT)
def test_sums_of_32_bits_are_found(sum_, tmp_path):
    run = built_plain(tmp_path, TEXT.broken(sum_, f"static_cast<int>({sum_})"))
    with pytest.raises(AssertionError):
        check_far(run, Direction.STORE)


BREAKS = {
    "leaves_a_step_out": ("item >= job.num_items", "item + 1 >= job.num_items"),
    "goes_beyond_the_last_step": ("item >= job.num_items", "item > job.num_items"),
    "warps_have_the_same_step": ("(blockDim.x / 32) + warp", "(blockDim.x / 32)"),
    "programs_have_the_same_steps": ("blockIdx.x * (blockDim.x / 32)", "blockIdx.x"),
    "parts_begin_where_the_first_does": ("blockIdx.y * 32 * WORDS + lane", "lane"),
    "parts_are_too_far_apart": ("blockIdx.y * 32 * WORDS", "blockIdx.y * 33 * WORDS"),
    "threads_have_the_same_words": ("32 * WORDS + lane", "32 * WORDS + lane / 2"),
    "leaves_the_last_word_out": ("step.num_bytes / sizeof(Word);", "step.num_bytes / sizeof(Word) - 1;"),
    "loads_beyond_the_end": ("< end) words[n]", "<= end) words[n]"),
    "stores_beyond_the_end": ("< end) store(", "<= end) store("),
    "leaves_words_of_a_thread_out": (
        "n < WORDS; ++n)\n        if (first + n * 32 < end) store",
        "n < WORDS - 1; ++n)\n        if (first + n * 32 < end) store",
    ),
    "stores_one_by_one": (
        " words[n] = load(source + first + n * 32);",
        " store(target + first + n * 32, load(source + first + n * 32));",
    ),
    "words_are_too_wide": ("move_part<unsigned short>", "move_part<unsigned>"),
    "words_are_too_narrow": ("move_part<Sixteen>", "move_part<unsigned long long>"),
    "begins_at_the_first_row": ("job.table + job.begin + page", "job.table + page"),
    "the_other_way": ("return {in_slot, in_tensor,", "return {in_tensor, in_slot,"),
    "without_the_offset": (" + offset * page_bytes", ""),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_kernel_that_is_wrong_is_found(name, tmp_path):
    check_that_it_fails(any_job, check_any_job, built_plain(tmp_path, TEXT.broken(*BREAKS[name])))
