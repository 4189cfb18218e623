"""Time on a device whose memory a connector may read by address; without a vLLM."""

import threading

import pytest

pytest.importorskip("kv_sim")

from kv_api import ConfigError
from kv_sim.config import WorldConfig
from kv_sim.memory.launched import LaunchedStep
from kv_sim.memory.shadow import Shadow
from kv_sim.violation import Referee
from kv_vllm.driver.surroundings import device as module
from kv_vllm.driver.surroundings.device import TensorDevice


@pytest.fixture(params=[False, True], ids=["by copies", "by address"])
def device(request):
    made = TensorDevice(0, WorldConfig(num_blocks=6), Shadow(1, Referee()))
    made.is_read_by_address = request.param
    return made


def test_a_step_runs_at_once_only_if_nothing_could_wait_for_it(device):
    device.launch(LaunchedStep(1, [], [3], [], 4, (None,)))
    assert (device.retired_steps, len(device.queue)) == ((1, 0) if device.is_read_by_address else (0, 1))


def test_threads_of_a_connector_get_time_where_they_may_be_copying(device, monkeypatch):
    slept = []
    monkeypatch.setattr(module, "sleep", slept.append)
    device.let_others_work()
    assert slept == ([module.PAUSE_SECONDS] if device.is_read_by_address else [])


def test_another_thread_is_in_between_or_out_of_turn(device):
    told = []

    def ask():
        try:
            told.append(device.is_in_between("a read"))
        except ConfigError as error:
            told.append(str(error).split(":")[0])

    thread = threading.Thread(target=ask, name="own")
    thread.start()
    thread.join()
    assert told == [True if device.is_read_by_address else "a read was called by the thread 'own'"]
    assert device.is_in_between("a read") is False
