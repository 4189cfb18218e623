"""Sleepers wake for who may take a block or a token of theirs, and for nobody else."""

from types import SimpleNamespace
from typing import Any

import pytest

from kv_sim.replay.timed.engine.request import Names, TracedRequest
from kv_sim.replay.timed.engine.scheduler import TimedScheduler
from kv_sim.replay.trace import TraceRequest


def running(computed: int, tokens: int, place: int = 1) -> TracedRequest:
    made = TracedRequest(place, TraceRequest(0.0, tokens, 9, ()), Names(), 4)
    made.num_computed_tokens, made.run_order = computed, place
    return made


@pytest.mark.parametrize(
    ("requests", "blocks", "free", "lacks"),
    [
        ([], [], 0, False),
        ([running(7, 8)], [2], 0, False),
        ([running(8, 9)], [2], 0, True),
        ([running(8, 9)], [2], 1, False),
        ([running(8, 9)], [3], 0, False),
        ([running(8, 9, 1), running(12, 13, 2)], [2, 3], 1, True),
        ([running(8, 9, 1), running(12, 13, 2)], [2, 3], 2, False),
        ([running(8, 9, 1), running(8, 9, 2)], [2, 5], 0, True),  # what one has too much is nobody else's
        ([running(2, 90)], [1], 2, False),  # a step computes ten of its tokens
        ([running(3, 90)], [1], 2, True),
    ],
)
def test_who_may_need_more_blocks_than_are_free(
    requests: list[TracedRequest], blocks: list[int], free: int, lacks: bool
) -> None:
    tables = {
        request.request_id: SimpleNamespace(groups=([1] * held,))
        for request, held in zip(requests, blocks, strict=True)
    }
    scheduler: Any = SimpleNamespace(
        config=SimpleNamespace(block_size=4, max_step_tokens=10),
        running=requests,
        blocks=SimpleNamespace(tables=tables, block_pool=SimpleNamespace(num_free=free)),
    )
    assert TimedScheduler.may_lack_blocks(scheduler) is lacks


@pytest.mark.parametrize(
    ("requests", "lack"),
    [
        ([], False),
        ([running(8, 9, 1)], False),  # it takes a token of its own
        ([running(7, 9, 1)], True),
        ([running(7, 9, 3)], False),  # nobody was admitted after it
        ([running(8, 9, 1), running(7, 9, 2)], True),
    ],
)
def test_who_may_take_a_token_of_those_behind_it(requests: list[TracedRequest], lack: bool) -> None:
    scheduler: Any = SimpleNamespace(running=requests, _run_orders=3)
    assert TimedScheduler.may_lack_tokens(scheduler) is lack
