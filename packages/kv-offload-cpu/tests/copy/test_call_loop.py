"""The compiled loops: which calls they make, in which thread, and where they end."""

import ctypes
import os
import threading
from contextlib import contextmanager

import pytest

from kv_offload_cpu.copy.compiled import Unavailable
from kv_offload_cpu.copy.cuda import call_loop
from kv_offload_cpu.copy.cuda.call_loop import MOST_ARGUMENTS, MOST_LISTS, Calls, Server, find_loop

SECONDS = 20
"""After which a test says that something hangs."""


class Functions:
    """C functions that note what they are called with. ``9`` as the first argument is an error, ``-9`` another."""

    def __init__(self):
        self.seen = []
        self.threads = set()
        self.gate = threading.Event()
        self.gate.set()
        self._kept = []

    def taking(self, *kinds):
        """The address of one that takes arguments of these kinds."""
        made = ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(self._note)
        self._kept.append(made)
        return ctypes.cast(made, ctypes.c_void_p).value

    def _note(self, *arguments):
        assert self.gate.wait(SECONDS)
        self.seen.append(arguments)
        self.threads.add(threading.current_thread().name)
        return {9: 700, -9: -3}.get(arguments[0] if arguments else 0, 0)


@pytest.fixture
def functions():
    return Functions()


@pytest.fixture
def loop():
    found = find_loop()
    assert not isinstance(found, Unavailable), found
    return found


def calls_of(*calls):
    made = Calls()
    for function, *arguments in calls:
        made.add(function, tuple(arguments))
    return made


LONG = ctypes.c_longlong


def test_each_function_gets_its_arguments_in_order(functions, loop):
    one, three, most = (functions.taking(*[LONG] * count) for count in (1, 3, MOST_ARGUMENTS))
    large = (1 << 47) + 1
    calls = calls_of((one, 5), (three, 1, -2, large), (most, *range(10, 21)), (functions.taking(),))
    assert len(calls) == 4
    assert loop.make(calls) == (4, 0)
    assert functions.seen == [(5,), (1, -2, large), (*range(10, 21),), ()]
    assert [calls.function(place) for place in (0, 2)] == [one, most]


def test_a_kernel_is_launched_as_the_driver_declares_it(functions, loop):
    pointer, number = ctypes.c_void_p, ctypes.c_uint
    launch = functions.taking(pointer, *[number] * 7, pointer, pointer, pointer)
    assert loop.make(calls_of((launch, 1 << 40, 2, 1, 1, 64, 1, 1, 65536, 77, 1 << 41, 0))) == (1, 0)
    assert functions.seen == [(1 << 40, 2, 1, 1, 64, 1, 1, 65536, 77, 1 << 41, None)]


@pytest.mark.parametrize(("wrong", "error"), [(9, 700), (-9, -3)])
def test_an_error_ends_a_list_and_says_where(functions, loop, wrong, error):
    one = functions.taking(LONG)
    assert loop.make(calls_of((one, 1), (one, 2), (one, wrong), (one, 4))) == (2, error)
    assert functions.seen == [(1,), (2,), (wrong,)]
    assert loop.make(Calls()) == (0, 0)


@pytest.fixture
def make_server(loop):
    made = []

    def make(around=None):
        @contextmanager
        def nothing():
            yield

        made.append(Server(loop, around or nothing, f"giver-{len(made)}"))
        return made[-1]

    yield make
    for server in made:
        server.end()


def test_lists_are_made_in_order_by_one_thread_of_that_name(functions, make_server):
    one, server = functions.taking(LONG), make_server()
    assert (server.num_made, server.broken) == (0, None)
    kept = [calls_of(*((one, 10 * number + place) for place in range(3))) for number in range(50)]
    for calls in kept:
        server.publish(calls)
    server.end()
    assert functions.seen == [(10 * number + place,) for number in range(50) for place in range(3)]
    assert functions.threads == {"giver-0"}
    assert (server.num_made, server.broken) == (50, None)


def test_the_thread_is_where_it_should_be_and_leaves(functions, make_server):
    where = []

    @contextmanager
    def around():
        where.append(("into", threading.current_thread().name))
        yield
        where.append("out")

    server = make_server(around)
    one = functions.taking(LONG)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(2):  # and may come again
        calls = calls_of((one, number))
        server.publish(calls)
        server.end()
        server.end()
    assert where == [("into", "giver-0"), "out"] * 2
    assert functions.seen == [(0,), (1,)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert "giver-0" not in {thread.name for thread in threading.enumerate()}


def test_a_thread_sleeps_where_there_is_nothing_to_do_and_keeps_no_process_alive(functions, make_server):
    def eventfds():
        paths = {int(name): f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")}
        return {number for number, path in paths.items() if os.path.islink(path) and "event" in os.readlink(path)}

    before, server = eventfds(), make_server()
    calls = calls_of((functions.taking(LONG), 1))
    server.publish(calls)
    [thread] = (thread for thread in threading.enumerate() if thread.name == "giver-0")
    assert thread.daemon
    [descriptor] = eventfds() - before
    assert os.get_blocking(descriptor)
    assert not os.get_inheritable(descriptor)
    server.end()  # while the calls are there


def test_who_publishes_goes_on_meanwhile(functions, make_server):
    one, server = functions.taking(LONG), make_server()
    functions.gate.clear()
    kept = [calls_of((one, number)) for number in range(3)]
    for calls in kept:
        server.publish(calls)
    assert functions.seen == []
    assert server.num_made == 0
    functions.gate.set()
    server.end()
    assert functions.seen == [(0,), (1,), (2,)]


def test_what_comes_after_a_failure_is_left_out_until_it_is_mended(functions, make_server):
    one, server = functions.taking(LONG), make_server()
    kept = [calls_of((one, 1)), calls_of((one, 2), (one, 9), (one, 3)), calls_of((one, 4)), calls_of((one, 9))]
    for calls in kept:
        server.publish(calls)
    server.end()
    assert functions.seen == [(1,), (2,), (9,)]
    assert (server.num_made, server.broken) == (4, (1, 1, 700))
    server.mend()
    assert server.broken is None
    kept = [calls_of((one, 5)), calls_of((one, -9))]
    for calls in kept:
        server.publish(calls)
    server.end()
    assert functions.seen[3:] == [(5,), (-9,)]
    assert (server.num_made, server.broken) == (6, (5, 0, -3))


def test_there_is_room_for_many_lists_and_no_more(functions, make_server):
    one, server = functions.taking(LONG), make_server()
    functions.gate.clear()
    kept = [calls_of((one, 100 + number)) for number in range(MOST_LISTS)]
    for calls in kept:
        server.publish(calls)
    with pytest.raises(AssertionError, match="no room for one more list"):
        server.publish(calls_of((one, 1)))
    functions.gate.set()
    server.end()
    kept = [
        calls_of((one, 100 + number)) for number in range(MOST_LISTS, MOST_LISTS + 9)
    ]  # in the first ones' place
    for calls in kept:
        server.publish(calls)
    server.end()
    assert functions.seen == [(100 + number,) for number in range(MOST_LISTS + 9)]


def test_a_system_without_what_wakes_the_thread_is_told(monkeypatch):
    monkeypatch.delattr(os, "eventfd")
    found = find_loop.__wrapped__()
    assert isinstance(found, Unavailable)
    assert found.reason == "needs a system with eventfd"


def test_it_is_compiled_once_and_for_engines_that_llvmlite_does_not_break(monkeypatch):
    assert find_loop() is find_loop()
    asked = []
    monkeypatch.setattr(
        call_loop, "compiled", lambda *told, **more: asked.append(more) or Unavailable("no", "", 0)
    )
    find_loop.__wrapped__()
    assert asked == [{"for_cpu_engines": False}]
