"""Steps that are taken together and steps that are taken one by one give the same answers."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import settings as effort
from kv_sim_timed_traces import (
    PAGE,
    TOY_GPU,
    ListedTrace,
    answer,
    comparable,
    servers,
    toy,
    trace_of,
    traces,
)

from kv_sim.replay.timed import Contents, EngineSettings, Stepping
from kv_sim.replay.timed.connectors.timed_config import NOTHING
from kv_sim.replay.timed.engine.books import REFUSALS

FULL = trace_of(
    *((0, tokens, 1, ids) for tokens, ids in [(4, [0, 1]), (1, []), (4, [0, 1]), *[(1, [])] * 5]),
    (0, 6, 9, [1160, 1161, 1162]),
    (0, 4, 1, [1180, 1181]),
    (0, 1, 1, []),
    (0, 6, 1, [0, 1, 1220]),
    block_tokens=2,
)
"""Whoever runs alone preempts itself, while another one has loaded and waits."""

OUTPUTS_TOO = {
    "kv_connector": "OffloadingConnector",
    "kv_connector_extra_config": {"cpu_bytes_to_use": 60 * PAGE, "offload_prompt_only": False},
}

TINY = toy(
    connector={
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "cpu_bytes_to_use": PAGE,
            "offload_prompt_only": False,
            "blocks_per_chunk": 2,
            "store_threshold": 2,
        },
    },
    gpu_blocks=8,
    max_running=2,
    max_step_tokens=8,
    step_microseconds=0.0,
    idle_step_microseconds=1.0,
    copy_microseconds=0.0,
    page_tokens=2,
)


BESIDE = trace_of((0, 16, 40, [1]), (1, 3, 1, [2]), block_tokens=128)
"""The first one's prompt takes all tokens of two steps, so nobody looks at the second one before the third."""

NOBODY_ELSE = toy(connector=NOTHING, max_step_tokens=8, page_tokens=2)

ALL_BUT_ONE = trace_of((0, 9, 40, [1]), block_tokens=16)
"""After its first step a token of the prompt is left, as a token is of whoever decodes."""

OVERTAKEN = trace_of(
    *((0, 18, 1, [1, 2, 3]), (0, 7, 30, [4])),
    *((0, 52, 1, [11, 12, 13, 14, 15, 16, 17]), (0, 3, 5, [20])),
    block_tokens=8,
)
"""The third one stands still in its prefill until blocks of the first one are freed; the fourth goes on."""

HELD_UP = toy(
    chunks=60,
    connector={
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 60 * PAGE, "hold_blocks": "always"},
    },
    gpu_blocks=11,
    max_step_tokens=16,
    step_microseconds=0.0,
    copy_microseconds=100.0,
    page_tokens=8,
)

LOADED = trace_of(
    *((0, 9, 1, [0, 1, 2, 3, 4]), (0, 5, 9, []), (0, 9, 3, [0, 1, 2, 3, 4])),
    *((0, 5, 1, [0, 1, 5]), (0, 2, 1, [0])),
    block_tokens=2,
)
"""One has loaded and lacks blocks, which are free in the step after the one that hears of a store."""

HELD_FOR_STORES = toy(
    chunks=60,
    connector={
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "cpu_bytes_to_use": 60 * PAGE,
            "hold_blocks": "always",
            "offload_prompt_only": False,
        },
    },
    gpu_blocks=8,
    max_step_tokens=8,
    step_microseconds=0.0,
    idle_step_microseconds=1.0,
    copy_microseconds=50.0,
    page_tokens=2,
)


@pytest.mark.once
@example(FULL, TINY)
@example(BESIDE, NOBODY_ELSE)
@example(ALL_BUT_ONE, NOBODY_ELSE)
@example(OVERTAKEN, HELD_UP)
@example(LOADED, HELD_FOR_STORES)
@effort(max_examples=max(10, effort().max_examples // 3))
@given(traces(), servers())
def test_fused_and_single_steps_agree(trace: ListedTrace, settings: EngineSettings) -> None:
    fused = answer(trace, settings)
    single = answer(trace, settings, Stepping.SINGLE)
    assert single.fused_steps == 0
    assert comparable(fused) == comparable(single)


def busy_trace(requests: int) -> ListedTrace:
    """Long outputs, a queue, prefixes that come back: every reason to wake."""
    made = []
    for number in range(requests):
        ids = [number % 5 * 10, number % 5 * 10 + 1, *(1000 + number * 10 + place for place in range(number % 4))]
        made.append((number * 37.0, len(ids) * 16 - number % 7, 20 + number % 90, ids))
    return trace_of(*made, block_tokens=16)


@pytest.mark.once
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"gpu_blocks": 30},
        {"gpu_blocks": 30, "chunks": 3},
        {"max_running": 3},
        {"step_microseconds": 0.0, "copy_microseconds": 300.0},
    ],
    ids=["roomy", "short of blocks", "stores are refused", "few run", "slow link"],
)
def test_a_busy_server(changes: dict[str, object]) -> None:
    settings = toy(**{"gpu_blocks": 100, "page_tokens": 16, **changes})  # type: ignore[arg-type]
    trace = busy_trace(60)
    fused, single = answer(trace, settings), answer(trace, settings, Stepping.SINGLE)
    assert comparable(fused) == comparable(single)
    assert fused.requests == 60


@pytest.mark.parametrize("stores", [1, 2])
def test_what_outputs_complete_is_stored_in_the_same_steps(stores: int) -> None:
    """Each of the connectors counts steps, until a chunk is full."""
    several = {
        "kv_connector": "MultiConnector",
        "kv_connector_extra_config": {"connectors": [OUTPUTS_TOO] * stores},
    }
    settings = toy(gpu_blocks=60, connector={"kv_role": "kv_both", **several})
    trace = trace_of((0, 8, 60, [1, 2]), (3, 5, 3, [7, 8]))
    fused, single = answer(trace, settings), answer(trace, settings, Stepping.SINGLE)
    assert comparable(fused) == comparable(single)
    assert fused.fused_steps > 20 and fused.stores.jobs == 16 * stores


def test_whose_store_was_refused_takes_every_step() -> None:
    trace, settings = trace_of((0, 16, 40, [1, 2, 3, 4])), toy(chunks=2)
    fused, single = answer(trace, settings), answer(trace, settings, Stepping.SINGLE)
    assert comparable(fused) == comparable(single)
    assert (fused.connector[REFUSALS], fused.steps, fused.fused_steps) == (1, 41, 0)


def test_who_was_put_off_once_keeps_nobody_awake_later() -> None:
    late = ((5000, 3, 60, [3]), (5005, 3, 60, [4]))
    put_off = ((0, 8, 1, [1, 2]), (20, 8, 1, [1, 2]))
    settings = toy(copy_microseconds=50.0, max_running=1)
    early, both, alone = (answer(trace_of(*of), settings) for of in (put_off, put_off + late, late))
    assert both.fused_steps == early.fused_steps + alone.fused_steps


def test_steps_that_wait_for_memory_agree() -> None:
    """The sleepers' contexts are read in every step, whoever is awake in it."""
    settings = toy(gpu=replace(TOY_GPU, hbm_bandwidth=1e7), gpu_blocks=100, page_tokens=32)
    trace = trace_of((0, 3, 60, [1]), (1000, 3, 60, [2]), (4000, 3, 60, [3]), block_tokens=32)
    fused, single = answer(trace, settings), answer(trace, settings, Stepping.SINGLE)
    assert comparable(fused) == comparable(single)
    assert (fused.steps, fused.fused_steps) == (94, 79)


COMES_BACK = trace_of((0, 8, 1, [1, 2]), (1000, 15, 1, [3, 4, 5, 6]), (2000, 9, 2, [1, 2, 7]))


@pytest.mark.parametrize(("seconds", "failed"), [(0, 0), (1e-3, 0), (50e-6, 1)])
def test_a_load_that_takes_too_long_is_given_up_in_time(seconds: float, failed: int) -> None:
    """It takes 200 microseconds; nothing else happens meanwhile."""
    settings = toy(gpu_blocks=4, copy_microseconds=100.0)
    transfer = settings.transfer_config()
    transfer["kv_connector_extra_config"]["load_timeout_seconds"] = seconds
    settings = replace(settings, connector=transfer)
    fused, single = answer(COMES_BACK, settings), answer(COMES_BACK, settings, Stepping.SINGLE)
    assert comparable(fused) == comparable(single)
    assert fused.connector.get("vllm:kv_offload_load_failure", 0) == failed


def test_a_copy_may_end_in_any_nanosecond_of_a_step() -> None:
    """A step takes five, and a store ends while somebody else decodes: also just when the hooks of a step run."""
    quick = replace(TOY_GPU, flops=1e15, hbm_bandwidth=1e15)
    trace = trace_of((0, 3, 60, [1]), (0.02, 64, 1, [2]), block_tokens=64)
    for nanoseconds in range(10):
        settings = toy(gpu=quick, step_microseconds=0.004, copy_microseconds=nanoseconds / 1000, page_tokens=64)
        fused, single = answer(trace, settings), answer(trace, settings, Stepping.SINGLE)
        assert comparable(fused) == comparable(single)
        assert (fused.stores.jobs, fused.fused_steps > 50) == (1, True)


def test_most_steps_of_long_outputs_are_fused() -> None:
    answers = answer(trace_of((0, 20, 400, [1]), block_tokens=32), toy(page_tokens=16, gpu_blocks=100))
    assert (answers.steps, answers.fused_steps) == (401, 372)
    # One runs, one waits for it, one comes much later.
    queue = trace_of((0, 3, 60, [1]), (5, 3, 60, [2]), (5000, 3, 60, [3]), block_tokens=128)
    for room in ({"max_running": 1}, {"gpu_blocks": 1}):
        answers = answer(queue, toy(**room, page_tokens=128))  # type: ignore[arg-type]
        assert (answers.steps, answers.fused_steps) == (182, 173)
    # The first one's stores are refused, which is no reason to count the steps of the other.
    refused = trace_of((0, 128, 1, [1, 2, 3, 4]), (5000, 20, 400, [5]), block_tokens=32)
    answers = answer(refused, toy(chunks=2, page_tokens=16, gpu_blocks=100))
    assert answers.connector[REFUSALS] == 4
    assert (answers.steps, answers.fused_steps) == (404, 372)


def test_with_contents_the_times_are_the_same() -> None:
    trace, settings = busy_trace(25), toy(gpu_blocks=30, page_tokens=16)
    with_contents = answer(trace, replace(settings, contents=Contents.CHECKED))
    without = answer(trace, settings, Stepping.SINGLE)
    assert comparable(with_contents) == comparable(without)


PROGRAM = """
from kv_sim.replay.timed import EngineSettings, replay_engine
from kv_sim.replay.trace import TraceRequest

requests = [
    TraceRequest(n * 0.3, 600 + n * 7, 40 + n, (n % 8, 10 + n % 8, 100 + n, 200 + n)) for n in range(30)
]
class Trace(list):
    name, block_tokens = "made", 256

answers = replay_engine(Trace(requests), EngineSettings(gpu_blocks=16, cpu_bytes_to_use=2 << 30)).with_connector
print(answers.digest, answers.cpu_hit_blocks > 10, answers.fused_steps > 100)
"""


@pytest.mark.once
def test_the_digest_does_not_depend_on_the_process() -> None:
    printed = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1", "2")
    }
    assert len(printed) == 1
    assert printed.pop().split()[1:] == ["True", "True"]
