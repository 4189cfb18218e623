"""A device against a slot-by-slot model: what a step leaves, which wrong slots it sees, what may go on beside."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kv_api import Direction
from kv_sim.config import STATE, GroupConfig, WorldConfig
from kv_sim.engine.request import SimRequest
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.memory.content import (
    POISON,
    ZERO,
    layer_keys,
    mix,
    prefix_hashes,
    root_hash,
    sampled_token,
    whole_story,
)
from kv_sim.memory.device import Device
from kv_sim.memory.kernels import Attention, ContentProblem, LaunchedStep, Slot, StateMoves
from kv_sim.memory.settled import Offer
from kv_sim.memory.shadow import Shadow
from kv_sim.violation import Referee, Violation

RANK, SIZE = 1, 4
GROUPS = (GroupConfig(), GroupConfig("sliding", 5), STATE)
CONFIG = WorldConfig(num_blocks=24, block_size=SIZE, groups=GROUPS, layers=2, tp_size=2)
TAILS = replace(CONFIG, groups=(GroupConfig(), STATE), hashes_per_block=2, hands_over_states=True)
APART = replace(CONFIG, tp_size=1, pp_size=2, stages="groups_apart")
"""Of its groups this rank has three layers of the second, and none of the others."""
TABLES = ((1, 2, 3, 4, 5), (6, 7, 8, 9, 10), (11, 12, 13, 14, 15))
HASHES = SimRequest(RequestSpec("r1", 0, 20, 0, 1, 1), SIZE, 0).hashes
SPANS = [(0, 3), (1, 2), (0, 4), (0, 9), (3, 4), (4, 5), (5, 12), (7, 16), (11, 13), (12, 20), (17, 19)]
spans = pytest.mark.parametrize(("start", "end"), SPANS)
configs = pytest.mark.parametrize("config", [CONFIG, TAILS, APART], ids=["groups", "tails", "apart"])


def device(config: WorldConfig = CONFIG) -> Device:
    made = Device(RANK, config, Shadow(2, Referee()))
    assert made.allocate_host(8) == 0
    return made


def tables_of(config: WorldConfig) -> tuple[tuple[int, ...], ...]:
    return (TABLES[0], TABLES[2]) if config is TAILS else TABLES


def step(
    config: WorldConfig, *spans: tuple[int, int], tables: Any = None, poison: tuple[int, ...] = (), number: int = 7
) -> LaunchedStep:
    """One in which a request goes over these tokens."""
    where = tables or tables_of(config)
    attentions = [Attention("r1", start, end, where, HASHES) for start, end in spans]
    return LaunchedStep(number, attentions, [*poison], [], SIZE, tuple(group.window for group in config.groups))


def slots(config: WorldConfig, start: int, end: int) -> Iterator[tuple[int, int, Slot, int]]:
    """Of tokens that were computed: group, token, where it lies, and what must lie there."""
    keys = layer_keys(RANK, config.layers_of(RANK))
    for group, table in enumerate(tables_of(config)):
        for token in range(start, end):
            for layer in range(config.layers_of(RANK)[group]):
                block, held = table[token // SIZE], int(HASHES[token]) ^ int(keys[group][layer])
                for offset in [token % SIZE] if config.groups[group].kind != "state" else range(SIZE):
                    yield group, token, (block, layer, offset), held


def fill(made: Device, tokens: int) -> None:
    """As if these had been computed."""
    for _, _, slot, held in slots(made.config, 0, tokens):
        made.memory[slot] = held


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
    writer = dict.fromkeys(poisoned, "nobody since it was allocated")
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


# -- a draft model ------------------------------------------------------------------------------


def with_drafts_ahead(count: int, start: int = 6, end: int = 9) -> LaunchedStep:
    """A step whose drafts go beyond its last token, in the last layer of the second group."""
    ahead = {1: SimRequest(RequestSpec("r1", 0, 20, 0, 1, 1), SIZE, 0).wrong_draft_hashes(end, end + count)}
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
    what = "step 7 computes into it while store copy 0 (begun for nobody) is under way"
    assert said == (f"rank 1 block {block} (of nobody): {what}" if changes else None)


def test_a_block_that_is_somebody_elses_now_changes() -> None:
    made = device()
    fill(made, 12)
    made.copies.open().submit(Direction.STORE, [(2, 0)])
    made.launch(step(CONFIG, (4, 8), poison=(2,)))
    assert refused(made.retire) is not None


def refused(act: Any, *args: Any) -> str | None:
    try:
        act(*args)
    except Violation as violation:
        return violation.message
    return None


def test_copies_that_wait_for_a_step_are_not_in_its_way() -> None:
    made = device()
    made.launch(step(CONFIG, (0, 4)))
    made.copies.open().submit(Direction.LOAD, [(1, 0)])
    assert refused(made.retire) is None
    fill(made, 4)
    made.launch(step(CONFIG, (4, 5), number=8))
    load = "load copy 0 (begun for nobody) is under way"
    assert refused(made.retire) == f"rank 1 block 1 (of nobody): step 8 attends to it while {load}"
    made.launch(step(CONFIG, (3, 4), number=9))
    made.queue.popleft()
    assert refused(made.retire) == f"rank 1 block 1 (of nobody): step 9 computes into it while {load}"


def test_kernels_that_prepare_blocks_ask_and_write() -> None:
    made = device()
    made.launch(step(CONFIG, (0, 4)))
    made.copies.open().submit(Direction.STORE, [(20, 0)])
    made.copies.open().submit(Direction.LOAD, [(21, 1)])
    before = made.memory.copy()
    store = "store copy 0 (begun for nobody) is under way"
    load = "load copy 1 (begun for nobody) is under way"
    asks: tuple[tuple[Any, Any, str | None], ...] = (
        (made.zero, [19, 20], f"rank 1 block 20 (of nobody): step 3 zeroes it while {store}"),
        (made.zero, [21], f"rank 1 block 21 (of nobody): step 3 zeroes it while {load}"),
        (made.copy_blocks, [(18, 20)], f"rank 1 block 20 (of nobody): step 3 copies into it while {store}"),
        (made.copy_blocks, [(21, 18)], f"rank 1 block 21 (of nobody): step 3 copies it while {load}"),
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
        22: "nobody since it was allocated",
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
            made.move_page(SimpleNamespace(direction=direction, blocks_left=[], given_up_to=()), 3, slot)  # type: ignore[arg-type]
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
        assert refused(made.copies.advance, one, 1) == f"rank 1 block {block} (of nobody): {what}"


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
    without = "rank 1 block 20 (of nobody): the connector writes it, but no load into it is announced or going on"
    assert refused(cache.write, 20, page) == without
    made.shadow.load_rights[20] = "r2"
    made.launch(step(CONFIG, (4, 5)))
    cache.write(20, page)
    assert made.retired_steps == 2
    page[:] = 3
    assert made.memory[20].tolist() == [[int(POISON)] * SIZE, cache[1].tolist()]
    assert made.shadow.last_writer[RANK][20] == "the connector"
    told = "request r2 token 7: rank 1 block 20 holds 0x1, last written by"
    for place in (0, SIZE - 1):
        wrote = [made.shadow.explain_content(RANK, "r2", 7, (20, layer, place), 1) for layer in range(2)]
        assert wrote == [f"{told} nobody, and elsewhere by the connector", f"{told} the connector"]
    made.copies.open().submit(Direction.LOAD, [(20, 0)])
    for act, what in ((cache.read, "reads"), (lambda block: cache.write(block, page), "writes")):
        while_ = f"the connector {what} it while load copy 0 (begun for nobody) is under way"
        assert refused(act, 20) == f"rank 1 block 20 (of nobody): {while_}"


# -- what a slot must hold ----------------------------------------------------------------------


def test_it_tells_layer_group_and_rank() -> None:
    keys = [layer_keys(rank, (2, 0, 3)) for rank in range(3)]
    assert all([len(group) for group in each] == [2, 0, 3] for each in keys)
    assert all(group.dtype == np.uint64 for each in keys for group in each)
    assert len({int(key) for each in keys for group in each for key in group}) == 15


def test_it_is_the_same_everywhere_and_for_ever() -> None:
    """Or a seed, or a history that was kept, would no longer show what it did. The first is splitmix64's own."""
    assert mix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF
    assert (root_hash(None, None), root_hash("s", "a")) == (0xBC716AC86A3B732F, 0x614E89E85F587375)
    assert prefix_hashes(1, [0, 7]) == [0x910A2DEC89025CC1, 0x3381D1ECDC901D]
    assert sampled_token(0x3381D1ECDC901D) == 13725
    assert [int(key) for group in layer_keys(2, (1, 1)) for key in group] == [
        0x776B54026F85F921,
        0xBE5E2A8CAE02194A,
    ]


def test_it_is_a_function_of_all_that_came_before() -> None:
    roots = [root_hash(salt, adapter) for salt in (None, "a", "b") for adapter in (None, "a", "b")]
    stories = [(root, tokens) for root in roots for tokens in ((1, 2, 3), (1, 3, 3), (2, 2, 3))]
    last = [prefix_hashes(root, tokens)[-1] for root, tokens in stories]
    assert len(set(roots)) == 9
    assert len(set(last)) == len(last)
    for prompt, length in (((1, 2, 3), 0), ((1, 2, 3), 3), ((5,), 6)):
        tokens, hashes = whole_story(roots[1], prompt, length)
        assert len(tokens) == len(hashes) == max(len(prompt), length)
        assert tokens[: len(prompt)] == prompt
        assert list(hashes) == prefix_hashes(roots[1], tokens)
        sampled = [sampled_token(before) for before in hashes[len(prompt) - 1 : -1]]
        assert list(tokens[len(prompt) :]) == sampled


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
