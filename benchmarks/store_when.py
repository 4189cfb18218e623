"""What it brings to store chunks when their blocks are given away, by the size of host memory: a trace replayed.

    python benchmarks/store_when.py [TRACE] [--requests 2000] [--arrival-scale 4] [--json FILE]

``store_when`` is a setting of kv-offload. The GPU is an H100 with Llama-3.1-8B (``docs/timing.md``); sizes are
multiples of its cache, and hits are of prompt tokens.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from kv_offload import StoreWhen
from kv_sim.console.table import aligned
from kv_sim.replay import open_trace
from kv_sim.replay.report.timed.as_json import answers_as_json
from kv_sim.replay.timed import Answers, EngineSettings
from kv_sim.replay.timed.connectors.timed_config import NOTHING
from kv_sim.replay.timed.runs.answers import answers_of
from kv_sim.replay.timed.runs.finished import finished_of
from kv_sim.replay.timed.runs.run import replay_once
from kv_sim.replay.timed.server.sizes import plan

GIB = 1 << 30
TIMES = (1, 2, 4, 8)
HEAD = ("host memory", "stored when", "GPU", "CPU", "TTFT mean", "90 %", "loaded", "stored", "host waits")


def row(size: str, when: str, answers: Answers) -> list[str]:
    """One server."""
    return [
        size,
        when,
        f"{answers.gpu_token_ratio:.3f}",
        f"{answers.cpu_token_ratio:.3f}",
        f"{answers.ttft.mean:.2f} s",
        f"{answers.ttft.p90:.2f} s",
        f"{answers.loads.bytes / GIB:.0f} GiB",
        f"{answers.stores.bytes / GIB:.0f} GiB",
        f"{answers.host_wait_seconds:.3f} s",
    ]


def main() -> None:
    """Replay and print."""
    parser = argparse.ArgumentParser(description="Hits and waiting by when chunks are stored.")
    parser.add_argument("trace", nargs="?", default="mooncake-conversation")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--arrival-scale", type=float, default=4.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    trace = open_trace(options.trace)
    settings = replace(EngineSettings(), limit=options.requests, arrival_scale=options.arrival_scale)
    sizes = plan(settings, trace.block_tokens)
    gpu_bytes = sizes.gpu_blocks * sizes.block_bytes
    servers: dict[tuple[str, str], Any] = {("nothing", ""): NOTHING}
    for times in TIMES:
        for when in StoreWhen:
            of_this_size = replace(settings, cpu_bytes_to_use=times * gpu_bytes, store_when=when)
            servers[f"{times * gpu_bytes / GIB:.0f} GiB, {times} x", when] = of_this_size.transfer_config()
    found = {
        name: answers_of(finished_of(*replay_once(trace, settings, transfer)))
        for name, transfer in servers.items()
    }
    print("\n".join(aligned([[*HEAD], *(row(*name, answers) for name, answers in found.items())])))
    if options.json:
        told = {" ".join(name): answers_as_json(answers) for name, answers in found.items()}
        options.json.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
