"""A device: who is asked for the right to a block, in which order steps retire, and how pages move."""

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kv_sim_slots import CONFIG, HASHES, RANK, SIZE, device, fill, refused, step

from kv_api import Direction
from kv_sim.memory.content import POISON, ZERO
from kv_sim.memory.kernels import Slot
from kv_sim.memory.settled import Offer
from kv_sim.violation import Invariant, Violation

# -- who is asked -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("span", "block", "spoil", "settled", "changes"),
    [
        ((4, 8), 2, None, None, False),  # computed anew after a load that failed: as it was
        ((4, 8), 2, (2, 1, 3), None, True),
        ((5, 8), 2, (2, 0, 0), None, False),  # not computed
        ((4, 7), 2, (2, 0, 3), None, False),
        ((5, 8), 2, (2, 0, 1), None, True),
        ((4, 12), 3, (3, 1, 0), None, True),
        ((4, 12), 7, (7, 0, 0), None, True),
        ((4, 12), 3, None, None, False),
        ((4, 8), 12, None, None, True),  # of states
        ((7, 8), 12, None, None, True),
        ((4, 8), 13, None, None, False),
        ((4, 8), 3, (3, 0, 0), None, False),
        ((4, 8), 1, (1, 0, 3), None, False),
        ((4, 8), 2, (2, 0, 2), ("r1", 2), False),  # behind what was handed over
        ((4, 8), 2, (2, 0, 1), ("r1", 2), True),
        ((4, 8), 2, (2, 0, 2), ("r2", 2), True),
        ((6, 8), 2, (2, 0, 2), ("r1", 2), False),
        ((6, 8), 2, (2, 0, 2), ("r1", 3), True),
        ((4, 8), 2, (2, 0, -1), None, False),  # spoilt
        ((4, 8), 2, (2, 1, -1), ("r1", 2), False),
    ],
)
def test_what_a_step_leaves_as_it_is_may_be_stored_meanwhile(
    span: tuple[int, int], block: int, spoil: Slot | None, settled: tuple[str, int] | None, changes: bool
) -> None:
    made = device()
    fill(made, 12)
    if spoil is not None:
        block_of, layer, offset = spoil
        if offset < 0:
            made.memory[block_of, layer] = ~made.memory[block_of, layer]
        else:
            made.memory[spoil] ^= 1
    if settled is not None:
        made.begin_step([], [Offer(settled[0], block, settled[1])])
    made.launch(step(CONFIG, (0, 1)))
    made.copies.open().submit(Direction.STORE, [(block, 0)], after_compute=False)
    made.queue.clear()
    made.launch(step(CONFIG, span))
    said = refused(made.retire)
    does = "copies a state" if (span, block) == ((4, 8), 12) else "computes"
    what = f"step 7 {does} into it while store copy 0 (begun for no request) is under way"
    assert said == (f"rank 1 block {block} (of no request): {what}" if changes else None)


def test_a_block_that_is_somebody_elses_now_changes() -> None:
    made = device()
    fill(made, 12)
    made.copies.open().submit(Direction.STORE, [(2, 0)])
    made.launch(step(CONFIG, (4, 8), poison=(2,)))
    assert refused(made.retire) is not None


def test_copies_that_wait_for_a_step_are_not_in_its_way() -> None:
    made = device()
    made.launch(step(CONFIG, (0, 4)))
    made.copies.open().submit(Direction.LOAD, [(1, 0)])
    assert refused(made.retire) is None
    fill(made, 4)
    made.launch(step(CONFIG, (4, 5), number=8))
    load = "load copy 0 (begun for no request) is under way"
    assert refused(made.retire) == f"rank 1 block 1 (of no request): step 8 attends to it while {load}"
    made.launch(step(CONFIG, (3, 4), number=9))
    made.queue.popleft()
    assert refused(made.retire) == f"rank 1 block 1 (of no request): step 9 computes into it while {load}"


def test_kernels_that_prepare_blocks_ask_and_write() -> None:
    made = device()
    made.launch(step(CONFIG, (0, 4)))
    made.copies.open().submit(Direction.STORE, [(20, 0)])
    made.copies.open().submit(Direction.LOAD, [(21, 1)])
    before = made.memory.copy()
    store = "store copy 0 (begun for no request) is under way"
    load = "load copy 1 (begun for no request) is under way"
    asks: tuple[tuple[Any, Any, str | None], ...] = (
        (made.zero, [19, 20], f"rank 1 block 20 (of no request): step 3 zeroes it while {store}"),
        (made.zero, [21], f"rank 1 block 21 (of no request): step 3 zeroes it while {load}"),
        (made.copy_blocks, [(18, 20)], f"rank 1 block 20 (of no request): step 3 copies into it while {store}"),
        (made.copy_blocks, [(21, 18)], f"rank 1 block 21 (of no request): step 3 copies it while {load}"),
        (made.copy_blocks, [], None),
    )
    for act, blocks, said in asks[:2] + asks[4:]:
        assert refused(act, blocks, 3) == said
    assert (made.memory == before).all()
    assert made.retired_steps == 0
    made.copy_blocks([(20, 18)], 3)  # what a store reads may be read
    assert made.retired_steps == 1, "a copy comes after what was launched before"
    for act, blocks, said in asks[2:4]:
        assert refused(act, blocks, 3) == said
    made.memory[16], made.memory[20], made.memory[22] = 7, 8, 9
    made.copy_blocks([(16, 17), (20, 18)], 3)
    made.zero([16, 19], 4)
    made.poison([22])
    assert [set(made.memory[block].flatten().tolist()) for block in (16, 17, 18, 19, 22)] == [
        {int(ZERO)},
        {7},
        {8},
        {int(ZERO)},
        {int(POISON)},
    ]
    assert {block: made.shadow.last_writer[RANK][block] for block in (16, 17, 18, 19, 22)} == {
        16: "step 4, which zeroed it",
        17: "step 3, which copied block 16 into it",
        18: "step 3, which copied block 20 into it",
        19: "step 4, which zeroed it",
        22: "not written since it was allocated",
    }


def test_steps_retire_in_order_up_to_the_one_that_is_waited_for() -> None:
    made = device()
    for number in range(4):
        made.launch(step(CONFIG, (number, number + 1), number=number))
    assert (made.copies.launched_steps, made.retired_steps) == (4, 0)
    made.retire_until(2)
    assert [waiting.number for waiting in made.queue] == [2, 3]
    made.retire_until(1)
    assert made.retired_steps == 2
    made.synchronize()
    assert (made.retired_steps, len(made.queue)) == (4, 0)


# -- host memory --------------------------------------------------------------------------------


def test_pages_move_both_ways() -> None:
    made = device()
    assert made.allocate_host(2) == 8
    assert made.host.shape == (10, 2, SIZE)
    assert (made.host == POISON).all()
    fill(made, 8)
    page = made.memory[2].copy()
    queue, before = made.copies.open(), made.memory.copy()
    made.shadow.load_rights[20] = "r2"
    for slot in (0, 9):
        queue.wait([queue.submit(Direction.STORE, [(2, slot)])])
        assert (made.host[slot] == page).all()
        assert (made.memory == before).all()
        load = queue.submit(Direction.LOAD, [(20, slot)])
        queue.wait([load])
        assert (made.memory[20] == page).all()
        assert made.shadow.last_writer == [{}, {20: f"load copy {load}"}]
        made.memory[20] = before[20]
    assert refused(queue.wait, [queue.submit(Direction.STORE, [(2, 10)])]) == (
        "rank 1: store copy 4 uses host slot 10 of 10"
    )
    assert refused(queue.wait, [queue.submit(Direction.LOAD, [(21, 9)])]) is not None


def test_a_slot_that_is_not_there_is_left_alone_by_who_forgives_it() -> None:
    made = device()
    made.shadow.fail = lambda *_: None
    for direction in Direction:
        for slot in (-1, 8):
            made.move_page(SimpleNamespace(direction=direction, blocks_left=[], given_up_to=(), over=""), 3, slot)  # type: ignore[arg-type]
    assert (made.memory == POISON).all()
    assert (made.host == POISON).all()


def test_a_store_asks_the_steps_that_were_launched_what_they_change() -> None:
    made = device()
    fill(made, 8)
    queue = made.copies.open()
    made.launch(step(CONFIG, (4, 8)))
    assert refused(made.copies.advance, made.copies.running[queue.submit(Direction.STORE, [(2, 0)])], 1) is None
    made.launch(step(CONFIG, (8, 9), number=8))
    made.launch(step(CONFIG, (4, 8), number=9, poison=(2,)))  # to somebody else who computes the same
    for block, number in ((3, 8), (2, 9)):
        one = made.copies.running[queue.submit(Direction.STORE, [(block, 0)])]
        what = f"{one} reads it before step {number}, which writes it, has retired"
        assert refused(made.copies.advance, one, 1) == f"rank 1 block {block} (of no request): {what}"


@pytest.mark.parametrize("forget_host", [False, True])
def test_a_restart_may_forget_what_the_host_held(forget_host: bool) -> None:
    made = device()
    made.host[:] = 5
    made.restart_copies(forget_host=forget_host)
    assert made.copies.restarts == 1
    assert (made.host == (POISON if forget_host else 5)).all()
    assert made.copies.lost_slots == (set(range(8)) if forget_host else set())


def test_a_connector_reads_and_writes_pages_behind_the_device() -> None:
    made = device()
    cache = made.kv_cache(1)
    assert (cache.device, cache[:3].device, cache.layer) == (made, made, 1)
    assert cache.shape == (24, SIZE)
    assert not cache.flags.writeable
    made.launch(step(CONFIG, (0, 4)))
    assert (cache[1] == POISON).all()
    page = cache.read(1)
    assert made.retired_steps == 1
    assert page.tolist() == (HASHES[:4] ^ made.kernels.keys[0][1]).tolist() == cache[1].tolist()
    without = (
        "rank 1 block 20 (of no request): the connector writes it, but no load into it is under way: none "
        "was announced, or it has ended"
    )
    assert refused(cache.write, 20, page) == without
    made.shadow.load_rights[20] = "r2"
    made.launch(step(CONFIG, (4, 5)))
    cache.write(20, page)
    assert made.retired_steps == 2
    page[:] = 3
    assert made.memory[20].tolist() == [[int(POISON)] * SIZE, cache[1].tolist()]
    assert made.shadow.last_writer[RANK][20] == "the connector"
    told = "request r2 token 7: rank 1 block 20 holds 0x1,"
    writer = "last written by the connector"
    for place in (0, SIZE - 1):
        wrote = [made.shadow.explain_content(RANK, "r2", 7, (20, layer, place), 1) for layer in range(2)]
        assert wrote == [f"{told} not written, and elsewhere {writer}", f"{told} {writer}"]
    made.copies.open().submit(Direction.LOAD, [(20, 0)])
    for act, what in ((cache.read, "reads"), (lambda block: cache.write(block, page), "writes")):
        while_ = f"the connector {what} it while load copy 0 (begun for no request) is under way"
        assert refused(act, 20) == f"rank 1 block 20 (of no request): {while_}"


WORDS_OF_BYTES = "(numpy.frombuffer(page, numpy.uint64) makes words of them)"


@pytest.mark.parametrize(
    ("page", "got"),
    [
        (b"12345678", f"8 bytes {WORDS_OF_BYTES}"),
        (bytearray(32), f"32 bytes {WORDS_OF_BYTES}"),
        (memoryview(b"1234"), f"4 bytes {WORDS_OF_BYTES}"),
        (0, "0 (int)"),
        (np.zeros(4, np.int8), "an array of shape (4,) and dtype int8"),
        (np.zeros(5, np.uint64), "an array of shape (5,) and dtype uint64"),
        (np.zeros((1, 4), np.uint64), "an array of shape (1, 4) and dtype uint64"),
    ],
)
def test_what_is_no_page_is_not_written(page: Any, got: str) -> None:
    made = device()
    made.launch(step(CONFIG, (0, 3)))
    with pytest.raises(TypeError) as raised:
        made.kv_cache(0).write(1, page)
    assert str(raised.value) == f"KVCache.write, block 1: a page is 4 uint64 words, got {got}"
    assert made.retired_steps == 0, "nobody waited"


@pytest.mark.parametrize("slot", [0, 3, 7])
def test_a_connector_reads_and_writes_host_pages(slot: int) -> None:
    made = device()
    page = np.arange(2 * SIZE, dtype=np.uint64).reshape(2, SIZE)
    made.write_host(slot, page)
    read = made.read_host(slot)
    assert read is not None
    assert (read == page).all()
    read[:] = 0  # a copy
    assert (made.host[slot] == page).all()
    made.restart_copies(forget_host=True)
    assert made.read_host(slot) is None
    made.write_host(slot, page)
    assert made.copies.lost_slots == set(range(8)) - {slot}
    assert (made.read_host(slot) == page).all()


@pytest.mark.parametrize(
    ("direction", "name", "told"),
    [
        (Direction.STORE, "read_host", "the connector reads it while store copy 0 is under way"),
        (Direction.STORE, "write_host", "the connector writes it while store copy 0 is under way"),
        (Direction.LOAD, "write_host", "the connector writes it while load copy 0 is under way"),
        (Direction.LOAD, "read_host", None),
    ],
)
def test_host_pages_are_in_the_use_of_copies(direction: Direction, name: str, told: str | None) -> None:
    made = device()
    made.copies.open().submit(direction, [(5, 2), (6, 3)])
    args = (made.host[0],) if name == "write_host" else ()
    getattr(made, name)(4, *args)
    if told is None:
        getattr(made, name)(3, *args)
        return
    with pytest.raises(Violation) as raised:
        getattr(made, name)(3, *args)
    assert str(raised.value) == f"OWNERSHIP  rank 1 host slot 3: {told}"


@pytest.mark.parametrize("slot", [-1, 8])
def test_a_host_page_that_is_not_there_is_neither_read_nor_written(slot: int) -> None:
    made = device()
    with pytest.raises(Violation, match=f"^GEOMETRY  rank 1: the connector reads it: host slot {slot} of 8$"):
        made.read_host(slot)
    with pytest.raises(Violation, match=f"^GEOMETRY  rank 1: the connector writes it: host slot {slot} of 8$"):
        made.write_host(slot, made.host[0])
    made.shadow.fail = lambda *told: None
    assert made.read_host(slot) is None
    made.write_host(slot, made.host[0] + 1)
    assert (made.host == POISON).all()


NO_BLOCKS = (24, -1, 1.0, "2", None, slice(0, 2), 2**70)


@pytest.mark.parametrize("block", NO_BLOCKS, ids=repr)
@pytest.mark.parametrize("name", ["read", "write"])
def test_a_block_that_there_is_not_is_neither_read_nor_written(name: str, block: Any) -> None:
    made = device()
    cache: Any = made.kv_cache(0)
    args = (block, cache.read(1)) if name == "write" else (block,)
    said = f"rank 1: KVCache.{name} names GPU block {block!r}; there are 0 to 23"
    with pytest.raises(Violation, match=re.escape(said)) as found:
        getattr(cache, name)(*args)
    assert found.value.invariant is Invariant.GEOMETRY


@pytest.mark.parametrize("block", NO_BLOCKS, ids=repr)
def test_no_copy_of_it_begins(block: Any) -> None:
    made = device()
    slot = made.allocate_host(2)
    pairs: Any = [(23, slot), (block, slot + 1)]
    said = f"rank 1: a load copy names GPU block {block!r}; there are 0 to 23"
    with pytest.raises(Violation, match=re.escape(said)):
        made.copies.open().submit(Direction.LOAD, pairs)
    assert not made.copies.running


def test_a_block_may_be_a_number_of_numpy() -> None:
    made = device()
    made.copies.open().submit(Direction.STORE, [(np.int32(23), made.allocate_host(1))])
    assert made.kv_cache(0).read(np.int64(23)).shape == (SIZE,)


def test_the_null_block_is_one_of_them() -> None:
    made = device()
    made.must_have(0, "somebody")
    with pytest.raises(Violation, match="rank 1: somebody names GPU block -1; there are 0 to 23"):
        made.must_have(-1, "somebody")


def test_a_direction_is_one_of_two() -> None:
    way: Any = "sideways"
    with pytest.raises(ValueError, match="'sideways' is not a valid Direction"):
        device().copies.open().submit(way, [(1, 0)])
