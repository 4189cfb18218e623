"""The class: how it is found, what it is made of, and whose wire it takes."""

import pytest
from kv_p2p_engine import Request, kv_cache_config, step, vllm_config

from kv_api import ConfigError, KVConnectorRole, WrongSideError, supports_hma
from kv_factory import KVConnectorFactory, isolated
from kv_p2p import P2PConnector, P2PSchedulerSide, P2PWorkerSide
from kv_p2p.pulling.metadata import P2PMetadata
from kv_p2p.pulling.options import Options

SCHEDULER, WORKER = KVConnectorRole.SCHEDULER, KVConnectorRole.WORKER
MODULE = {"name": "P2PConnector", "module": "kv_p2p"}


def made(side, **config):
    return KVConnectorFactory.create_connector(vllm_config(**{**MODULE, **config}), side, kv_cache_config())


class TestTheFactory:
    def test_finds_it_by_its_module(self):
        with isolated():
            scheduler, worker = made(SCHEDULER), made(WORKER)
        assert type(scheduler) is type(worker) is P2PConnector
        assert type(scheduler.side) is P2PSchedulerSide
        assert type(worker.side) is P2PWorkerSide

    def test_finds_it_where_it_is_installed(self):
        assert KVConnectorFactory.get_connector_class_by_name("P2PConnector") is P2PConnector

    def test_finds_it_by_its_name(self):
        with isolated():
            KVConnectorFactory.register_connector("P2PConnector", "kv_p2p", "P2PConnector")
            connector = KVConnectorFactory.create_connector(vllm_config(), SCHEDULER, kv_cache_config())
        assert type(connector) is P2PConnector

    def test_says_what_is_wrong_with_the_configuration(self):
        for role in KVConnectorRole:
            with isolated(), pytest.raises(ConfigError) as raised:
                made(role, hold_second=3)
            assert "unknown key 'hold_second'" in str(raised.value)
            assert "did you mean 'hold_seconds'?" in str(raised.value)


class TestTheHalves:
    def test_each_has_its_calls(self):
        scheduler, worker = made(SCHEDULER), made(WORKER)
        with pytest.raises(WrongSideError):
            scheduler.start_load_kv(None)
        with pytest.raises(WrongSideError):
            worker.build_connector_meta(step())
        assert scheduler.build_connector_meta(step()) == P2PMetadata()
        worker.shutdown()

    def test_the_scheduler_knows_how_many_blocks_there_are(self):
        """So an engine that does both holds a third of them at most."""
        both, producer = made(SCHEDULER), made(SCHEDULER, role="kv_producer")
        assert (both.side._producer._max_held_blocks, producer.side._producer._max_held_blocks) == (5, None)

    def test_what_an_engine_asks(self):
        connector = made(SCHEDULER, role="kv_producer")
        assert connector.requires_kv_delivery is True
        assert connector.get_finished_count() is None
        assert connector.get_loaded_kv_cache_group_ids(Request("a", range(4))) == (0,)
        assert supports_hma(P2PConnector)
        transfer = vllm_config(**MODULE).kv_transfer_config
        assert P2PConnector.supports_sleep_mode(transfer) is False  # others may be reading

    def test_a_ticket_says_what_the_operator_set(self):
        connector = made(SCHEDULER, role="kv_producer", host="far", port=123)
        request = Request("a", range(4), {"do_remote_decode": True})
        connector.on_new_request(request)
        hold, params = connector.request_finished(request, [7])
        assert hold is True
        assert (params["remote_host"], params["remote_port"]) == ("far", 123)

    def test_without_a_cache_config(self):
        connector = P2PConnector(vllm_config(), WORKER, None)
        with pytest.raises(ConfigError) as raised:
            connector.register_kv_caches({})
        said = "P2PConnector was created without a kv_cache_config; its workers need one"
        assert str(raised.value) == said
        assert P2PConnector(vllm_config(), SCHEDULER, None).requires_kv_delivery is True


class Wire:
    """Of somebody else's; only ends."""

    is_closed = False

    def close(self):
        self.is_closed = True


class Elsewhere(P2PConnector):
    """Uses it."""

    def make_wire(self, kv_caches, options, vllm_config, kv_cache_config):
        self.made_of = kv_caches, options, vllm_config, kv_cache_config
        return Wire()


def test_a_subclass_makes_another_wire():
    config, cache, caches = vllm_config(port=99), kv_cache_config(), {"layer": object()}
    connector = Elsewhere(config, WORKER, cache)
    connector.register_kv_caches(caches)
    assert connector.made_of == (caches, Options(port=99, max_held_blocks=5), config, cache)
    wire = connector.side.wire
    assert isinstance(wire, Wire)
    connector.shutdown()
    assert wire.is_closed


def test_a_subclass_names_another_side():
    """Of somebody else's, which is made as ours is."""

    class Half(P2PSchedulerSide):
        pass

    class Other(P2PConnector):
        scheduler_class = Half

    assert type(Other(vllm_config(), SCHEDULER, kv_cache_config()).side) is Half
