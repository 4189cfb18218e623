"""The pages of vLLM's reference that this package follows, point by point.

Each test is a sentence of the description of ``KVConnectorFactory``, ``OffloadingSpecFactory`` or the transfer
group's functions.
"""

import logging
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import kv_api
from kv_api import KVConnectorRole
from kv_factory import (
    KVConnectorBaseType,
    KVConnectorFactory,
    OffloadingSpecFactory,
    ensure_kv_transfer_initialized,
    ensure_kv_transfer_shutdown,
    get_kv_transfer_group,
    has_kv_transfer_group,
    is_v1_kv_transfer_group,
)

WORKER, SCHEDULER = KVConnectorRole.WORKER, KVConnectorRole.SCHEDULER
Engine = Callable[..., Any]
Register = Callable[..., None]


class TestKVConnectorFactory:
    def test_registering_is_lazy(self, zoo: str, register: Register) -> None:
        register("Two")
        assert zoo not in sys.modules
        found = KVConnectorFactory.get_connector_class_by_name("Two")
        assert zoo in sys.modules
        assert found is sys.modules[zoo].Two

    def test_a_name_registered_twice_is_a_value_error(self, register: Register) -> None:
        register("Two")
        with pytest.raises(ValueError, match="already registered"):
            register("Two")

    def test_v0_by_name(self, monkeypatch: pytest.MonkeyPatch, register: Register, engine: Engine) -> None:
        monkeypatch.setenv("VLLM_USE_V1", "0")
        register("V0")
        made: Any = KVConnectorFactory.create_connector_v0(3, 1, engine("V0"))
        assert isinstance(made, kv_api.KVConnectorBase)
        assert made.given == {"rank": 3, "local_rank": 1}

    def test_v0_by_module_path(self, monkeypatch: pytest.MonkeyPatch, zoo: str, engine: Engine) -> None:
        monkeypatch.setenv("VLLM_USE_V1", "0")
        config = engine("V0", kv_connector_module_path=zoo)
        assert type(KVConnectorFactory.create_connector_v0(0, 0, config)).__name__ == "V0"

    @pytest.mark.parametrize("value", [None, "1", "true", "True", "2"])
    def test_v0_is_a_value_error_when_v1_is_on(
        self, monkeypatch: pytest.MonkeyPatch, register: Register, engine: Engine, value: str | None
    ) -> None:
        if value is not None:
            monkeypatch.setenv("VLLM_USE_V1", value)
        register("V0")
        with pytest.raises(ValueError, match="asked for a V0 connector, but VLLM_USE_V1 says V1"):
            KVConnectorFactory.create_connector_v0(0, 0, engine("V0"))

    def test_v0_is_a_value_error_when_the_name_is_unknown(
        self, monkeypatch: pytest.MonkeyPatch, engine: Engine
    ) -> None:
        monkeypatch.setenv("VLLM_USE_V1", "0")
        with pytest.raises(ValueError, match="unknown connector 'V0'"):
            KVConnectorFactory.create_connector_v0(0, 0, engine("V0"))

    def test_v0_must_be_a_kv_connector_base(
        self, monkeypatch: pytest.MonkeyPatch, register: Register, engine: Engine
    ) -> None:
        monkeypatch.setenv("VLLM_USE_V1", "0")
        register("Two")
        with pytest.raises(ValueError, match=r"asked for a V0 connector .* found a V1 connector"):
            KVConnectorFactory.create_connector_v0(0, 0, engine("Two"))

    @pytest.mark.parametrize("role", [WORKER, SCHEDULER])
    def test_v1_by_name(self, register: Register, engine: Engine, role: KVConnectorRole) -> None:
        register("Two")
        made: Any = KVConnectorFactory.create_connector_v1(engine("Two"), role)
        assert isinstance(made, kv_api.KVConnectorBase_V1)
        assert made.given == {"role": role}

    def test_v1_by_module_path(self, zoo: str, engine: Engine) -> None:
        made = KVConnectorFactory.create_connector_v1(engine("Two", kv_connector_module_path=zoo), WORKER)
        assert type(made) is sys.modules[zoo].Two

    def test_v1_prefers_a_registered_name_to_a_module_path(self, zoo: str, engine: Engine) -> None:
        KVConnectorFactory.register_connector("Two", zoo, "Other")
        made = KVConnectorFactory.create_connector_v1(engine("Two", kv_connector_module_path=zoo), WORKER)
        assert type(made) is sys.modules[zoo].Other

    @pytest.mark.parametrize("value", ["0", "false", "FALSE"])
    def test_v1_is_a_value_error_when_v1_is_off(
        self, monkeypatch: pytest.MonkeyPatch, register: Register, engine: Engine, value: str
    ) -> None:
        monkeypatch.setenv("VLLM_USE_V1", value)
        register("Two")
        with pytest.raises(ValueError, match="asked for a V1 connector, but VLLM_USE_V1 says V0"):
            KVConnectorFactory.create_connector_v1(engine("Two"), WORKER)

    def test_v1_is_a_value_error_when_the_name_is_unknown(self, engine: Engine) -> None:
        with pytest.raises(ValueError, match="unknown connector 'Two'"):
            KVConnectorFactory.create_connector_v1(engine("Two"), WORKER)

    def test_v1_must_be_a_kv_connector_base_v1(self, register: Register, engine: Engine) -> None:
        register("V0")
        with pytest.raises(ValueError, match=r"asked for a V1 connector .* found a V0 connector"):
            KVConnectorFactory.create_connector_v1(engine("V0"), WORKER)

    def test_v1_logs_the_name_and_the_engine_id(
        self, caplog: pytest.LogCaptureFixture, register: Register, engine: Engine
    ) -> None:
        register("Two")
        with caplog.at_level(logging.INFO, logger="kv_factory"):
            KVConnectorFactory.create_connector_v1(engine("Two", engine_id="e-7"), SCHEDULER)
        assert caplog.messages == ["creating V1 connector Two for role SCHEDULER, engine_id: e-7"]


def offloading(**extra: Any) -> Any:
    return SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector="X", kv_connector_extra_config=extra))


class TestOffloadingSpecFactory:
    def test_a_name_registered_twice_is_a_value_error(self, zoo: str) -> None:
        OffloadingSpecFactory.register_spec("A", zoo, "OldSpec")
        assert zoo not in sys.modules
        with pytest.raises(ValueError, match="already registered"):
            OffloadingSpecFactory.register_spec("A", zoo, "OldSpec")

    def test_the_name_is_spec_name(self, zoo: str) -> None:
        OffloadingSpecFactory.register_spec("A", zoo, "OldSpec")
        config, cache = offloading(spec_name="A"), object()
        made: Any = OffloadingSpecFactory.create_spec(config, cache)  # type: ignore[arg-type]
        assert isinstance(made, kv_api.OffloadingSpec)
        assert made.given == {"config": config, "kv_cache_config": cache}

    def test_the_default_is_cpu_offloading_spec(self, zoo: str) -> None:
        OffloadingSpecFactory.register_spec("CPUOffloadingSpec", zoo, "OldSpec")
        assert type(OffloadingSpecFactory.create_spec(offloading(), None)) is sys.modules[zoo].OldSpec

    def test_a_name_that_is_not_registered_comes_from_spec_module_path(self, zoo: str) -> None:
        config = offloading(spec_name="OldSpec", spec_module_path=zoo)
        assert type(OffloadingSpecFactory.create_spec(config, None)) is sys.modules[zoo].OldSpec

    def test_else_it_is_a_value_error(self) -> None:
        with pytest.raises(ValueError, match="unknown offloading spec 'OldSpec'"):
            OffloadingSpecFactory.create_spec(offloading(spec_name="OldSpec"), None)

    def test_it_must_be_an_offloading_spec(self, zoo: str) -> None:
        with pytest.raises(ValueError, match="NoConnector is no offloading spec"):
            OffloadingSpecFactory.create_spec(offloading(spec_name="NoConnector", spec_module_path=zoo), None)

    def test_it_is_logged(self, caplog: pytest.LogCaptureFixture, zoo: str) -> None:
        with caplog.at_level(logging.INFO, logger="kv_factory"):
            OffloadingSpecFactory.create_spec(offloading(spec_name="OldSpec", spec_module_path=zoo), None)
        assert caplog.messages == ["creating offloading spec OldSpec (kvf_zoo)"]
        assert caplog.records[0].module == "specs"  # who says so


class TestTransferGroup:
    def test_nothing_without_a_kv_transfer_config(self) -> None:
        ensure_kv_transfer_initialized(SimpleNamespace(kv_transfer_config=None))  # type: ignore[arg-type]
        assert not has_kv_transfer_group()

    def test_nothing_when_this_is_no_transfer_instance(self, engine: Engine) -> None:
        ensure_kv_transfer_initialized(engine(None))
        assert not has_kv_transfer_group()

    def test_creates_a_v1_worker(self, register: Register, engine: Engine) -> None:
        register("Two")
        ensure_kv_transfer_initialized(engine("Two"))
        connector: Any = get_kv_transfer_group()
        assert connector.given == {"role": WORKER}
        assert is_v1_kv_transfer_group()

    def test_creates_a_v0_with_rank_and_local_rank_when_v1_is_off(
        self, monkeypatch: pytest.MonkeyPatch, register: Register, engine: Engine
    ) -> None:
        monkeypatch.setenv("VLLM_USE_V1", "0")
        register("V0")
        config = engine("V0")
        config.parallel_config.local_rank = 1
        ensure_kv_transfer_initialized(config)
        connector: Any = get_kv_transfer_group()
        assert connector.given == {"rank": 5, "local_rank": 1}
        assert has_kv_transfer_group()
        assert not is_v1_kv_transfer_group()

    def test_a_connector_that_exists_stays(self, register: Register, engine: Engine) -> None:
        register("Two", "Other")
        ensure_kv_transfer_initialized(engine("Two"))
        first = get_kv_transfer_group()
        ensure_kv_transfer_initialized(engine("Other"))
        assert get_kv_transfer_group() is first

    def test_get_fails_when_not_initialised(self) -> None:
        with pytest.raises(kv_api.KVError, match="not initialised"):
            get_kv_transfer_group()

    def test_is_v1_says_what_the_given_connector_is(
        self, monkeypatch: pytest.MonkeyPatch, register: Register, engine: Engine
    ) -> None:
        assert is_v1_kv_transfer_group() is False
        register("Two", "V0")
        v1 = KVConnectorFactory.create_connector_v1(engine("Two"), WORKER)
        monkeypatch.setenv("VLLM_USE_V1", "0")
        v0 = KVConnectorFactory.create_connector_v0(0, 0, engine("V0"))
        assert is_v1_kv_transfer_group(v1) is True
        assert is_v1_kv_transfer_group(v0) is False
        assert not has_kv_transfer_group()

    def test_the_type_of_a_connector_is_either_family(self) -> None:
        assert KVConnectorBaseType == kv_api.KVConnectorBase | kv_api.KVConnectorBase_V1

    def test_shutdown_ends_it(self, register: Register, engine: Engine) -> None:
        register("Two")
        ensure_kv_transfer_initialized(engine("Two"))
        connector: Any = get_kv_transfer_group()
        ensure_kv_transfer_shutdown()
        assert connector.shutdowns == 1
        assert not has_kv_transfer_group()
