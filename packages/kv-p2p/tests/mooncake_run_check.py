"""Pulls by Mooncake's own transfer engine, over TCP. ``nox -s mooncake`` runs it, and fails where there is none.

It isn't named like a test file, so that no other run collects it.
"""

import subprocess
import sys
from random import Random

import pytest
from kv_p2p_tcp import BLOCKS, HOST, PATIENCE, Worker
from mooncake.engine import TransferEngine  # noqa: F401 - without it nothing here says anything

from kv_p2p.pulling.carrier import CarrierError
from kv_p2p.pulling.metadata import Source
from kv_p2p.pulling.mooncake import MooncakeCarrier
from kv_p2p.pulling.ticket import Address

FRAME_BYTES = 3 * 34 + 5


@pytest.fixture
def carried(monkeypatch):
    """Makes workers with an engine each; three blocks are in a frame."""
    monkeypatch.setattr("kv_p2p.pulling.tcp.server.FRAME_BYTES", FRAME_BYTES)
    made = []

    def make(seed, **options):
        made.append(Worker(seed, carrier=MooncakeCarrier(HOST, "tcp", ""), **options))
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
from kv_p2p_tcp import HOST, Worker
from kv_p2p.pulling.mooncake import MooncakeCarrier
from kv_p2p.pulling.tcp import server
server.FRAME_BYTES = FRAME_BYTES
one = Worker(1, carrier=MooncakeCarrier(HOST, "tcp", ""))
one.serve("h", *range(1, 31))
one.serve("g", 1)
print("port", one.wire.server.port, flush=True)
sys.stdin.readline()
"""


def test_another_process_s_blocks(carried):
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.path[:] = {sys.path!r}; FRAME_BYTES = {FRAME_BYTES}\n{PRODUCER}",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = iter(process.stdout.readline, "")
        address = Address(HOST, next(int(line.split()[1]) for line in said if line.startswith("port")))
        here = carried(2)
        here.pull("r", Source(address, "h", "digest h"), *range(30))
        here.wait_for_pulls()
        assert (here.pulled, here.failed) == (["r"], [])
        assert here.blocks[:30] == carried(1).blocks[1:31], "the seed is the same"
        process.kill()
        process.wait(PATIENCE)
        before = here.blocks
        here.pull("s", Source(address, "g", "digest g"), 0)
        here.wait_for_pulls(2)
    assert [request for request, _ in here.failed] == ["s"]
    assert here.blocks == before


def test_memory_that_nobody_has_registered():
    one, other = MooncakeCarrier(HOST, "tcp", ""), MooncakeCarrier(HOST, "tcp", "")
    into, slot = one.make_slot(4096), other.make_slot(4096)
    slot.memory[:5] = b"right"
    one.read(other.session, slot.address, into, 4096)
    assert bytes(into.memory[:5]) == b"right"
    for session, address in ((other.session, slot.address + (1 << 30)), (f"{HOST}:1", slot.address)):
        with pytest.raises(CarrierError, match="can't read 4096 bytes"):
            one.read(session, address, into, 4096)
    one.close()
    other.close()
