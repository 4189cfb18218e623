"""The kernel of bulk copies: how many buffers a program has, what the driver is told, and what is refused how.

Compiler and driver are functions of Python here. What the kernel does ``nox -s kernel`` shows, and on a GPU
``nox -s gpu``.
"""

import pytest
from kv_offload_cpu_nvrtc import KernelDriver, Tensor, launched_twice

from kv_api import ConfigError
from kv_offload_cpu.copy.cuda.bulk_call import WARPS, BulkCall, shared_bytes


@pytest.fixture
def make(on_driver):
    """Makes calls over a driver."""

    def make_one(driver):
        on_driver(driver)
        return BulkCall()

    return make_one


@pytest.mark.parametrize(
    ("room", "warps"),
    [
        (227 << 10, WARPS),
        (99 << 10, {False: 3, True: 2}),
        (40 << 10, {False: 1, True: 1}),
        (1, {False: 1, True: 1}),
    ],
)
def test_a_program_has_as_many_buffers_as_there_is_room_for(make, room, warps):
    driver = KernelDriver(room=room)
    call = make(driver)
    assert call.warps == warps
    assert driver.loaded == b"code"
    assert driver.most == shared_bytes(max(warps.values()))
    assert driver.most <= room or room < shared_bytes(1)
    for is_store in (False, True):
        arguments, _ = call.kernel(Tensor(1), 1, is_store=is_store, word=16).call(7, 1, 9, range(1), 2)
        assert (arguments[4], arguments[7]) == (32 * warps[is_store], shared_bytes(warps[is_store]))


def test_a_program_of_loads_fits_into_an_h200():
    assert shared_bytes(WARPS[False]) <= 227 << 10


@pytest.mark.parametrize("is_store", [False, True])
def test_a_launch_tells_where_everything_is(make, is_store):
    driver = KernelDriver()
    kernel = make(driver).kernel(Tensor(5000), 3, is_store=is_store, word=16)
    (name, shape, stream), (_, last_shape, last_stream) = launched_twice(driver, kernel, is_store=is_store)
    warps = WARPS[is_store]
    assert name == "move_pages"
    assert (shape, stream) == ([2, 1, 1, 32 * warps, 1, 1, shared_bytes(warps)], 77)
    assert (last_shape[0], last_stream) == (1, 78)


@pytest.mark.parametrize(("rows", "programs"), [(0, 1), (1, 1), (16, 1), (17, 2), (33, 2)])
def test_as_many_programs_as_have_something_to_do(make, rows, programs):
    driver = KernelDriver()
    call = make(driver).kernel(Tensor(1), 1, is_store=True, word=16).call(7, 1, 99, range(rows), 2)
    assert call.arguments[1:4] == (programs, 1, 1)


def test_a_launch_of_more_steps_than_a_thread_can_count_is_refused(make):
    driver = KernelDriver()
    kernel = make(driver).kernel(Tensor(1), 1 << 20, is_store=True, word=16)
    call = kernel.call(7, 1, 9999, range(2048), 2)  # which the driver reads
    driver.cuLaunchKernel(*call.arguments)
    with pytest.raises(RuntimeError, match=r"^a kernel takes 2147483648 steps at most, and this job has"):
        kernel.call(7, 1, 9999, range(2049), 2)
    assert [told["num_items"] for *_, told in driver.launched] == [1 << 31]


def test_odd_pages_are_refused_with_what_copies_them(make):
    with pytest.raises(ConfigError) as caught:
        make(KernelDriver()).kernel(Tensor(1), 1, is_store=True, word=8)
    assert str(caught.value) == (
        "copy_engine: 'cuda-bulk' copies multiples of 16 bytes, and these pages or slots are multiples of 8; "
        "use 'cuda-gather'"
    )
