"""Who gives what was noted: in which order, in which thread, and what becomes of what comes after a failure."""

import ctypes
import gc
import threading
import time
import weakref
from contextlib import contextmanager
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kv_offload_cpu.copy.cuda.call_loop import MOST_LISTS, find_loop
from kv_offload_cpu.copy.cuda.giver import AT_ONCE, Giver

SECONDS = 20


class Device:
    """A function of a driver that notes its argument, and fails for some."""

    def __init__(self):
        self.seen = []
        self.threads = []
        self.wrong = set()
        self.gate = threading.Event()
        self.gate.set()
        self.is_current = threading.local()
        self._made = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64)(self._note)
        self.address = ctypes.cast(self._made, ctypes.c_void_p).value

    def _note(self, number):
        assert self.gate.wait(SECONDS)
        self.note(number)
        return 700 if number in self.wrong else 0

    def note(self, number):
        self.seen.append(number)
        self.threads.append(threading.current_thread().name)
        assert getattr(self.is_current, "now", False), "not on the device"

    @contextmanager
    def on_device(self):
        self.is_current.now = True
        yield
        self.is_current.now = False


HERE = threading.current_thread().name
names = count()


class Setting:
    def __init__(self):
        self.device = Device()
        self.name = f"giver-{next(names)}"
        self.giver = Giver(
            find_loop(), self.device.on_device, {self.device.address: "cuThing"}.__getitem__, self.name
        )

    def note(self, number, copies=1, *kept):
        self.giver.note(self.device.address, (number,), *kept, copies=copies)


@pytest.fixture
def setting():
    one = Setting()
    yield one
    one.device.gate.set()
    one.giver.end()


def test_nothing_is_given_before_it_goes(setting):
    setting.note(1)
    number = setting.giver.number
    assert not setting.giver.is_given(number)
    assert setting.device.seen == []
    setting.giver.go()
    assert setting.giver.is_given(number)
    assert setting.device.seen == [1]
    assert setting.giver.number == number + 1
    setting.giver.go()
    assert setting.giver.number == number + 1, "there was nothing"


@pytest.mark.parametrize(("copies", "is_here"), [(AT_ONCE - 1, True), (AT_ONCE, False)])
def test_few_copies_are_given_by_who_notes_them_and_many_by_the_thread(setting, copies, is_here):
    setting.note(1)
    setting.note(2, copies)
    setting.giver.go()
    setting.giver.wait_for(1)
    assert setting.device.threads == [HERE if is_here else setting.name] * 2


def test_few_copies_wait_behind_those_that_the_thread_has(setting):
    setting.device.gate.clear()
    setting.note(1, 1000)
    setting.giver.go()
    setting.note(2)
    setting.giver.go()
    assert not setting.giver.is_given(1)
    assert not setting.giver.is_given(2)
    setting.device.gate.set()
    setting.giver.wait_for(2)
    assert setting.device.seen == [1, 2]
    assert setting.device.threads == [setting.name] * 2
    setting.note(3)
    setting.giver.go()
    assert setting.device.threads[2] == HERE, "which has nothing to do any more"


def test_what_python_does_is_done_in_its_turn(setting):
    setting.note(1, 1000)
    setting.giver.note_action(lambda: setting.device.note(2))
    setting.note(3)
    setting.giver.go()
    setting.giver.wait_for(1)
    assert setting.device.seen == [1, 2, 3]
    assert setting.device.threads == [setting.name] * 3
    setting.giver.note_action(lambda: setting.device.note(4), copies=AT_ONCE)
    setting.giver.go()
    assert (setting.device.seen[3], setting.device.threads[3]) == (4, HERE)


class Kept:
    """Something."""


@pytest.mark.parametrize("copies", [1, 1000])
def test_what_a_call_reads_is_kept_until_it_was_made(setting, copies):
    setting.device.gate.clear()
    kept = Kept()
    gone = weakref.ref(kept)
    setting.note(1, copies, kept)
    del kept
    gc.collect()
    assert gone() is not None
    if copies > AT_ONCE:
        setting.giver.go()
        assert gone() is not None
    setting.device.gate.set()
    setting.giver.go()
    setting.giver.wait_for(1)
    assert gone() is None


def test_all_that_the_calls_of_a_list_read_is_kept(setting):
    kept = [Kept(), Kept()]
    gone = [weakref.ref(one) for one in kept]
    for one in kept:
        setting.note(1, 1, one)
    del kept, one
    gc.collect()
    assert None not in [ref() for ref in gone]


def until(is_so):
    """Look again and again, as the engine's poll does."""
    for _ in range(1000 * SECONDS):
        if is_so():
            return
        time.sleep(0.001)
    raise AssertionError(f"not within {SECONDS} seconds")


def test_who_only_asks_hears_of_what_the_thread_has_given(setting):
    setting.note(1, 1000)
    setting.giver.go()
    until(lambda: setting.giver.is_given(1))
    setting.device.wrong = {2}
    setting.note(2, 1000)
    setting.giver.go()
    with pytest.raises(RuntimeError, match=r"^cuThing returned error 700$"):
        until(lambda: setting.giver.is_given(2))


def test_few_copies_are_given_here_though_nobody_asked_for_those_that_the_thread_has_given(setting):
    setting.note(1, 1000)
    setting.giver.go()
    until(lambda: setting.giver._server.num_made)
    setting.note(2)
    setting.giver.go()
    assert setting.device.threads == [setting.name, HERE]


@pytest.mark.parametrize("copies", [1, 1000])
def test_what_a_drain_gives_may_fail_and_is_told_afterwards(setting, copies):
    setting.device.wrong = {1}
    setting.note(1, copies)
    setting.giver.drain(lambda: None)
    with pytest.raises(RuntimeError, match=r"^cuThing returned error 700$"):
        setting.giver.is_given(1)


def test_where_a_stream_does_not_become_idle_nothing_more_is_given(setting):
    def fail():
        raise OSError("no such device")

    setting.device.wrong = {1}
    setting.note(1)
    with pytest.raises(OSError, match="no such device"):
        setting.giver.drain(fail)
    setting.note(2)
    setting.giver.go()
    assert setting.device.seen == [1]


@pytest.mark.parametrize("copies", [1, 1000])
def test_after_a_failure_nothing_is_given_until_the_streams_are_idle(setting, copies):
    setting.device.wrong = {2}
    for number in (1, 2, 3, 4):
        setting.note(number, copies)
        setting.note(10 * number)
        setting.giver.go()
    setting.note(5)
    with pytest.raises(RuntimeError, match=r"^cuThing returned error 700$"):
        setting.giver.wait_for(4)
    assert setting.giver.is_given(1)
    for number in (2, 3, 4):
        with pytest.raises(RuntimeError, match=r"^cuThing returned error 700$"):
            setting.giver.is_given(number)
    waited = []
    setting.giver.drain(lambda: waited.append(list(setting.device.seen)))
    assert setting.device.seen == [1, 10, 2]
    assert waited == [[1, 10, 2]]
    with pytest.raises(RuntimeError):
        setting.giver.is_given(5)
    for number in (6, 7):
        setting.note(number, copies)
        setting.giver.go()
    setting.giver.wait_for(7)
    assert setting.device.seen == [1, 10, 2, 6, 7]
    with pytest.raises(RuntimeError):
        setting.giver.is_given(3)


@pytest.mark.parametrize("copies", [1, 1000])
def test_an_error_of_python_is_that_of_its_list_and_of_no_other(setting, copies):
    def fail():
        raise KeyError("what")

    setting.giver.note_action(fail, copies=copies)
    setting.giver.go()
    with pytest.raises(KeyError, match="what"):
        setting.giver.wait_for(1)
    setting.giver.drain(lambda: None)
    setting.device.wrong = {7}
    setting.note(7, copies)
    setting.giver.go()
    with pytest.raises(RuntimeError, match=r"^cuThing returned error 700$"):
        setting.giver.wait_for(2)


def test_a_small_list_after_one_that_failed_here_is_left_out_and_so_is_a_large_one(setting):
    setting.device.wrong = {1}
    setting.note(1)
    setting.giver.go()
    for copies in (1, 1000):
        setting.note(2, copies)
        setting.giver.go()
    with pytest.raises(RuntimeError):
        setting.giver.wait_for(3)
    assert setting.device.seen == [1]


def test_a_list_that_is_being_noted_cannot_be_waited_for(setting):
    setting.note(1)
    with pytest.raises(AssertionError, match="list 1 is still being noted"):
        setting.giver.wait_for(1)


def test_more_lists_than_there_is_room_for_wait_for_some(setting):
    setting.device.gate.clear()
    threading.Timer(0.2, setting.device.gate.set).start()  # when there is no more room, or not much later
    for number in range(2 * MOST_LISTS + 7):
        setting.note(number, 1000)
        setting.giver.go()
    setting.giver.end()
    assert setting.device.seen == [*range(2 * MOST_LISTS + 7)]


def test_the_end_gives_what_was_noted_and_may_come_twice(setting):
    setting.note(1, 1000)
    setting.giver.end()
    setting.giver.end()
    assert setting.device.seen == [1]
    assert setting.giver.is_given(1)
    assert setting.name not in {thread.name for thread in threading.enumerate()}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_cannot_get_to_the_device_hangs_nobody():
    setting = Setting()

    @contextmanager
    def lost():
        raise OSError("no such device")
        yield

    setting.giver._server._around = lost
    for number in (1, 2):
        setting.note(number, 1000)
        setting.giver.go()
    for number in (1, 2):
        with pytest.raises(RuntimeError, match="the thread that issues copies has ended"):
            setting.giver.wait_for(number)
    setting.note(3)
    setting.giver.go()
    with pytest.raises(RuntimeError, match="the thread that issues copies has ended"):
        setting.giver.is_given(3)
    setting.giver.drain(lambda: None)
    setting.giver._server._around = setting.device.on_device
    for number in (4, 5):
        setting.note(number, 1000)
        setting.giver.go()
    setting.giver.end()
    assert setting.device.seen == [4, 5], "and nothing of what was left"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_cannot_get_to_the_device_is_drained_at_once():
    setting = Setting()
    setting.giver._server._around = lambda: None  # which is no place to be
    setting.note(1, 1000)
    setting.giver.drain(lambda: None)
    with pytest.raises(RuntimeError, match="the thread that issues copies has ended"):
        setting.giver.is_given(1)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.lists(st.integers(1, AT_ONCE), min_size=1, max_size=3), st.booleans()), max_size=12),
    st.data(),
)
def test_any_lists_are_given_in_order_up_to_what_failed(lists, data):
    setting, noted, number = Setting(), [], 0
    total = sum(len(entries) for entries, _ in lists)
    setting.device.wrong = data.draw(st.sets(st.integers(0, max(0, total - 1)), max_size=1))
    for entries, waits in lists:
        of_list = []
        for copies in entries:
            setting.note(number, copies)
            of_list.append(number)
            number += 1
        noted.append((setting.giver.number, of_list))
        setting.giver.go()
        if waits:
            try:
                setting.giver.wait_for(noted[-1][0])
            except RuntimeError:
                assert setting.device.wrong & set(range(number))
    setting.giver.end()
    [broken] = setting.device.wrong or [total]
    assert setting.device.seen == [*range(min(broken + 1, total))]
    for list_number, of_list in noted:
        if broken > of_list[-1]:
            assert setting.giver.is_given(list_number)
        else:
            with pytest.raises(RuntimeError):
                setting.giver.is_given(list_number)
