"""What files on a disk bring a server, by the staging memory that chunks go through: a trace replayed with time.

    python benchmarks/disk_staging.py [TRACE] [--requests 1000] [--arrival-scale 4] [--host-gib 64] [--json FILE]

The disk is that of the defaults (``docs/timing.md``), and has room for everything. Hits are of prompt tokens.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kv_sim.console.table import aligned
from kv_sim.replay import open_trace
from kv_sim.replay.report.timed.as_json import answers_as_json
from kv_sim.replay.timed import Answers, EngineSettings
from kv_sim.replay.timed.connectors.timed_config import NOTHING, without_files
from kv_sim.replay.timed.runs.answers import answers_of
from kv_sim.replay.timed.runs.finished import finished_of
from kv_sim.replay.timed.runs.run import replay_once

GIB = 1 << 30
STAGING_GIB = (0.25, 0.5, 1, 2, 4, 8)
HEAD = ("", "GPU", "CPU", "disk", "TTFT mean", "90 %", "wait for a load", "written", "host waits")


def with_staging(transfer: Mapping[str, Any], size: int) -> dict[str, Any]:
    """A configuration of host memory and files, these with so much staging memory."""
    extra = transfer["kv_connector_extra_config"]
    host, disk = extra["connectors"]
    own = {**disk["kv_connector_extra_config"], "file_staging_bytes": size}
    return {
        **transfer,
        "kv_connector_extra_config": {**extra, "connectors": [host, {**disk, "kv_connector_extra_config": own}]},
    }


def row(name: str, answers: Answers) -> list[str]:
    """One server."""
    return [
        name,
        f"{answers.gpu_token_ratio:.3f}",
        f"{answers.cpu_token_ratio:.3f}",
        f"{answers.disk_token_ratio:.3f}",
        f"{answers.ttft.mean:.2f} s",
        f"{answers.ttft.p90:.2f} s",
        f"{answers.load_wait.mean:.2f} s",
        f"{answers.disk_writes.bytes / GIB:.0f} GiB",
        f"{answers.host_wait_seconds:.3f} s",
    ]


def main() -> None:
    """Replay and print."""
    parser = argparse.ArgumentParser(description="Hits and waiting by staging memory.")
    parser.add_argument("trace", nargs="?", default="mooncake-conversation")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--arrival-scale", type=float, default=4.0)
    parser.add_argument("--host-gib", type=int, default=64)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    trace = open_trace(options.trace)
    settings = replace(
        EngineSettings(cpu_bytes_to_use=options.host_gib * GIB, disk_bytes_to_use=1 << 44),
        limit=options.requests,
        arrival_scale=options.arrival_scale,
    )
    both = settings.transfer_config()
    host = without_files(both)
    assert host is not None
    servers = {"nothing": NOTHING, "host memory": host}
    servers |= {f"{size:g} GiB staging": with_staging(both, int(size * GIB)) for size in STAGING_GIB}
    found = {
        name: answers_of(finished_of(*replay_once(trace, settings, transfer)))
        for name, transfer in servers.items()
    }
    print("\n".join(aligned([[*HEAD], *(row(name, answers) for name, answers in found.items())])))
    if options.json:
        options.json.write_text(
            json.dumps({name: answers_as_json(answers) for name, answers in found.items()}, indent=1)
        )


if __name__ == "__main__":
    main()
