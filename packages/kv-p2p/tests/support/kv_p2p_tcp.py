"""Workers that are connected over TCP within one process, and peers that do as the test likes."""

import socket
import threading
from time import monotonic

import numpy as np
from kv_p2p_background import Background

from kv_p2p.frames import recv_frame, send_frame
from kv_p2p.pulling.metadata import Hold, Part, Pull, Source
from kv_p2p.pulling.options import Options
from kv_p2p.pulling.pages import CachePages, WorkerPages
from kv_p2p.pulling.tcp.server import VERSION
from kv_p2p.pulling.tcp.wire import TcpWire
from kv_p2p.pulling.ticket import Address

HOST = "127.0.0.1"
PATIENCE = 30.0
"""Seconds after which a test has failed; nothing that is right takes nearly as long."""
BLOCKS = 32


def wait_for(condition):
    """Ask again and again until it is so."""
    end, pause = monotonic() + PATIENCE, threading.Event()
    while not condition():
        assert monotonic() < end, "it never came to be"
        pause.wait(0.001)


class Gate:
    """Holds up whoever passes, until it is opened."""

    def __init__(self):
        self.arrived = threading.Semaphore(0)
        self.open = threading.Event()
        self.open.set()

    def shut(self):
        self.open.clear()

    def pass_through(self):
        self.arrived.release()
        assert self.open.wait(PATIENCE)

    def wait_for_somebody(self):
        assert self.arrived.acquire(timeout=PATIENCE)


class GatedPages(CachePages):
    """Pages whose reader or writer can be held up."""

    def __init__(self, kv_caches, num_blocks):
        super().__init__(kv_caches, num_blocks)
        self.reading, self.writing = Gate(), Gate()

    def gather(self, blocks, memory):
        self.reading.pass_through()
        return super().gather(blocks, memory)

    def scatter(self, blocks, parts):
        self.writing.pass_through()
        super().scatter(blocks, parts)


class Worker:
    """A worker with some random KV: two layers, of 24 and 10 bytes for each block."""

    def __init__(
        self,
        seed=0,
        *,
        rank=0,
        port=0,
        silence=PATIENCE,
        serves=True,
        dtype=np.uint32,
        width=6,
        carrier=None,
        engine_id=None,
    ):
        random = np.random.default_rng(seed)
        self.caches = {
            "layer0": random.integers(0, 256, (BLOCKS, width * dtype().itemsize), dtype=np.uint8).view(dtype),
            "layer1": random.integers(0, 256, (BLOCKS, 10), dtype=np.uint8),
        }
        self.pages = GatedPages(self.caches, BLOCKS)
        options = Options(HOST, port, hold_seconds=PATIENCE, pull_seconds=silence)
        self.carrier = carrier
        self.wire = TcpWire(WorkerPages([self.pages]), rank, options, carrier, serves=serves, engine_id=engine_id)
        self.served, self.pulled, self.failed = [], [], []
        self.pulled_bytes = 0

    @property
    def layout(self):
        return WorkerPages([self.pages]).layout

    @property
    def address(self):
        return Address(HOST, self.wire.server.port)

    def block(self, number):
        return b"".join(cache[number].tobytes() for cache in self.caches.values())

    @property
    def blocks(self):
        return [self.block(number) for number in range(BLOCKS)]

    def serve(self, hold_id, *blocks):
        self.wire.serve(Hold(f"request {hold_id}", hold_id, f"{hold_id} digest", (blocks,)))

    def source(self, hold, **changes):
        return Source(**{"address": self.address, "hold_id": hold, "digest": f"{hold} digest", **changes})

    def pull(self, request_id, source, *blocks, first=0):
        self.wire.pull(Pull(request_id, source, (Part(first, blocks),)))

    def poll(self):
        ended = self.wire.poll()
        self.served += ended.served
        self.pulled += ended.pulled
        self.failed += ended.failed
        self.pulled_bytes += ended.pulled_bytes
        self.wire.check()

    def wait_for(self, condition):
        """Poll until it is so."""
        end = monotonic() + PATIENCE
        while not condition():
            assert monotonic() < end, f"served {self.served}, pulled {self.pulled}, failed {self.failed}"
            self.wire.wait(0.05)
            self.poll()

    def wait_for_pulls(self, count=1):
        """Poll until so many pulls have ended."""
        self.wait_for(lambda: len(self.pulled) + len(self.failed) >= count)

    def reason(self):
        """Why the one pull that there was has failed."""
        self.wait_for_pulls()
        assert not self.pulled
        ((_, reason),) = self.failed
        return reason

    def close(self):
        """Fails if it takes long."""
        Background(self.wire.close).result()

    def readers(self, hold_id):
        held = self.wire._holds._held.get(hold_id)
        return held.readers if held is not None else 0


class RawServer:
    """Listens, and answers as the test likes."""

    def __init__(self):
        self.listener = socket.create_server((HOST, 0))
        self.listener.settimeout(PATIENCE)
        self.connections = []

    @property
    def source(self):
        return Source(Address(HOST, self.listener.getsockname()[1], "engine"), "h", "d")

    def accept(self):
        connection, _ = self.listener.accept()
        connection.settimeout(PATIENCE)
        self.connections.append(connection)
        return connection

    def asked(self):
        """The next client's connection, and what it asks."""
        connection = self.accept()
        return connection, recv_frame(connection, 0).header

    def close(self):
        for one in (self.listener, *self.connections):
            one.close()


def pull_at_random(random, there, here):
    """Begin some pulls of random blocks. Returns how many, what blocks are here then, and how many are filled."""
    expected, sent = here.blocks, there.blocks
    free = random.sample(range(BLOCKS), BLOCKS)
    pulls = random.randint(1, 8)
    for number in range(pulls):
        held = [random.randrange(1, BLOCKS) for _ in range(random.randint(1, 12))]
        there.serve(f"h{number}", *held)
        first = random.randrange(len(held))
        left = len(free) - (pulls - 1 - number)  # each of the others fills one, too
        targets = [free.pop() for _ in range(random.randint(1, min(len(held) - first, left)))]
        here.pull(f"r{number}", there.source(f"h{number}"), *targets, first=first)
        for place, target in enumerate(targets, first):
            expected[target] = sent[held[place]]
    return pulls, expected, BLOCKS - len(free)


def frame_of(worker, *blocks):
    """What a server sends of these blocks of a worker."""
    memory = memoryview(bytearray(len(blocks) * worker.pages.bytes_per_block))
    return {"status": "blocks", "group": 0, "count": len(blocks)}, CachePages.gather(worker.pages, blocks, memory)


def connect(worker):
    connection = socket.create_connection((HOST, worker.wire.server.port), PATIENCE)
    connection.settimeout(PATIENCE)
    return connection


def ask(connection, worker, hold_id, *, first=0, count=1, **changes):
    """Ask as a client does, or a little differently."""
    right = {
        "op": "pull",
        "version": VERSION,
        "hold": hold_id,
        "digest": f"{hold_id} digest",
        "layout": worker.layout,
        "places": [[first, count]],
    }
    send_frame(connection, {key: value for key, value in {**right, **changes}.items() if value is not None})


def answer(connection):
    """The header of the next frame. None: the server ended the conversation."""
    frame = recv_frame(connection, 1 << 20)
    return frame.header if frame is not None else None
