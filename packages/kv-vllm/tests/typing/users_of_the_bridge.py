"""Checked by mypy and pyright, never run: a vendor's spec inside vLLM, and tools around it, without a vLLM."""

from pathlib import Path
from typing import assert_type

import kv_vllm
from kv_api import KVConnectorBase_V1
from kv_offload_cpu import CPUOffloadingSpec
from kv_vllm import HostOffloadingSpec, MultiConnector, OffloadingConnector
from kv_vllm.differential.comparison import Divergence, Script, follow
from kv_vllm.differential.trace import Add, Call, Event, Turn
from kv_vllm.installed import MissingError
from kv_vllm.recording.schedule import Summary, write_schedule_of
from kv_vllm.smoke.run import Told, compare, smoke
from kv_vllm.versions import judge_version


class VendorsSpec(CPUOffloadingSpec):
    """Host memory of a vendor's."""


class VendorsHostSpec(HostOffloadingSpec):
    our_spec = VendorsSpec


class Scheduler:
    """Another engine, followed along a recorded trace."""

    def __init__(self, script: Script) -> None:
        self.script = script

    def apply(self, event: Event) -> bool | None:
        answer: bool | None = self.script.compare("on_new_request", {"request": "r"})
        return answer


def compare_with_a_trace() -> str:
    asked = Call("get_num_new_matched_tokens", {"request": "r", "local": 0}, (8, True))
    script = Script()
    found = follow([Turn(Add("r", (1, 2, 3), 4, None, None, False), [asked])], Scheduler(script), script)
    assert_type(found, Divergence | None)
    return "" if found is None else str(found)


def look_at_a_machine(folder: Path) -> list[str]:
    lines: list[str] = []
    try:
        fine = smoke(None, {"enforce_eager": True}, lines.append)
    except MissingError as error:
        return [str(error)]
    told = Told(cold=[[1]], warm=[[1]], hits=256, version="0.33")
    lines += compare(told, told)
    assert_type(write_schedule_of(folder / "calls.jsonl", folder / "schedule.jsonl"), Summary)
    warning = judge_version((0, 34), lambda show: fine)
    return [*lines, warning or ""]


def connectors() -> list[type[KVConnectorBase_V1]]:
    return [OffloadingConnector, MultiConnector]


def misspelt() -> object:
    return kv_vllm.OffloadConnector  # type: ignore[attr-defined]
