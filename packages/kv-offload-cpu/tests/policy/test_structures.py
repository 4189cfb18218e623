"""The queues that policies are made of, against lists; and that what is dead in them doesn't pile up."""

from hypothesis import given, settings
from hypothesis import strategies as st
from kv_offload_cpu_models import LRUModel

from kv_offload_cpu import Run
from kv_offload_cpu.policy.fifo import Fifo, Ghosts
from kv_offload_cpu.policy.recency import RecencyList
from kv_offload_cpu.slots.pins import Pins

FEWER = settings(max_examples=max(10, settings().max_examples // 2))
"""One of these takes long."""

CAPACITY = 16
slots = st.integers(0, CAPACITY - 1)


@FEWER
@given(st.lists(st.tuples(st.sampled_from(["push", "push", "remove", "pop"]), slots), max_size=300))
def test_fifo(actions):
    queue, model = Fifo(), []
    for action, item in actions:
        if action == "push" and item not in model:
            queue.push([item])
            model.append(item)
        elif action == "remove" and item in model:
            queue.remove(item)
            model.remove(item)
        elif action == "pop" and model:
            assert queue.take(1) == [model.pop(0)]
        queue.check()
        assert list(queue) == model
        assert len(queue) == len(model)


@FEWER
@given(st.lists(st.tuples(st.sampled_from(["push", "push", "remove", "take"]), st.integers(0, 700)), max_size=40))
def test_fifo_by_batches(actions):
    """Batches that are longer and shorter than a stretch, and items that come back."""
    queue, model, left, new = Fifo(), [], [], 0
    for action, number in actions:
        if action == "push":
            items = [*left[: number % 3], *range(new, new + number)]
            new += number
            del left[: number % 3]
            queue.push(items)
            model += items
        elif action == "remove":
            for item in model[number : number + 40]:
                queue.remove(item)
                model.remove(item)
                left.append(item)
        else:
            count = min(number, len(model))
            lead = queue.lead(count)
            assert lead == model[: len(lead)]
            assert queue.take(count) == model[:count]
            left += model[:count][-2:]
            del model[:count]
        queue.check()
        assert list(queue) == model
        assert len(queue) == len(model)
        assert max(map(len, queue._stretches), default=0) < 256 + 703


def test_the_lead_of_a_fifo_is_within_a_stretch_and_has_nothing_dead():
    queue = Fifo()
    assert queue.lead(1) == []
    queue.push(range(300))
    queue.push(range(300, 310))
    queue.take(3)
    assert (queue.lead(2), queue.lead(1000)) == ([3, 4], [*range(3, 300)])
    queue.remove(5)
    assert (queue.lead(2), queue.lead(3)) == ([3, 4], [])
    queue.take(2)
    assert (queue.lead(1), queue.take(1), queue.lead(2)) == ([], [6], [7, 8])


def test_a_swept_fifo_does_not_keep_what_is_taken():
    """Taken items stay in their stretch until all of it is taken, so no stretch is long."""
    queue = Fifo()
    queue.push(range(3000))
    for item in range(0, 3000, 2):
        queue.remove(item)
    for item in range(1, 301, 2):
        queue.remove(item)
    assert queue._dead_count < 1000
    assert max(map(len, queue._stretches)) <= 512
    assert list(queue) == [*range(301, 3000, 2)]
    assert queue.take(3) == [301, 303, 305]


def test_an_item_that_was_taken_out_twice():
    queue = Fifo()
    for _ in range(2):
        queue.push("a")
        queue.remove("a")
    queue.push("ba")
    assert queue.take(1) == ["b"]
    queue.check()
    assert list(queue) == ["a"]
    assert not queue._dead, "nothing is known of what is gone"


def test_fifo_sweeps():
    queue = Fifo()
    queue.push(range(10))
    for _ in range(10_000):
        queue.remove(3)
        queue.push([3])
        assert queue._size <= 2 * len(queue) + 65
    queue.check()
    assert list(queue) == [0, 1, 2, 4, 5, 6, 7, 8, 9, 3]


def test_a_place_that_is_not_known_is_before_nothing_and_after_nothing():
    run = Run({0: 10, 1: 20, 2: 20}.get)
    assert run.is_before(0, 1)
    assert not any(run.is_before(*pair) for pair in [(1, 0), (1, 2), (0, 3), (3, 0), (3, 3)])
    assert (run.in_token_order([1, 0]), run.in_token_order([1, 3, 0])) == ([0, 1], [1, 3, 0])
    run.close()
    assert not run.is_before(0, 1) and run.in_token_order([1, 0]) == [1, 0]


def test_ghosts():
    ghosts = Ghosts()
    ghosts.add([b"a", b"b", b"c"])
    ghosts.remove(b"b")
    ghosts.forget(1)
    assert list(ghosts) == [b"c"]
    ghosts.forget(3)  # c, and two that are yet to come
    ghosts.add([b"d", b"e", b"f"])
    ghosts.check()
    assert (list(ghosts), b"d" in ghosts, b"f" in ghosts, len(ghosts)) == ([b"f"], False, True, 1)
    ghosts.forget(2)  # f, and one that is yet to come
    ghosts.clear()
    ghosts.check()
    assert list(ghosts) == []


def test_two_lists_of_ghosts():
    one, two = Ghosts(), Ghosts()
    one.add([b"a", b"b", b"c"])
    two.add([b"d", b"e"])
    assert [key in one for key in (b"a", b"d", b"x")] == [True, False, False]
    one.forget(2)
    two.remove(b"d")
    for ghosts in (one, two):
        ghosts.check()
    assert (list(one), list(two), one.keys, two.keys) == ([b"c"], [b"e"], {b"c"}, {b"e"})
    one.forget(3)  # two that are yet to come: nothing of the other list
    one.add([b"f", b"g", b"h"])
    one.clear()
    for ghosts in (one, two):
        ghosts.check()
    assert (list(one), list(two), one.keys, two.keys) == ([], [b"e"], set(), {b"e"})


uses = st.tuples(st.just("use"), st.lists(slots, min_size=1, max_size=5, unique=True), st.integers(0, 3))
others = st.tuples(
    st.sampled_from(["pop", "remove", "renew", "take over"]),
    st.lists(slots, max_size=3, unique=True),
    st.integers(0, 3),
)


@FEWER
@given(
    actions=st.lists(uses | others, min_size=30, max_size=250),
    pinned=st.sets(slots, max_size=3),
    tells_order=st.booleans(),
)
def test_recency_list(actions, pinned, tells_order):
    """Where requests tell the order of their tokens, a slot has another place in it whenever it is filled anew."""
    recency, model = RecencyList([None] * CAPACITY), LRUModel(CAPACITY)
    place_of = {slot: 5 * slot % 17 for slot in range(CAPACITY)}
    runs = [Run(place_of.get) if tells_order else Run() for _ in range(4)]
    pins = Pins(CAPACITY)
    pins.pin([*pinned])
    parked = {}
    for action, some, number in actions:
        held = list(recency)
        some = sorted(some, key=place_of.get) if tells_order else some
        if action == "use":
            recency.use(some, runs[number], len(set(some).difference(held)))
            model.access(some, runs[number])
            for slot in some:
                parked.pop(slot, None)
        elif action == "take over" and model.runs:
            again = [*model.runs[len(some) % len(model.runs)][1]]
            recency.use(again, runs[number])
            model.access(again, runs[number])
        elif action == "pop":
            unpinned = [slot for slot in held if slot not in pinned]
            count = min(number, len(unpinned))
            taken = recency.pop(count, pins, parked)
            assert taken == [model.evict(pins) for _ in range(count)]
            place_of |= {slot: (place_of[slot] + 7) % 17 for slot in taken}
        elif action == "remove":
            taken = [slot for slot in some if slot in held]
            recency.remove(taken)
            model.remove(taken)
            place_of |= {slot: (place_of[slot] + 7) % 17 for slot in taken}
        elif action == "renew":
            recency.renew(runs[number])
            model.finish(runs[number])
        recency.check()
        assert list(recency) == [slot for _, slots in model.runs for slot in reversed(slots)]
        assert (list(parked), len(recency)) == (model.parked, len(list(recency)))


def test_what_comes_late_takes_its_place_without_a_look_at_all_before_it():
    """Of chunks that were in use when room was made, as of a request that evicts its own."""
    places = [None] * 20_000
    recency, looked, run = RecencyList(places), [], Run(lambda slot: looked.append(slot) or slot)
    recency.use(range(10_000), run, 10_000)
    recency.use(range(10_032, 10_064), run, 32)
    recency.use(range(10_000, 10_032), run, 32)
    recency.renew(run)
    assert len(looked) < 200
    recency.check()
    assert list(recency) == [*reversed(range(10_064))]


def test_many_that_come_late_one_by_one_are_put_in_order_once():
    """As of a model with states: each is a store by itself, after the tokens' chunks."""
    recency, looked, run = RecencyList([None] * 2000), [], Run(lambda slot: looked.append(slot) or slot)
    recency.use(range(0, 2000, 2), run, 1000)
    for slot in range(1, 2000, 2):
        recency.use([slot], run, 1)
    assert recency.pop(2, Pins(2000), {}) == [1999, 1998]
    assert 0 < len(looked) < 8000
    looked.clear()
    assert recency.pop(2, Pins(2000), {}) == [1997, 1996]
    assert not looked
    recency.check()
    assert list(recency) == [*reversed(range(1996))]


def test_the_order_is_made_before_the_request_can_not_tell_it_any_more():
    recency, run = RecencyList([None] * CAPACITY), Run(lambda slot: slot)
    for slot in (1, 4, 3, 2):
        recency.use([slot], run, 1)
    assert [*recency._stretches[run]] == [1, 4, 3, 2]
    recency.renew(run)
    run.close()
    recency.check()
    assert list(recency) == [4, 3, 2, 1]


def test_what_came_late_is_taken_over_in_its_order():
    recency, run, other = RecencyList([None] * CAPACITY), Run(lambda slot: slot), Run()
    for slot in (1, 4, 3, 2):
        recency.use([slot], run, 1)
    assert recency.move_whole([1, 2, 3, 4], other, recency)
    recency.check()
    assert (list(recency), recency._entries) == ([4, 3, 2, 1], 4)


def test_what_comes_late_takes_its_place_among_dead_entries():
    token_of = {1: 10, 5: 20, 2: 25, 3: 30, 4: 15, 6: 5, 7: 12, 8: 11}
    recency, run, other = RecencyList([None] * CAPACITY), Run(token_of.get), Run()
    recency.use([1, 5, 2, 3], run, 4)
    recency.use([2], other)
    token_of[2] = 1  # filled anew, with another chunk of the same request
    recency.use([4], run, 1)
    recency.check()
    assert list(recency) == [2, 3, 5, 4, 1]
    recency.use([3], other)
    token_of[3] = 2
    recency.use([7], run, 1)  # before what is live at the end, and after the dead one there
    recency.use([6], run, 1)
    recency.check()
    assert list(recency) == [3, 2, 5, 4, 7, 1, 6]
    recency.renew(run)
    recency.use([5, 4], other)
    token_of |= {5: 0, 4: 0}
    recency.use([8], run, 1)  # the same, with several dead ones
    recency.check()
    assert list(recency) == [4, 5, 3, 2, 7, 8, 1, 6]


def test_recency_list_sweeps():
    recency, most = RecencyList([None] * CAPACITY), 0
    for number in range(10_000):
        recency.use(range(CAPACITY), Run(), CAPACITY if number == 0 else 0)
        most = max(most, recency._entries)
    assert CAPACITY + 64 < most <= 2 * CAPACITY + 64, "a sweep looks at all entries: not for a few dead ones"
    recency.check()
    assert len(recency._stretches) <= 6
    assert list(recency) == list(reversed(range(CAPACITY)))


def test_what_nobody_uses_again_keeps_no_dead_entries_behind_it():
    recency = RecencyList([None] * CAPACITY)
    recency.use([0], Run(), 1)
    for number in range(1000):
        recency.use(range(1, CAPACITY), Run(), CAPACITY - 1 if number == 0 else 0)
    assert recency._entries <= 2 * CAPACITY + 64
    recency.check()
    assert list(recency) == [0, *reversed(range(1, CAPACITY))]


def test_a_stretch_is_taken_over_as_it_is():
    recency, one, two, three = RecencyList([None] * CAPACITY), Run(), Run(), Run()
    recency.use([1, 2, 3], one, 3)
    recency.use([1, 2, 3], two)
    assert (recency._entries, [*recency._stretches]) == (3, [two])
    recency.use([7], one, 1)  # who lost it begins anew
    recency.use([2], three)
    recency.use([1, 2, 3], Run())  # the same slots as the stretch of two, in which 2 is dead
    recency.check()
    assert list(recency) == [7, 3, 2, 1]
    recency.use([1, 2, 3], one)  # who has a stretch goes on with it
    recency.check()
    assert list(recency) == [3, 2, 1, 7]


def test_a_stretch_moves_between_lists_of_one_pool():
    places = [None] * CAPACITY
    first, second, run = RecencyList(places), RecencyList(places), Run()
    first.use([1, 2], run, 2)
    second.use([3], Run(), 1)
    for some in ([1], [2, 1], [3]):
        assert not first.move_whole(some, run, second)
    assert first.move_whole([1, 2], run, second)
    assert (list(first), list(second), first.among([1, 2, 3]), second.among([1, 2, 3])) == (
        [], [3, 2, 1], [], [1, 2, 3],
    )  # fmt: skip
    second.use([3], run)
    first.use([4, 5], run, 2)
    assert not first.move_whole([4, 5], run, second)  # the request has a stretch there
    for each in (first, second):
        each.check()
    assert (list(first), list(second)) == ([5, 4], [3, 2, 1])
