"""The driver's worker gives a device the same work as the testbed's. Both are read as text: it needs no vLLM."""

import ast
from pathlib import Path

import pytest

import kv_vllm

kv_sim = pytest.importorskip("kv_sim")

OURS = Path(kv_sim.__file__).parent / "engine" / "worker.py"
DRIVERS = Path(kv_vllm.__file__).parent / "driver" / "worker.py"

LEFT_OUT = {
    "kv_cache": "Setup makes the layers, tensors for a connector of vLLM's",
    "rank": "named in what the testbed's worker says, and Setup's guard has it",
    "copies": "vLLM's code calls start_load_kv, so nobody sees who waits in it",
    "shadow": "for the same check",
}
"""What the testbed's worker asks of its device and the driver's doesn't, and why not."""


def asked(source: str) -> set[str]:
    """The attributes of a device that a worker uses."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            found |= {node.attr} if owner == "device" else set()
    return found


def test_the_drivers_worker_asks_for_what_the_testbeds_does() -> None:
    ours = asked(OURS.read_text(encoding="utf-8"))
    assert ours >= {"begin_step", "launch", *LEFT_OUT}
    assert asked(DRIVERS.read_text(encoding="utf-8")) == ours - LEFT_OUT.keys()


def test_what_is_asked_of_a_device_is_seen() -> None:
    source = "self.device.launch(step)\ndevice.kv_cache(0)\nstep.device\nself.device.copies.waited\ndevice = other"
    assert asked(source) == {"launch", "kv_cache", "copies"}
