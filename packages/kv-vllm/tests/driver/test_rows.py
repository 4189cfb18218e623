"""The host memory of all ranks as a tier sees it; without a vLLM."""

import numpy as np
import pytest

pytest.importorskip("kv_sim")

from kv_sim.config import WorldConfig
from kv_sim.memory.content import POISON
from kv_sim.memory.device import Device
from kv_sim.memory.shadow import Shadow
from kv_sim.violation import Referee
from kv_vllm.tiers.rows import Area, Rows, add_area, rows_of


@pytest.fixture
def rows():
    """Of two ranks, chunks of two blocks."""
    config = WorldConfig(tp_size=2, layers=3, block_size=2)
    shadow, made = Shadow(2, Referee()), Rows(2)
    for rank in (1, 0):
        device = Device(rank, config, shadow)
        device.allocate_host(1 + rank)
        made.add(rank, Area(device, device.allocate_host(4 * 2)))
    return made


def words(view, chunk):
    return np.frombuffer(view, np.uint64).reshape(view.shape[0], -1)[chunk]


def test_a_row_has_what_all_ranks_have_rank_by_rank_and_block_by_block(rows):
    view = rows.make(4, 4096)
    assert (view.shape, view.strides, view.readonly) == ((4, 4096), (4096, 1), False)
    for rank in (0, 1):
        device, first = rows._areas[rank]
        for number in range(2):
            device.write_host(first + 2 * 2 + number, np.full((3, 2), 10 * rank + number + 1, np.uint64))
    rows.lend([2])
    assert words(view, 2)[:24].tolist() == [1] * 6 + [2] * 6 + [11] * 6 + [12] * 6
    assert (words(view, 2)[24:] == POISON).all()
    assert (words(view, 1) == POISON).all()
    assert rows.changed() == []


def test_a_row_that_everybody_has_read_holds_nothing(rows):
    view = rows.make(4, 4096)
    for rank in (0, 1):
        device, first = rows._areas[rank]
        for number in range(2):
            device.write_host(first + number, np.full((3, 2), 7, np.uint64))
    rows.lend([0])
    rows.lend([0])
    rows.take_back([0])
    assert words(view, 0)[0] == 7
    rows.take_back([0])
    assert (words(view, 0) == POISON).all()


def test_what_is_written_into_an_open_row_reaches_the_ranks_when_it_is_closed(rows):
    view = rows.make(4, 4096)
    rows.open([1, 3])
    words(view, 1)[:24] = np.arange(24)
    words(view, 3)[:] = 5
    assert rows.changed() == []
    rows.close([1, 3], [1])
    for rank in (0, 1):
        device, first = rows._areas[rank]
        pages = [device.read_host(first + slot).ravel().tolist() for slot in (2, 3, 6)]
        begin = 12 * rank
        assert pages[:2] == [[*range(begin, begin + 6)], [*range(begin + 6, begin + 12)]]
        assert pages[2] == [int(POISON)] * 6
    assert (words(view, 1) == POISON).all()
    words(view, 1)[3] = 9
    assert rows.changed() == [1]


def test_a_row_has_to_hold_a_chunk_of_all_ranks(rows):
    with pytest.raises(AssertionError, match="a chunk of all ranks has 192 bytes, and a row 184"):
        rows.make(4, 184)


def test_no_chunk_is_no_row(rows):
    assert rows.make(0, 4096).shape == (0, 4096)


def test_what_a_restart_lost_is_poison(rows):
    view = rows.make(4, 4096)
    for rank in (0, 1):
        device, first = rows._areas[rank]
        for slot in (first, first + 1):
            device.write_host(slot, np.full((3, 2), 7, np.uint64))
        device.copies.lost_slots.add(first + rank)
    rows.lend([0])
    poison = [int(POISON)] * 6
    assert words(view, 0)[:24].tolist() == [*poison, *[7] * 6, *[7] * 6, *poison]


def test_rows_that_were_not_made_are_not_changed(rows):
    assert rows.changed() == []


def test_the_newest_rows_of_an_engine_have_the_areas_of_all_its_workers():
    """Successive worlds use the same engine ids."""
    device, other = (Device(0, WorldConfig(), Shadow(1, Referee())) for _ in range(2))
    first = add_area("an engine", 0, Area(other, 0), 2)
    rows = add_area("an engine", 0, Area(device, 0), 2)
    assert rows_of("an engine") is rows is not first
    assert add_area("an engine", 1, Area(other, 0), 2) is rows
    assert [*rows._areas] == [0, 1]
    assert rows.device is device
