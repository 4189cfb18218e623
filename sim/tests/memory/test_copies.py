"""The copies of a rank: when a copy may start, what it leaves behind, what its worker hears."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from kv_api import Direction
from kv_sim.memory.copies import Copies, CopyQueue
from kv_sim.memory.copy import Copy, Result, State
from kv_sim.memory.settled import Offer, Settled


@dataclass
class Pages:
    """A device that only writes down what happens."""

    retired: int = 0
    moved: list[tuple[int, int, int]] = field(default_factory=list)
    settled: Settled = field(default_factory=Settled)

    @property
    def retired_steps(self) -> int:
        return self.retired

    def retire_until(self, step: int) -> None:
        self.retired = max(self.retired, step)

    def must_have(self, block: int, who: str) -> None:
        assert block < 100, who

    def owner(self, block: int) -> str:
        return f"request r{block // 2}"

    def move_page(self, copy: Copy, block: int, slot: int) -> None:
        self.moved.append((copy.copy_id, block, slot))


def made() -> tuple[Copies, CopyQueue, Pages]:
    pages = Pages()
    copies = Copies(pages)
    return copies, copies.open(), pages


def test_a_copy_waits_for_the_steps_before_it() -> None:
    copies, queue, pages = made()
    copies.launched_steps = 2
    waits = queue.submit(Direction.STORE, [(1, 0)])
    hurries = queue.submit(Direction.STORE, [(2, 1)], after_compute=False)
    assert [copy.copy_id for copy in copies.startable()] == [hurries]
    pages.retired = 1
    assert [copy.copy_id for copy in copies.startable()] == [hurries]
    pages.retired = 2
    assert [copy.copy_id for copy in copies.startable()] == [waits, hurries]


def test_copies_of_one_stream_run_in_order() -> None:
    copies, queue, _ = made()
    first = queue.submit(Direction.LOAD, [(1, 0)], stream="loads")
    second = queue.submit(Direction.LOAD, [(2, 1)], stream="loads")
    other = queue.submit(Direction.LOAD, [(3, 2)])
    assert [copy.copy_id for copy in copies.startable()] == [first, other]
    copies.fail(copies.running[first])
    assert [copy.copy_id for copy in copies.startable()] == [second, other]


def test_a_copy_advances_in_pieces_and_is_reported_once() -> None:
    copies, queue, pages = made()
    copy_id = queue.submit(Direction.STORE, [(1, 0), (2, 1), (3, 2)])
    copy = copies.running[copy_id]
    copies.advance(copy, 2)
    assert pages.moved == [(copy_id, 1, 0), (copy_id, 2, 1)]
    assert copy.blocks_left == [3]
    assert queue.poll() == []
    copies.advance(copy, 2)
    assert queue.poll() == [Result(copy_id, True)]
    assert queue.poll() == []
    copies.repeat(copy)
    assert queue.poll() == [Result(copy_id, True)]


def test_a_torn_copy_leaves_what_it_moved() -> None:
    copies, queue, pages = made()
    copy_id = queue.submit(Direction.LOAD, [(1, 0), (2, 1)])
    copy = copies.running[copy_id]
    copies.advance(copy, 1)
    copies.fail(copy)
    assert pages.moved == [(copy_id, 1, 0)]
    assert queue.poll() == [Result(copy_id, False)]
    copies.check()


def test_waiting_runs_what_has_to_come_first() -> None:
    copies, queue, pages = made()
    copies.launched_steps = 3
    first = queue.submit(Direction.STORE, [(1, 0), (4, 4), (5, 5)], stream="s")
    second = queue.submit(Direction.STORE, [(2, 1), (3, 2)], stream="s")
    copies.advance(copies.running[first], 1)
    assert queue.wait([second, 99]) == set()
    assert pages.retired == 3
    assert pages.moved == [(first, 1, 0), (first, 4, 4), (first, 5, 5), (second, 2, 1), (second, 3, 2)]
    assert queue.poll() == [Result(first, True), Result(second, True)]


def test_a_lost_copy_never_ends_and_keeps_nobody_waiting() -> None:
    copies, queue, pages = made()
    lost, behind, last = (queue.submit(Direction.STORE, [(n, n)], stream="s") for n in (1, 2, 3))
    copies.lose(copies.running[lost])
    assert [copy.copy_id for copy in copies.startable()] == [behind]
    assert queue.wait([lost, last]) == {lost}
    assert pages.moved == [(behind, 2, 2), (last, 3, 3)]
    assert queue.poll() == [Result(behind, True), Result(last, True)]


def test_a_lost_copy_may_be_found_unless_somebody_was_told_that_it_is_not() -> None:
    copies, queue, pages = made()
    found, waited, given_up = (queue.submit(Direction.STORE, [(n, n), (n, n + 3)], stream="s") for n in (1, 2, 3))
    copies.advance(copies.running[found], 1)
    for copy_id in (found, waited, given_up):
        copies.lose(copies.running[copy_id])
    assert [copy.copy_id for copy in copies.lost()] == [found, waited, given_up]
    queue.give_up([given_up, 99])
    assert queue.wait([waited]) == {waited}
    assert [copy.copy_id for copy in copies.waited] == [waited], "somebody stood still for it"
    assert [copy.copy_id for copy in copies.lost()] == [found]
    copies.find(copies.running[found])
    assert copies.lost() == []
    assert [copy.copy_id for copy in copies.startable()] == [found]
    copies.advance(copies.running[found], 1)
    assert queue.poll() == [Result(found, True)]
    assert pages.moved == [(found, 1, 1), (found, 1, 4)]
    assert [copy.was_lost for copy in copies.ended] == [True]
    copies.check()


def test_workers_hear_of_their_own_copies_only() -> None:
    copies, mine, _ = made()
    yours = copies.open()
    copy_id = mine.submit(Direction.STORE, [])
    assert yours.poll() == []
    assert mine.poll() == [Result(copy_id, True)]


@given(st.lists(st.tuples(st.sampled_from(["submit", "advance", "fail", "lose", "poll"]), st.integers(0, 5))))
def test_every_copy_is_reported_exactly_once_or_never_ends(script: list[tuple[str, int]]) -> None:
    copies, queue, _ = made()
    heard: list[int] = []
    for what, number in script:
        running = list(copies.running.values())
        if what == "submit":
            queue.submit(Direction.STORE, [(block + 1, block) for block in range(number)])
        elif what == "poll":
            heard += [result.copy_id for result in queue.poll()]
        elif running:
            copy = running[number % len(running)]
            if copy.state is State.RUNNING:
                {"advance": lambda c: copies.advance(c, 1), "fail": copies.fail, "lose": copies.lose}[what](copy)
        copies.check()
    heard += [result.copy_id for result in queue.poll()]
    assert sorted(heard) == sorted(copy.copy_id for copy in copies.ended)


def test_a_copy_knows_for_whom_it_was_begun() -> None:
    copies, queue, _ = made()
    copy_id = queue.submit(Direction.STORE, [(2, 0), (3, 1), (4, 2)])
    assert copies.running[copy_id].owners == ("request r1", "request r2")


def test_a_copy_knows_what_was_said_of_its_blocks_before_it() -> None:
    copies, queue, pages = made()
    pages.settled.begin_step([], [Offer("r1", 3, 1), Offer("r2", 9, 2)])
    one = copies.running[queue.submit(Direction.STORE, [(2, 0), (3, 1)])]
    pages.settled.begin_step([], [Offer("r1", 3, 5)])
    assert one.settled == {3: ("r1", 1)}


def test_a_restart_fails_every_copy_once_and_loads_find_nothing_until_a_store() -> None:
    copies, queue, pages = made()
    done, torn, lost = (queue.submit(Direction.STORE, [(n, n), (n + 1, n + 1)]) for n in (1, 3, 5))
    copies.advance(copies.running[done], 2)
    copies.advance(copies.running[torn], 1)
    copies.lose(copies.running[lost])
    copies.restart(4)
    assert not copies.running
    assert queue.poll() == [Result(done, True), Result(torn, False), Result(lost, False)]
    store = queue.submit(Direction.STORE, [(1, 1)])
    copies.advance(copies.running[store], 1)
    pages.moved.clear()
    found, gone, beyond = (queue.submit(Direction.LOAD, pairs) for pairs in ([(7, 1)], [(7, 1), (8, 2)], [(9, 4)]))
    for copy_id in (found, gone, beyond):
        copies.advance(copies.running[copy_id], 2)
    assert queue.poll() == [Result(store, True), Result(found, True), Result(gone, False), Result(beyond, True)]
    assert pages.moved == [(found, 7, 1), (gone, 7, 1), (beyond, 9, 4)]
    copies.check()


def test_loads_that_fail_are_counted_by_the_slot_that_is_empty_until_it_is_filled() -> None:
    copies, queue, _ = made()
    copies.restart(3)
    for pairs, failed in (([(1, 1)], {1: 1}), ([(7, 5), (8, 1), (9, 2)], {1: 2}), ([(2, 2)], {1: 2, 2: 1})):
        load = queue.submit(Direction.LOAD, pairs)
        copies.advance(copies.running[load], len(pairs))
        assert copies.failed_slots == failed
    store = queue.submit(Direction.STORE, [(1, 1)])
    copies.advance(copies.running[store], 1)
    assert copies.failed_slots == {2: 1}
    copies.fail(copies.running[queue.submit(Direction.LOAD, [(1, 1)])])
    assert copies.failed_slots == {2: 1}, "the copy failed, not the slot"


def test_a_restart_that_keeps_the_memory_only_ends_copies() -> None:
    copies, queue, _ = made()
    store = queue.submit(Direction.STORE, [(1, 0)])
    copies.restart(0)
    load = queue.submit(Direction.LOAD, [(2, 0)])
    copies.advance(copies.running[load], 1)
    assert queue.poll() == [Result(store, False), Result(load, True)]


def test_what_a_restart_lost_is_still_lost_after_one_that_keeps_the_memory() -> None:
    copies, queue, _ = made()
    copies.restart(2)
    copies.restart(0)
    loads = [queue.submit(Direction.LOAD, [(block, slot)]) for block, slot in ((1, 1), (2, 2))]
    for load in loads:
        copies.advance(copies.running[load], 1)
    assert queue.poll() == [Result(loads[0], False), Result(loads[1], True)]


def test_the_copy_that_is_waited_for_fails_and_no_other() -> None:
    copies, queue, pages = made()
    before, waited, after = (queue.submit(Direction.LOAD, [(1 + n, n)], stream="loads") for n in range(3))
    copies.spoiled = True
    assert queue.wait([waited]) == set()
    assert queue.poll() == [Result(before, True), Result(waited, False)]
    assert queue.wait([after]) == set()
    assert queue.poll() == [Result(after, True)]
    assert pages.moved == [(before, 1, 0), (after, 3, 2)]


def test_of_what_is_waited_for_the_next_load_fails() -> None:
    copies, queue, pages = made()
    store, load, after = (
        queue.submit(direction, [(1 + n, n)])
        for n, direction in enumerate((Direction.STORE, Direction.LOAD, Direction.LOAD))
    )
    copies.spoiled_load = True
    assert queue.wait([store, load, after]) == set()
    assert queue.poll() == [Result(store, True), Result(load, False), Result(after, True)]
    assert pages.moved == [(store, 1, 0), (after, 3, 2)]
