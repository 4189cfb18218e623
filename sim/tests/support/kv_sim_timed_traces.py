"""Small traces and a server whose costs are round numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from kv_sim.replay.timed import Answers, EngineSettings, Gpu, Model, Stepping
from kv_sim.replay.timed.connectors.timed_config import NOTHING
from kv_sim.replay.timed.runs.answers import answers_of
from kv_sim.replay.timed.runs.finished import finished_of
from kv_sim.replay.timed.runs.run import replay_once
from kv_sim.replay.trace import TraceRequest

TOY_MODEL = Model("toy", parameters=500, layers=1, heads=1, kv_heads=1, head_dim=1, max_tokens=10_000)
TOY_GPU = Gpu("toy", 1e9, 1e9, 1 << 30, 1e9, step_tokens=64, running=8)
PAGE = 4096
"""A chunk takes a page of host memory, however small its blocks are."""


@dataclass(frozen=True)
class ListedTrace:
    """A trace in memory."""

    requests: tuple[TraceRequest, ...]
    block_tokens: int = 4
    name: str = "listed"

    def __iter__(self) -> Iterator[TraceRequest]:
        return iter(self.requests)


def trace_of(*requests: tuple[float, int, int, Sequence[int]], block_tokens: int = 4) -> ListedTrace:
    """Requests as (arrival in microseconds, input, output, block ids)."""
    made = [TraceRequest(at / 1e6, i, o, tuple(ids)) for at, i, o, ids in requests]
    return ListedTrace(tuple(made), block_tokens)


def toy(chunks: int = 16, **changes: Any) -> EngineSettings:
    """A server that computes a token in a microsecond and copies a block in 1.016."""
    usual = EngineSettings(
        model=TOY_MODEL,
        gpu=TOY_GPU,
        flops_efficiency=1.0,
        hbm_efficiency=1.0,
        link_efficiency=1.0,
        step_microseconds=10.0,
        idle_step_microseconds=5.0,
        copy_microseconds=1.0,
        page_tokens=4,
        gpu_blocks=16,
        cpu_bytes_to_use=chunks * PAGE,
    )
    return replace(usual, **changes)


def answer(trace: ListedTrace, settings: EngineSettings, stepping: Stepping = Stepping.FUSED) -> Answers:
    """Replay with the settings' connector only."""
    settings = replace(settings, stepping=stepping)
    return answers_of(finished_of(*replay_once(trace, settings, settings.transfer_config())))


def comparable(answers: Answers) -> Answers:
    """Answers without what may differ when steps are fused: how many were, and how often was asked in vain."""
    counts = {name: value for name, value in answers.connector.items() if "lookup_sync" not in name}
    return replace(answers, fused_steps=0, connector=counts)


# -- random ones -------------------------------------------------------------------------------


@st.composite
def traces(draw: st.DrawFn) -> ListedTrace:
    """Requests that share prefixes, some of them at once, some long after all others."""
    size = draw(st.sampled_from([2, 4, 8]))
    at, requests = 0.0, []
    for number in range(draw(st.integers(1, 14))):
        at += draw(st.sampled_from([0, 0, 1, 7, 40, 200, 3000]))
        conversation, blocks = draw(st.integers(0, 2)), draw(st.integers(0, 9))
        shared = draw(st.integers(0, blocks))
        ids = [conversation * 100 + place for place in range(shared)]
        ids += [1000 + number * 20 + place for place in range(blocks - shared)]
        tokens = max(1, blocks * size - draw(st.integers(0, size - 1)))
        requests.append((at, tokens, draw(st.sampled_from([1, 1, 2, 3, 5, 9, 30])), ids))
    return trace_of(*requests, block_tokens=size)


def offloading(draw: st.DrawFn) -> dict[str, Any]:
    """The configuration of an OffloadingConnector."""
    extra = {
        "cpu_bytes_to_use": PAGE * draw(st.sampled_from([1, 2, 5, 12, 60])),
        "eviction_policy": draw(st.sampled_from(["lru", "arc", "s3fifo", "sieve"])),
        "offload_prompt_only": draw(st.booleans()),
        "hold_blocks": draw(st.sampled_from(["auto", "auto", "always"])),
        "blocks_per_chunk": draw(st.sampled_from([1, 1, 2])),
        "store_threshold": draw(st.sampled_from([0, 0, 2])),
        "max_deferred_lookups": draw(st.sampled_from([50, 50, 1, 3])),
        "sync_load_budget_bytes": draw(st.sampled_from([0, 0, 64, 10_000])),
    }
    if draw(st.integers(0, 3)) == 0:
        extra |= files(extra.pop("cpu_bytes_to_use"))
        extra["file_staging_bytes"] = PAGE * draw(st.sampled_from([4, 6, 20]))
    return {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": extra}


def files(size: int) -> dict[str, Any]:
    """What says that a medium is one of files."""
    own = {"file_dir": "/disk", "file_bytes_to_use": size * 2}
    return {"spec_name": "FileOffloadingSpec", "spec_module_path": "kv_offload_file", **own}


@st.composite
def servers(draw: st.DrawFn) -> EngineSettings:
    """Small servers, short of this or that."""
    connector = offloading(draw)
    if draw(st.integers(0, 4)) == 0:
        extra = {"connectors": [connector, offloading(draw)]}
        connector = {"kv_connector": "MultiConnector", "kv_connector_extra_config": extra}
    if draw(st.integers(0, 9)) == 0:
        connector = dict(NOTHING)
    running = draw(st.sampled_from([1, 2, 4, 8]))
    return toy(
        gpu_blocks=draw(st.sampled_from([8, 12, 20, 60])),
        max_running=running,
        max_step_tokens=max(running, draw(st.sampled_from([8, 16, 64]))),
        step_microseconds=draw(st.sampled_from([0.0, 1.0, 20.0])),
        idle_step_microseconds=draw(st.sampled_from([1.0, 9.0])),
        copy_microseconds=draw(st.sampled_from([0.0, 1.0, 50.0])),
        page_tokens=2,
        disk_read_bandwidth=draw(st.sampled_from([1e7, 1e8])),
        disk_write_bandwidth=draw(st.sampled_from([1e7, 1e8])),
        disk_microseconds=draw(st.sampled_from([0.0, 30.0])),
        connector={"kv_role": "kv_both", **connector},
    )
