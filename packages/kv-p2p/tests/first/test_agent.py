"""The agent, and the process's connector: by name, as an engine makes them."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kv_p2p_background import LIMIT_SECONDS, Background
from kv_p2p_tiny_engine import TinyEngine, config_of, free_port, hidden_of

import kv_factory
from kv_api import ConfigError, KVConnectorBase, KVTransferConfig
from kv_factory import KVConnectorFactory
from kv_p2p.first.agent import KVTransferAgent
from kv_p2p.first.connector import SimpleConnector
from kv_p2p.first.pipe.rendezvous import connect


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("VLLM_USE_V1", "0")
    with kv_factory.isolated(connectors=(), specs=()):
        kv_factory.KVConnectorFactory.register_connector(
            "SimpleConnector", "kv_p2p.first.connector", "SimpleConnector"
        )
        yield


def test_from_agent_to_agent() -> None:
    port = free_port()
    making = Background(KVTransferAgent, 0, 0, config_of("kv_producer", port))
    consumer = KVTransferAgent(0, 0, config_of("kv_consumer", port))
    producer: KVTransferAgent = making.result()
    assert type(producer.connector) is SimpleConnector
    one, other = TinyEngine(1), TinyEngine(2)
    batch, hidden = one.prefill([[1, 2]])
    producer.send_kv_caches_and_hidden_states(one.model, batch, one.caches, hidden)
    into = other.batch([[1, 2]])
    came, bypass, given = consumer.recv_kv_caches_and_hidden_states(other.model, into, other.caches)
    assert (came.tolist(), bypass, given) == (hidden_of([1, 2]).tolist(), True, into)
    other.expect(into, [[1, 2]], [True])
    other.check()
    consumer.close()
    producer.close()
    with pytest.raises(ConnectionError, match="was called after close"):
        producer.send_kv_caches_and_hidden_states(one.model, batch, one.caches, hidden)


def test_its_rank_is_that_among_all_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(KVConnectorFactory, "create_connector_v0", lambda *given: made.append(given))
    config = config_of("kv_producer", 1)
    KVTransferAgent(5, 1, config)
    assert made == [(5, 1, config)]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (SimpleNamespace(), "kv_transfer_config: not set, so there is nothing for a KVTransferAgent to do"),
        (
            SimpleNamespace(kv_transfer_config=None),
            "kv_transfer_config: not set, so there is nothing for a KVTransferAgent to do",
        ),
        (
            SimpleNamespace(kv_transfer_config=KVTransferConfig(kv_role="kv_producer")),
            "kv_transfer_config: a KVTransferAgent needs an instance that transfers KV, "
            "got kv_connector=None and kv_role='kv_producer'",
        ),
        (
            config_of("kv_both", 1),
            "kv_role: SimpleConnector works in one direction, got 'kv_both'; choices: kv_producer, kv_consumer",
        ),
    ],
)
def test_an_agent_with_nothing_to_do(config: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        KVTransferAgent(0, 0, config)
    assert str(refused.value) == message


def test_an_engine_that_uses_the_other_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_USE_V1")
    with pytest.raises(ConfigError) as refused:
        KVTransferAgent(0, 0, config_of("kv_producer", 1))
    assert str(refused.value) == (
        "asked for a V0 connector, but VLLM_USE_V1 says V1: it is not set, its default is 1"
    )


def test_the_process_s_connector() -> None:
    port = free_port()
    consuming = Background(connect, "127.0.0.1", port, 0, LIMIT_SECONDS)
    kv_factory.ensure_kv_transfer_initialized(config_of("kv_producer", port))
    connector = kv_factory.get_kv_transfer_group()
    assert isinstance(connector, SimpleConnector)
    assert isinstance(connector, KVConnectorBase)
    assert not kv_factory.is_v1_kv_transfer_group()
    kv_factory.ensure_kv_transfer_shutdown()
    consuming.result().close()
    with pytest.raises(ConnectionError):
        connector.send_kv_caches_and_hidden_states(None, None, [], None)
