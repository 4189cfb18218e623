"""The rights of a shadow against a table: who may touch a block or a host slot beside whom; else, what is said."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from kv_api import Direction
from kv_sim.memory.content import POISON, ZERO
from kv_sim.memory.copy import Copy, State
from kv_sim.memory.shadow import NOT_SINCE, Shadow
from kv_sim.violation import Invariant, Referee, Violation

RANK, BY = 1, "last written by "
WHO = {3: "request r3", 4: "request r4", 5: "no request"}
both = pytest.mark.parametrize("direction", Direction)
states = pytest.mark.parametrize("state", [State.RUNNING, State.LOST])


def shadow_of_two() -> Shadow:
    """Of two ranks. Requests r3 and r4 have a block each, and loads into blocks 3 to 5 are announced."""
    made = Shadow(2, Referee())
    made.own("r3", [3])
    made.own("r4", [4])
    made.load_rights.update({3: "r3", 5: "r9"})
    made.step_rights[4] = 7
    return made


def copy(
    number: int, direction: Direction, *pairs: tuple[int, int], owners: tuple[str, ...] = (), **of: Any
) -> Copy:
    return Copy(number, direction, pairs, "", 0, owners=owners, **of)


def said(act: Any, *args: Any) -> tuple[Invariant, str] | None:
    """What a shadow has against it."""
    try:
        act(*args)
    except Violation as violation:
        return violation.invariant, violation.message
    return None


@pytest.mark.parametrize("act", ["about_to_write", "about_to_read", "about_to_load"])
@both
@states
@pytest.mark.parametrize("copied", [0, 1])
def test_what_a_copy_has_yet_to_move_is_left_alone(
    act: str, direction: Direction, state: State, copied: int
) -> None:
    """Of a load by everybody, of a store by who writes. One that is lost moves nothing more."""
    first = copy(0, Direction.LOAD, (9, 9))
    one = copy(2, direction, (3, 0), (4, 1), owners=("request r1", "request r2"), copied=copied, state=state)
    for block in WHO:
        matters = block in (3, 4)[copied:] and state is State.RUNNING
        refused = (
            Invariant.OWNERSHIP,
            f"rank 1 block {block} (of {WHO[block]}): step 2 does so while {direction.value} copy 2 (begun for "
            "request r1, request r2) is under way",
        )
        told = said(
            getattr(shadow_of_two(), act),
            RANK,
            block if act == "about_to_load" else [8, block],
            "step 2 does so",
            [first, one],
        )
        assert told == (refused if matters and (direction is Direction.LOAD or act != "about_to_read") else None)


def test_a_step_may_write_what_a_store_reads_if_it_leaves_it_as_it_is() -> None:
    """Not under a load. And it is asked only of blocks that a copy reads and the step writes."""
    asked = []

    def changes(of: Copy, block: int) -> bool:
        assert of is store
        asked.append(block)
        return block == 4

    store, load = copy(0, Direction.STORE, (3, 0), (4, 1), (6, 2)), copy(1, Direction.LOAD, (5, 3))
    write = shadow_of_two().about_to_write
    assert said(write, RANK, [3, 5], "step 2 does so", [store], changes) is None
    assert asked == [3]
    for blocks, which in (([3, 4], store), ([3, 5], load)):
        told = said(write, RANK, blocks, "step 2 does so", [store, load], changes)
        assert told is not None
        assert f"block {blocks[1]} " in told[1]
        assert f"while {which} (begun for no request)" in told[1]


def test_a_load_needs_a_right_of_its_request_or_of_its_step() -> None:
    shadow = shadow_of_two()
    without = (
        Invariant.OWNERSHIP,
        "rank 1 block 4 (of request r4): it is loaded, but no load into it is under way: none was "
        "announced, or it has ended",
    )
    assert [said(shadow.about_to_load, RANK, block, "it is loaded", []) for block in (3, 4, 5)] == [None] * 3
    shadow.end_step(6)
    assert said(shadow.about_to_load, RANK, 4, "it is loaded", []) is None
    shadow.end_step(7)
    assert said(shadow.about_to_load, RANK, 4, "it is loaded", []) == without
    assert shadow.step_rights == {}


@pytest.mark.parametrize(
    ("tokens", "targets"),
    [(range(4, 5), [2, 6]), (range(6, 8), [2, 6]), (range(6, 9), [2, 3, 6]), (range(3, 4), [1, 5])],
)
@pytest.mark.parametrize("step", [None, 8])
def test_a_load_may_write_the_blocks_with_its_tokens_until_it_is_over(
    tokens: range, targets: list[int], step: int | None
) -> None:
    """Block 0 is none. What other loads may write stays."""
    shadow = Shadow(2, Referee())
    shadow.load_rights[9], shadow.step_rights[8] = "r2", 7
    assert shadow.expect_load("r1", ([1, 2, 3], [5, 6, 0]), tokens, 4, step) == targets
    by_request, by_step = (dict.fromkeys(targets, owner) for owner in ("r1", 8))
    assert shadow.load_rights == {9: "r2", **(by_request if step is None else {})}
    assert shadow.step_rights == {8: 7, **({} if step is None else by_step)}
    shadow.end_load("r1")
    shadow.end_step(8)
    assert (shadow.load_rights, shadow.step_rights) == ({9: "r2"}, {8: 7})


def move(one: Copy, block: int, slot: int, *others: Copy, queue: tuple[Any, ...] = (), **kwargs: Any) -> Any:
    """What is said when a copy moves a page between a block and one of four host slots."""
    shadow, copies = shadow_of_two(), [one, *others]
    return said(lambda: shadow.about_to_move(RANK, one, block, slot, 4, queue, copies, **kwargs))


@both
def test_a_page_lies_in_a_block_and_in_a_slot(direction: Direction) -> None:
    name = f"{direction.value} copy 2"
    for slot in (-1, 4):
        told = move(copy(2, direction, (3, slot)), 3, slot)
        assert told == (Invariant.GEOMETRY, f"rank 1: {name} uses host slot {slot} of 4")
    assert [move(copy(2, direction, (3, slot)), 3, slot) for slot in range(4)] == [None] * 4
    assert move(copy(2, direction, (0, 1)), 0, 1) == (
        Invariant.OWNERSHIP,
        f"rank 1: {name} touches the null block 0",
    )


@both
@pytest.mark.parametrize(("reads", "writes"), [*product([False, True], repeat=2)])
def test_a_copy_keeps_out_of_a_step_that_has_not_retired(direction: Direction, reads: bool, writes: bool) -> None:
    """A load out of what it reads or writes, a store out of what it writes, if that changes anything."""
    one = copy(2, direction, (3, 0))
    before = SimpleNamespace(number=5, reads={8}, writes={9})
    step = SimpleNamespace(number=6, reads={3} if reads else {8}, writes={3} if writes else {9})
    where = "rank 1 block 3 (of request r3): "
    told = {
        Direction.LOAD: f"{where}load copy 2 writes it while step 6 is still using it",
        Direction.STORE: f"{where}store copy 2 reads it before step 6, which writes it, has retired",
    }[direction]
    matters = writes or (reads and direction is Direction.LOAD)
    assert move(one, 3, 0, queue=(before, step)) == ((Invariant.OWNERSHIP, told) if matters else None)
    harmless = move(one, 3, 0, queue=(before, step), changes=lambda *which: which != (step, one, 3))
    assert harmless == ((Invariant.OWNERSHIP, told) if matters and direction is Direction.LOAD else None)


def test_a_load_moves_nothing_into_a_block_without_a_right() -> None:
    told = (
        "rank 1 block 8 (of no request): load copy 2 writes it, but no load into it is under way: none was "
        "announced, or it has ended"
    )
    assert move(copy(2, Direction.LOAD, (8, 0)), 8, 0) == (Invariant.OWNERSHIP, told)
    assert move(copy(2, Direction.STORE, (8, 0)), 8, 0) is None


@both
@pytest.mark.parametrize("other_way", Direction)
@states
@pytest.mark.parametrize("copied", [0, 1])
def test_two_copies_share_what_neither_writes(
    direction: Direction, other_way: Direction, state: State, copied: int
) -> None:
    """A block that no load writes, a slot that no store writes; and what one of them is done with."""
    one = copy(2, direction, (3, 0), (4, 1))
    others = [copy(1, direction, (9, 9)), copy(5, other_way, (4, 2), (3, 3), (5, 1), copied=copied, state=state)]
    two = f"{direction.value} copy 2 and {other_way.value} copy 5 use it at the same time"
    moves = state is State.RUNNING
    block = (Invariant.OWNERSHIP, f"rank 1 block %d (of request r%d): {two}")
    for number in (3, 4):
        one_loads = Direction.LOAD in (direction, other_way)
        refused = one_loads and moves and not (number == 4 and copied)
        assert move(one, number, 0, *others) == ((block[0], block[1] % (number, number)) if refused else None)
    one = copy(2, direction, (3, 0), (9, 1))
    stored = Direction.STORE in (direction, other_way)
    others[1] = copy(5, other_way, (8, 0), (8, 1), copied=copied, state=state)
    for slot in (0, 1):
        refused = stored and moves and not (slot == 0 and copied)
        told = (Invariant.OWNERSHIP, f"rank 1 host slot {slot}: {two}")
        assert move(one, 3, slot, *others) == (told if refused else None)


def test_who_has_a_block() -> None:
    shadow = shadow_of_two()
    for name, block in (("r3", 9), ("r4", 7), ("r4", 3), ("r5", 9)):
        shadow.own(name, [block])
    assert [shadow.owner(block) for block in (7, 3, 9)] == ["request r4", "request r4", "request r5"]


@pytest.mark.parametrize(("value", "held"), [(int(POISON), "poison"), (int(ZERO), "zeroes"), (0xABC, "0xabc")])
def test_what_a_kernel_read_and_who_wrote_it(value: int, held: str) -> None:
    shadow = shadow_of_two()
    shadow.last_writer[RANK][3] = "step 4"
    where = f"request r1 token 6: rank 1 block %d holds {held}, %s"
    assert shadow.explain_content(RANK, "r1", 6, (3, 1, 2), value) == where % (3, "last written by step 4")
    assert shadow.explain_content(RANK, "r1", 6, (4, 1, 2), value) == where % (4, "not written")


def writer(shadow: Shadow, layer: int, place: int) -> str:
    return shadow.explain_content(RANK, "r1", 6, (3, layer, place), 1).partition("0x1, ")[2].removeprefix(BY)


def test_who_wrote_a_part_of_a_block_is_named_for_that_part() -> None:
    """A layer of it, or some slots in all layers; elsewhere who wrote before, and who wrote the block last."""
    shadow = shadow_of_two()
    shadow.last_writer[RANK][3] = NOT_SINCE
    shadow.wrote_part(RANK, 3, "step 4", slice(0, 2))
    shadow.wrote_part(RANK, 3, "the connector", slice(0, 4), 1)
    shadow.wrote_part(RANK, 3, "step 5", slice(2, 3))
    assert [[writer(shadow, layer, place) for place in range(4)] for layer in (0, 1)] == [
        [
            *["step 4, and elsewhere by step 5"] * 2,
            "step 5",
            "not written since it was allocated, and elsewhere last written by step 5",
        ],
        [*["the connector, and elsewhere by step 5"] * 2, "step 5", "the connector, and elsewhere by step 5"],
    ]
    assert shadow.last_writer[RANK] == {3: "step 5"}


def test_who_writes_a_whole_block_has_written_all_of_it() -> None:
    shadow = shadow_of_two()
    shadow.wrote_part(RANK, 3, "step 4", slice(1, 2))
    assert [writer(shadow, 0, place) for place in (0, 1)] == [
        "not written, and elsewhere last written by step 4",
        "step 4",
    ]
    shadow.last_writer[RANK][3] = "load copy 7"
    assert [writer(shadow, 0, place) for place in (0, 1)] == ["load copy 7"] * 2
    shadow.wrote_part(RANK, 3, "step 9", slice(1, 2))
    assert [writer(shadow, 0, place) for place in (0, 1)] == ["load copy 7, and elsewhere by step 9", "step 9"]


def test_what_was_written_over_is_not_kept() -> None:
    shadow = shadow_of_two()
    for number in range(20):
        shadow.wrote_part(RANK, 3, f"step {number}", slice(number % 4, number % 4 + 1))
    assert len(shadow._parts[RANK][3]) == 1 + 4
    shadow.wrote_part(RANK, 3, "the connector", slice(0, 4), 1)
    assert len(shadow._parts[RANK][3]) == 1 + 4 + 1, "the other layer is as it was"
