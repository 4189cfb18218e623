"""The kernel for buffers: which function moves which words, how many programs there are, and what they are told.

Compiler and driver are functions of Python here. What the kernel does ``nox -s kernel`` shows, and on a GPU
``nox -s gpu``.
"""

import pytest
from kv_offload_cpu_nvrtc import KernelDriver, Tensor, launched_twice

from kv_offload_cpu.copy.cuda.methods.page_table import STEP_BYTES
from kv_offload_cpu.copy.cuda.plain_call import WARPS, WIDTHS, WORDS, PlainCall


@pytest.fixture
def driver(on_driver):
    return on_driver(KernelDriver())


def kernel_of(steps=1, num_steps=1, *, is_store=True, word=16):
    return PlainCall().kernel(Tensor(steps), num_steps, is_store=is_store, word=word)


@pytest.mark.parametrize("word", WIDTHS)
@pytest.mark.parametrize("is_store", [False, True])
def test_a_launch_is_of_the_function_for_its_words_and_tells_where_everything_is(driver, is_store, word):
    kernel = kernel_of(5000, 3, is_store=is_store, word=word)
    assert driver.functions == [f"move_pages_{width}" for width in WIDTHS], "before the first launch"
    (name, shape, stream), (_, _, last_stream) = launched_twice(driver, kernel, is_store=is_store)
    parts = STEP_BYTES // (32 * WORDS * word)
    assert (name, stream) == (f"move_pages_{word}", 77)
    assert shape == [600 // WARPS, parts, 1, 32 * WARPS, 1, 1, 0]
    assert last_stream == 78


def test_one_function_serves_both_directions(driver):
    calls = PlainCall()
    for is_store in (False, True):
        kernel = calls.kernel(Tensor(1), 1, is_store=is_store, word=4)
        call = kernel.call(7, 1, 9, range(1), 1)  # which the driver reads
        driver.cuLaunchKernel(*call.arguments)
    assert [(name, told["is_store"]) for name, _, _, told in driver.launched] == [
        ("move_pages_4", 0),
        ("move_pages_4", 1),
    ]


@pytest.mark.parametrize("given", [1, 128])
@pytest.mark.parametrize(("rows", "programs"), [(0, 1), (1, 1), (WARPS, 1), (WARPS + 1, 2), (1000 * WARPS, 1000)])
def test_there_are_programs_for_all_steps_whatever_is_given_to_a_job(driver, rows, programs, given):
    call = kernel_of().call(7, 1, 9999, range(rows), given)
    assert call.arguments[1:4] == (programs, 1, 1)


@pytest.mark.parametrize("word", WIDTHS)
def test_the_parts_of_a_step_are_all_of_it(driver, word):
    parts = kernel_of(word=word).call(7, 1, 9, range(1), 1).arguments[2]
    assert parts * 32 * WORDS * word == STEP_BYTES


def test_a_launch_of_more_steps_than_a_thread_can_count_is_refused(driver):
    kernel = kernel_of(1, 1 << 20)
    call = kernel.call(7, 1, 9999, range(2048), 2)  # which the driver reads
    driver.cuLaunchKernel(*call.arguments)
    with pytest.raises(
        RuntimeError, match=r"^a kernel takes 2147483648 steps at most, and this job has 2148532224$"
    ):
        kernel.call(7, 1, 9999, range(2049), 2)
    [(_, shape, _, told)] = driver.launched
    assert (shape[0], told["num_items"]) == ((1 << 31) // WARPS, 1 << 31)
