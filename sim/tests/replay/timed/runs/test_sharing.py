"""Servers that read each other's files, with time: against sets of blocks, and a disk that is walked through.

As in ``test_disk_times`` a block takes 1016 ns on the link and a job one more; on the disk 2016, a task one more.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_sim_timed_traces import PAGE, ListedTrace, answer, comparable, toy, trace_of

from kv_api import ConfigError, Direction, OffloadKey
from kv_offload_file.label import Label
from kv_offload_file.sharing.place import MOST_ENGINES, NeighbourSlot, nowhere, place_of
from kv_offload_file.slot_file import GoneError
from kv_offload_file.stats import BORROWED
from kv_sim.replay.servers.fleet import Fleet
from kv_sim.replay.timed import Answers, Contents, EngineSettings, Stepping, replay_engine
from kv_sim.replay.timed.connectors.timed_config import shares_files, timed_config
from kv_sim.replay.timed.durations.lanes import Job, Lanes
from kv_sim.replay.timed.durations.link import Link
from kv_sim.replay.timed.durations.timing import LinkCosts
from kv_sim.replay.timed.engine.device import _NoSharedSlots
from kv_sim.replay.timed.engine.neighbours import SharedFolders
from kv_sim.replay.timed.runs.answers import Copies, Spread, answers_of
from kv_sim.replay.timed.runs.finished import finished_of
from kv_sim.replay.timed.runs.run import replay_together

DISK = {"disk_read_bandwidth": 1e9, "disk_write_bandwidth": 1e9, "disk_microseconds": 2.0}
NOBODY: ListedTrace = trace_of()


def sharing(chunks: int = 16, **changes: Any) -> EngineSettings:
    """A server with files of so many chunks, without host memory, beside others."""
    size = 2 * PAGE * chunks
    made = {"gpu_blocks": 4, **DISK, "cpu_bytes_to_use": 0, "disk_bytes_to_use": size, "disk_shared": True}
    return toy(**{**made, **changes})


def together(traces: Sequence[ListedTrace], server: EngineSettings, **changes: Any) -> list[Answers]:
    """What each of the servers answers."""
    server, config = replace(server, **changes), server.transfer_config()
    numbered = [zip(count(number, len(traces)), trace, strict=False) for number, trace in enumerate(traces)]
    found = replay_together(numbered, server, config, traces[0].block_tokens)
    return [answers_of(finished_of(*one)) for one in found]


def test_what_a_neighbour_has_written_is_read_from_its_file() -> None:
    owner, other = trace_of((0, 8, 1, [1, 2])), trace_of((1000, 9, 1, [1, 2, 7]))
    first, second = together([owner, other], sharing())
    assert (first.disk_writes, first.disk_hit_tokens) == (Copies(2, 2, 32, 2 * 2017e-9), 0)
    # Read, and copied, as what is in the server's own file is: two chunks, each a task, then a job of both.
    assert second.disk_reads == Copies(2, 2, 32, 2 * 2017e-9)
    assert second.loads == Copies(1, 2, 32, 2033e-9)
    assert (second.disk_hit_tokens, second.connector[BORROWED]) == (8, 2)
    assert second.load_wait == Spread.of(array("q", [15_000]))
    assert second.disk_writes.blocks == 0, "it is there already; the last block isn't full"


@pytest.mark.parametrize(("after", "found"), [(24.2, 0), (24.3, 8)])
def test_what_is_not_written_yet_is_not_found(after: float, found: int) -> None:
    """It is computed by 18,145 ns, in a bay by 20,178, and its two chunks are written by 24,212, in turn."""
    owner, other = trace_of((0, 8, 1, [1, 2])), trace_of((after, 9, 1, [1, 2, 7]))
    assert together([owner, other], sharing())[1].disk_hit_tokens == found


def test_what_no_id_names_is_nobody_elses() -> None:
    traces = [trace_of((0, 9, 1, [])), trace_of((1000, 9, 1, [])), trace_of((0, 9, 1, []), (1000, 9, 1, []))]
    assert [one.disk_hit_tokens for one in together(traces, sharing())] == [0, 0, 0]


def test_all_servers_wait_for_one_disk() -> None:
    """What two begin to write at the same time lies there in turn; what each finds later says when."""
    slow = {"disk_write_bandwidth": 16e9 / 1e6, "disk_microseconds": 0.0}  # a millisecond a block

    def found(at: float, **changes: Any) -> list[int]:
        """Of the prompts that both had before, one behind them that fills the GPU."""
        traces = [
            trace_of(
                (0, 8, 1, [n, n + 1]), (500, 15, 1, [n + 2, n + 3, n + 4, n + 5]), (at, 9, 1, [n, n + 1, n + 9])
            )
            for n in (10, 20)
        ]
        if changes:
            return [answer(trace, sharing(**slow, **changes)).disk_hit_tokens for trace in traces]
        return [one.disk_hit_tokens for one in together(traces, sharing(**slow))]

    # Two blocks of each are written by 2,020 with a disk each, else the second's by 4,020. Lookups wait for 250.
    assert [found(at, disk_shared=False) for at in (1_500, 2_100)] == [[0, 0], [8, 8]]
    assert [found(at) for at in (1_500, 2_100, 3_500, 4_100)] == [[0, 0], [8, 0], [8, 0], [8, 8]]


SHORT = st.lists(st.integers(0, 2), min_size=3, max_size=3)


@pytest.mark.once
@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 2), SHORT), max_size=25), st.sampled_from(Stepping))
def test_who_has_what_is_what_sets_of_blocks_say(
    requests: list[tuple[int, list[int]]], stepping: Stepping
) -> None:
    """One request after the other, of three blocks and a token; a GPU holds what it had last."""
    ids, dealt = dict[tuple[int, ...], int](), [[], [], []]  # type: ignore[var-annotated]
    last: list[list[int]] = [[], [], []]
    homes: list[set[int]] = [set(), set(), set()]
    found, borrowed = [0, 0, 0], [0, 0, 0]
    for number, (server, path) in enumerate(requests):
        blocks = [ids.setdefault((*path[: n + 1],), len(ids)) for n in range(len(path))]
        dealt[server].append((number * 10_000.0, 13, 1, [*blocks, 1000 + number]))
        left = blocks[_common(blocks, last[server]) :]
        run = next((n for n, block in enumerate(left) if not any(block in home for home in homes)), len(left))
        found[server] += 4 * run
        borrowed[server] += sum(block not in homes[server] for block in left[:run])
        homes[server] |= set(left[run:])
        last[server] = blocks
    answers = together([trace_of(*one) for one in dealt], sharing(chunks=200, stepping=stepping))
    assert [one.disk_hit_tokens for one in answers] == found
    assert [one.connector.get(BORROWED, 0) for one in answers] == borrowed
    assert [one.disk_writes.blocks for one in answers] == [len(home) for home in homes]


def _common(one: list[int], other: list[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@st.composite
def shares(draw: st.DrawFn) -> list[ListedTrace]:
    """What comes to two or three servers, much of it at the same time."""
    numbers = count()
    return [trace_of(*_requests(draw, numbers)) for _ in range(draw(st.integers(2, 3)))]


def _requests(draw: st.DrawFn, numbers: "count[int]") -> Iterator[tuple[float, int, int, Sequence[int]]]:
    at = 0.0
    for _ in range(draw(st.integers(0, 8))):
        at += draw(st.sampled_from([0, 0, 7, 40, 200, 3000]))
        conversation, blocks = draw(st.integers(0, 2)), draw(st.integers(1, 6))
        shared = draw(st.integers(0, blocks))
        own = next(numbers)
        ids = [
            *(100 * conversation + n for n in range(shared)),
            *(1000 + 20 * own + n for n in range(shared, blocks)),
        ]
        yield at, 4 * blocks - draw(st.integers(0, 3)), draw(st.sampled_from([1, 2, 9, 30])), ids


servers = st.builds(
    sharing,
    chunks=st.sampled_from([2, 5, 12, 60]),
    gpu_blocks=st.sampled_from([14, 20, 60]),
    max_running=st.sampled_from([1, 4, 8]),
    step_microseconds=st.sampled_from([0.0, 20.0]),
    idle_step_microseconds=st.sampled_from([1.0, 9.0]),
    disk_read_bandwidth=st.sampled_from([1e7, 1e9]),
    disk_write_bandwidth=st.sampled_from([1e7, 1e9]),
    disk_store_threshold=st.sampled_from([0, 0, 2]),
    eviction_policy=st.sampled_from(["lru", "arc", "s3fifo", "sieve"]),
)


@pytest.mark.once
@settings(max_examples=15)
@given(shares(), servers)
def test_fused_and_single_steps_and_those_with_contents_agree(
    traces: list[ListedTrace], server: EngineSettings
) -> None:
    fused, single, checked = (
        [comparable(one) for one in together(traces, server, **how)]
        for how in ({}, {"stepping": Stepping.SINGLE}, {"contents": Contents.CHECKED})
    )
    assert fused == single == checked


@pytest.mark.once
@settings(max_examples=15)
@given(shares(), servers)
def test_a_server_beside_idle_ones_is_alone(traces: list[ListedTrace], server: EngineSettings) -> None:
    """But for the numbers of its requests, which are in the digest, and lookups."""
    busy = together([NOBODY, traces[0], NOBODY], server)[1]
    alone = answer(traces[0], replace(server, disk_shared=False))
    listed = {name: value for name, value in alone.connector.items() if "lookup" not in name}
    assert replace(comparable(busy), digest="", connector={}) == replace(
        comparable(alone), digest="", connector={}
    )
    assert {name: busy.connector.get(name, 0) for name in listed} == listed


@pytest.mark.once
@settings(max_examples=20)
@given(shares(), servers)
def test_whoever_is_earliest_goes_on(traces: list[ListedTrace], server: EngineSettings) -> None:
    """Nobody is given to the disk before what was given to it earlier, unless a host waited in between."""
    given: list[int] = []
    enqueue = Lanes.enqueue
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Lanes, "enqueue", lambda lanes, job, now: (_note(given, job, now), enqueue(lanes, job, now))[1]
        )
        answers = together(traces, server)
    if not any(one.host_wait_seconds for one in answers):
        assert given == sorted(given)


def _note(given: list[int], job: Job, now: int) -> None:
    assert isinstance(job.owner, Link)
    if job.owner.costs[Direction.STORE] is not job.owner.costs[Direction.LOAD]:  # a disk's
        given.append(now)


COSTS = LinkCosts(ns_per_byte=1.0, ns_per_piece=10.0, block_bytes=80, pieces_per_block=2)
"""A block takes 100, a job one more."""


@given(
    st.lists(
        st.tuples(st.integers(0, 500), st.integers(0, 2), st.sampled_from(Direction), st.integers(1, 4)),
        max_size=12,
    ),
    st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 2)), max_size=5),
)
def test_links_with_the_same_lanes_stand_in_one_queue(
    submissions: list[tuple[int, int, Direction, int]], polls: list[tuple[int, int]]
) -> None:
    lanes = Lanes()
    links = [Link(COSTS, lanes=lanes) for _ in range(3)]
    ports = [link.open() for link in links]
    free, now = dict.fromkeys(Direction, 0), 0
    expected: list[list[tuple[int, int]]] = [[], [], []]
    found: list[list[tuple[int, int]]] = [[], [], []]
    for job, (later, who, direction, blocks) in enumerate(submissions):
        now += later
        ports[who].submit(job, direction, blocks, now=now, ready=now)
        free[direction] = max(now, free[direction]) + 100 * blocks + 1
        expected[who].append((free[direction], job))
        assert links[who].next_end() == min(end for end, _ in expected[who])
    for moment, who in sorted((now + later, who) for later, who in polls):
        found[who] += [(job.end, job.job_id) for job in ports[who].poll(moment)]
        assert sorted(found[who]) == sorted(one for one in expected[who] if one[0] <= moment)
        left = [end for end, job in expected[who] if (end, job) not in found[who]]
        assert links[who].next_end() == min(left, default=None)
        for link in links:
            link.check()
    for who, port in enumerate(ports):
        found[who] += [(job.end, job.job_id) for job in port.poll(1 << 40)]
        assert sorted(found[who]) == sorted(expected[who]) and links[who].is_idle
        assert sum(traffic.jobs for traffic in links[who].traffic.values()) == len(expected[who])


def test_what_a_host_that_waits_lets_end_the_others_hear_of_in_their_time() -> None:
    lanes = Lanes()
    mine, theirs = (Link(COSTS, lanes=lanes).open() for _ in range(2))
    theirs.submit(0, Direction.STORE, 1, now=0, ready=0)
    mine.submit(0, Direction.STORE, 1, now=0, ready=0)
    assert mine.wait([0]) == 202
    assert theirs.poll(100) == [] and [job.end for job in theirs.poll(101)] == [101]


# -- who has what ------------------------------------------------------------------------------------


def key(name: str) -> OffloadKey:
    return OffloadKey(name.encode())


def test_what_one_says_the_others_know() -> None:
    folders = SharedFolders()
    folder = folders[Path("models")]
    one, two = folder.open(0), folder.open(1)
    one.holds([key("a"), key("b")], [0, 1])
    three = folder.open(2)
    two.holds([key("a"), key("c")], [0, 1])
    folder.check()
    assert two.places == {key("a"): place_of(NeighbourSlot(0, 0)), key("b"): place_of(NeighbourSlot(0, 1))}
    assert three.places[key("a")] == place_of(NeighbourSlot(0, 0)) and {*one.places} == {key("a"), key("c")}
    assert two.borrow(NeighbourSlot(0, 1), key("b")) and not two.borrow(NeighbourSlot(0, 1), key("a"))
    two.uses([NeighbourSlot(0, 1)])
    assert (one.lent(), one.take_used(), one.take_used()) == ([1], [1], [])
    folder.check()
    two.give_back(NeighbourSlot(0, 1))
    one.leaves([1, 7])
    assert one.lent() == [] and key("b") not in two.places
    folder.check()
    one.holds([key("d")], [0])
    assert three.places[key("a")] == place_of(NeighbourSlot(1, 0)), "the other one's"
    folder.check()
    three.distrust(NeighbourSlot(1, 0), key("a"))
    three.distrust(NeighbourSlot(1, 0), key("a"))
    assert key("a") not in three.places
    two.begin(2)
    assert one.places == {} and {*two.places} == {key("d")}
    folders.check()
    two._forget(key("d"), place_of(NeighbourSlot(0, 0)))
    with pytest.raises(AssertionError, match="server 1 knows of 0 slots, its neighbours spoke of 1"):
        folders.check()


def test_what_had_gone_before_it_was_borrowed_cannot_be_read() -> None:
    slots = _NoSharedSlots()
    slots.read(place_of(NeighbourSlot(0, 0)), Label(key("a"), 1, 1, 0), 0)
    slots.read(place_of(NeighbourSlot(MOST_ENGINES - 1, 0)), Label(key("a"), 1, 1, 0), 0)
    for index in range(2):
        with pytest.raises(GoneError, match="went before it could be borrowed"):
            slots.read(place_of(nowhere(index)), Label(key("a"), 1, 1, 0), 0)


# -- what is refused -----------------------------------------------------------------------------------


def test_one_server_shares_with_nobody() -> None:
    transfer = sharing().transfer_config()
    assert shares_files(transfer) and not shares_files(sharing(disk_shared=False).transfer_config())
    assert shares_files(sharing(cpu_bytes_to_use=8 * PAGE).transfer_config()), "a child does"
    with pytest.raises(ConfigError) as caught:
        timed_config(transfer, 1)
    assert str(caught.value) == (
        "connector.kv_connector_extra_config.file_shared: there is no other server to share with; add --servers "
        "N --disk-shared"
    )


def test_a_connector_that_does_not_share_is_not_shared() -> None:
    with pytest.raises(ConfigError, match="--disk-shared: no medium of this connector sets file_shared"):
        replay_engine(NOBODY, sharing(disk_shared=False), fleet=Fleet(2, disk_shared=True))
