"""Pulls over TCP: what arrives, and what is refused."""

import threading
from contextlib import suppress
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from kv_p2p_tcp import BLOCKS, HOST, PATIENCE, answer, ask, connect, pull_at_random, wait_for

from kv_p2p.frames import send_frame
from kv_p2p.pulling.pages import CachePages
from kv_p2p.pulling.tcp.server import FRAME_BYTES, VERSION, blocks_per_frame
from kv_p2p.pulling.ticket import Address

NONE = "there is no hold {!r}: it was pulled, it was declined, or its time was over"
PLACES = "hold 'h' has 3 blocks of group 0; it has not"
PLACES_OF = "expected [first, count] of blocks for each KV cache group, got places"
NO_PLACES = (
    "0", 0, {}, {"0": [0, 1]}, [0, 1], [None], [[0]], [[0, 1, 2]], ["01"], [["0", 1]], [[False, 1]], [[0.0, 1]],
    [[[0], 1]], [[0, None]], [[0, True]], [[0, 1.0]], [[0, 1], 7],
)  # fmt: skip


class TestBlocks:
    @pytest.mark.parametrize("seed", range(10))
    def test_they_arrive_bit_for_bit(self, worker, small_frames, seed):
        random = Random(seed)
        there, here = worker(1), worker(2, serves=False)
        assert blocks_per_frame(there.pages) == 3
        sent = there.blocks
        pulls, expected, filled = pull_at_random(random, there, here)
        here.wait_for_pulls(pulls)
        assert (sorted(here.pulled), here.failed) == ([f"r{index}" for index in range(pulls)], [])
        assert here.blocks == expected
        assert there.blocks == sent
        assert (here.pulled_bytes, there.pulled_bytes) == (filled * here.pages.bytes_per_block, 0)
        there.wait_for(lambda: len(there.served) == pulls)
        assert sorted(there.served) == [f"h{index}" for index in range(pulls)]
        for one in (there, here):
            one.poll()
        assert (len(here.pulled), len(there.served)) == (pulls, pulls)

    def test_a_frame_has_a_block_at_least(self, worker, monkeypatch):
        monkeypatch.setattr("kv_p2p.pulling.tcp.server.FRAME_BYTES", 1)
        there, here = worker(1), worker(2)
        there.serve("h", 2, 3, 1)
        here.pull("r", there.source("h"), 1, 0, first=1)
        here.wait_for_pulls()
        assert here.pulled == ["r"]
        assert here.blocks[:2] == [there.block(1), there.block(3)]

    @pytest.mark.parametrize(
        ("block_bytes", "blocks"),
        [(0, 8 << 20), (1, 8 << 20), (3 << 20, 2), (4 << 20, 2), (8 << 20, 1), (9 << 20, 1), (1 << 40, 1)],
    )
    def test_a_frame_has_as_many_in_every_release_that_speaks_a_version_of_the_protocol(self, block_bytes, blocks):
        """Whoever pulls has memory for one frame, and refuses a larger one."""
        pages = SimpleNamespace(bytes_per_block=block_bytes)
        assert (VERSION, blocks_per_frame(pages)) == (2, blocks)

    def test_all_frames_of_a_pull_come_from_the_same_memory_and_into_the_same(
        self, worker, small_frames, monkeypatch
    ):
        """But those of two pulls do not."""
        there, here = worker(1), worker(2)
        gather, scatter, sent, received = CachePages.gather, CachePages.scatter, [], []

        def gathered(pages, blocks, memory):
            sent.append((len(blocks), [memory.obj]))
            return gather(pages, blocks, memory)

        def scattered(pages, blocks, parts):
            received.append((len(blocks), [part.obj for part in parts]))
            scatter(pages, blocks, parts)

        monkeypatch.setattr(CachePages, "gather", gathered)
        monkeypatch.setattr(CachePages, "scatter", scattered)
        for number, targets in enumerate([range(1, 9), range(9, 11)]):
            there.serve(f"h{number}", *targets)
            here.pull(f"r{number}", there.source(f"h{number}"), *targets)
            here.wait_for_pulls(number + 1)
        for found in (sent, received):
            assert [count for count, _ in found] == [3, 3, 2, 2]
            first, second = found[0][1][0], found[-1][1][0]
            assert all(memory is first for _, memories in found[:3] for memory in memories)
            assert first is not second
            assert (len(first), len(second)) == (3 * 34, 2 * 34)
        assert here.blocks[1:11] == there.blocks[1:11]

    def test_a_rank_without_layers(self):
        assert blocks_per_frame(CachePages({}, BLOCKS)) == FRAME_BYTES

    def test_frames_as_they_are(self, worker, small_frames):
        there = worker(1)
        there.serve("h", *range(1, 9))
        with connect(there) as connection:
            ask(connection, there, "h", count=7)
            assert [answer(connection) for _ in range(3)] == [
                {"status": "blocks", "group": 0, "count": count} for count in (3, 3, 1)
            ]
            send_frame(connection, {"op": "done"})
            assert answer(connection) is None
        there.wait_for(lambda: there.served == ["h"])

    def test_both_ways_at_once(self, worker):
        one, other = worker(1), worker(2)
        first, second = one.block(3), other.block(4)
        one.serve("h", 3)
        other.serve("h", 4)
        one.pull("r", other.source("h"), 0)
        other.pull("r", one.source("h"), 0)
        for half in (one, other):
            half.wait_for_pulls()
            half.wait_for(lambda half=half: half.served == ["h"])
            assert half.pulled == ["r"]
        assert (one.block(0), other.block(0)) == (second, first)

    def test_two_pulls_of_one_worker_run_side_by_side(self, worker):
        there, here = worker(1), worker(2)
        there.pages.reading.shut()
        there.serve("h", 1)
        there.serve("g", 2)
        here.pull("r", there.source("h"), 0)
        here.pull("s", there.source("g"), 1)
        for _ in range(2):
            there.pages.reading.wait_for_somebody()
        assert (there.readers("h"), there.readers("g")) == (1, 1)
        there.pages.reading.open.set()
        here.wait_for_pulls(2)
        assert sorted(here.pulled) == ["r", "s"]
        assert here.blocks[:2] == [there.block(1), there.block(2)]

    def test_a_rank_pulls_from_the_same_rank(self, worker):
        there, here = worker(1), worker(2, rank=3, serves=False)
        there.serve("h", 1)
        first = Address(HOST, there.wire.server.port - 3)
        here.pull("r", there.source("h", address=first), 0)
        here.wait_for_pulls()
        assert here.pulled == ["r"]

    def test_a_rank_listens_at_its_own_port(self, worker):
        free = worker()
        port = free.wire.server.port
        free.close()
        assert worker(rank=3, port=port - 3).wire.server.port == port


class TestRefusals:
    @pytest.fixture
    def there(self, worker):
        there = worker(1)
        there.serve("h", 1, 2, 3)
        return there

    def unchanged(self, there, here, before):
        there.poll()
        assert there.served == []
        assert there.readers("h") == 0
        assert here.blocks == before

    @pytest.mark.parametrize(
        ("source", "first", "count", "reason"),
        [
            ({"digest": "d"}, 0, 1, "hold 'h' is of another prompt"),
            ({"hold_id": "g"}, 0, 1, NONE.format("g")),
            ({}, 0, 4, f"{PLACES} 4 from place 0 on"),
            ({}, 1, 3, f"{PLACES} 3 from place 1 on"),
            ({}, 3, 1, f"{PLACES} 1 from place 3 on"),
            ({}, -1, 1, f"{PLACES} 1 from place -1 on"),
            ({}, -1, 2, f"{PLACES} 2 from place -1 on"),
        ],
    )
    def test_of_what_is_not_held(self, there, worker, source, first, count, reason):
        here = worker(2)
        before = here.blocks
        here.pull("r", there.source("h", **source), *range(count), first=first)
        assert here.reason() == reason
        self.unchanged(there, here, before)

    @pytest.mark.parametrize("other", [{"dtype": np.int32}, {"width": 7}])
    def test_of_another_layout(self, there, worker, other):
        here = worker(2, **other)
        before = here.blocks
        here.pull("r", there.source("h"), 1)
        said = "the KV caches of the two workers differ in the groups, names, types or sizes of their layers"
        assert here.reason() == said
        self.unchanged(there, here, before)

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"op": "push"}, "unknown operation 'push'; known: decline, pull"),
            ({"op": None}, "unknown operation None; known: decline, pull"),
            ({"op": ["pull"]}, "unknown operation ['pull']; known: decline, pull"),
            ({"version": 1}, "the protocol here has version 2, the request has 1"),
            (
                {"version": 1, "places": None, "first": 0, "count": 1},
                "the protocol here has version 2, the request has 1",
            ),
            ({"version": None}, "the protocol here has version 2, the request has None"),
            ({"hold": None}, NONE.format("None")),
            ({"hold": ["h"]}, NONE.format("['h']")),
            ({"digest": None}, "hold 'h' is of another prompt"),
            *(({"places": bad}, f"{PLACES_OF} {bad!r}") for bad in NO_PLACES),
            ({"places": None}, f"{PLACES_OF} None"),
            ({"places": []}, "hold 'h' has blocks of 1 KV cache groups, not of 0"),
            ({"places": [[0, 1], [0, 1]]}, "hold 'h' has blocks of 1 KV cache groups, not of 2"),
            ({"places": [[0, -1]]}, f"{PLACES} -1 from place 0 on"),
            ({"places": [[1 << 70, 1]]}, f"{PLACES} 1 from place {1 << 70} on"),
            ({"places": [[0, 1 << 70]]}, f"{PLACES} {1 << 70} from place 0 on"),
        ],
    )
    def test_of_what_is_no_question(self, there, changes, reason):
        with connect(there) as connection:
            ask(connection, there, "h", **changes)
            assert answer(connection) == {"status": "refused", "reason": reason}
            assert answer(connection) is None
        assert there.readers("h") == 0
        there.poll()
        assert there.served == []

    def test_of_a_question_with_parts(self, there, caplog):
        with connect(there) as connection:
            with suppress(ConnectionError):  # it may have hung up already
                send_frame(connection, {"op": "pull"}, [b"x"])
            wait_for(lambda: caplog.messages)
        said = f"a client of {there.wire.server.port} broke off: expected at most 0 bytes, the frame has 1"
        assert caplog.messages == [said]


def test_a_consumer_does_not_listen(worker):
    one = worker(serves=False)
    assert one.wire.server is None
    assert not [thread for thread in threading.enumerate() if "server" in thread.name]


def test_whoever_waits_is_woken(worker):
    """By an end of its own pull, and of its own hold."""
    there, here = worker(1), worker(2)
    there.serve("h", 1)
    here.pull("r", there.source("h"), 0)
    for one in (there, here):
        one.wire.wait(PATIENCE)
        assert one.wire._news.is_set()
    here.poll()
    assert not here.wire._news.is_set()
    assert here.pulled == ["r"]
