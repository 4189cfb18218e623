"""Media over a world: whose pages a job copies, what a slot of a file holds, and what is done when."""

from dataclasses import replace
from errno import EIO
from typing import Any

import numpy as np
import pytest

from kv_api import Direction, OffloadKey
from kv_offload_cpu import HostLayout
from kv_offload_cpu.copy.engine import CopyResult, PageCopies, Urgency
from kv_offload_file.label import Label
from kv_offload_file.slot_file import DamagedError
from kv_sim.config import WorldConfig
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.history.rest import come_to_rest
from kv_sim.memory.device import Device
from kv_sim.memory.shadow import Shadow
from kv_sim.offload.files import Later, WorldHome, WorldSlots
from kv_sim.offload.host_memory import WorldCopyEngine, WorldMemory
from kv_sim.site import Call
from kv_sim.violation import Referee
from kv_sim.world import World

LAYOUT = HostLayout(4, 2, 64, 1, 64)
"""Four chunks of two blocks."""
TAKEN = 3
"""Host slots that somebody else has."""


@pytest.fixture
def device() -> Device:
    made = Device(0, WorldConfig(num_blocks=12, layers=2), Shadow(1, Referee()))
    made.allocate_host(TAKEN)
    return made


def pages(*of: tuple[int, int, int]) -> PageCopies:
    """Of each its block, its chunk and which of the chunk's blocks it is."""
    blocks, chunks, offsets = (np.array(values, dtype=np.int64) for values in zip(*of, strict=True))
    return PageCopies(np.zeros_like(blocks), blocks, chunks, offsets)


def running(device: Device) -> list[tuple[Any, ...]]:
    return [(copy.direction, copy.pairs, copy.stream) for copy in device.copies.running.values()]


def test_a_chunk_has_a_page_for_each_of_its_blocks(device: Device) -> None:
    engine = WorldCopyEngine(device, WorldMemory(device, LAYOUT))
    assert len(device.host) == TAKEN + 4 * 2
    engine.submit(7, Direction.STORE, pages((5, 0, 0), (6, 0, 1), (9, 3, 1)))
    engine.submit(8, Direction.LOAD, pages((4, 2, 0)))
    engine.submit(9, Direction.LOAD, pages((3, 1, 1)), urgency=Urgency.EXPEDITED)
    assert running(device) == [
        (Direction.STORE, ((5, TAKEN), (6, TAKEN + 1), (9, TAKEN + 7)), "store"),
        (Direction.LOAD, ((4, TAKEN + 4),), "load"),
        (Direction.LOAD, ((3, TAKEN + 3),), "expedited"),
    ]


def test_an_end_tells_the_bytes_and_may_be_told_again(device: Device) -> None:
    """A page has the bytes of a block in all layers, and takes a second."""
    engine = WorldCopyEngine(device, WorldMemory(device, LAYOUT))
    engine.submit(7, Direction.STORE, pages((5, 0, 0), (6, 0, 1)))
    engine.submit(8, Direction.STORE, pages((5, 1, 0)))
    assert engine.poll() == []
    first, second = device.copies.running.values()
    device.copies.advance(first, 2)
    device.copies.fail(second)
    ends = [CopyResult(7, True, 2 * 2 * 4 * 8, 2.0), CopyResult(8, False, 2 * 4 * 8, 1.0)]
    assert engine.poll() == ends
    device.copies.repeat(first)
    assert engine.poll() == ends[:1]


def test_only_what_is_waited_for_ends(device: Device) -> None:
    engine = WorldCopyEngine(device, WorldMemory(device, LAYOUT))
    for job, direction in ((7, Direction.STORE), (8, Direction.LOAD), (9, Direction.STORE)):
        device.shadow.load_rights[job] = "r1"
        engine.submit(job, direction, pages((job, job - 7, 0)))
    engine.wait([7, 12])
    assert [result.job_id for result in engine.poll()] == [7]
    engine.shutdown()
    assert (running(device), [result.job_id for result in engine.poll()]) == ([], [8, 9])


def test_a_slot_holds_what_was_in_a_bay_as_long_as_it_is_asked_for_by_its_label(device: Device) -> None:
    slots = WorldSlots(device, WorldMemory(device, LAYOUT))
    bays = device.host[TAKEN:].reshape(4, 2, *device.host.shape[1:])
    bays[:] = np.arange(bays.size, dtype=np.uint64).reshape(bays.shape)
    before, label = bays.copy(), Label(OffloadKey(b"a"), 1, 2, 3)
    slots.write(5, label, 1)
    bays[1] = 0
    slots.read(5, label, 3)
    assert (bays[3] == before[1]).all()
    assert (bays[2] == before[2]).all()
    slots.read(5, Label(OffloadKey(b"a"), 1, 9, 9), 0)  # stored again since
    assert (bays[0] == before[1]).all()
    for other in (Label(OffloadKey(b"b"), 1, 2, 3), Label(OffloadKey(b"a"), 2, 2, 3)):
        with pytest.raises(DamagedError) as raised:
            slots.read(5, other, 2)
        assert str(raised.value) == f"slot 5 holds {label}, not {other}"
    assert (bays[2] == before[2]).all()
    slots.close()
    with pytest.raises(DamagedError, match="slot 5 holds None"):
        slots.read(5, label, 0)


def test_what_a_restart_lost_of_a_bay_is_not_written(device: Device) -> None:
    """A bay that is filled since holds what is there now."""
    slots = WorldSlots(device, WorldMemory(device, LAYOUT))
    label, other = Label(OffloadKey(b"a"), 1, 2, 3), Label(OffloadKey(b"b"), 1, 2, 3)
    slots.write(5, label, 1)
    device.restart_copies(forget_host=True)
    assert not device.shadow.ranks_that_failed
    with pytest.raises(OSError, match="a restart lost what was in bay 1") as raised:
        slots.write(6, other, 1)
    assert device.shadow.ranks_that_failed == {device.rank}
    assert raised.value.errno == EIO
    with pytest.raises(DamagedError, match="slot 6 holds None"):
        slots.read(6, other, 2)
    slots.read(5, label, 2)
    assert not device.copies.lost_slots.intersection(slots._pages_of(2))
    assert device.copies.lost_slots.issuperset(slots._pages_of(1))
    slots.write(6, other, 2)
    slots.read(6, other, 3)


@pytest.mark.parametrize("blocks_per_chunk", [1, 2])
def test_files_have_few_bays_and_what_went_through_them_comes_back(blocks_per_chunk: int) -> None:
    subject = replace(
        SUBJECTS["offload-file"],
        extra_config={**SUBJECTS["offload-file"].extra_config, "blocks_per_chunk": blocks_per_chunk},
        blocks_per_chunk=blocks_per_chunk,
    )
    found: list[int] = []

    def observe(call: Call) -> None:
        is_match = call.method == "get_num_new_matched_tokens"
        if is_match and call.args[0].request_id == "r2" and call.answer[0] is not None:
            found.append(call.answer[0])

    made = World(WorldConfig(num_blocks=40), subject, observe=observe)
    assert len(made.engine.devices[0].host) == 6 * blocks_per_chunk
    made.engine.add(RequestSpec("r1", 0, 33, 0, 1, 1))
    assert come_to_rest(made)
    assert made.engine.reset(running=False, connector=False)
    made.engine.add(RequestSpec("r2", 0, 33, 0, 1, 1))
    made.rest()
    assert found[0] == 32


def test_a_home_has_epochs() -> None:
    """All begin with the same. Whoever is reset has one that no other home has, of those that share, too."""
    homes = [WorldHome() for _ in range(3)]
    assert [home.epoch for home in homes] == [1, 1, 1]
    seen = {1}
    for home in [*homes[:2], *homes[:2]]:
        home.renew()
        assert home.epoch not in seen
        seen.add(home.epoch)
    assert homes[2].epoch == 1


def test_things_are_done_one_after_the_other_when_they_are_told_to() -> None:
    done: list[Any] = []
    later = Later()
    for number in (1, 2, 3):
        later.submit(done.append, number)
    assert done == []
    later.do_next()
    later.do_next()
    assert done == [1, 2]
    later.shutdown()
    later.do_next()
    assert done == [1, 2]
