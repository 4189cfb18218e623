"""Servers that prefill for others, in time.

As in ``test_timeline`` a token takes 1000 ns and 4 more for each that it attends to, a step 10,000 beside the
forward pass, and an engine that only waits looks every 5000. A pull takes 100,000 ns, and hardly anything for its
bytes.
"""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_sim_timed_traces import ListedTrace, comparable, servers, toy, trace_of, traces

from kv_p2p.pulling.stats import EXPIRED_HOLDS, FAILED_PULLS, PULLED_BYTES, REFUSED_HOLDS, SERVED_HOLDS
from kv_sim.replay.sizing.transfer_config import decode_config, disk_config, host_config, prefill_config
from kv_sim.replay.timed import Answers, EngineSettings, Stepping
from kv_sim.replay.timed.engine.drive import Drive
from kv_sim.replay.timed.engine.together import run_together
from kv_sim.replay.timed.runs.answers import Copies, Pulled, Spread, answers_of
from kv_sim.replay.timed.runs.split import SplitTransfers, replay_split

EXTRA = "kv_connector_extra_config"


def split(
    trace: ListedTrace,
    settings: EngineSettings,
    prefilling: int = 1,
    decoding: int = 1,
    transfers: SplitTransfers | None = None,
) -> Answers:
    """Requests go to the servers in turns."""
    numbered = list(enumerate(trace))
    shares = [iter(numbered[first::prefilling]) for first in range(prefilling)]
    transfers = transfers or SplitTransfers.beside({})
    return answers_of(*replay_split(shares, decoding, settings, transfers, trace.block_tokens))


def impatient(hold: float, pull: float, most: int | None, connector: Any) -> SplitTransfers:
    own = {"hold_seconds": hold, "pull_seconds": pull} | ({} if most is None else {"max_held_blocks": most})
    usual = SplitTransfers.beside({})
    prefill, decode = ({**one, EXTRA: own} for one in (usual.prefill, usual.decode))
    if connector is not None:
        both = prefill_config(connector)
        prefill = {**both, EXTRA: {"connectors": [prefill, *both[EXTRA]["connectors"][1:]]}}
    return SplitTransfers(prefill, decode)


def test_one_request_alone() -> None:
    """It is computed with one token by 18,145 ns. Then it arrives at the other server, which asks at once.

    The first server serves it in a step of the same moment, so the pull ends at 118,146. That is heard of at
    123,145, 5000 later it goes on, and computes the last token of the prompt anew: 10,000 + 1000 + 4 × 8 + 1. Each
    of two more tokens attends to one more.
    """
    answers = split(trace_of((0, 8, 3, [1, 2])), toy())
    assert answers.ttft == Spread.of(array("q", [128_145 + 11_033]))
    assert answers.latency == Spread.of(array("q", [128_145 + 11_033 + 11_037 + 11_041]))
    assert answers.pulled == Pulled(8, 0, Copies(1, 2, 32, 100_001e-9), Spread.of(array("q", [110_000])))
    assert (answers.prompt_tokens, answers.output_tokens, answers.requests) == (8, 3, 1)
    assert answers.queueing == Spread.of(array("q", [0])), "it is served all the time"
    assert answers.load_wait.count == answers.preemptions == 0
    assert answers.seconds == 161_256e-9


def test_who_waits_at_both_servers_has_queued_at_both() -> None:
    one_at_a_time = toy(max_running=1, max_step_tokens=8)
    answers = split(trace_of((0, 8, 3, [1, 2]), (0, 8, 3, [3, 4])), one_at_a_time)
    # The second one is computed from 18,145 on, and arrives at 36,290; there is no room to run, but to pull.
    assert answers.queueing.worst == pytest.approx(18_145e-9 + 1_855e-9)


def test_what_either_server_has_is_not_computed_or_not_pulled_again() -> None:
    """The others find two blocks at either server; what is pulled is the third, of which they need one token."""
    answers = split(trace_of((0, 8, 1, [1, 2]), (1000, 9, 1, [1, 2, 3]), (2000, 9, 1, [1, 2, 3])), toy())
    assert (answers.gpu_hit_tokens, answers.cpu_hit_tokens) == (8 + 8, 0)
    assert answers.pulled is not None
    assert (answers.pulled.tokens, answers.pulled.kept_tokens) == (8 + 1 + 1, 8 + 8)
    assert answers.pulled.copies.blocks == 2 + 1 + 1


def test_servers_that_prefill_have_memory_of_their_own_beside() -> None:
    trace = trace_of((0, 8, 1, [1, 2]), (500, 15, 1, [3, 4, 5, 6]), (2000, 9, 1, [1, 2, 7]))
    server = toy(gpu_blocks=4)
    beside = split(trace, server, transfers=SplitTransfers.beside(server.transfer_config()))
    assert (beside.cpu_hit_tokens, beside.loads.blocks, beside.stores.blocks) == (8, 2, 2 + 3)
    alone = split(trace, server)
    assert (alone.cpu_hit_tokens, alone.loads.blocks, alone.stores.blocks) == (0, 0, 0)


@pytest.fixture
def drives(monkeypatch: pytest.MonkeyPatch) -> list[Drive]:
    """Those of a fleet: of servers that decode, then of those that prefill."""
    found: list[Drive] = []

    def seen(given: Sequence[Drive]) -> None:
        found.extend(given)
        run_together(given)

    monkeypatch.setattr("kv_sim.replay.timed.runs.split.run_together", seen)
    return found


def test_steps_are_single_where_a_connector_may_decide_in_any(drives: list[Drive]) -> None:
    """One that gives up loads after a time does; the other servers haven't got it."""
    config = toy().transfer_config()
    hasty = {**config, EXTRA: {**config[EXTRA], "load_timeout_seconds": 1.0}}
    for transfer in (config, hasty):
        split(trace_of((0, 8, 30, [1, 2])), toy(), transfers=SplitTransfers.beside(transfer))
    assert [drive._fuses for drive in drives] == [True, True, True, False]


def test_who_decodes_least_gets_the_next_one(drives: list[Drive]) -> None:
    """Of two servers: long, short, and when the short one is done, its server again."""
    long, rest = (0, 4, 400, [1]), [(1000.0 * n, 4, 2, [10 + n]) for n in range(1, 4)]
    split(trace_of(long, *rest), toy(gpu_blocks=200), decoding=2)
    assert [drive.books.output_tokens for drive in drives] == [400, 2 + 2 + 2, 4]


@pytest.mark.parametrize(
    ("hold", "pull", "most", "connector", "pulled"),
    [
        (120.0, 30.0, None, {SERVED_HOLDS: 2, PULLED_BYTES: 64}, 4),
        # Held by nobody: each is computed by the other server as well.
        (120.0, 30.0, 1, {REFUSED_HOLDS: 2}, 0),
        # The second pull would begin when the first has ended, by when the hold is over.
        (90e-6, 30.0, None, {SERVED_HOLDS: 1, PULLED_BYTES: 32, EXPIRED_HOLDS: 1, FAILED_PULLS: 1}, 2),
        # So it is if who pulls loses patience, who then also says that it isn't needed any more.
        (120.0, 90e-6, None, {SERVED_HOLDS: 2, PULLED_BYTES: 32, FAILED_PULLS: 1}, 2),
    ],
)
def test_what_nobody_holds_or_comes_for_is_computed_anew(
    hold: float, pull: float, most: int | None, connector: dict[str, int], pulled: int
) -> None:
    trace = trace_of((0, 8, 2, [1, 2]), (0, 8, 2, [3, 4]))
    answers = split(trace, toy(), transfers=impatient(hold, pull, most, None))
    assert answers.requests == 2
    assert answers.pulled is not None and answers.pulled.copies.blocks == pulled
    counts = {name: n for name, n in answers.connector.items() if "pull_seconds" not in name}
    assert counts == connector


def test_who_waits_for_blocks_that_nobody_came_for_gets_them_when_their_time_is_over() -> None:
    """The second one isn't pulled, since the other server has no place to run; the third one fits after it."""
    long, second, third = (0, 4, 200, [1]), (100, 200, 1, [2]), (101, 200, 1, [3])
    server, transfers = toy(gpu_blocks=80, max_running=1), impatient(1e-4, 30.0, None, None)
    fused, single = (
        split(trace_of(long, second, third), replace(server, stepping=one), transfers=transfers)
        for one in Stepping
    )
    assert fused.requests == 3 and fused.connector[EXPIRED_HOLDS] == 2
    assert comparable(fused) == comparable(single)


def test_who_arrives_where_blocks_are_held_is_waited_for_by_who_decodes() -> None:
    """Both servers that decode sleep within a block; one has no room for the third, which is held meanwhile."""
    size = 256
    busy = [(0, size, 240, [1]), (10, size, 240, [2])]
    third, fourth = (900, 2 * size, 2, [3, 4]), (2200, size, 2, [5])
    trace = trace_of(*busy, third, fourth, block_tokens=size)
    server = toy(gpu_blocks=3, max_step_tokens=2 * size, page_tokens=size)
    fused, single = (split(trace, replace(server, stepping=one), decoding=2) for one in Stepping)
    assert fused.requests == 4 and fused.fused_steps > 50
    assert comparable(fused) == comparable(single)


def test_who_has_no_room_beside_what_is_held_waits_for_who_decodes_to_wake() -> None:
    """The second is pulled when the first has ended, which sleeps within a block; then the third has room."""
    size = 256
    trace = trace_of(
        (0, size, 240, [1]), (900, 2 * size, 2, [2, 3]), (1996, 2 * size, 2, [4, 5]), block_tokens=size
    )
    server = toy(gpu_blocks=3, max_step_tokens=2 * size, page_tokens=size)
    fused, single = (split(trace, replace(server, stepping=one)) for one in Stepping)
    assert fused.requests == 3 and fused.fused_steps > 50 and fused.seconds < 1
    assert comparable(fused) == comparable(single)


def test_a_pull_that_has_not_begun_may_fail_in_the_middle_of_a_step() -> None:
    """A step takes a millisecond until its hooks; the other server lets go of what is held after half of one."""
    size = 256
    trace = trace_of((0, size, 200, [1]), (10_000, size, 2, [2]), (10_000, size, 2, [3]), block_tokens=size)
    server = toy(max_step_tokens=2 * size, page_tokens=size, step_microseconds=1000.0, pull_microseconds=3000.0)
    transfers = impatient(2500e-6, 30.0, None, None)
    fused, single = (split(trace, replace(server, stepping=one), transfers=transfers) for one in Stepping)
    assert (fused.connector[FAILED_PULLS], fused.connector[EXPIRED_HOLDS]) == (1, 1)
    assert comparable(fused) == comparable(single)


def test_configurations_of_either_kind_of_server() -> None:
    ours = {"kv_connector_module_path": "kv_vllm", "kv_load_failure_policy": "recompute"}
    alone = {"kv_connector": "P2PConnector", **ours, EXTRA: {}}
    assert decode_config() == {**alone, "kv_role": "kv_consumer"}
    assert prefill_config({}) == {**alone, "kv_role": "kv_producer"}
    serves = {"kv_connector": "P2PConnector", "kv_connector_module_path": "kv_vllm", "kv_role": "kv_producer"}
    host = host_config(1 << 20, "arc")
    multi = {"kv_connector": "MultiConnector", "kv_role": "kv_both", **ours}
    beside = {key: value for key, value in host.items() if key != "kv_load_failure_policy"}
    assert prefill_config(host) == {**multi, EXTRA: {"connectors": [serves, beside]}}
    disk = disk_config("/kv", 1 << 30, 1 << 20, "lru")
    media = disk[EXTRA]["connectors"]
    assert len(media) == 2
    assert prefill_config(disk) == {**multi, EXTRA: {"load_policy": "longest", "connectors": [serves, *media]}}


def test_prompts_of_a_token_that_were_pulled_need_no_further_block() -> None:
    """Each has its block when all GPU blocks are taken, and is matched anew, since its token is computed, too."""
    costs = {"page_tokens": 2, "network_bandwidth": 1e6, "pull_microseconds": 0.0, "idle_step_microseconds": 1.0}
    server = toy(gpu_blocks=8, max_running=1, max_step_tokens=8, step_microseconds=0.0, **costs)
    trace = trace_of(*[(0, 1, 1, [])] * 12, block_tokens=2)
    assert split(trace, server, transfers=impatient(1e-5, 1e-5, None, None)).requests == 12


@pytest.mark.once
@given(data=st.data(), trace=traces(), settings=servers())
def test_fused_and_single_steps_agree(data: st.DataObject, trace: ListedTrace, settings: EngineSettings) -> None:
    prefilling, decoding = data.draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 3)]))
    short = st.sampled_from([1e-5, 1e-4, 120.0])
    most = st.sampled_from([None, None, 2, 6])
    connector = settings.connector if data.draw(st.booleans()) else None
    transfers = impatient(data.draw(short), data.draw(short), data.draw(most), connector)
    settings = replace(
        settings,
        network_bandwidth=data.draw(st.sampled_from([1e6, 1e8, 1e10])),
        pull_microseconds=data.draw(st.sampled_from([0.0, 3.0, 200.0])),
    )
    fused, single = (
        split(trace, replace(settings, stepping=stepping), prefilling, decoding, transfers)
        for stepping in Stepping
    )
    assert comparable(fused) == comparable(single)
    assert single.fused_steps == 0
