"""The gathering kernel under Triton's interpreter, on the host: which bytes go where.

``nox -s kernel`` runs it, and sets TRITON_INTERPRET=1. It isn't named like a test file, so that no other run
collects it: Triton takes a gigabyte.
"""

import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kv_offload_cpu.copy.gather_kernel as gather_kernel
from kv_offload_cpu.copy.addresses import Moves, word_bytes

settings.register_profile("kernel", max_examples=60, deadline=None)
settings.load_profile("kernel")

if os.environ.get("TRITON_INTERPRET") != "1":
    raise RuntimeError("set TRITON_INTERPRET=1")


def aligned(count, seed=0):
    """Random bytes that begin at a multiple of 64."""
    whole = np.random.default_rng(seed).integers(0, 256, count + 64, dtype=np.uint8)
    return whole[-whole.ctypes.data % 64 :][:count]


def columns_of(rows):
    """A table of these rows."""
    return torch.tensor(rows, dtype=torch.int64).T.flatten()


@given(
    st.sampled_from([1, 2, 4, 8, 16]),
    st.lists(st.integers(1, 40) | st.integers(500, 1200), min_size=1, max_size=40),
    st.integers(1, 5),
    st.randoms(use_true_random=False),
    st.data(),
)
def test_the_kernel_moves_its_rows_and_no_others(unit, lengths, programs, random, data):
    count, unit_bytes = len(lengths), unit * 1200
    source, target = aligned(count * unit_bytes), aligned(count * unit_bytes, 1)
    places = random.sample(range(count), count)
    rows = [
        [target.ctypes.data + place * unit_bytes, source.ctypes.data + n * unit_bytes, length * unit]
        for n, (place, length) in enumerate(zip(places, lengths, strict=True))
    ]
    begin = data.draw(st.integers(0, count - 1))
    end = data.draw(st.integers(begin, count))
    expected = target.copy()
    for n in range(begin, end):
        at, size = places[n] * unit_bytes, lengths[n] * unit
        expected[at : at + size] = source[n * unit_bytes : n * unit_bytes + size]
    word = word_bytes(Moves(*np.array(rows, np.int64).T))
    assert word % unit == 0
    gather_kernel.launch(columns_of(rows), count, range(begin, end), word, programs)
    assert np.array_equal(target, expected)


@pytest.mark.parametrize("size", [1, 8191, 8192, 8193, 16384, 3 * 8192 + 16, 40_000])
@pytest.mark.parametrize("word", [1, 8, 16])
def test_a_piece_longer_than_a_step_is_moved_whole(size, word):
    size = -(-size // word) * word
    source, target = aligned(size + 32), aligned(size + 32, 1)
    expected = target.copy()
    expected[16 : 16 + size] = source[:size]
    table = columns_of([[target.ctypes.data + 16, source.ctypes.data, size]])
    gather_kernel.launch(table, 1, range(1), word)
    assert np.array_equal(target, expected)


def test_nothing_is_moved_by_no_rows():
    gather_kernel.launch(columns_of([[0, 0, 16]]), 1, range(0), 16)
