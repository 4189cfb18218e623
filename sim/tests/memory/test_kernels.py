"""The kernels of a step against a slot-by-slot model: what it leaves, and which wrong slots it sees."""

from dataclasses import replace

import numpy as np
import pytest
from kv_sim_slots import (
    CONFIG,
    GROUPS,
    HASHES,
    RANK,
    SIZE,
    TABLES,
    TAILS,
    configs,
    device,
    fill,
    refused,
    slots,
    spans,
    step,
    tables_of,
)

from kv_api import Direction
from kv_sim.config import WorldConfig
from kv_sim.engine.request import SimRequest
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.memory.content import POISON, layer_keys
from kv_sim.memory.kernels import Slot
from kv_sim.memory.launched import Attention, ContentProblem, LaunchedStep, StateMoves


@configs
@spans
def test_a_step_leaves_what_it_computes_and_nothing_else(config: WorldConfig, start: int, end: int) -> None:
    made = device(config)
    fill(made, start)
    last = end // SIZE
    poisoned = tables_of(config)[0][last if start <= last * SIZE else last + 1 :][:1]  # nothing that it reads
    made.memory[[*poisoned]] = 5
    expected = made.memory.copy()
    for block in poisoned:
        expected[block] = POISON
    writer = dict.fromkeys(poisoned, "not written since it was allocated")
    for _, _, slot, held in slots(config, start, end):
        expected[slot] = held
        writer[slot[0]] = "step 7 for request r1"
    one = step(config, (start, end), poison=poisoned)
    made.launch(one)
    assert made.retired_steps == 0
    assert made.retire() is one
    assert made.retired_steps == 1
    assert made.memory.tolist() == expected.tolist()
    assert made.shadow.last_writer == [{}, writer]


def is_read(config: WorldConfig, group: int, token: int, start: int, end: int) -> bool:
    """Whether a step looks at what it finds of a token: in whole blocks from the first that it can see into."""
    kind, window = config.groups[group].kind, config.groups[group].window
    if kind == "state":
        return token == start - 1
    first = max(0, start - window + 1) if window else 0
    last = end if config is TAILS else end // SIZE * SIZE
    return first // SIZE * SIZE <= token < min(last, start)


@spans
def test_what_is_computed_from_wrong_bytes_is_spoilt(start: int, end: int) -> None:
    """For the request that read them, in all groups of tokens, as far as the step wrote."""
    made = device()
    fill(made, start)
    made.memory[TABLES[0][0]] ^= 1
    one = step(CONFIG, (start, end))
    made.launch(one)
    made.retire()
    reads_it = start > 0 and end >= SIZE
    assert bool(one.problems) == reads_it
    keys = layer_keys(RANK, (2, 2, 2))
    for group in (0, 1):
        for token in range(start, end):
            block, offset = TABLES[group][token // SIZE], token % SIZE
            right = HASHES[token] ^ keys[group]
            assert made.memory[block, :, offset].tolist() == (~right if reads_it else right).tolist()
    written = {TABLES[group][token // SIZE] for group in (0, 1) for token in range(start, end)}
    assert all(problem.spoilt == tuple(sorted(written)) for problem in one.problems)


@pytest.mark.parametrize("when", ["goes on from a state", "while a layer waits"])
def test_what_is_computed_is_spoilt_wherever_it_was_read_wrong(when: str) -> None:
    made = device()
    fill(made, 8)
    one = step(CONFIG, (8, 11))
    wrong = TABLES[2][1] if when == "goes on from a state" else TABLES[0][0]
    made.memory[wrong] ^= 1
    if when != "goes on from a state":
        made.kernels.read_loaded(one, {wrong}, 0, 0)
        made.memory[wrong] ^= 1
    made.launch(one)
    made.retire()
    assert len(one.problems) == 1
    held = made.memory[TABLES[0][2], :, :3] ^ layer_keys(RANK, (2, 2, 2))[0][:, None]
    assert (held == ~HASHES[8:11]).all()


def test_what_others_compute_in_the_same_step_is_not_spoilt() -> None:
    made, tables = device(), tuple(tuple(block + 5 for block in table) for table in TABLES)
    fill(made, 4)
    made.memory[TABLES[0][0]] ^= 1
    mine, other = Attention("r1", 4, 8, TABLES, HASHES), Attention("r2", 0, 3, tables, HASHES)
    one = replace(step(CONFIG), attentions=[mine, other])
    made.launch(one)
    made.retire()
    assert {problem.request_id for problem in one.problems} == {"r1"}
    assert (made.memory[tables[0][0], 0, :3] ^ layer_keys(RANK, (2, 2, 2))[0][0]).tolist() == HASHES[:3].tolist()


@configs
@spans
def test_a_step_sees_each_wrong_slot_that_it_reads_and_no_other(config: WorldConfig, start: int, end: int) -> None:
    assert problems(config, start, end) == []
    states = {}
    for group, token, slot, held in slots(config, 0, start):
        if config.groups[group].kind == "state":
            states[slot] = group, token, held  # the last one is what lies there
            continue
        writes_there = slot[0] == tables_of(config)[group][start // SIZE]
        writer = "step 6" + (", and elsewhere by step 7 for request r1" if writes_there else "")
        seen = [told(group, token, slot, held, writer)] if is_read(config, group, token, start, end) else []
        assert problems(config, start, end, slot) == seen
    for slot, (group, token, held) in states.items():
        seen = (
            [told(group, token, slot, held, role=", which goes on from this state")] if token == start - 1 else []
        )
        assert problems(config, start, end, slot) == seen


def told(group: int, token: int, slot: Slot, held: int, writer: str = "step 6", role: str = "") -> ContentProblem:
    where = f"rank 1 block {slot[0]} holds {held ^ 1:#x}, last written by {writer}"
    message = f"request r1 token {token}: {where} (group {group}, layer {slot[1]}, step 7{role})"
    return ContentProblem("r1", slot[0], message)


def problems(config: WorldConfig, start: int, end: int, *wrong: Slot) -> list[ContentProblem]:
    """What a step finds if these slots have another last bit."""
    made = device(config)
    fill(made, start)
    for slot in wrong:
        made.memory[slot] ^= 1
        made.shadow.last_writer[RANK][slot[0]] = "step 6"
    one = step(config, (start, end))
    made.launch(one)
    made.retire()
    return one.problems


def test_of_several_wrong_slots_of_a_group_the_first_is_told() -> None:
    keys = layer_keys(RANK, (2, 2, 2))
    wrong = [(2, 1, 0), (2, 0, 3), (1, 1, 2), (1, 1, 1)]
    (one,) = problems(CONFIG, 8, 12, *wrong)
    assert one == told(0, 1, (1, 1, 1), int(HASHES[1]) ^ int(keys[0][1]))
    both = problems(CONFIG, 8, 12, (7, 0, 0), (2, 1, 0), (2, 0, 3), (12, 1, 2), (12, 1, 3))
    assert [(problem.block, problem.message.split(" (")[1]) for problem in both] == [
        (12, "group 2, layer 1, step 7, which goes on from this state)"),
        (2, "group 0, layer 0, step 7)"),
        (7, "group 1, layer 0, step 7)"),
    ]


@spans
def test_which_blocks_a_step_reads_and_writes(start: int, end: int) -> None:
    one, reads, writes = step(CONFIG, (start, end)), set(), set()
    for group, table in enumerate(TABLES):
        window = GROUPS[group].window
        first = max(0, start - window + 1) if window else 0
        reads |= {table[token // SIZE] for token in range(first, end)}
        writes |= {table[token // SIZE] for token in range(start, end)}
    assert (one.reads, one.writes) == (reads, writes)


def test_where_no_state_is_kept_there_is_no_block() -> None:
    """Of the null block nothing is read or written, and the steps of two requests add up."""
    tables = (TABLES[0], TABLES[1], (0, 0, 13))
    one = step(CONFIG, (0, 9), tables=tables)
    assert one.reads == one.writes == {1, 2, 3, 6, 7, 8, 13}
    made = device()
    made.launch(one)
    made.retire()
    assert (made.memory[0] == POISON).all()
    assert (made.memory[13, 0] == int(HASHES[8]) ^ int(made.kernels.keys[2][0])).all()
    assert step(CONFIG, (0, 3), (5, 6)).writes == {1, 2, 6, 7, 11, 12}


def test_states_are_read_before_any_is_written() -> None:
    """Two requests go on from one state, and the first overwrites it."""
    made = device()
    fill(made, 6)
    one = step(CONFIG, (6, 7), (6, 7))
    made.launch(one)
    made.retire()
    assert one.problems == []


def with_moves(before: int | None, *after: tuple[int, int], start: int = 6) -> LaunchedStep:
    """A step of which the engine says where its states are: there are three in a block's worth of tokens."""
    states = {2: StateMoves(before, after)}
    return LaunchedStep(7, [Attention("r1", start, 9, TABLES, HASHES, states)], [], [], SIZE, (0, 5, 2))


def test_an_engine_may_say_where_states_are() -> None:
    """With drafts each token has a state of its own, and none of them need be where the table has the token."""
    made = device()
    fill(made, 6)
    made.memory[15] = made.memory[12]
    made.memory[12] = POISON
    one = with_moves(15, (13, 6), (14, 7), (15, 8), (14, 8))
    made.launch(one)
    made.retire()
    assert one.problems == []
    assert one.reads & {*TABLES[2]} == {15}
    assert one.writes & {*TABLES[2]} == {13, 14, 15}
    told = {block: int(made.memory[block, 0, 0]) ^ int(made.kernels.keys[2][0]) for block in (13, 14, 15)}
    assert told == {13: HASHES[6], 14: HASHES[8], 15: HASHES[8]}, "of two states of a block the later one"
    assert (made.memory[12] == POISON).all() and (made.memory[11] != POISON).all()
    assert made.shadow.last_writer[RANK][14] == "step 7 for request r1"


def test_a_step_goes_on_from_the_state_that_the_engine_names() -> None:
    made = device()
    fill(made, 6)
    one = with_moves(14, (13, 8))
    made.launch(one)
    made.retire()
    (problem,) = one.problems
    assert problem.block == 14 and "token 5" in problem.message and "goes on from this state" in problem.message
    first = with_moves(None, (11, 8), start=0)
    made.launch(first)
    made.retire()
    assert first.problems == []
    assert first.reads & {*TABLES[2]} == set()


@pytest.mark.parametrize(("block", "changes"), [(12, False), (13, True), (14, True), (15, False)])
def test_a_store_may_read_what_no_state_is_left_in(block: int, changes: bool) -> None:
    made = device()
    fill(made, 6)
    made.launch(step(CONFIG, (0, 1)))
    made.copies.open().submit(Direction.STORE, [(block, 0)], after_compute=False)
    made.queue.clear()
    made.launch(with_moves(12, (14, 7), (13, 8)))
    assert (refused(made.retire) is not None) is changes


@pytest.mark.parametrize(
    ("group", "wrong", "token"),
    [
        (0, None, None),
        (0, (1, 1, 2), 2),
        (0, (1, 0, 2), None),  # of another layer
        (0, (2, 1, 0), None),  # not loaded
        (0, (3, 1, 0), None),  # not full
        (1, (7, 1, 3), 7),
        (1, (6, 1, 3), None),  # before the window
        (2, (12, 1, 0), None),  # a state
    ],
)
def test_a_layer_reads_what_its_step_loads(group: int, wrong: Slot | None, token: int | None) -> None:
    made = device()
    fill(made, 10)
    if wrong is not None:
        made.memory[wrong] ^= 1
    one = step(CONFIG, (10, 12))
    made.kernels.read_loaded(one, {1, 3, 6, 7, 11, 12}, group, 1)
    assert len(one.problems) == (token is not None)
    for problem in one.problems:
        assert problem.message.startswith(f"request r1 token {token}: rank 1 block {problem.block} holds")
        assert problem.message.endswith("step 7, in which it is loaded, when wait_for_layer_load returned)")


# -- a draft model ------------------------------------------------------------------------------


def with_drafts_ahead(count: int, start: int = 6, end: int = 9) -> LaunchedStep:
    """A step whose drafts go beyond its last token, in the last layer of the second group."""
    words = SimRequest(RequestSpec("r1", 0, 24, 0, 1, 1), SIZE, 0).wrong_draft_hashes(end, end + count)
    ahead = {1: words}
    assert len(words) == count
    attention = Attention("r1", start, end, TABLES, HASHES, ahead=ahead)
    return LaunchedStep(7, [attention], [], [], SIZE, (0, 5, 2))


def test_drafts_leave_what_belongs_to_no_prefix_behind_the_tokens_of_a_step() -> None:
    """In their own layer, as far as there are blocks, and until the next step writes over it."""
    made, plain = device(), device()
    one = with_drafts_ahead(4)
    assert one.writes & {*TABLES[0]} == {2, 3} and one.writes & {*TABLES[1]} == {7, 8, 9}
    for each, its in ((made, one), (plain, step(CONFIG, (6, 9)))):
        fill(each, 6)
        each.launch(its)
        each.retire()
    places = np.argwhere(made.memory != plain.memory)
    changed = {(int(block), int(layer), int(slot)) for block, layer, slot in places}
    assert changed == {(8, 1, 1), (8, 1, 2), (8, 1, 3), (9, 1, 0)}
    assert one.problems == []
    after = step(CONFIG, (9, 13))
    made.launch(after)
    made.retire()
    assert after.problems == []


def test_where_a_table_ends_no_draft_is_written() -> None:
    made = device()
    fill(made, 17)
    one = with_drafts_ahead(3, start=17, end=19)
    made.launch(one)
    made.retire()
    assert (one.problems, one.writes & {*TABLES[1]}) == ([], {10})


def test_who_reads_what_drafts_left_is_told_whose_it_is() -> None:
    made = device()
    fill(made, 9)
    made.launch(with_drafts_ahead(4))
    made.retire()
    late = step(CONFIG, (13, 14))
    made.launch(late)
    made.retire()
    told = [problem.message for problem in late.problems if problem.block == 8]
    assert len(told) == 1 and "the drafts of step 7 for request r1" in told[0]


@pytest.mark.parametrize(("block", "changes"), [(7, False), (8, True), (9, True), (10, False)])
def test_a_store_may_not_read_where_drafts_come_to(block: int, changes: bool) -> None:
    made = device()
    fill(made, 9)
    made.launch(step(CONFIG, (0, 1)))
    made.copies.open().submit(Direction.STORE, [(block, 0)], after_compute=False)
    made.queue.clear()
    made.launch(with_drafts_ahead(4))
    assert (refused(made.retire) is not None) is changes
