"""The link, against jobs that are walked through one by one."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_api import Direction
from kv_offload_cpu.copy.engine import CopyResult, Numbers, PageCopies, Urgency
from kv_offload_cpu.sizing import HostLayout
from kv_sim.replay.timed.connectors.host_memory import LinkCopyEngine
from kv_sim.replay.timed.durations.lanes import Ended, Lanes
from kv_sim.replay.timed.durations.link import Link
from kv_sim.replay.timed.durations.timing import Clock, LinkCosts
from kv_sim.replay.timed.engine.device import AtEnd, Mover

COSTS = LinkCosts(ns_per_byte=1.0, ns_per_piece=10.0, block_bytes=80, pieces_per_block=2)
"""A block takes 100, a job one more."""


@given(
    st.lists(
        st.tuples(st.integers(0, 500), st.sampled_from(Direction), st.integers(1, 4), st.integers(0, 900)),
        max_size=12,
    ),
    st.lists(st.integers(0, 9000), max_size=5),
)
def test_jobs_of_a_direction_run_one_after_the_other(
    submissions: list[tuple[int, Direction, int, int]], polls: list[int]
) -> None:
    link, now = Link(COSTS), 0
    port, free = link.open(), dict.fromkeys(Direction, 0)
    expected, found = [], []
    for job, (later, direction, blocks, ready) in enumerate(submissions):
        now += later
        port.submit(job, direction, blocks, now=now, ready=ready)
        begin = max(now, ready, free[direction])
        free[direction] = begin + 100 * blocks + 1
        expected.append(Ended(0, job, direction, blocks, begin, free[direction], True))
        link.check()
    for moment in sorted(now + poll for poll in polls):
        found += port.poll(moment)
        assert sorted(found, key=_job) == [job for job in expected if job.end <= moment]
        link.check()
    found += port.poll(1 << 40)
    assert sorted(found, key=_job) == expected
    assert [job.end for job in found] == sorted(job.end for job in expected)
    assert link.is_idle and link.activity == 2 * len(submissions)


def _job(ended: Ended) -> int:
    return ended.job_id


def test_an_expedited_load_overtakes_what_has_not_begun() -> None:
    link = Link(COSTS)
    port = link.open()
    for job in (0, 1, 2):
        port.submit(job, Direction.LOAD, 1, now=0, ready=0)
    port.submit(3, Direction.LOAD, 1, now=50, ready=0, expedited=True)
    port.submit(4, Direction.LOAD, 1, now=60, ready=0, expedited=True)
    assert [(job.job_id, job.end) for job in port.poll(1000)] == [(0, 101), (3, 202), (4, 303), (1, 404), (2, 505)]
    link.check()


def test_an_expedited_load_waits_for_one_that_began_since_anybody_asked() -> None:
    link = Link(COSTS)
    port = link.open()
    for job in (0, 1, 2):
        port.submit(job, Direction.LOAD, 1, now=0, ready=0)
    port.submit(3, Direction.LOAD, 1, now=150, ready=0, expedited=True)
    assert [(job.job_id, job.end) for job in port.poll(1000)] == [(0, 101), (1, 202), (3, 303), (2, 404)]


def test_an_expedited_load_overtakes_one_that_waits_for_the_device() -> None:
    link = Link(COSTS)
    port = link.open()
    port.submit(0, Direction.LOAD, 1, now=0, ready=500)
    port.submit(1, Direction.LOAD, 1, now=10, ready=10, expedited=True)
    assert [(job.job_id, job.begin) for job in port.poll(1000)] == [(1, 10), (0, 500)]


def test_a_port_hears_of_its_own_jobs() -> None:
    link = Link(COSTS)
    ports = link.open(), link.open()
    for port in ports:
        port.submit(7, Direction.STORE, 1, now=0, ready=0)
    ports[0].submit(8, Direction.STORE, 1, now=0, ready=0)
    assert ports[1].wait([7, 8]) == 202
    assert link.has_news and not link.is_idle
    assert [[job.end for job in port.poll(202)] for port in ports] == [[101], [202]]
    assert ports[1].wait([7]) == 0


def test_who_waits_for_some_lets_the_others_go_on() -> None:
    link = Link(COSTS)
    port, other = link.open(), link.open()
    for door, job, direction in [
        (port, 1, Direction.STORE),
        (other, 1, Direction.LOAD),
        (port, 2, Direction.STORE),
        (port, 3, Direction.STORE),
    ]:
        door.submit(job, direction, job, now=0, ready=0)
    # Jobs of one, two and three blocks, one after the other; the other port's ends with the first.
    assert port.wait([2, 9]) == 101 + 201
    assert [job.job_id for job in port.unpolled] == [1, 2] and [job.job_id for job in other.unpolled] == [1]
    assert (link.next_end(), link.activity) == (101, 4), "nobody has heard of it"
    link.check()
    assert [job.job_id for job in port.poll(602)] == [1, 2] and link.activity == 6
    assert link.next_end() == 101, "the other one's"
    assert [job.job_id for job in port.poll(603)] == [3] and not link.is_idle
    assert [job.job_id for job in other.poll(603)] == [1] and link.is_idle
    assert link.next_end() is None and link.activity == 8
    traffic = link.traffic[Direction.STORE]
    assert (traffic.jobs, traffic.blocks, traffic.busy_ns) == (3, 6, 603)


def test_of_a_job_that_another_host_let_end_one_is_told_after_what_ends_before_it() -> None:
    """That host's clock is ahead, so the other one may still give a job that ends sooner."""
    lanes = Lanes()
    ahead, behind = Link(COSTS, lanes=lanes), Link(COSTS, lanes=lanes)
    host, port = ahead.open(), behind.open()
    port.submit(0, Direction.LOAD, 4, now=0, ready=0)
    host.submit(0, Direction.LOAD, 1, now=0, ready=0)
    assert host.wait_any() == 502
    port.submit(1, Direction.STORE, 1, now=100, ready=100)
    assert behind.next_end() == 201
    assert [(job.job_id, job.end) for job in port.poll(250)] == [(1, 201)]
    port.submit(2, Direction.STORE, 1, now=250, ready=250)
    behind.advance(351)
    assert port.wait_any() == 351, "the first of those that are not reported"
    assert [(job.job_id, job.end) for job in port.poll(600)] == [(2, 351), (0, 401)]
    assert behind.is_idle


def test_a_job_that_fails_says_so_and_moves_its_bytes_at_its_end() -> None:
    link, moved = Link(COSTS), []
    port = link.open()
    link.log = lambda job, now: moved.append((job.job_id, job.success, now))
    port.submit(0, Direction.STORE, 1, now=0, ready=0, at_end=lambda: bool(moved.append("first")))
    port.submit(1, Direction.STORE, 1, now=0, ready=0, at_end=lambda: not moved.append("second"))
    assert port.poll(100) == [] == moved
    assert [job.success for job in port.poll(202)] == [False, True]
    assert moved == ["first", "second", (0, False, 202), (1, True, 202)]


def test_directions_may_cost_differently_and_whoever_waits_for_anything_waits_for_its_own() -> None:
    twice = LinkCosts(ns_per_byte=2.0, ns_per_piece=20.0, block_bytes=80, pieces_per_block=2)
    link = Link(COSTS, twice)
    port, other = link.open(), link.open()
    other.submit(0, Direction.STORE, 1, now=0, ready=0)
    port.submit(0, Direction.LOAD, 1, now=0, ready=0)
    port.submit(1, Direction.STORE, 2, now=0, ready=0)
    assert (port.wait_any(), port.wait_any()) == (201, 201), "until it was reported, that one will do"
    assert [job.job_id for job in port.poll(201)] == [0]
    assert port.wait_any() == 302
    assert [job.job_id for job in port.poll(302)] == [1] and [job.end for job in other.poll(302)] == [101]
    with pytest.raises(AssertionError, match="an engine waits for a job, but no queue has one"):
        port.wait_any()
    link.check()


def test_a_job_that_begins_this_moment_has_begun() -> None:
    for ready, order in [(10, [0, 1]), (11, [1, 0])]:
        link = Link(COSTS)
        port = link.open()
        port.submit(0, Direction.LOAD, 1, now=0, ready=ready)
        port.submit(1, Direction.LOAD, 1, now=10, ready=0, expedited=True)
        assert [job.job_id for job in port.poll(1000)] == order


def pages(blocks: int) -> PageCopies:
    """As many blocks, to the second block of each of the first chunks."""
    numbers = np.arange(blocks)
    return PageCopies(numbers * 0, numbers + 100, numbers, numbers * 0 + 1)


def test_a_copy_whose_bytes_could_not_be_moved_has_failed() -> None:
    device: Any = SimpleNamespace(
        link=Link(COSTS),
        clock=Clock(),
        open_mover=lambda: lambda direction, blocks, pages: lambda: direction is Direction.STORE,
        allocate_host=lambda slots: 0,
    )
    engine = LinkCopyEngine(device, HostLayout(8, 3, 80, 1, 80))
    engine.submit(0, Direction.LOAD, pages(1))
    engine.submit(1, Direction.STORE, pages(1))
    engine.wait([0, 1])
    assert {result.job_id: result.success for result in engine.poll()} == {0: False, 1: True}


def test_a_copy_engine_over_the_link() -> None:
    link, clock, seen = Link(COSTS), Clock(now=50, busy_until=60), []

    def open_mover() -> Mover:
        def mover(direction: Direction, blocks: Numbers, pages: Numbers) -> AtEnd:
            seen.append((direction, blocks.tolist(), (pages - 1000).tolist()))
            return None

        return mover

    def allocate_host(slots: int) -> int:
        seen.append(slots)
        return 1000

    device: Any = SimpleNamespace(link=link, clock=clock, open_mover=open_mover, allocate_host=allocate_host)
    engine = LinkCopyEngine(device, HostLayout(8, 3, 80, 1, 80))
    engine.submit(0, Direction.LOAD, pages(2))
    engine.submit(1, Direction.STORE, pages(1))
    clock.now = 60
    engine.submit(2, Direction.LOAD, pages(3))
    engine.submit(3, Direction.LOAD, pages(1), urgency=Urgency.EXPEDITED)
    # Slots of chunks with three blocks each.
    one, two, three = ([1], [1, 4], [1, 4, 7])
    assert seen == [
        8 * 3,
        (Direction.LOAD, [100, 101], two),
        (Direction.STORE, [100], one),
        (Direction.LOAD, [100, 101, 102], three),
        (Direction.LOAD, [100], one),
    ]
    # None begins before the device is free, at 60; the expedited one comes before the third.
    engine.wait([3])
    assert (clock.now, clock.waited_ns) == (60 + 201 + 101, 201 + 101)
    assert engine.poll() == [
        CopyResult(1, True, 80, 101e-9),
        CopyResult(0, True, 160, 201e-9),
        CopyResult(3, True, 80, 101e-9),
    ]
    engine.wait([0, 1, 3])
    assert (clock.now, clock.waited_ns, engine.poll()) == (362, 302, [])
    engine.shutdown()
