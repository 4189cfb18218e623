"""A split fleet against one that is walked through step by step, to the nanosecond; with memory for everything."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_sim_slow_split import Fleet, Req, Server
from kv_sim_timed_traces import ListedTrace, toy, traces

from kv_sim.replay.timed import EngineSettings, Stepping
from kv_sim.replay.timed.durations.timing import to_ns
from kv_sim.replay.timed.runs.finished import Finished
from kv_sim.replay.timed.runs.split import SplitTransfers, replay_split
from kv_sim.replay.timed.server.sizes import plan


def slow_fleet(
    trace: ListedTrace, server: EngineSettings, prefilling: int, decoding: int, patience: dict[str, float]
) -> Fleet:
    sizes = plan(server, trace.block_tokens)
    size, step = sizes.block_tokens, sizes.step
    costs = {
        **{"size": size, "block_bytes": sizes.block_bytes, "budget": sizes.max_step_tokens},
        **{"running": sizes.max_running, "overhead": step.overhead_ns, "idle": step.idle_ns},
        **{"token": step.ns_per_token, "pair": step.ns_per_pair, "weights": step.ns_of_weights},
        **{
            "ctx": step.ns_per_context_token,
            "pull_ns": sizes.pull_ns,
            "net_ns_per_byte": sizes.network.ns_per_byte,
        },
        **{"hold": patience["hold_seconds"], "patience": patience["pull_seconds"]},
    }
    requests = []
    for index, one in enumerate(trace):
        full = one.input_tokens // size
        names: list[Any] = [(block, part) for block in one.blocks for part in range(sizes.parts)][:full]
        names += [("own", index, place) for place in range(len(names), full)]
        arrival = to_ns(one.arrival_seconds * server.arrival_scale)
        requests.append(Req(index, arrival, one.input_tokens, max(1, one.output_tokens), tuple(names)))
    return Fleet(costs, [requests[first::prefilling] for first in range(prefilling)], decoding).run()


def seen(one: Finished) -> dict[str, Any]:
    """What is compared of a server; requests in the order of their ends."""
    times, moved = one.durations, one.moved["pulls"]
    of_requests = zip(*(times[name] for name in ("ttft", "queued", "latency")), strict=True)
    return {
        "requests": [*of_requests],
        "waits": [*times.get("pull_wait", [])],
        "tokens": [
            one.counts[name] for name in ("local_tokens", "pulled_tokens", "kept_tokens") if name in one.counts
        ],
        "pulls": [moved.jobs, moved.blocks, moved.busy_ns],
        "steps": one.counts["num_steps"],
        "last": one.last_step_ns,
    }


def expected(server: Server) -> dict[str, Any]:
    local = sum(one.first_local for one in server.done)
    times = [
        (one.first - one.arrival, one.scheduled - one.arrival - one.before, one.end - one.arrival)
        for one in server.done
    ]
    return {
        "requests": times if server.decodes else [],
        "waits": [one.wait for one in server.done] if server.decodes else [],
        "tokens": [0, sum(one.external for one in server.done), local] if server.decodes else [local],
        "pulls": server.traffic,
        "steps": server.steps,
        "last": server.last,
    }


servers = st.builds(
    toy,
    gpu_blocks=st.just(5000),
    max_running=st.sampled_from([1, 2, 8]),
    max_step_tokens=st.sampled_from([8, 16, 64]),
    step_microseconds=st.sampled_from([0.0, 1.0, 20.0]),
    idle_step_microseconds=st.sampled_from([1.0, 9.0]),
    page_tokens=st.just(1),
    block_tokens=st.sampled_from([None, None, 1]),
    tp_size=st.sampled_from([1, 1, 2]),
    arrival_scale=st.sampled_from([1.0, 1.0, 0.0, 0.3]),
    network_bandwidth=st.sampled_from([1e6, 1e8, 1e10, 1e300]),
    pull_microseconds=st.sampled_from([0.0, 3.0, 200.0]),
)
some_seconds = st.sampled_from([30.0, 30.0, 1e-5, 1e-4])


@pytest.mark.once
@settings(max_examples=25)
@given(
    traces(),
    servers,
    st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 3), (1, 20)]),
    st.fixed_dictionaries({"hold_seconds": some_seconds, "pull_seconds": some_seconds}),
)
def test_every_moment_is_that_of_a_fleet_that_is_walked_through(
    trace: ListedTrace, server: EngineSettings, fleet: tuple[int, int], patience: dict[str, float]
) -> None:
    prefilling, decoding = fleet
    slow, numbered = slow_fleet(trace, server, prefilling, decoding, patience), list(enumerate(trace))
    usual = SplitTransfers.beside({})
    own = {"kv_connector_extra_config": patience}
    transfers = SplitTransfers({**usual.prefill, **own}, {**usual.decode, **own})
    for stepping in Stepping:
        shares = [iter(numbered[first::prefilling]) for first in range(prefilling)]
        found = replay_split(shares, decoding, replace(server, stepping=stepping), transfers, trace.block_tokens)
        assert [seen(one) for one in found] == [expected(one) for one in slow.servers]
