"""What ``KVConnectorFactory`` creates: constructors of every shape, hybrid memory, who wins."""

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kv_api import ConfigError, KVConnectorRole
from kv_factory import KVConnectorFactory

WORKER = KVConnectorRole.WORKER
Engine = Callable[..., Any]
Register = Callable[..., None]

CONSTRUCTORS = {
    "by place, its own name": ("config, role, kv_cache_config", True),
    "by place, another name": ("config, role, cache", True),
    "by place only": ("config, role, kv_cache_config, /", True),
    "with a default": ("config, role, kv_cache_config=None", True),
    "by name only": ("config, role, *, kv_cache_config", True),
    "by name, after another option": ("config, role, option='no', kv_cache_config=None", True),
    "by name only, after another option": ("config, role, option='no', *, kv_cache_config=None", True),
    "another name, and whatever has one": ("config, role, cache=None, **options", True),
    "by place only, and whatever has a name": ("config, role, kv_cache_config=None, /, **options", True),
    "by place, another name, and by its own an option": ("config, role, cache, kv_cache_config='no'", True),
    "all by place": ("*given", True),
    "the rest by place": ("config, role, *rest", True),
    "the rest by name": ("config, role, **options", True),
    "whatever": ("*given, **options", True),
    "two": ("config, role", False),
    "two and an option by name": ("config, role, *, option='no'", False),
}


@pytest.mark.parametrize("shape", CONSTRUCTORS)
def test_constructors_get_what_they_take(folder: Path, zoo: str, engine: Engine, shape: str) -> None:
    parameters, takes_cache = CONSTRUCTORS[shape]
    (folder / "kvf_shape.py").write_text(
        f"import {zoo}\n"
        f"class Shape({zoo}.Other):\n"
        f"    def __init__(self, {parameters}):\n"
        "        self.seen = [v for k, v in locals().items() if k not in ('self', '__class__')]\n"
    )
    config, cache = engine("Shape", kv_connector_module_path="kvf_shape"), SimpleNamespace()
    made: Any = KVConnectorFactory.create_connector(config, WORKER, cache)  # type: ignore[arg-type]

    def flat(value: Any) -> list[Any]:
        if isinstance(value, dict):
            return flat(list(value.values()))
        return [leaf for item in value for leaf in flat(item)] if isinstance(value, tuple | list) else [value]

    seen = [value for value in flat(made.seen) if value != "no"]
    assert seen == ([config, WORKER, cache] if takes_cache else [config, WORKER])


def test_what_a_constructor_raises_is_left_alone(register: Register, engine: Engine) -> None:
    register("Raises")
    with pytest.raises(TypeError, match=r"^from inside$"):
        KVConnectorFactory.create_connector(engine("Raises"), WORKER, None)


def test_v1_gives_no_kv_cache_config(register: Register, engine: Engine) -> None:
    register("Three")
    with pytest.raises(
        ConfigError, match=r"takes \(vllm_config, role, kv_cache_config\), but .* as \(config, role\)$"
    ):
        KVConnectorFactory.create_connector_v1(engine("Three"), WORKER)


def test_today_the_module_path_wins(zoo: str, engine: Engine) -> None:
    KVConnectorFactory.register_connector("Two", zoo, "Other")
    config = engine("Two", kv_connector_module_path=zoo)
    assert type(KVConnectorFactory.create_connector(config, WORKER, None)).__name__ == "Two"
    assert KVConnectorFactory.get_connector_class(config.kv_transfer_config).__name__ == "Two"
    assert type(KVConnectorFactory.create_connector_v1(config, WORKER)).__name__ == "Other"


def test_today_the_environment_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, register: Register, engine: Engine
) -> None:
    monkeypatch.setenv("VLLM_USE_V1", "0")
    register("Three")
    assert type(KVConnectorFactory.create_connector(engine("Three"), WORKER, None)).__name__ == "Three"


def test_in_the_first_family_a_known_name_wins_and_the_creation_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, zoo: str, engine: Engine
) -> None:
    monkeypatch.setenv("VLLM_USE_V1", "0")
    KVConnectorFactory.register_connector("Two", zoo, "V0")
    config = engine("Two", kv_connector_module_path=zoo, engine_id="e-7")
    with caplog.at_level(logging.INFO, logger="kv_factory"):
        made: Any = KVConnectorFactory.create_connector_v0(3, 1, config)
    assert type(made).__name__ == "V0"
    assert (made.given, made.config) == ({"rank": 3, "local_rank": 1}, config)
    assert caplog.messages == ["creating V0 connector V0 for rank 3, engine_id: e-7"]
    monkeypatch.setenv("VLLM_USE_V1", "1")
    with caplog.at_level(logging.INFO, logger="kv_factory"):
        KVConnectorFactory.create_connector(
            engine("Three", kv_connector_module_path=zoo, engine_id="e"), WORKER, None
        )
    assert caplog.messages[1:] == ["creating V1 connector Three for role WORKER, engine_id: e"]


def test_whether_groups_are_supported_is_asked_of_the_module(zoo: str, engine: Engine) -> None:
    KVConnectorFactory.register_connector("Hma", zoo, "Three")
    assert KVConnectorFactory.supports_hma_config(engine("Hma", kv_connector_module_path=zoo).kv_transfer_config)
    assert not KVConnectorFactory.supports_hma_config(engine("Hma").kv_transfer_config)


HMA = [
    # connector, disable_hybrid_kv_cache_manager, extra config, created?
    ("Hma", False, {}, True),
    ("Hma", None, {}, True),
    ("Three", True, {}, True),
    ("Three", False, {}, False),
    ("Three", None, {}, False),
    ("Parent", False, {"hma": True}, True),
    ("Parent", False, {"hma": False}, False),
    ("Parent", True, {"hma": False}, True),
]


@pytest.mark.parametrize(("name", "hma_off", "extra", "created"), HMA)
def test_hybrid_memory(
    register: Register, engine: Engine, name: str, hma_off: bool | None, extra: dict[str, Any], created: bool
) -> None:
    register(name)
    config = engine(name, hma_off=hma_off, kv_connector_extra_config=extra)
    assert KVConnectorFactory.supports_hma_config(config.kv_transfer_config) is (
        created and name != "Three" and (name == "Hma" or extra["hma"])
    )
    if created:
        KVConnectorFactory.create_connector(config, WORKER, None)
    else:
        with pytest.raises(ConfigError, match="one KV cache group only"):
            KVConnectorFactory.create_connector(config, WORKER, None)


@pytest.mark.parametrize("missing", ["scheduler_config", "the switch"])
def test_an_engine_that_has_no_such_switch_has_no_groups(register: Register, engine: Engine, missing: str) -> None:
    register("Three")
    config = engine("Three")
    if missing == "scheduler_config":
        del config.scheduler_config
    else:
        config.scheduler_config = SimpleNamespace()
    KVConnectorFactory.create_connector(config, WORKER, None)


@pytest.mark.parametrize("answer", [True, False, 1, ()])
def test_what_a_class_says_of_its_children_counts_whatever_it_derives_from(
    folder: Path, zoo: str, engine: Engine, answer: object
) -> None:
    (folder / "kvf_asked.py").write_text(
        f"import {zoo}\nclass Asked({zoo}.Other):\n    all_children_support_hma = lambda config: {answer!r}\n"
    )
    transfer = engine("Asked", kv_connector_module_path="kvf_asked").kv_transfer_config
    assert KVConnectorFactory.supports_hma_config(transfer) is bool(answer)


def test_v0_and_hybrid_memory(register: Register, engine: Engine) -> None:
    register("V0")
    assert KVConnectorFactory.supports_hma_config(engine("V0").kv_transfer_config) is False


def test_old_configurations_have_no_module_path(register: Register) -> None:
    register("Two")
    config: Any = SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector="Two"))
    assert type(KVConnectorFactory.create_connector_v1(config, WORKER)).__name__ == "Two"


def test_a_nested_class_can_be_registered(folder: Path, zoo: str) -> None:
    (folder / "kvf_nested.py").write_text(f"import {zoo}\nclass Outer:\n    Inner = {zoo}.Two\n")
    KVConnectorFactory.register_connector("Inner", "kvf_nested", "Outer.Inner")
    assert KVConnectorFactory.get_connector_class_by_name("Inner").__name__ == "Two"
