"""The movers: each moves exactly the bytes it was told to, of any size, from any address to any other."""

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kv_offload_cpu.copy.host import memmove
from kv_offload_cpu.copy.host.memmove import BY_C, move_each
from kv_offload_cpu.copy.host.moves import Mover, move
from kv_offload_cpu.copy.host.streaming import find_streaming

STREAMING = find_streaming()
MOVERS = {"C": BY_C, "streaming": STREAMING}

SIZES = [0, 1, 7, 8, 9, 15, 16, 31, 32, 33, 63, 64, 65, 71, 72, 127, 128, 129, 191, 192, 500, 4095, 4096, 4097]
"""Around all the units that anybody might move in."""


def expected_after(source, target, ranges):
    wanted = bytearray(target.tobytes())
    for into, out_of, size in ranges:
        wanted[into : into + size] = source[out_of : out_of + size].tobytes()
    return bytes(wanted)


def addresses(source, target, ranges):
    into, out_of, sizes = np.array(ranges, np.int64).reshape(-1, 3).T
    return into + target.ctypes.data, out_of + source.ctypes.data, sizes


def short_call(pid, into, count, out_of, count_again, flags):
    """A kernel that moves nothing, as one that hits a page it may not touch."""
    return 0


@pytest.fixture(params=["kernel", "no kernel", "short kernel", "streaming"])
def mover(request, monkeypatch):
    """The movers, and C's also where the kernel doesn't help."""
    if request.param == "no kernel":
        monkeypatch.setattr(memmove, "_batch_call", None)
    elif request.param == "short kernel":
        monkeypatch.setattr(memmove, "_batch_call", short_call)
    found = STREAMING if request.param == "streaming" else BY_C
    assert isinstance(found, Mover), found
    return found


@pytest.mark.parametrize("threads", [1, 3])
def test_all_ways_move_the_same_bytes(mover, threads):
    random = np.random.default_rng(1)
    source, target = random.integers(0, 256, 4 << 20, np.uint8), np.zeros(6 << 20, np.uint8)
    sizes = [1, 7, 64, 4096, 65535, 65536, 65537, 200_000] * 5 + [3] * 3000
    into = np.cumsum([0, *(size + 1 for size in sizes[:-1])]).tolist()
    out_of = [int(random.integers(0, source.size - size)) for size in sizes]
    ranges = list(zip(into, out_of, sizes, strict=True))
    random.shuffle(ranges)
    wanted = expected_after(source, target, ranges)
    with ThreadPoolExecutor(2) as helpers:
        move(*addresses(source, target, ranges), mover._replace(piece_bytes=300_000), helpers, threads)
    assert target.tobytes() == wanted


def test_no_ranges_move_nothing(mover):
    mover.move(*(np.empty(0, np.int64) for _ in range(3)))


@pytest.mark.parametrize("size", SIZES)
def test_every_alignment_of_both_ends_is_right(mover, size):
    """In one call: a range for each place of its target within a line, with that of its source."""
    random = np.random.default_rng(size)
    room = size + 3 * 64
    source, target = random.integers(1, 256, 64 * room, np.uint8), np.zeros(64 * room, np.uint8)
    for skew in (0, 1, 8, 37):
        target[:] = 0
        ranges = [(n * room + 64 + n, n * room + (n * 7 + skew) % 128, size) for n in range(64)]
        wanted = expected_after(source, target, ranges)
        mover.move(*addresses(source, target, ranges))
        assert target.tobytes() == wanted


RANGES = st.lists(
    st.tuples(st.integers(0, 130), st.integers(0, 130), st.sampled_from(SIZES) | st.integers(0, 9000)), max_size=30
)


@given(RANGES, st.sampled_from(sorted(MOVERS)), st.randoms(use_true_random=False))
@example([(0, 0, 4096)] * 5, "streaming", None)
def test_ranges_of_all_kinds_together(gaps, name, random):
    """Targets behind each other, with gaps before each whose bytes must stay; sources anywhere; in any order."""
    assert isinstance(MOVERS[name], Mover), MOVERS[name]
    source = np.random.default_rng(len(gaps)).integers(1, 256, 10_000, np.uint8)
    ranges, end = [], 0
    for gap, out_of, size in gaps:
        ranges.append((end + gap, out_of, size))
        end += gap + size
    if random is not None:
        random.shuffle(ranges)
    target = np.zeros(end + 64, np.uint8)
    wanted = expected_after(source, target, ranges)
    MOVERS[name].move(*addresses(source, target, ranges))
    assert target.tobytes() == wanted


def test_columns_may_lie_anyhow(mover):
    """A column of a table, every other number, backwards: an array is not always as C has it."""
    source, target = np.arange(1, 101, dtype=np.uint8), np.zeros(100, np.uint8)
    table = np.array([[target.ctypes.data + 10 * n, source.ctypes.data + 9 * n, n] for n in range(10)], np.int64)
    wanted = expected_after(source, target, [(10 * n, 9 * n, n) for n in range(9, 0, -2)])
    mover.move(*table[::-2].T)
    assert target.tobytes() == wanted


class ReadV:
    """``process_vm_readv`` of one list each, of which some bytes arrive."""

    def __init__(self, arriving, answer):
        self.arriving, self.answer = arriving, answer

    def __call__(self, process, into, count, out_of, out_count, flags):
        assert (process, count, out_count, flags) == (os.getpid(), 1, 1, 0)
        (to, room), (of, size) = ((ctypes.c_int64 * 2).from_address(place) for place in (into, out_of))
        assert room == size == 64
        ctypes.memmove(to, of, self.arriving)
        return self.answer


def without_calls(name, use_errno):
    raise OSError("no such library")


@pytest.mark.parametrize(
    ("arriving", "answer", "works"),
    [(64, 64, True), (0, 64, False), (63, 64, False), (64, 63, False), (0, -1, False)],
)
def test_the_kernel_is_found_to_work_before_it_is_relied_upon(monkeypatch, arriving, answer, works):
    call = ReadV(arriving, answer)
    monkeypatch.setattr(ctypes, "CDLL", lambda name, use_errno: SimpleNamespace(process_vm_readv=call))
    assert memmove._find_batch_call() is (call if works else None)
    number, pointer = ctypes.c_ulong, ctypes.c_void_p
    assert call.argtypes == [ctypes.c_int, pointer, number, pointer, number, number]
    assert call.restype is ctypes.c_ssize_t


@pytest.mark.parametrize("library", [lambda name, use_errno: SimpleNamespace(), without_calls])
def test_a_system_without_the_call_has_none(monkeypatch, library):
    monkeypatch.setattr(ctypes, "CDLL", library)
    assert memmove._find_batch_call() is None


def test_large_ranges_go_one_by_one_and_small_ones_together(monkeypatch):
    seen = []
    monkeypatch.setattr(memmove, "move_each", lambda *columns: seen.append(("each", columns[2].tolist())))
    monkeypatch.setattr(memmove, "move_small", lambda *columns: seen.append(("small", columns[2].tolist())))
    sizes = np.array([10, memmove.LARGE_BYTES, 20, memmove.LARGE_BYTES - 1, memmove.LARGE_BYTES + 1])
    for chosen in (sizes, sizes[[0, 2]], sizes[[1, 4]]):
        memmove.move_by_c(chosen, chosen, chosen)
    both = [("each", [32768, 32769]), ("small", [10, 20, 32767])]
    assert seen == [*both, ("small", [10, 20]), ("each", [32768, 32769])]


def test_lists_of_different_lengths_are_refused():
    one, two = np.zeros(1, np.int64), np.zeros(2, np.int64)
    with pytest.raises(AssertionError, match=r"of different lengths: 1, 2, 1"):
        STREAMING.move(one, two, one)
    with pytest.raises(ValueError, match="zip"):
        move_each(one, two, one)


def test_the_kernel_takes_a_thousand_small_ranges_a_call_and_nothing_is_moved_again(monkeypatch):
    sizes = np.arange(2500) % 7 + 1
    begins = np.arange(2500) * 8
    source, target = np.random.default_rng(0).integers(0, 256, (2, 20_000), dtype=np.uint8)
    expected = target.copy()
    for begin, size in zip(begins.tolist(), sizes.tolist(), strict=True):
        expected[begin : begin + size] = source[begin : begin + size]
    counts = []

    def kernel(process, into, count, out_of, out_count, flags):
        assert (process, out_count, flags) == (os.getpid(), count, 0)
        counts.append(count)
        moved = 0
        for place in range(count):
            to, size = (ctypes.c_int64 * 2).from_address(into + 16 * place)
            of, _ = (ctypes.c_int64 * 2).from_address(out_of + 16 * place)
            ctypes.memmove(to, of, size)
            moved += size
        return moved

    monkeypatch.setattr(memmove, "_batch_call", kernel)
    monkeypatch.setattr(memmove, "move_each", lambda *columns: pytest.fail("moved again"))
    memmove.move_small(begins + target.ctypes.data, begins + source.ctypes.data, sizes)
    assert counts == [1024, 1024, 452]
    assert np.array_equal(target, expected)
