"""Moving byte ranges: every way moves the same bytes, whatever the sizes and however they are shared."""

from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_offload_cpu.copy import moves


def expected_after(source, target, ranges):
    wanted = bytearray(target.tobytes())
    for into, out_of, size in ranges:
        wanted[into : into + size] = source[out_of : out_of + size].tobytes()
    return bytes(wanted)


def addresses(source, target, ranges):
    into, out_of, sizes = np.array(ranges, np.int64).reshape(-1, 3).T
    return into + target.ctypes.data, out_of + source.ctypes.data, np.ascontiguousarray(sizes)


def short_call(pid, into, count, out_of, count_again, flags):
    """A kernel that moves nothing, as one that hits a page it may not touch."""
    return 0


@pytest.fixture(params=["kernel", "no kernel", "short kernel"])
def way(request, monkeypatch):
    if request.param == "no kernel":
        monkeypatch.setattr(moves, "_batch_call", None)
    elif request.param == "short kernel":
        monkeypatch.setattr(moves, "_batch_call", short_call)
    return request.param


@pytest.mark.parametrize("threads", [1, 3])
def test_all_ways_move_the_same_bytes(way, threads):
    random = np.random.default_rng(1)
    source, target = random.integers(0, 256, 4 << 20, np.uint8), np.zeros(6 << 20, np.uint8)
    sizes = [1, 7, 64, 4096, 65535, 65536, 65537, 200_000] * 5 + [3] * 3000
    into = np.cumsum([0, *(size + 1 for size in sizes[:-1])]).tolist()
    out_of = [int(random.integers(0, source.size - size)) for size in sizes]
    ranges = list(zip(into, out_of, sizes, strict=True))
    random.shuffle(ranges)
    wanted = expected_after(source, target, ranges)
    with ThreadPoolExecutor(2) as helpers:
        moves.move(*addresses(source, target, ranges), helpers, threads)
    assert target.tobytes() == wanted


def test_nothing_is_moved_for_no_ranges(way):
    with ThreadPoolExecutor(1) as helpers:
        moves.move(*(np.empty(0, np.int64) for _ in range(3)), helpers, 4)


@given(st.lists(st.integers(1, 3 << 20), max_size=40), st.integers(1, 6))
def test_shares_are_all_ranges_once_and_no_more_than_threads(sizes, threads):
    pieces = moves._share(np.array(sizes, np.int64), threads)
    assert 1 <= len(pieces) <= threads
    assert [index for piece in pieces for index in range(*piece.indices(len(sizes)))] == list(range(len(sizes)))


@given(st.lists(st.integers(1, 50), max_size=20), st.integers(1, 60))
def test_split_ranges_have_the_same_bytes_and_none_is_too_large(sizes, limit):
    into, out_of = np.arange(len(sizes)) * 1000, np.arange(len(sizes)) * 2000
    split = moves.split(into, out_of, np.array(sizes, np.int64), limit)
    got = [(t + n, s + n) for t, s, size in zip(*(c.tolist() for c in split), strict=True) for n in range(size)]
    assert got == [(1000 * i + n, 2000 * i + n) for i, size in enumerate(sizes) for n in range(size)]
    assert all(0 < size <= limit for size in split[2])


def test_shares_of_equal_pages_are_equal():
    assert moves._share(np.full(4096, 4096), 4) == [slice(n, n + 1024) for n in range(0, 4096, 1024)]


def test_an_error_in_a_helper_is_raised_after_all_have_stopped(monkeypatch):
    def fail_in_the_last(targets, sources, sizes):
        if targets[-1] == 4095:
            raise OSError("torn")

    monkeypatch.setattr(moves, "_move_piece", fail_in_the_last)
    columns = np.arange(4096), np.arange(4096), np.full(4096, 4096)
    with ThreadPoolExecutor(2) as helpers, pytest.raises(OSError, match="torn"):
        moves.move(*columns, helpers, 3)


def test_no_helper_moves_anything_after_an_error_was_raised(monkeypatch):
    go_on, ended = Event(), []

    def fail_in_the_first(targets, sources, sizes):
        if targets[0] == 0:
            raise OSError("torn")
        assert go_on.wait(30)
        ended.append(int(targets[0]))

    def note_and_wait(futures):
        go_on.set()
        return wait(futures)

    monkeypatch.setattr(moves, "_move_piece", fail_in_the_first)
    monkeypatch.setattr(moves, "wait", note_and_wait)
    columns = np.arange(4096), np.arange(4096), np.full(4096, 4096)
    with ThreadPoolExecutor(2) as helpers:
        try:
            with pytest.raises(OSError, match="torn"):
                moves.move(*columns, helpers, 2)
            ended_by_then = [*ended]
        finally:
            go_on.set()
    assert ended_by_then == [2048]


def test_the_kernel_is_found_to_work_before_it_is_relied_upon():
    assert moves._find_batch_call() is None or moves._batch_call is not None
