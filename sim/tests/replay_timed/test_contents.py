"""With contents, a replay is a run of the testbed: who corrupts is caught."""

from typing import Any

import pytest
from kv_sim_timed_traces import PAGE, answer, toy, trace_of

from kv_sim.replay.timed import Contents
from kv_sim.violation import Violation

BLOCKS = [[1, 2, 3], [11, 12, 13], [21, 22, 23]]
TRACE = trace_of(
    *(
        (turn * 1000 + number, 13, 6, [*BLOCKS[number], 100 * turn + number])
        for turn in range(4)
        for number in range(3)
    )
)
"""Three conversations in turn, and room for one of them on the GPU."""


def config(name: str) -> dict[str, Any]:
    return {
        "kv_connector": name,
        "kv_role": "kv_both",
        "kv_connector_module_path": "kv_sim_timed_broken",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 64 * PAGE},
    }


@pytest.mark.parametrize(("blocks_per_chunk", "found"), [(1, 12), (2, 8), (3, 12)])
def test_nothing_is_wrong_with_ours(blocks_per_chunk: int, found: int) -> None:
    transfer = toy(chunks=64).transfer_config()
    transfer["kv_connector_extra_config"]["blocks_per_chunk"] = blocks_per_chunk
    answers = answer(TRACE, toy(gpu_blocks=5, contents=Contents.CHECKED, connector=transfer))
    assert (answers.requests, answers.cpu_hit_tokens, answers.gpu_hit_tokens) == (12, 9 * found, 0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("BackwardsConnector", r"CONTENT  request 3 token 0: rank 0 block \d+ holds 0x\w+, last written by load"),
        ("HastyConnector", r"OWNERSHIP  rank 0 block \d+ \(of request 0\): store copy 0 reads it before step 1"),
        ("SilentConnector", r"LIVENESS  nothing is under way, and there are still requests: <request 3 waiting"),
    ],
)
def test_a_corrupting_connector_is_caught(name: str, message: str) -> None:
    with pytest.raises(Violation, match=message):
        answer(TRACE, toy(gpu_blocks=5, contents=Contents.CHECKED, connector=config(name)))


def test_who_never_comes_to_rest_is_caught() -> None:
    with pytest.raises(Violation) as caught:
        answer(TRACE, toy(gpu_blocks=5, connector=config("RestlessConnector")))
    assert str(caught.value).startswith(
        "LIVENESS  nothing is under way, and there are still requests: none, but it wants to go on"
    )


def test_a_connector_that_is_none_of_ours_takes_every_step() -> None:
    ours = answer(TRACE, toy(gpu_blocks=5))
    plain = answer(TRACE, toy(gpu_blocks=5, connector=config("PlainConnector")))
    assert ours.fused_steps > 0
    assert (plain.fused_steps, plain.digest) == (0, ours.digest)
