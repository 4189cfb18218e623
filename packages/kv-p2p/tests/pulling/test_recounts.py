"""What can't be in a pool of slots, or behind a wire, is found when it is recounted."""

import pytest
from kv_p2p_background import Background
from kv_p2p_carrier import LocalCarrier

from kv_p2p.pulling.carrier import Slot
from kv_p2p.pulling.metadata import Hold
from kv_p2p.pulling.options import Options
from kv_p2p.pulling.pages import CachePages, WorkerPages
from kv_p2p.pulling.tcp.slots import SlotPool
from kv_p2p.pulling.tcp.wire import TcpWire


@pytest.mark.parametrize(
    "break_it",
    [
        lambda pool: pool._free.append(pool._free[0]),
        lambda pool: pool._lost.append((pool._free[0], bool)),
        lambda pool: pool._free.append(Slot.mapped(10)),
        lambda pool: pool._lost.append((Slot.mapped(10), bool)),
    ],
)
def test_of_a_pool(break_it):
    pool = SlotPool(LocalCarrier(), 10)
    with pool.take(3) as slots:
        assert len({slot.address for slot in slots}) == 3
        pool.check()
    pool.check()
    with pool.take(2) as again:
        assert {slot.address for slot in again} < {slot.address for slot in slots}
    break_it(pool)
    with pytest.raises(AssertionError, match="3 slots, free"):
        pool.check()


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda wire: wire._holds._served.append("h"), "have ended and are held"),
        (lambda wire: wire._slots._free.append(Slot.mapped(1)), "0 slots, free: "),
    ],
)
def test_of_a_wire(break_it, said):
    wire = TcpWire(WorkerPages([CachePages({}, 2)]), 0, Options(), LocalCarrier(), serves=False)
    wire.serve(Hold("r", "h", "d", ((1,),)))
    wire.check()
    break_it(wire)
    with pytest.raises(AssertionError, match=said):
        wire.check()
    Background(wire.close).result()
