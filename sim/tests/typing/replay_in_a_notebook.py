"""Checked by mypy and pyright, never run: what a notebook gets from kv_sim.replay."""

from typing import Any, assert_type

from kv_sim.replay import CacheReplay, Columns, Sizing, TraceOptions, open_trace, replay, size

trace = open_trace("mooncake-conversation", TraceOptions(requests=1000))
assert_type(trace, Columns)
assert_type([request.input_tokens for request in trace], list[int])

run = replay(trace, policy="arc", capacity="256GiB", gpu_capacity=1000, model="llama-3.1-8b")
assert_type(run, CacheReplay)
assert_type(run.token_ratio, float)
assert_type(run.best.token, float)
assert_type(run.ages.p50_seconds, float)
assert_type(run.loaded_bytes, int | None)

sizing = size(trace, ["lru", "arc"], capacities=["64GiB", 20_000], budget="1TiB", bytes_per_token=131_072)
assert_type(sizing, Sizing)
assert_type(size(trace, "lru,arc", capacities="64GiB", bytes_per_token=131_072), Sizing)
assert_type(sizing.recommended.capacity, int)
assert_type(sizing.config(), dict[str, Any] | None)
