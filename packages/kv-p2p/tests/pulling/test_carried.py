"""Pulls whose bytes a carrier moves: the carrier here is a copy within the process."""

import socket
import threading
from contextlib import suppress
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from kv_p2p_background import Background
from kv_p2p_carrier import REACHED, LocalCarrier
from kv_p2p_engine import kv_cache_config, spec
from kv_p2p_tcp import BLOCKS, HOST, PATIENCE, answer, ask, connect, pull_at_random, wait_for

from kv_p2p.frames import recv_frame, send_frame
from kv_p2p.pulling.metadata import Hold, Part, Pull, Source
from kv_p2p.pulling.options import Options
from kv_p2p.pulling.pages import CachePages, WorkerPages
from kv_p2p.pulling.tcp.server import slot_bytes
from kv_p2p.pulling.tcp.wire import TcpWire
from kv_p2p.pulling.ticket import Address


@pytest.fixture
def carried(worker):
    """Makes workers with a carrier each."""
    before = {*REACHED}

    def make(seed, **options):
        return worker(seed, carrier=LocalCarrier(), **options)

    yield make
    left = [REACHED[session] for session in {*REACHED} - before]
    for one in left:
        one.reading.set()


class TestBlocks:
    @pytest.mark.parametrize("seed", range(10))
    def test_they_arrive_bit_for_bit(self, carried, small_frames, seed):
        random = Random(seed)
        there, here = carried(1), carried(2, serves=False)
        sent = there.blocks
        pulls, expected, filled_blocks = pull_at_random(random, there, here)
        here.wait_for_pulls(pulls)
        assert (sorted(here.pulled), here.failed) == ([f"r{index}" for index in range(pulls)], [])
        assert (here.blocks, there.blocks) == (expected, sent)
        filled = filled_blocks * here.pages.bytes_per_block
        assert (here.pulled_bytes, here.carrier.read_bytes, there.carrier.read_bytes) == (filled, filled, 0)
        there.wait_for(lambda: len(there.served) == pulls)
        for one in (there, here):
            one.poll()

    def test_those_of_several_groups(self, monkeypatch):
        monkeypatch.setattr("kv_p2p.pulling.tcp.server.FRAME_BYTES", 2 * 16)
        made = []
        for seed in (1, 2):
            random = np.random.default_rng(seed)
            memory, other = (random.integers(0, 256, (12, size), dtype=np.uint8) for size in (16, 6))
            caches = {"all0": memory[:, :10], "all1": other, "near0": memory}
            config = kv_cache_config(12, (spec(4), spec(8, window=9)), [["all0", "all1"], ["near0"]])
            pages = WorkerPages.of(caches, config)
            made.append((caches, TcpWire(pages, 0, Options(HOST, 0, PATIENCE, PATIENCE), LocalCarrier())))
        (theirs, there), (ours, here) = made
        there.serve(Hold("a", "h", "d", ((3, 4, 5, 9, 8), (0, 6, 7))))
        source = Source(Address(HOST, there.server.port), "h", "d")
        here.pull(Pull("r", source, (Part(1, (1, 2, 3, 5)), Part(1, (7, 8)))))
        here.wait(PATIENCE)
        assert here.poll().pulled == ["r"]
        for mine, other_s in zip((1, 2, 3, 5), (4, 5, 9, 8), strict=True):
            assert ours["all0"][mine].tobytes() == theirs["all0"][other_s].tobytes()
            assert ours["all1"][mine].tobytes() == theirs["all1"][other_s].tobytes()
        assert ours["near0"][[7, 8]].tobytes() == theirs["near0"][[6, 7]].tobytes()
        for wire in (here, there):
            wire.check()
            Background(wire.close).result()

    def test_slots_are_used_again_but_not_by_two_at_once(self, carried):
        there, here = carried(1), carried(2)
        for number in range(4):
            there.serve(f"h{number}", number + 1)
            here.pull(f"r{number}", there.source(f"h{number}"), number)
            here.wait_for_pulls(number + 1)
            there.wait_for(lambda number=number: len(there.served) == number + 1)
        assert (len(there.carrier.slots), len(here.carrier.slots)) == (2, 1)
        here.carrier.reading.clear()
        for number in range(4, 6):
            there.serve(f"h{number}", number + 1)
            here.pull(f"r{number}", there.source(f"h{number}"), number)
        for _ in range(6):
            assert here.carrier.arrived.acquire(timeout=PATIENCE)
        assert (len(there.carrier.slots), len(here.carrier.slots)) == (4, 2)
        here.carrier.reading.set()
        here.wait_for_pulls(6)
        assert here.blocks[:6] == there.blocks[1:7]

    @pytest.mark.parametrize(
        ("block_bytes", "room"),
        [((3 << 20, 1), 8 << 20), ((1, 3 << 20), 8 << 20), ((0, 9 << 20, 5 << 20), 9 << 20)],
    )
    def test_a_slot_has_room_for_the_frames_of_every_group(self, block_bytes, room):
        pages = SimpleNamespace(by_group=[SimpleNamespace(bytes_per_block=size) for size in block_bytes])
        assert slot_bytes(pages) == room

    def test_a_rank_without_layers_of_a_group_pulls_all_the_same(self):
        """Its blocks have no bytes, and nothing is carried."""
        pages = WorkerPages([CachePages({}, BLOCKS)])
        assert slot_bytes(pages) == 0
        options = Options(HOST, 0, PATIENCE, PATIENCE)
        there, here = (TcpWire(pages, 0, options, LocalCarrier()) for _ in range(2))
        there.serve(Hold("a", "h", "d", ((1, 2),)))
        here.pull(Pull("r", Source(Address(HOST, there.server.port), "h", "d"), (Part(0, (3, 4)),)))
        here.wait(PATIENCE)
        assert (here.poll().pulled, here._carrier.arrived.acquire(blocking=False)) == (["r"], False)
        for wire in (here, there):
            wire.check()
            Background(wire.close).result()


class TestTheConversation:
    def test_not_more_than_two_frames_are_announced_before_one_is_read(self, carried, small_frames):
        there = carried(1)
        there.serve("h", *range(1, 9))
        with connect(there) as connection:
            ask(connection, there, "h", count=7, carrier="mooncake")
            said = [answer(connection) for _ in range(2)]
            slots = there.carrier.slots
            size = there.pages.bytes_per_block
            assert said == [
                {
                    "status": "blocks",
                    "group": 0,
                    "count": 3,
                    "session": there.carrier.session,
                    "address": slot.address,
                    "bytes": 3 * size,
                }
                for slot in slots
            ]
            expected = [there.block(number) for number in range(1, 8)]
            caches = there.caches.values()
            assert slots[0].memory[: 3 * size].tobytes() == b"".join(c[1:4].tobytes() for c in caches)
            connection.settimeout(0.2)
            with pytest.raises(TimeoutError):
                recv_frame(connection, 0)
            connection.settimeout(PATIENCE)
            send_frame(connection, {"op": "read"})
            assert answer(connection) == {"status": "kept"}
            third = answer(connection)
            assert (third["count"], third["address"]) == (1, slots[0].address)
            assert slots[0].memory[:size].tobytes() == expected[6]
            for _ in range(2):
                send_frame(connection, {"op": "read"})
                assert answer(connection) == {"status": "kept"}
            send_frame(connection, {"op": "done"})
            assert answer(connection) is None
        there.wait_for(lambda: there.served == ["h"])

    def test_neither_side_waits_with_a_small_frame_for_the_one_before(self, carried):
        """Each would cost a frame of blocks some hundredths of a second."""
        there = carried(1)
        there.serve("h", 1)
        with connect(there) as connection:
            ask(connection, there, "h", carrier="mooncake")
            assert answer(connection)["status"] == "blocks"
            [client] = there.wire.server._clients
            assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    @pytest.mark.parametrize("said", [{"op": "done"}, {"op": None}, {}])
    def test_whoever_says_something_else_than_that_it_has_read_gets_no_more(self, carried, caplog, said):
        there = carried(1)
        there.serve("h", 1)
        with connect(there) as connection:
            ask(connection, there, "h", carrier="mooncake")
            assert answer(connection)["status"] == "blocks"
            send_frame(connection, said)
            assert answer(connection) is None
        there.poll()
        assert (there.served, there.readers("h")) == ([], 0)
        wait_for(lambda: caplog.messages)
        assert caplog.messages[-1].endswith("broke off: the client ended before it had read all blocks")

    def test_bytes_that_were_read_too_late_are_not_used(self, carried):
        """The producer has given the client up, and has filled the slot for somebody else."""
        there, slow, other = carried(1), carried(2), carried(3)
        before = slow.blocks
        there.serve("h", 1)
        there.serve("g", 2)
        slow.carrier.reading.clear()
        slow.pull("r", there.source("h"), 0)
        assert slow.carrier.arrived.acquire(timeout=PATIENCE)
        for client in [*there.wire.server._clients]:
            client.shutdown(2)  # as when it is silent for too long
        there.wait_for(lambda: there.readers("h") == 0)
        other.pull("s", there.source("g"), 0)
        other.wait_for_pulls()
        assert other.pulled == ["s"] and len(there.carrier.slots) == 2, "it was filled anew"
        slow.carrier.reading.set()
        assert "connection" in slow.reason().lower() or "pipe" in slow.reason().lower()
        assert slow.blocks == before and slow.pulled_bytes == 0

    def test_a_pull_is_given_up_while_it_reads(self, carried):
        there, here = carried(1), carried(2)
        before = here.blocks
        there.serve("h", 1)
        here.carrier.reading.clear()
        here.pull("r", there.source("h"), 0)
        assert here.carrier.arrived.acquire(timeout=PATIENCE)
        assert here.wire.give_up("r")
        here.carrier.reading.set()
        there.wait_for(lambda: there.readers("h") == 0)
        here.poll()
        assert (here.pulled, here.failed, here.blocks) == ([], [], before)


class TestWhoHasNone:
    def test_a_consumer_without_a_carrier_is_sent_frames(self, worker, carried):
        there, here = carried(1), worker(2)
        there.serve("h", 3)
        here.pull("r", there.source("h"), 0)
        here.wait_for_pulls()
        assert here.pulled == ["r"] and here.block(0) == there.block(3) and there.carrier.slots == []

    def test_a_producer_without_one_refuses(self, worker, carried):
        there, here = worker(1), carried(2)
        there.serve("h", 3)
        here.pull("r", there.source("h"), 0)
        assert here.reason() == "the carrier here is 'tcp', the request names 'mooncake'"
        there.poll()
        assert (there.readers("h"), there.served) == (0, [])

    @pytest.mark.parametrize("asked", ["tcp", "rdma", 1, None, ["mooncake"]])
    def test_a_producer_with_another_one_refuses(self, carried, asked):
        there = carried(1)
        there.serve("h", 3)
        with connect(there) as connection:
            question = {"op": "pull", "version": 2, "hold": "h", "digest": "h digest", "layout": there.layout}
            send_frame(connection, {**question, "places": [[0, 1]], "carrier": asked})
            said = f"the carrier here is 'mooncake', the request names {asked!r}"
            assert answer(connection) == {"status": "refused", "reason": said}


class TestFailures:
    def test_a_carrier_that_can_not_read(self, carried):
        there, here = carried(1), carried(2)
        before = here.blocks
        there.carrier.is_closed = True
        there.serve("h", 1)
        here.pull("r", there.source("h"), 0)
        assert here.reason().startswith("CarrierError: there is no memory at ")
        there.wait_for(lambda: there.readers("h") == 0)
        assert here.blocks == before and there.served == []
        assert len(here.wire._slots._free) == 1, "its slot is there for the next"

    def test_a_carrier_that_has_no_memory(self, carried, monkeypatch):
        there, here = carried(1), carried(2)
        there.serve("h", 1)
        monkeypatch.setattr(here.carrier, "make_slot", lambda size: (_ for _ in ()).throw(MemoryError("none")))
        here.pull("r", there.source("h"), 0)
        assert here.reason() == "MemoryError: none"
        monkeypatch.undo()
        here.pull("s", there.source("h"), 0)
        here.wait_for(lambda: here.pulled == ["s"])

    @pytest.mark.parametrize(
        "changes",
        [
            {"bytes": -1},
            {"bytes": 1 << 40},
            {"bytes": None},
            {"bytes": 34.0},
            {"bytes": True},
            {"address": 0},
            {"address": "0x10"},
        ],
    )
    def test_announcements_that_mean_nothing(self, carried, raw, changes):
        here = carried(2)
        before = here.blocks
        here.pull("r", raw.source, 0)
        connection, asked = raw.asked()
        assert asked["carrier"] == "mooncake"
        right = {"status": "blocks", "group": 0, "count": 1, "session": "s", "address": 16, "bytes": 34}
        send_frame(connection, {**right, **changes})
        said = {**right, **changes}
        assert here.reason() == (
            f"FrameError: blocks are said to be {said['bytes']!r} bytes at {said['address']!r}; expected at most "
            f"{slot_bytes(WorkerPages([here.pages]))} bytes at an address"
        )
        assert here.blocks == before

    def test_a_producer_that_ends_before_it_has_kept_anything(self, carried, raw):
        there, here = carried(1), carried(2)
        slot = there.carrier.make_slot(34)
        before = here.blocks
        here.pull("r", raw.source, 0)
        connection, _ = raw.asked()
        announced = {"status": "blocks", "group": 0, "count": 1, "session": there.carrier.session}
        send_frame(connection, {**announced, "address": slot.address, "bytes": 34})
        assert answer(connection) == {"op": "read"}
        connection.shutdown(1)
        said = "FrameError: the connection ended before it was known whether the blocks are what they were"
        assert here.reason() == said
        assert here.blocks == before

    @pytest.mark.parametrize("is_kept", [False, True])
    def test_bytes_in_the_conversation(self, carried, raw, is_kept):
        """What comes with blocks by a carrier has none."""
        there, here = carried(1), carried(2)
        slot = there.carrier.make_slot(34)
        here.pull("r", raw.source, 0)
        connection, _ = raw.asked()
        announced = {"status": "blocks", "group": 0, "count": 1, "session": there.carrier.session}
        place = {**announced, "address": slot.address, "bytes": 34}
        if is_kept:
            send_frame(connection, place)
            assert answer(connection) == {"op": "read"}
        with suppress(ConnectionError):  # it hangs up when it sees that there will be bytes
            send_frame(connection, {"status": "kept"} if is_kept else place, [b"x"])
        assert here.reason() == "FrameError: expected at most 0 bytes, the frame has 1"

    def test_bytes_from_a_client(self, carried, caplog):
        there = carried(1)
        there.serve("h", 1)
        with connect(there) as connection:
            ask(connection, there, "h", carrier="mooncake")
            assert answer(connection)["status"] == "blocks"
            with suppress(ConnectionError):
                send_frame(connection, {"op": "read"}, [b"x"])
            wait_for(lambda: caplog.messages)
        assert caplog.messages[-1].endswith("broke off: expected at most 0 bytes, the frame has 1")

    @pytest.mark.parametrize("size", [0, 33])
    def test_bytes_of_another_size_than_the_blocks(self, carried, raw, size):
        there, here = carried(1), carried(2)
        slot = there.carrier.make_slot(64)
        here.pull("r", raw.source, 0)
        connection, _ = raw.asked()
        announced = {"status": "blocks", "group": 0, "count": 1, "session": there.carrier.session}
        send_frame(connection, {**announced, "address": slot.address, "bytes": size})
        assert answer(connection) == {"op": "read"}
        send_frame(connection, {"status": "kept"})
        assert here.reason() == f"ValueError: 1 blocks are 34 bytes, got {size}"


class TestEnds:
    def test_closing_closes_the_carrier_when_nobody_reads_any_more(self, carried):
        there, here = carried(1), carried(2)
        there.serve("h", 1)
        here.carrier.reading.clear()
        here.pull("r", there.source("h"), 0)
        assert here.carrier.arrived.acquire(timeout=PATIENCE)
        closing = threading.Thread(target=here.wire.close)
        closing.start()
        closing.join(0.1)
        assert closing.is_alive() and not here.carrier.is_closed
        here.carrier.reading.set()
        closing.join(PATIENCE)
        assert here.carrier.is_closed
