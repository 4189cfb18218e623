"""What is asked of Mooncake's transfer engine, which is none here. ``carrier_run_check.py`` has a real one."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from kv_p2p_background import Background
from kv_p2p_engine import kv_cache_config, spec, vllm_config

from kv_api import ConfigError
from kv_p2p.pulling.carrier import CarrierError
from kv_p2p.pulling.mooncake import MooncakeCarrier
from kv_p2p.pulling.options import Options
from kv_p2p.pulling.tcp.wire import TcpWire, make_carrier

CODES = {}


class Engine:
    """Does nothing, and answers with ``CODES``."""

    def __init__(self):
        self.called = []

    def _call(self, name, *args):
        self.called.append((name, *args))
        return CODES.get(name, 0)

    def initialize(self, *args):
        return self._call("initialize", *args)

    def get_rpc_port(self):
        return 4711

    def register_memory(self, address, size):
        return self._call("register_memory", address, size)

    def unregister_memory(self, address):
        return self._call("unregister_memory", address)

    def transfer_sync_read(self, *args):
        return self._call("transfer_sync_read", *args)


@pytest.fixture
def engine(monkeypatch):
    """In the place of Mooncake's."""
    package, module = ModuleType("mooncake"), ModuleType("mooncake.engine")
    module.TransferEngine = Engine
    monkeypatch.setitem(sys.modules, "mooncake", package)
    monkeypatch.setitem(sys.modules, "mooncake.engine", module)
    yield CODES
    CODES.clear()


def test_an_engine_is_started_without_a_metadata_server(engine):
    one = MooncakeCarrier("10.0.0.1", "rdma", "mlx5_0,mlx5_1")
    assert one._engine.called == [("initialize", "10.0.0.1", "P2PHANDSHAKE", "rdma", "mlx5_0,mlx5_1")]
    assert (one.name, one.session) == ("mooncake", "10.0.0.1:4711")
    assert MooncakeCarrier("::1", "tcp", "").session == "[::1]:4711"


def test_slots_are_registered_memory_of_whole_pages_until_the_end(engine):
    one = MooncakeCarrier("h", "rdma", "")
    slots = [one.make_slot(size) for size in (5000, 0)]
    registered = [call[1:] for call in one._engine.called[1:]]
    assert registered == [(slots[0].address, 5000), (slots[1].address, 1)]
    assert [(len(slot.memory), slot.address % 4096) for slot in slots] == [(5000, 0), (0, 0)]
    slots[0].memory[:3] = b"abc"
    assert bytes(slots[0].owner[:4]) == b"abc\0"
    one.read("other:1", 4096, slots[0], 77)
    assert one._engine.called[-1] == ("transfer_sync_read", "other:1", slots[0].address, 4096, 77)
    one.close()
    assert sorted(call[1] for call in one._engine.called[-2:]) == sorted(slot.address for slot in slots)
    one.close()
    assert len(one._engine.called) == 6, "once each"


def test_what_an_engine_can_not_do_is_said(engine):
    one = MooncakeCarrier("h", "rdma", "")
    slot = one.make_slot(10)
    engine.update(register_memory=-5, transfer_sync_read=-1, initialize=-7)
    with pytest.raises(CarrierError, match=r"can't register 10 bytes \(code -5\)"):
        one.make_slot(10)
    with pytest.raises(CarrierError, match=r"can't read 9 bytes from other:1 \(code -1\)"):
        one.read("other:1", 4096, slot, 9)
    with pytest.raises(ConfigError) as raised:
        MooncakeCarrier("h", "rdma", "mlx5_9")
    assert str(raised.value) == (
        "kv_connector_extra_config: Mooncake's transfer engine doesn't start with protocol 'rdma', "
        "device 'mlx5_9', host 'h' (code -7)"
    )
    one.close()
    assert one._engine.called[-1] == ("unregister_memory", slot.address)


def test_who_has_no_mooncake_is_told_what_to_install(monkeypatch):
    for name in ("mooncake", "mooncake.engine"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError) as raised:
        MooncakeCarrier("h", "rdma", "")
    assert str(raised.value).startswith(
        "kv_connector_extra_config.carrier: 'mooncake' needs mooncake-transfer-engine (without CUDA "
        "mooncake-transfer-engine-non-cuda) and the system's libibverbs: "
    )


def test_a_worker_has_the_carrier_that_was_chosen(engine):
    assert make_carrier(Options(), serves=True) is None
    options = Options("h", carrier="mooncake", mooncake_protocol="tcp", mooncake_device="eth0")
    chosen = make_carrier(options, serves=False)
    assert chosen._engine.called == [("initialize", "h", "P2PHANDSHAKE", "tcp", "eth0")]
    config = vllm_config()
    wire = TcpWire.of_worker(
        {"layer": np.zeros((4, 8), np.uint8)},
        Options("127.0.0.1", 0, carrier="mooncake"),
        SimpleNamespace(
            **{**vars(config), "kv_transfer_config": SimpleNamespace(is_kv_producer=True, engine_id=None)}
        ),
        kv_cache_config(4, (spec(4),), [["layer"]]),
    )
    carrier = wire._carrier
    Background(wire.close).result()
    assert carrier._engine.called[0][0] == "initialize"
