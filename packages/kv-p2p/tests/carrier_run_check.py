"""Pulls by a library's own engine, on this machine. ``nox -s carriers`` runs it, and fails where there is none.

The environment's ``CARRIER`` says which: ``mooncake``, over TCP, or ``nixl``, by UCX. It isn't named like a test
file, so that no other run collects it.
"""

import os
import subprocess
import sys
import threading
from random import Random

import pytest
from kv_p2p_tcp import BLOCKS, HOST, PATIENCE, Worker

from kv_p2p.pulling.carrier import CarrierError
from kv_p2p.pulling.metadata import Source
from kv_p2p.pulling.options import Options
from kv_p2p.pulling.tcp.wire import make_carrier
from kv_p2p.pulling.ticket import Address

OPTIONS = Options(HOST, carrier=os.environ["CARRIER"], mooncake_protocol="tcp")
FRAME_BYTES = 3 * 34 + 5


@pytest.fixture
def carried(monkeypatch):
    """Makes workers with an engine each; three blocks are in a frame."""
    monkeypatch.setattr("kv_p2p.pulling.tcp.server.FRAME_BYTES", FRAME_BYTES)
    made = []

    def make(seed, serves=True):
        made.append(Worker(seed, carrier=make_carrier(OPTIONS, serves=serves), serves=serves))
        return made[-1]

    yield make
    for one in made:
        one.wire.close()
        one.wire.check()


@pytest.mark.parametrize("seed", range(5))
def test_blocks_arrive_bit_for_bit(carried, seed):
    random = Random(seed)
    there, here = carried(1), carried(2, serves=False)
    expected, sent = here.blocks, there.blocks
    free = random.sample(range(BLOCKS), BLOCKS)
    for number in range(4):
        held = [random.randrange(1, BLOCKS) for _ in range(random.randint(1, 8))]
        there.serve(f"h{number}", *held)
        targets = [free.pop() for _ in held]
        here.pull(f"r{number}", there.source(f"h{number}"), *targets)
        for source, target in zip(held, targets, strict=True):
            expected[target] = sent[source]
        if len(free) < 8:
            break
    here.wait_for_pulls(number + 1)
    assert here.failed == []
    assert here.blocks == expected
    there.wait_for(lambda: len(there.served) == number + 1)


PRODUCER = """
import sys
from kv_p2p_tcp import Worker
from kv_p2p.pulling.options import Options
from kv_p2p.pulling.tcp import server
from kv_p2p.pulling.tcp.wire import make_carrier
server.FRAME_BYTES = FRAME_BYTES
one = Worker(1, carrier=make_carrier(OPTIONS, serves=True))
one.serve("h", *range(1, 31))
one.serve("g", 1)
spare = one.carrier.make_slot(4096)
print("port", one.wire.server.port, one.carrier.session, spare.address, flush=True)
sys.stdin.readline()
"""


def another_process():
    before = f"import sys; sys.path[:] = {sys.path!r}; FRAME_BYTES = {FRAME_BYTES}"
    after = PRODUCER.replace("OPTIONS", repr(OPTIONS))
    return subprocess.Popen(
        [sys.executable, "-c", f"{before}\n{after}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def what_is_said(process):
    """Its port, and the session and address of some memory."""
    said = iter(process.stdout.readline, "")
    _, port, session, address = next(line.split() for line in said if line.startswith("port"))
    return Address(HOST, int(port)), session, int(address)


def test_another_process_s_blocks_until_it_is_killed(carried):
    here = carried(2, serves=False)
    for _ in range(2):  # the second one is not taken for the first
        with another_process() as process:
            address, *_ = what_is_said(process)
            here.pull("r", Source(address, "h", "h digest"), *range(30))
            here.wait_for_pulls()
            assert (here.pulled, here.failed) == (["r"], [])
            assert here.blocks[:30] == carried(1).blocks[1:31], "the seed is the same"
            process.kill()
            process.wait(PATIENCE)
            before = here.blocks
            here.pull("s", Source(address, "g", "g digest"), 0)
            here.wait_for_pulls(2)
        assert [request for request, _ in here.failed] == ["s"]
        assert here.blocks == before
        here.pulled.clear()
        here.failed.clear()


def test_memory_of_a_process_that_is_gone():
    one = make_carrier(OPTIONS, serves=False)
    into = one.make_slot(4096)
    with another_process() as process:
        _, session, address = what_is_said(process)
        one.read(session, address, into, 4096)
        process.kill()
        process.wait(PATIENCE)
    for _ in range(2):
        with pytest.raises(CarrierError):
            one.read(session, address, into, 4096)
    one.close()


def test_memory_that_nobody_has_registered():
    one, other = (make_carrier(OPTIONS, serves=serves) for serves in (False, True))
    into, slot = one.make_slot(4096), other.make_slot(4096)
    slot.memory[:5] = b"right"
    one.read(other.session, slot.address, into, 4096)
    assert bytes(into.memory[:5]) == b"right"
    for session, address in ((other.session, slot.address + (1 << 30)), (f"{HOST}:1", slot.address)):
        with pytest.raises(CarrierError, match="can't read 4096 bytes"):
            one.read(session, address, into, 4096)
    one.read(other.session, slot.address, into, 4096)
    one.close()
    other.close()


def test_several_threads_read_while_slots_are_made():
    one, other = (make_carrier(OPTIONS, serves=serves) for serves in (False, True))
    slots, wrong = [], []

    def read_some(number):
        into = one.make_slot(1 << 20)
        for turn in range(20):
            slot = other.make_slot(1 << 20)
            slots.append(slot)
            slot.memory[:] = bytes([number, turn]) * (1 << 19)
            one.read(other.session, slot.address, into, 1 << 20)
            if into.memory != slot.memory:
                wrong.append((number, turn))

    threads = [threading.Thread(target=read_some, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    one.close()
    other.close()
