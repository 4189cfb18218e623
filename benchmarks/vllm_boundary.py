"""What the boundary to vLLM costs: a key of a lookup and of an event, and a recorded call.

`lookup`: one key of 4096 that are resident, asked of kv-offload-cpu's manager as it is, through what vLLM's
connector gets (`kv_vllm.connectors.host_spec`), and of vLLM's own manager. `event`: one stored block. `record`:
one line of a `RecordingConnector`, which is what each of its calls adds. `trace`: a request of a `TraceConnector`,
from its arrival to its line. The best of `--repeat` rounds, in processor time.

    python benchmarks/vllm_boundary.py [--repeat 5]

Needs kv-vllm with its extra `connectors`, and a vLLM (the CPU build does).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time, time
from types import SimpleNamespace
from typing import Any

from kv_api import BlockStored, make_offload_key
from kv_offload_cpu import METRICS, CPUOffloadingManager

try:
    from vllm.v1.kv_offload.base import ReqContext
    from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager as VllmManager

    from kv_vllm.connectors.host_spec import HostManager
    from kv_vllm.recording.connector import CallLog
    from kv_vllm.recording.traffic import Blocks, Traffic
    from kv_vllm.translate import to_vllm
except ImportError as error:
    sys.exit(f"vllm_boundary: this needs kv-vllm and a vLLM: {error}")

KEYS = [make_offload_key(number.to_bytes(32, "big"), 0) for number in range(4096)]
REQUEST = SimpleNamespace(
    request_id="r",
    num_prompt_tokens=4096,
    num_output_tokens=64,
    max_tokens=64,
    skip_reading_prefix_cache=False,
    block_hashes=[b"h" * 32] * 256,
)


def filled(manager: Any) -> Any:
    """A manager that has all keys."""
    context = ReqContext("r")
    manager.on_new_request(context)
    manager.prepare_store(KEYS, context)
    manager.complete_store(KEYS, context)
    return manager


def nanoseconds(run: Callable[[], object], count: int, repeat: int) -> float:
    """Of one of ``count`` that a run does."""
    best = float("inf")
    for _ in range(repeat):
        begin = process_time()
        run()
        best = min(best, process_time() - begin)
    return best / count * 1e9


def ask_all(lookup: Callable[[Any, Any], object], context: Any) -> None:
    """Look up each key."""
    for key in KEYS:
        lookup(key, context)


def arrive(log: CallLog, count: int) -> None:
    """So many requests arrive."""
    for _ in range(count):
        log.arrive(REQUEST)


def step(log: CallLog, scheduled: dict[str, int], count: int) -> None:
    """So many steps of the same requests."""
    for _ in range(count):
        log.write("step", scheduled=scheduled, preempted=[])


def trace(traffic: Traffic, count: int) -> None:
    """So many requests come and go."""
    for _ in range(count):
        traffic.arrive(REQUEST)
        traffic.look_up(REQUEST, 2048)
        traffic.begin(REQUEST, 1024)
        traffic.end(REQUEST)


def main() -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    context = ReqContext("asks")
    ours = CPUOffloadingManager(len(KEYS))
    managers = {
        "lookup, ours as it is": filled(ours),
        "lookup, ours for vLLM's connector": HostManager(ours, METRICS),
        "lookup, vLLM's own": filled(VllmManager(len(KEYS))),
    }
    rows = {
        name: nanoseconds(partial(ask_all, manager.lookup, context), len(KEYS), repeat)
        for name, manager in managers.items()
    }
    events = [BlockStored([key[:-4]], None, [], 0, None, "CPU", None) for key in KEYS]
    rows["event, ours to vLLM's"] = nanoseconds(lambda: [to_vllm(e) for e in events], len(events), repeat)
    with TemporaryDirectory() as folder:
        log = CallLog(Path(folder, "a.jsonl"), {})
        rows["record, a request of 256 blocks"] = nanoseconds(partial(arrive, log, 200), 200, repeat)
        scheduled = {f"r{number}": 1 for number in range(64)}
        rows["record, a step of 64 requests"] = nanoseconds(partial(step, log, scheduled, 200), 200, repeat)
        traffic = Traffic(Path(folder, "b.jsonl"), Blocks(16), time, print)
        rows["trace, a request of 256 blocks"] = nanoseconds(lambda: trace(traffic, 200), 200, repeat)
        traffic.close()
    print(f"{'':36}ns")
    for name, value in rows.items():
        print(f"{name:34}{value:8,.0f}")


if __name__ == "__main__":
    main()
