"""Sharing a job among threads: all of its bytes are moved once, whoever moves them, and no error is lost."""

from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_offload_cpu.copy.host import moves
from kv_offload_cpu.copy.host.moves import Mover, move, share
from kv_offload_cpu.copy.ranges.addresses import split

MIB = 1 << 20
PAGES = np.arange(4096), np.arange(4096), np.full(4096, 4096)
"""16 MiB in pages whose addresses are their numbers."""


class Noted:
    """A mover that notes the pieces it gets, by their first target and their number of ranges."""

    def __init__(self):
        self.pieces = []

    def __call__(self, targets, sources, sizes):
        assert len(targets) == len(sources) == len(sizes)
        self.pieces.append((int(targets[0]) if len(targets) else None, len(sizes)))


@pytest.mark.parametrize(
    ("piece_bytes", "threads", "pieces"),
    [
        (MIB, 4, [(0, 1024), (1024, 1024), (2048, 1024), (3072, 1024)]),
        (MIB, 1, [(0, 4096)]),
        (8 * MIB, 4, [(0, 2048), (2048, 2048)]),
        (9 * MIB, 4, [(0, 4096)]),
    ],
)
def test_each_mover_says_what_is_worth_a_thread(piece_bytes, threads, pieces):
    noted = Noted()
    with ThreadPoolExecutor(3) as helpers:
        move(*PAGES, Mover(noted, piece_bytes), helpers, threads)
    assert sorted(noted.pieces) == pieces


@pytest.mark.parametrize(
    ("sizes", "piece_bytes", "threads", "pieces"),
    [
        ([16], 1, 4, [[(0, 4)], [(4, 4)], [(8, 4)], [(12, 4)]]),
        ([16], 8, 4, [[(0, 8)], [(8, 8)]]),
        ([16], 17, 4, [[(0, 16)]]),
        ([3, 1], 1, 2, [[(0, 2)], [(2, 1), (3, 1)]]),
        ([2, 2, 2], 1, 3, [[(0, 2)], [(2, 2)], [(4, 2)]]),
    ],
)
def test_large_ranges_are_cut_for_as_many_threads_as_pay(sizes, piece_bytes, threads, pieces):
    """In MiB: where each piece of each thread begins, and its size."""
    found = []

    def note(targets, sources, sizes):
        assert (sources - targets == 1 << 40).all()
        found.append([(int(begin) // MIB, int(size) // MIB) for begin, size in zip(targets, sizes, strict=True)])

    lengths = np.array(sizes) * MIB
    targets = np.cumsum(lengths) - lengths
    with ThreadPoolExecutor(3) as helpers:
        move(targets, targets + (1 << 40), lengths, Mover(note, piece_bytes * MIB), helpers, threads)
    assert sorted(found) == pieces


def test_without_helpers_all_is_one_piece():
    noted = Noted()
    move(*PAGES, Mover(noted, MIB), None, 4)
    assert noted.pieces == [(0, 4096)]


def test_nothing_is_moved_for_no_ranges():
    noted = Noted()
    with ThreadPoolExecutor(1) as helpers:
        move(*(np.empty(0, np.int64) for _ in range(3)), Mover(noted, MIB), helpers, 4)
    assert noted.pieces == [(None, 0)]


@given(st.lists(st.integers(1, 3 << 20), max_size=40), st.integers(1, 6), st.integers(1, 4 << 20))
def test_shares_are_all_ranges_once_and_no_more_than_threads(sizes, threads, piece_bytes):
    pieces = share(np.array(sizes, np.int64), threads, piece_bytes)
    assert 1 <= len(pieces) <= max(1, min(threads, sum(sizes) // piece_bytes))
    assert [index for piece in pieces for index in range(*piece.indices(len(sizes)))] == list(range(len(sizes)))


@given(st.lists(st.integers(1, 50), max_size=20), st.integers(1, 60))
def test_split_ranges_have_the_same_bytes_and_none_is_too_large(sizes, limit):
    into, out_of = np.arange(len(sizes)) * 1000, np.arange(len(sizes)) * 2000
    found = split(into, out_of, np.array(sizes, np.int64), limit)
    got = [(t + n, s + n) for t, s, size in zip(*(c.tolist() for c in found), strict=True) for n in range(size)]
    assert got == [(1000 * i + n, 2000 * i + n) for i, size in enumerate(sizes) for n in range(size)]
    assert all(0 < size <= limit for size in found.sizes)


def test_shares_of_equal_pages_are_equal():
    assert share(np.full(4096, 4096), 4, MIB) == [slice(n, n + 1024) for n in range(0, 4096, 1024)]


@pytest.mark.parametrize("wrong", [2048, 4095])
def test_an_error_in_any_helper_is_raised_after_all_have_stopped(wrong):
    def fail_in_one(targets, sources, sizes):
        if wrong in targets:
            raise OSError("torn")

    with ThreadPoolExecutor(2) as helpers, pytest.raises(OSError, match="torn"):
        move(*PAGES, Mover(fail_in_one, MIB), helpers, 3)


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

    monkeypatch.setattr(moves, "wait", note_and_wait)
    with ThreadPoolExecutor(2) as helpers:
        try:
            with pytest.raises(OSError, match="torn"):
                move(*PAGES, Mover(fail_in_the_first, MIB), helpers, 2)
            ended_by_then = [*ended]
        finally:
            go_on.set()
    assert ended_by_then == [2048]
