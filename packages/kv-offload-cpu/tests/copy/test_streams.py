"""Streams and events by the driver's own functions: what is noted, what is asked, which events are used again."""

import ctypes
import gc
import threading
from itertools import count

import pytest
from kv_offload_cpu_driver import CONTEXT, FakeBindings

from kv_api import ConfigError
from kv_offload_cpu.copy.cuda.call_loop import find_loop
from kv_offload_cpu.copy.cuda.streams import AtOnce, Functions, Noted

handles = count(0x500)


class Event:
    def __init__(self, *, knows_time):
        self.on = None
        self.knows_time = knows_time

    def record(self, stream):
        self.on = stream


class Stream:
    def __init__(self):
        self.cuda_stream = next(handles)
        self.held_by = []

    def wait_event(self, event):
        self.held_by.append(event)


class Torch:
    def __init__(self, bindings):
        self.compute = Stream()
        self.on_device = bindings.current

    def new_stream(self):
        return Stream()

    def compute_stream(self):
        return self.compute

    def new_event(self, *, knows_time):
        return Event(knows_time=knows_time)


@pytest.fixture
def bindings(monkeypatch):
    found = FakeBindings()
    for module in ("batch_call", "streams"):
        monkeypatch.setattr(f"kv_offload_cpu.copy.cuda.{module}.load_bindings", lambda purpose: found)
    return found


@pytest.fixture
def noted(bindings):
    made = Noted(Torch(bindings), Functions(), find_loop())
    yield made
    made.shutdown()


def go(noted, stream, copies=1):
    """Have a list given by the caller, or by the thread."""
    noted.call(stream, "cuStreamSynchronize", (stream.handle,), copies=copies)
    noted.go(stream)


FEW, MANY = 1, 1000


@pytest.mark.parametrize("copies", [FEW, MANY])
def test_an_event_is_reached_when_it_was_recorded_and_not_before(noted, bindings, copies):
    stream = noted.new_stream()
    event = noted.mark(stream)
    assert not noted.is_reached(event), "though the driver says so of an event that was never recorded"
    assert "cuEventQuery" not in bindings.calls
    go(noted, stream, copies)
    noted.wait_for(event)
    assert noted.is_reached(event)
    assert bindings.events[event.handle].on == stream.handle
    assert bindings.calls[-2:] == ["cuEventSynchronize", "cuEventQuery"]


def test_an_event_that_the_device_has_not_reached_is_not(noted, bindings, monkeypatch):
    stream = noted.new_stream()
    event = noted.mark(stream)
    go(noted, stream)
    result = noted._functions.result
    answers = {"cuEventQuery": 600}
    monkeypatch.setattr(noted._functions, "result", lambda name, *told: answers.get(name) or result(name, *told))
    assert not noted.is_reached(event)
    for error in (1, 719):
        answers["cuEventQuery"] = error
        with pytest.raises(RuntimeError, match=rf"^cuEventQuery returned error {error}$"):
            noted.is_reached(event)


def test_the_compute_streams_event_is_recorded_at_once(noted, bindings):
    event = noted.mark_compute()
    assert bindings.calls[-2:] == ["cuEventCreate", "cuEventRecord"]
    assert bindings.events[event.handle].on == noted._torch.compute.cuda_stream
    assert noted.is_reached(event)
    noted.wait_for(event)


def test_streams_beside_each_other_keep_one_order_and_others_have_their_own(noted, bindings):
    one = noted.new_stream()
    beside, other = noted.new_stream(one), noted.new_stream()
    assert one.giver is beside.giver is not other.giver
    assert len({one.handle, beside.handle, other.handle}) == 3
    noted.hold(other, noted.mark(beside))  # which the fake driver would refuse before it is recorded
    noted.hold(one, noted.mark(beside))
    noted.hold(beside, noted.mark(one))
    noted.go(one)
    assert bindings.calls[-4:] == ["cuEventRecord", "cuEventRecord", "cuStreamWaitEvent", "cuEventRecord"] or (
        bindings.calls.count("cuStreamWaitEvent") == 2
    )
    noted.go(other)
    assert noted.is_reached(noted.mark_compute())


@pytest.mark.parametrize("copies", [FEW, MANY])
def test_a_thread_has_the_devices_context_and_its_lanes_name(noted, bindings, copies):
    stream = noted.new_stream()
    seen = []
    noted.act(stream, lambda: seen.append((threading.current_thread().name, bindings._contexts.current)), copies)
    noted.go(stream)
    noted.drain(stream)
    name = "kv-offload-copies-0" if copies == MANY else threading.current_thread().name
    assert seen == [(name, CONTEXT)]
    assert bindings._contexts.current is None, "whoever gives is then back where it was"


def test_many_copies_are_given_by_the_thread_of_their_lane(noted, bindings):
    streams = [noted.new_stream() for _ in range(3)]
    for stream in streams:
        go(noted, stream, MANY)
        noted.drain(stream)
    given = dict.fromkeys(name for name in bindings.threads if name.startswith("kv-"))
    assert [*given] == [f"kv-offload-copies-{number}" for number in range(3)]


def test_an_event_is_used_again_when_nobody_has_it(noted, bindings):
    stream = noted.new_stream()
    event = noted.mark(stream)
    handle = event.handle
    del event
    gc.collect()
    other = noted.mark(stream)
    assert other.handle != handle, "it is noted, and not given yet"
    go(noted, stream)
    del other
    gc.collect()
    assert noted.mark(stream).handle in (handle, handle + 1)
    made = bindings.calls.count("cuEventCreate")
    kept = [noted.mark(stream) for _ in range(3)]
    assert len({event.handle for event in kept}) == 3
    assert bindings.calls.count("cuEventCreate") > made


def test_an_event_that_is_to_be_waited_for_is_not_used_again_before(noted):
    stream = noted.new_stream()
    event = noted.mark_compute()
    handle = event.handle
    noted.hold(stream, event)
    del event
    gc.collect()
    assert noted.mark_compute().handle != handle
    noted.go(stream)
    gc.collect()
    assert handle in noted._shelves[False]


def test_events_that_know_their_time_are_others(noted, bindings):
    stream = noted.new_stream()
    plain = noted.mark(stream)
    begin, end = (noted.mark(stream, knows_time=True) for _ in range(2))
    go(noted, stream)
    bindings.events[begin.handle].at, bindings.events[end.handle].at = 1000.0, 3500.0
    assert noted.seconds_between(begin, end) == 2.5
    with pytest.raises(RuntimeError, match=r"^cuEventElapsedTime returned error 400$"):
        noted.seconds_between(plain, end)
    handle = plain.handle
    del plain
    gc.collect()
    assert noted.mark(stream, knows_time=True).handle != handle


@pytest.mark.parametrize("copies", [FEW, MANY])
def test_a_call_that_fails_is_told_by_who_is_asked_for_what_comes_after(noted, bindings, copies):
    stream = noted.new_stream()
    before = noted.mark(stream)
    go(noted, stream, copies)
    noted.wait_for(before)
    bindings.failing = {"cuMemcpyAsync": 0}
    noted.mark(stream)
    noted.call(stream, "cuMemcpyAsync", (1, 2, 3, stream.handle), copies=copies)
    after = noted.mark(stream)
    noted.go(stream)
    for ask in (noted.wait_for, noted.is_reached):
        with pytest.raises(RuntimeError, match=r"^cuMemcpyAsync returned error 1$"):
            ask(after)
    assert noted.is_reached(before)
    assert bindings.events[after.handle].at is None
    noted.drain(stream)
    bindings.failing = {}
    later = noted.mark(stream)
    go(noted, stream, copies)
    noted.wait_for(later)
    assert noted.is_reached(later)


def test_a_drain_gives_what_is_noted_before_it_waits(noted, bindings):
    stream = noted.new_stream()
    event = noted.mark(stream)
    noted.drain(stream)
    assert noted.is_reached(event)
    assert bindings.calls.index("cuEventRecord") < bindings.calls.index("cuStreamSynchronize")


def test_shutdown_gives_back_events_and_threads(noted, bindings):
    for _ in range(2):
        stream = noted.new_stream()
        events = [noted.mark(stream, knows_time=knows_time) for knows_time in (False, True)]
        go(noted, stream, MANY)
        noted.wait_for(events[-1])
    del events
    gc.collect()
    noted.shutdown()
    assert bindings.events == {}
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kv-offload-copies")]
    noted.shutdown()


def test_a_device_that_takes_no_event_back_lets_the_shutdown_end(noted, bindings):
    noted.mark_compute()
    gc.collect()
    bindings.failing = {"cuEventDestroy": 0}
    noted.shutdown()
    assert bindings.calls[-1] == "cuEventDestroy"


def test_functions_are_found_once_and_known_by_where_they_are(bindings, monkeypatch):
    left = {b"one": 0x300, b"two": 0x100, b"three": 0x200}
    monkeypatch.setattr(bindings, "cuGetProcAddress", lambda symbol, *_: (0, left.pop(symbol), 0), raising=False)
    functions = Functions()
    for _ in range(2):
        assert [functions.address(name) for name in ("one", "two", "three")] == [0x300, 0x100, 0x200]
    assert [functions.name_of(address) for address in (0x100, 0x200, 0x300)] == ["two", "three", "one"]


def test_a_function_that_the_driver_lacks_is_a_configuration_error(monkeypatch):
    lacking = FakeBindings(lacking={"cuEventCreate"})
    for module in ("batch_call", "streams"):
        monkeypatch.setattr(f"kv_offload_cpu.copy.cuda.{module}.load_bindings", lambda purpose: lacking)
    with pytest.raises(ConfigError, match="has no batched copy"):
        Functions().address("cuEventCreate")


# Given at once


def test_what_is_told_is_told_to_torch_of_the_stream_that_is_meant(bindings):
    torch = Torch(bindings)
    at_once = AtOnce(torch, Functions())
    one, other = at_once.new_stream(), at_once.new_stream(beside=None)
    computed, marked, timed = at_once.mark_compute(), at_once.mark(one), at_once.mark(other, knows_time=True)
    assert [event.on for event in (computed, marked, timed)] == [torch.compute, one, other]
    assert [event.knows_time for event in (computed, marked, timed)] == [False, False, True]
    at_once.hold(one, computed)
    at_once.hold(other, marked)
    assert (one.held_by, other.held_by, torch.compute.held_by) == ([computed], [marked], [])
    assert at_once.handle(one) == one.cuda_stream and at_once.of_torch(one) is one


def test_a_call_is_made_at_once_on_the_device(bindings):
    at_once = AtOnce(Torch(bindings), Functions())
    stream = at_once.new_stream()
    made = ctypes.c_void_p()
    at_once.call(stream, "cuEventCreate", (ctypes.addressof(made), 2))
    assert made.value in bindings.events
    done = []
    at_once.act(stream, lambda: done.append(1))
    assert done == [1]
