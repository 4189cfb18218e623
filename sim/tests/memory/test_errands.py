"""Errands: what a connector's threads would do is done when the world says, and as a copy is."""

from concurrent.futures import CancelledError
from typing import Any

import pytest

from kv_api import ConfigError, Direction
from kv_sim import violation
from kv_sim.config import WorldConfig
from kv_sim.memory.device import Device
from kv_sim.memory.errands import Errands
from kv_sim.memory.launched import LaunchedStep
from kv_sim.memory.shadow import Shadow
from kv_sim.violation import Invariant, Referee, Violation


def made() -> Device:
    return Device(0, WorldConfig(), Shadow(1, Referee()))


def test_it_is_done_when_the_world_says_and_not_before() -> None:
    device, done = made(), []
    errands = Errands(device)
    errand = errands.submit(lambda *args, **kwargs: done.append((args, kwargs)) or len(done), 1, b=2)
    (copy,) = device.copies.startable()
    assert (done, errand.done(), str(copy)) == ([], False, "errand 0")
    device.copies.advance(copy, copy.size)
    assert (done, errand.done(), errand.result()) == ([((1,), {"b": 2})], True, 1)
    assert (device.copies.running, errands._queue.under_way) == ({}, {})
    device.copies.repeat(copy)
    assert len(done) == 1
    device.copies.check()


def test_a_step_under_way_holds_no_errand_up() -> None:
    device = made()
    device.launch(LaunchedStep(1, [], [], [], 4, (0,)))
    errand = Errands(device).submit(print)
    assert len(device.copies.startable()) == 1
    assert errand.result() is None
    assert len(device.queue) == 1, "nor does who waits for it end the step"


def test_errands_come_in_any_order_unless_one_thread_would_do_them() -> None:
    device = made()
    free, ordered = Errands(device), Errands(device, in_order=True)
    said: list[str] = []
    for errands, name in ((free, "a"), (free, "b"), (ordered, "c"), (ordered, "d")):
        errands.submit(said.append, name)
    assert [copy.copy_id for copy in device.copies.startable()] == [0, 1, 2]
    first_of_order = device.copies.startable()[-1]
    device.copies.advance(first_of_order, 1)
    assert [copy.copy_id for copy in device.copies.startable()] == [0, 1, 3]
    assert said == ["c"]


def test_who_asks_for_the_result_has_it_done_now_after_what_comes_before_it() -> None:
    device = made()
    errands = Errands(device, in_order=True)
    said: list[str] = []
    first, second, third = (errands.submit(said.append, name) for name in "abc")
    assert second.result() is None
    assert (said, first.done(), third.done()) == (["a", "b"], True, False)
    errands.shutdown()
    assert (said, third.done()) == (["a", "b", "c"], True)


def test_what_it_raises_is_its_answer() -> None:
    device = made()
    errand = Errands(device).submit(int, "no number")
    assert isinstance(errand.exception(), ValueError)
    with pytest.raises(ValueError, match="no number"):
        errand.result()


@pytest.mark.parametrize(
    "error", [Violation(Invariant.CONTENT, "wrong"), ConfigError("what is that"), violation.TestbedError("ours")]
)
def test_what_the_testbed_finds_wrong_with_it_ends_the_history(error: Exception) -> None:
    def fails() -> None:
        raise error

    device = made()
    errands = Errands(device)
    errands.submit(fails)
    with pytest.raises(type(error)):
        device.copies.advance(device.copies.startable()[0], 1)  # though nobody asks for its result
    with pytest.raises(type(error)):
        errands.submit(fails).result()


def test_who_stops_the_program_meanwhile_stops_it() -> None:
    def is_stopped() -> None:
        raise KeyboardInterrupt

    device = made()
    Errands(device).submit(is_stopped)
    with pytest.raises(KeyboardInterrupt):
        device.copies.advance(device.copies.startable()[0], 1)


def test_a_load_that_is_to_fail_is_none_of_them() -> None:
    device = made()
    device.copies.spoiled_load = True
    assert Errands(device).submit(int).result() == 0
    assert device.copies.spoiled_load


def test_one_that_the_world_lets_fail_is_not_done() -> None:
    device, done = made(), []
    errand = Errands(device).submit(done.append, 1)
    device.copies.fail(device.copies.startable()[0])
    assert errand.done()
    with pytest.raises(OSError, match="errand 0 fails, since the world says so"):
        errand.result()
    assert done == []


def test_nobody_waits_for_a_lost_one_and_it_may_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    device, done = made(), []
    waited: list[float | None] = []
    monkeypatch.setattr("threading.Condition.wait", lambda condition, timeout=None: waited.append(timeout))
    errands = Errands(device)
    one, other = errands.submit(done.append, 1), errands.submit(done.append, 2)
    for copy in device.copies.startable():
        device.copies.lose(copy)
    for ask in (one.result, one.exception):
        for timeout in (5, None):
            with pytest.raises(TimeoutError):
                ask(timeout)
    assert waited == [0] * 4
    (copy,) = device.copies.lost()
    device.copies.find(copy)
    device.copies.advance(copy, copy.size)
    assert (done, other.done(), one.done()) == ([2], True, False)


def test_a_cancelled_one_is_not_done() -> None:
    device, done = made(), []
    errands = Errands(device)
    gone, left = errands.submit(done.append, 1), errands.submit(done.append, 2)
    assert gone.cancel()
    device.copies.advance(device.copies.startable()[0], 1)
    assert done == []
    with pytest.raises(CancelledError):
        gone.result()
    errands.shutdown(cancel_futures=True)
    assert (done, left.cancelled(), device.copies.running) == ([], True, {})


def test_a_restart_fails_it() -> None:
    device = made()
    errand = Errands(device).submit(print)
    device.restart_copies(forget_host=False)
    assert isinstance(errand.exception(), OSError)


def test_who_shuts_down_without_waiting_leaves_them_to_the_world() -> None:
    device, done = made(), []
    errands = Errands(device)
    errands.submit(done.append, 1)
    errands.shutdown(wait=False)
    assert done == []
    device.copies.advance(device.copies.startable()[0], 1)
    assert done == [1]


def test_it_may_use_the_memory_as_the_connector_may() -> None:
    device = made()
    slot = device.allocate_host(1)
    copies: Any = device.copies.open()
    copies.submit(Direction.STORE, [(1, slot)])
    errand = Errands(device).submit(device.read_host, slot)
    with pytest.raises(Violation, match="the connector reads it while store copy 0 is under way"):
        errand.result()


def test_the_device_may_sleep_before_one_is_done_that_uses_none_of_its_blocks() -> None:
    device, done = made(), []
    errands = Errands(device)
    harmless, reads = errands.submit(done.append, 1), errands.submit(device.kv_cache(0).read, 1)
    device.sleep()
    harmless.result()
    assert done == [1]
    with pytest.raises(Violation, match="uses it while the engine sleeps"):
        reads.result()


@pytest.mark.parametrize("behind", [0, 1])
def test_one_that_waits_for_itself_or_for_one_behind_it_never_ends(behind: int) -> None:
    device, known = made(), list[Any]()
    errands = Errands(device, in_order=True)
    known += [errands.submit(lambda: known[behind].result()), errands.submit(print)]
    with pytest.raises(Violation, match="errand 0 waits for itself, or for one behind it") as found:
        known[0].result()
    assert found.value.invariant is Invariant.LIVENESS


def test_two_executors_have_a_thread_each() -> None:
    device, said = made(), list[str]()
    one, other = Errands(device, in_order=True), Errands(device, in_order=True)
    one.submit(said.append, "one")
    assert other.submit(said.append, "other").result() is None
    assert said == ["other"]
    assert len(device.copies.startable()) == 1
