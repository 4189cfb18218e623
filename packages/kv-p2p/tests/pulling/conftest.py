import threading

import kv_p2p_engine as engine
import pytest
from kv_p2p_tcp import RawServer, Worker


@pytest.fixture
def make():
    """Makes schedulers' sides, and recounts them after the test."""
    made = []

    def make_one(role="kv_both", **config):
        made.append(engine.scheduler(role, **config))
        return made[-1]

    yield make_one
    for scheduler in made:
        scheduler.check()


@pytest.fixture
def worker():
    """Makes workers; after the test they are closed, and none of their threads is left."""
    before, made = {*threading.enumerate()}, []

    def make_one(*arguments, **options):
        made.append(Worker(*arguments, **options))
        return made[-1]

    yield make_one
    for one in made:
        one.pages.reading.open.set()
        one.pages.writing.open.set()
        one.close()
        one.wire.check()
        assert one.wire.server is None or not one.wire.server._clients
    assert {*threading.enumerate()} <= before


@pytest.fixture
def raw():
    """A server that answers as the test likes."""
    server = RawServer()
    yield server
    server.close()


@pytest.fixture
def small_frames(monkeypatch):
    """Three blocks are in a frame of those of `Worker`."""
    monkeypatch.setattr("kv_p2p.pulling.tcp.server.FRAME_BYTES", 3 * 34 + 5)
