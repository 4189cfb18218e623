"""The process's connector: what makes it, what ends it, and what happens when either fails."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kv_factory
from kv_api import ConfigError, KVConnectorRole, KVError
from kv_factory import (
    KVConnectorFactory,
    KVTransferStateError,
    ensure_kv_transfer_initialized,
    ensure_kv_transfer_shutdown,
    get_kv_transfer_group,
    has_kv_transfer_group,
    is_v1_kv_transfer_group,
)

Engine = Callable[..., Any]
Register = Callable[..., None]


@pytest.mark.parametrize("cache", [SimpleNamespace(), {}])
def test_with_a_kv_cache_config_it_is_made_as_today(zoo: str, engine: Engine, cache: Any) -> None:
    KVConnectorFactory.register_connector("Three", zoo, "Two")
    ensure_kv_transfer_initialized(engine("Three", kv_connector_module_path=zoo), cache)
    connector: Any = get_kv_transfer_group()
    assert connector.given == {"role": KVConnectorRole.WORKER, "kv_cache_config": cache}


def test_without_one_it_is_made_by_the_rules_of_v1(zoo: str, engine: Engine) -> None:
    KVConnectorFactory.register_connector("Three", zoo, "Two")
    ensure_kv_transfer_initialized(engine("Three", kv_connector_module_path=zoo))
    connector: Any = get_kv_transfer_group()
    assert connector.given == {"role": KVConnectorRole.WORKER}


def test_hybrid_memory_is_checked(register: Register, engine: Engine) -> None:
    register("Three")
    with pytest.raises(ConfigError, match="one KV cache group only"):
        ensure_kv_transfer_initialized(engine("Three", hma_off=False), SimpleNamespace())  # type: ignore[arg-type]
    assert not has_kv_transfer_group()


@pytest.mark.parametrize(
    ("parallel", "ranks"),
    [
        ({"rank": 9, "local_rank": 1}, (9, 1)),
        ({"rank": 9, "local_rank": 1, "local_world_size": 4}, (9, 1)),
        ({"rank": 9, "local_world_size": 8}, (9, 1)),
        ({"rank": 11, "local_world_size": 4}, (11, 3)),
        ({"rank": 9, "local_rank": 0, "local_world_size": 8}, (9, 0)),
        ({"rank": 3}, (3, 3)),
        ({"rank": 3, "local_world_size": 0}, (3, 3)),
        ({"rank": 0, "local_rank": 0}, (0, 0)),
    ],
)
def test_ranks_of_v0(
    monkeypatch: pytest.MonkeyPatch,
    register: Register,
    engine: Engine,
    parallel: dict[str, int],
    ranks: tuple[int, int],
) -> None:
    monkeypatch.setenv("VLLM_USE_V1", "0")
    register("V0")
    config = engine("V0")
    config.parallel_config = SimpleNamespace(**parallel)
    ensure_kv_transfer_initialized(config)
    connector: Any = get_kv_transfer_group()
    assert (connector.given["rank"], connector.given["local_rank"]) == ranks


@pytest.mark.parametrize("generation", ["0", "1"])
@pytest.mark.parametrize("kv_cache_config", [None, "a config"])
def test_module_paths_may_be_forbidden(
    monkeypatch: pytest.MonkeyPatch, zoo: str, engine: Engine, generation: str, kv_cache_config: Any
) -> None:
    monkeypatch.setenv("VLLM_USE_V1", generation)
    name = "V0" if generation == "0" else "Three" if kv_cache_config else "Two"
    config = engine(name, kv_connector_module_path=zoo)
    config.parallel_config = SimpleNamespace(rank=0)
    with pytest.raises(ConfigError, match="the call said allow_module_paths=False"):
        ensure_kv_transfer_initialized(config, kv_cache_config, allow_module_paths=False)
    assert not has_kv_transfer_group()


@pytest.mark.parametrize("parallel", [None, SimpleNamespace()])
def test_v0_needs_a_rank(
    monkeypatch: pytest.MonkeyPatch, register: Register, engine: Engine, parallel: object
) -> None:
    monkeypatch.setenv("VLLM_USE_V1", "0")
    register("V0")
    config = engine("V0")
    config.parallel_config = parallel
    with pytest.raises(ConfigError) as refused:
        ensure_kv_transfer_initialized(config)
    assert str(refused.value) == "parallel_config.rank: not set, and a V0 connector is created with it"


def test_the_engine_id_is_that_of_the_first_rank(register: Register, engine: Engine) -> None:
    register("Two")
    config, asked = engine("Two", engine_id="mine"), []

    def broadcast(engine_id: str) -> str:
        asked.append(engine_id)
        return "the first rank's"

    ensure_kv_transfer_initialized(config, broadcast_engine_id=broadcast)
    ensure_kv_transfer_initialized(config, broadcast_engine_id=broadcast)
    assert asked == ["mine"]
    assert config.kv_transfer_config.engine_id == "the first rank's"


def test_a_broadcast_that_returns_nothing_is_refused(register: Register, engine: Engine) -> None:
    register("Two")
    config: Any = engine("Two", engine_id="mine")
    with pytest.raises(ConfigError) as refused:
        ensure_kv_transfer_initialized(config, broadcast_engine_id=lambda engine_id: None)  # type: ignore[arg-type, return-value]
    assert str(refused.value) == "what broadcast_engine_id returned: expected str, got None (NoneType)"
    assert config.kv_transfer_config.engine_id == "mine"
    assert not has_kv_transfer_group()


def test_getting_none_is_our_error_and_says_what_to_do() -> None:
    with pytest.raises(KVTransferStateError) as refused:
        get_kv_transfer_group()
    assert str(refused.value) == (
        "KV transfer is not initialised in this process: call ensure_kv_transfer_initialized with a "
        "configuration that has a kv_transfer_config, or ask has_kv_transfer_group first"
    )
    assert isinstance(refused.value, KVError)
    assert isinstance(refused.value, RuntimeError)


def test_a_given_connector_is_judged_even_if_it_counts_as_false(
    monkeypatch: pytest.MonkeyPatch, register: Register, engine: Engine
) -> None:
    """A connector may be a container, which is false while it is empty; the process's is another one."""
    register("Two", "V0")
    monkeypatch.setenv("VLLM_USE_V1", "0")
    v0 = KVConnectorFactory.create_connector_v0(0, 0, engine("V0"))
    monkeypatch.setattr(type(v0), "__len__", lambda self: 0, raising=False)
    monkeypatch.delenv("VLLM_USE_V1")
    ensure_kv_transfer_initialized(engine("Two"))
    assert is_v1_kv_transfer_group()
    assert not is_v1_kv_transfer_group(v0)


def test_shutting_down_nothing_is_nothing() -> None:
    ensure_kv_transfer_shutdown()


def test_shutdown_closes_a_v0(monkeypatch: pytest.MonkeyPatch, register: Register, engine: Engine) -> None:
    monkeypatch.setenv("VLLM_USE_V1", "0")
    register("V0")
    ensure_kv_transfer_initialized(engine("V0"))
    connector: Any = get_kv_transfer_group()
    ensure_kv_transfer_shutdown()
    ensure_kv_transfer_shutdown()
    assert connector.closes == 1
    assert not has_kv_transfer_group()


def test_it_can_be_made_again(register: Register, engine: Engine) -> None:
    register("Two")
    ensure_kv_transfer_initialized(engine("Two"))
    first = get_kv_transfer_group()
    ensure_kv_transfer_shutdown()
    ensure_kv_transfer_initialized(engine("Two"))
    assert get_kv_transfer_group() is not first


def test_where_there_is_one_no_configuration_is_looked_at(register: Register, engine: Engine) -> None:
    register("Two")
    ensure_kv_transfer_initialized(engine("Two"))
    first, nothing = get_kv_transfer_group(), object()
    ensure_kv_transfer_initialized(nothing)  # type: ignore[arg-type]
    assert get_kv_transfer_group() is first


def write_connector(folder: Path, zoo: str, body: str) -> None:
    (folder / "kvf_odd.py").write_text(f"import kv_factory, {zoo}\nclass Odd({zoo}.Other):\n{body}")
    KVConnectorFactory.register_connector("Odd", "kvf_odd", "Odd")


def test_a_shutdown_that_raises_ends_it_all_the_same(folder: Path, zoo: str, engine: Engine) -> None:
    write_connector(folder, zoo, "    def shutdown(self):\n        raise OSError('the peer is gone')\n")
    ensure_kv_transfer_initialized(engine("Odd"))
    with pytest.raises(OSError, match="the peer is gone"):
        ensure_kv_transfer_shutdown()
    assert not has_kv_transfer_group()


def test_a_shutdown_may_find_its_connector_and_ask_for_a_shutdown(folder: Path, zoo: str, engine: Engine) -> None:
    write_connector(
        folder,
        zoo,
        "    def shutdown(self):\n"
        "        assert kv_factory.get_kv_transfer_group() is self\n"
        "        kv_factory.ensure_kv_transfer_shutdown()\n"
        "        super().shutdown()\n",
    )
    ensure_kv_transfer_initialized(engine("Odd"))
    connector: Any = get_kv_transfer_group()
    ensure_kv_transfer_shutdown()
    assert connector.shutdowns == 1


def test_a_constructor_that_asks_for_the_connector_is_told_so(folder: Path, zoo: str, engine: Engine) -> None:
    write_connector(
        folder,
        zoo,
        "    def __init__(self, vllm_config, role):\n"
        "        kv_factory.ensure_kv_transfer_initialized(vllm_config)\n",
    )
    with pytest.raises(KVTransferStateError) as refused:
        ensure_kv_transfer_initialized(engine("Odd"))
    assert str(refused.value) == (
        "ensure_kv_transfer_initialized was called while the connector is being created: "
        "a connector's constructor, or what it calls, must not ask for the process's connector"
    )
    assert not has_kv_transfer_group()


def test_a_constructor_that_raises_leaves_nothing(register: Register, engine: Engine) -> None:
    register("Raises", "Two")
    with pytest.raises(TypeError, match="from inside"):
        ensure_kv_transfer_initialized(engine("Raises"))
    assert not has_kv_transfer_group()
    ensure_kv_transfer_initialized(engine("Two"))


def test_isolation_shuts_down_what_a_test_left_and_puts_back_what_was(register: Register, engine: Engine) -> None:
    register("Two")
    ensure_kv_transfer_initialized(engine("Two"))
    outer: Any = get_kv_transfer_group()
    with kv_factory.isolated(connectors=()):
        assert not has_kv_transfer_group()
        KVConnectorFactory.register_connector("Two", "kvf_zoo", "Two")
        ensure_kv_transfer_initialized(engine("Two"))
        inner: Any = get_kv_transfer_group()
        assert inner is not outer
    assert get_kv_transfer_group() is outer
    assert (inner.shutdowns, outer.shutdowns) == (1, 0)
    with pytest.raises(LookupError), kv_factory.isolated(connectors=()):
        raise LookupError
    assert get_kv_transfer_group() is outer


def test_isolation_puts_back_what_was_even_if_a_shutdown_raises(
    folder: Path, zoo: str, register: Register, engine: Engine
) -> None:
    register("Two")
    ensure_kv_transfer_initialized(engine("Two"))
    outer = get_kv_transfer_group()
    isolation = kv_factory.isolated(connectors=())
    isolation.__enter__()
    write_connector(folder, zoo, "    def shutdown(self):\n        raise OSError('the peer is gone')\n")
    ensure_kv_transfer_initialized(engine("Odd"))
    with pytest.raises(OSError, match="the peer is gone"):
        isolation.__exit__(None, None, None)
    assert get_kv_transfer_group() is outer
