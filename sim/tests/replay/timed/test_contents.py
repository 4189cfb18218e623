"""With contents, a replay is a run of the testbed: who corrupts is caught."""

from types import SimpleNamespace
from typing import Any

import pytest
from kv_sim_timed_broken import RestlessSide, UndecidedSide
from kv_sim_timed_traces import PAGE, ListedTrace, answer, toy, trace_of

from kv_api import Direction
from kv_sim.config import WorldConfig
from kv_sim.engine.pool import BlockPool
from kv_sim.memory.launched import LaunchedStep
from kv_sim.memory.shadow import Shadow
from kv_sim.replay.timed import Contents
from kv_sim.replay.timed.durations.link import Link
from kv_sim.replay.timed.durations.timing import Clock, LinkCosts
from kv_sim.replay.timed.engine.device import TimedDevice
from kv_sim.replay.timed.engine.engine import TimedEngine
from kv_sim.replay.timed.engine.sleepers import Sleepers
from kv_sim.violation import Referee, Violation

COSTS = LinkCosts(ns_per_byte=1.0, ns_per_piece=10.0, block_bytes=80, pieces_per_block=2)
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


def test_two_media_have_host_memory_of_their_own() -> None:
    children = [toy(chunks=64).transfer_config() for _ in range(2)]
    children[1]["kv_connector_extra_config"]["blocks_per_chunk"] = 2
    several = {"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": children}}
    settings = toy(gpu_blocks=5, contents=Contents.CHECKED, connector={"kv_role": "kv_both", **several})
    answers = answer(TRACE, settings)
    assert answers.cpu_hit_tokens == 9 * 12


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "BackwardsConnector",
            r"CONTENT  request 3 token 0: rank 0 block \d+ holds token \d+ of request \d+, last written by load",
        ),
        ("HastyConnector", r"OWNERSHIP  rank 0 block \d+ \(of request 0\): store copy 0 reads it before step 1"),
        ("SilentConnector", r"LIVENESS  nothing is under way, and there are still requests: <request 3 waiting"),
    ],
)
def test_a_corrupting_connector_is_caught(name: str, message: str) -> None:
    with pytest.raises(Violation, match=message):
        answer(TRACE, toy(gpu_blocks=5, contents=Contents.CHECKED, connector=config(name)))


ONE, TWO = trace_of((0, 4, 1, [1])), trace_of((0, 4, 1, [1]), (0, 4, 1, [2]))

LATE = trace_of((0, 4, 1, [1]), (0, 0, 1, []), (9000, 4, 1, [2]))
"""The second one has no prompt, and isn't replayed."""

SHORT, MEANWHILE = trace_of((0, 3, 1, [1]), (0, 3, 1, [2])), trace_of((0, 3, 1, [1]), (2501, 3, 1, [2]))
"""No block is full, so nothing is copied. The other one comes while the first is computed, after 500 looks."""


@pytest.mark.once
@pytest.mark.parametrize(
    ("side", "trace", "steps", "left"),
    [
        # One more tells that the request has ended.
        (RestlessSide, ONE, 999, ""),
        (RestlessSide, ONE, 1000, "none, but it wants to go on"),
        (UndecidedSide, ONE, 1000, ""),
        (UndecidedSide, ONE, 1001, "<request 0 waiting 0/4>"),
        # 700 steps before the first one, a step that computes it, 699 before the second.
        (UndecidedSide, TWO, 700, ""),
        (UndecidedSide, TWO, 1001, "<request 0 waiting 0/4>, <request 1 waiting 0/4>"),
        # A step that computes something begins the count anew: 700 and 699, and a thousand.
        (UndecidedSide, SHORT, 700, ""),
        (UndecidedSide, MEANWHILE, 500, ""),
        # While somebody is still to come there is something to wait for.
        (UndecidedSide, LATE, 1500, ""),
    ],
)
def test_a_thousand_steps_in_a_row_may_change_nothing(
    monkeypatch: pytest.MonkeyPatch, side: type[Any], trace: ListedTrace, steps: int, left: str
) -> None:
    monkeypatch.setattr(side, "steps", steps)
    settings = toy(connector=config(side.__name__.replace("Side", "Connector")))
    if not left:
        assert answer(trace, settings).requests == sum(bool(r.input_tokens) for r in trace.requests)
        return
    with pytest.raises(Violation) as caught:
        answer(trace, settings)
    message = str(caught.value).splitlines()[0]
    assert message == f"LIVENESS  nothing is under way, and there are still requests: {left}"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "RememberingConnector",
            "request 0 has ended, everything is at rest, and RememberingConnector._scheduler._seen[…] "
            "still remembers it",
        ),
        ("KeepingConnector", "GPU blocks [1] (of no request) are never freed"),
        ("MiscountingConnector", "at rest, MiscountingSide.check() fails: one too many"),
    ],
)
def test_who_keeps_something_at_the_end_is_caught(name: str, message: str) -> None:
    with pytest.raises(Violation) as caught:
        answer(ONE, toy(connector=config(name)))
    assert str(caught.value).splitlines()[0] == f"CONSERVATION  {message}"


def test_a_copy_that_ends_while_a_step_runs_has_moved_its_bytes_when_that_ends() -> None:
    """So what it may touch is judged by what runs then."""
    clock, link, at_end = Clock(), Link(COSTS), list[tuple[int, int]]()
    device = TimedDevice(0, WorldConfig(), Shadow(1, Referee()), clock, link, Link(COSTS))
    port = link.open()
    for job in range(3):
        port.submit(
            job,
            Direction.STORE,
            1,
            now=0,
            ready=0,
            at_end=lambda job=job: at_end.append((job, len(device.queue))) is None,  # type: ignore[misc]
        )
    device.forward_ns = 2 * link.costs[Direction.STORE].job_ns(1)
    clock.now = link.costs[Direction.STORE].job_ns(1) // 2
    device.launch(LaunchedStep(1, [], [], [], 4, (0,)))
    assert clock.busy_until == clock.now + device.forward_ns
    assert not at_end
    device.retire()
    assert at_end == [(0, 1), (1, 1)]


def test_sleepers_are_recounted_while_they_sleep() -> None:
    sleepers = Sleepers()
    for index, computed, steps in ((0, 10, 9), (1, 20, 4)):
        request: Any = SimpleNamespace(index=index, num_computed_tokens=computed, num_output_tokens=1)
        sleepers.fall_asleep(request, steps)
        sleepers.check()
        sleepers.pass_steps(3)
        sleepers.check()
    assert (sleepers.context, sleepers.next_alarm()) == (10 + 6 + 1 + 20 + 3 + 1, 7)
    sleepers.pass_steps(1)
    [woken] = sleepers.wake_due()
    assert (woken.index, woken.num_computed_tokens, woken.num_output_tokens) == (1, 24, 5)
    sleepers.check()
    sleepers.context += 1
    with pytest.raises(AssertionError, match="the sleepers read 18 tokens, the sum says 19"):
        sleepers.check()
    sleepers.context -= 1
    sleepers.pass_steps(3)
    with pytest.raises(AssertionError, match="an alarm at step 9 was missed, it is step 10"):
        sleepers.check()


@pytest.mark.parametrize("of_the_link", [True, False])
@pytest.mark.parametrize("of_the_disk", [True, False])
def test_a_copy_may_be_under_way_on_the_link_or_to_the_disk(of_the_link: bool, of_the_disk: bool) -> None:
    links = SimpleNamespace(_links=[SimpleNamespace(is_idle=idle) for idle in (of_the_link, of_the_disk)])
    copies_nothing: Any = TimedEngine.__dict__["copies_nothing"]
    assert copies_nothing.fget(links) is (of_the_link and of_the_disk)


@pytest.mark.parametrize("part", [Link, Sleepers, BlockPool])
def test_at_the_end_the_engine_is_recounted(monkeypatch: pytest.MonkeyPatch, part: type[Any]) -> None:
    def check(self: Any) -> None:
        raise AssertionError("one too many")

    monkeypatch.setattr(part, "check", check)
    with pytest.raises(AssertionError, match="one too many"):
        answer(ONE, toy())


def test_a_connector_that_is_none_of_ours_takes_every_step() -> None:
    ours = answer(TRACE, toy(gpu_blocks=5))
    plain = answer(TRACE, toy(gpu_blocks=5, connector=config("PlainConnector")))
    assert ours.fused_steps > 0
    assert (plain.fused_steps, plain.digest) == (0, ours.digest)
