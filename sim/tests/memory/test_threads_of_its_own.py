"""A connector's own thread at the testbed's memory: it is refused, and the command says why."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from kv_api import ConfigError
from kv_sim.config import WorldConfig
from kv_sim.examples.memory import MemoryConnector, MemoryWorker
from kv_sim.fuzz import run_seed
from kv_sim.memory.content import ZERO
from kv_sim.memory.device import Device
from kv_sim.memory.launched import LaunchedStep
from kv_sim.memory.shadow import Shadow
from kv_sim.subject import Subject
from kv_sim.violation import Referee

STEP = LaunchedStep(1, [], [], [], 4, (0,))


def in_a_thread(call: Callable[[], Any]) -> list[ConfigError]:
    raised: list[ConfigError] = []

    def run() -> None:
        try:
            call()
        except ConfigError as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="sender")
    thread.start()
    thread.join()
    return raised


@pytest.mark.parametrize("name", ["read", "write"])
def test_it_is_refused_there_and_at_the_next_step(name: str) -> None:
    device = Device(0, WorldConfig(), Shadow(1, Referee()))
    cache = device.kv_cache(0)
    page = cache.read(3)
    device.shadow.load_rights[3] = "r1"
    args = (3, page) if name == "write" else (3,)
    before = device.memory.copy()
    (error,) = in_a_thread(lambda: getattr(cache, name)(*args))
    whole = (
        f"KVCache.{name} was called by the thread 'sender': the testbed's memory knows one thread only, "
        "the one that calls the connector; let it do the work of others when it is polled "
        "(docs/testbed.md, Copies)"
    )
    assert (type(error), str(error)) == (ConfigError, whole)
    assert (device.memory == before).all()
    with pytest.raises(ConfigError) as raised:
        device.launch(STEP)
    assert str(raised.value) == whole


@pytest.mark.parametrize("name", ["read_host", "write_host"])
def test_so_it_is_at_host_memory(name: str) -> None:
    device = Device(0, WorldConfig(), Shadow(1, Referee()))
    slot = device.allocate_host(1)
    args = (slot, device.host[slot] * 0 + ZERO) if name == "write_host" else (slot,)
    before = device.host.copy()
    (error,) = in_a_thread(lambda: getattr(device, name)(*args))
    assert str(error).startswith(f"Device.{name} was called by the thread 'sender': ")
    assert (device.host == before).all()


def test_the_worlds_own_thread_may() -> None:
    device = Device(0, WorldConfig(), Shadow(1, Referee()))
    device.shadow.load_rights[3] = "r1"
    device.kv_cache(0).write(3, device.kv_cache(0).read(3) * 0 + ZERO)
    device.launch(STEP)


class _Threaded(MemoryWorker):
    def wait_for_save(self) -> None:
        in_a_thread(lambda: self._layers[0][0].read(1))
        super().wait_for_save()


class Threaded(MemoryConnector):
    """Reads in a thread."""

    worker_class = _Threaded


def test_a_history_ends_with_it() -> None:
    with pytest.raises(ConfigError, match=r"^KVCache\.read was called by the thread 'sender'"):
        run_seed(Subject("Threaded", __name__, traits=frozenset()), 0)
