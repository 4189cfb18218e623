"""Forbidding modules that a configuration names: each way, for each kind, and for what is created within."""

import subprocess
import sys
from collections.abc import Callable
from contextvars import Context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kv_factory
from kv_api import ConfigError, KVConnectorRole
from kv_factory import KVConnectorFactory, OffloadingSpecFactory, forbid_module_paths, module_paths_allowed
from kv_factory.module_paths import isolated_module_paths, limit_module_paths

WORKER = KVConnectorRole.WORKER
Engine = Callable[..., Any]
Use = Callable[..., object]

# Each call that may follow a module path: of an engine's configuration, with keywords.
USES: dict[str, Use] = {
    "create_connector": lambda config, **kw: KVConnectorFactory.create_connector(config, WORKER, None, **kw),
    "create_connector_v1": lambda config, **kw: KVConnectorFactory.create_connector_v1(config, WORKER, **kw),
    "get_connector_class": lambda config, **kw: KVConnectorFactory.get_connector_class(
        config.kv_transfer_config, **kw
    ),
    "supports_hma_config": lambda config, **kw: KVConnectorFactory.supports_hma_config(
        config.kv_transfer_config, **kw
    ),
    "ensure_kv_transfer_initialized": lambda config, **kw: kv_factory.ensure_kv_transfer_initialized(config, **kw),
    "create_connector_v0": lambda config, **kw: KVConnectorFactory.create_connector_v0(0, 0, config, **kw),
    "get_spec_cls": lambda config, **kw: OffloadingSpecFactory.get_spec_cls(config, **kw),
    "create_spec": lambda config, **kw: OffloadingSpecFactory.create_spec(config, None, **kw),
}
REASONS = {
    "call": "the call said allow_module_paths=False",
    "process": "forbid_module_paths() was called",
    "environment": "KV_FACTORY_ALLOW_MODULE_PATHS is '0'",
}


@pytest.mark.parametrize("way", [None, *REASONS])
@pytest.mark.parametrize("name", USES)
def test_every_call(monkeypatch: pytest.MonkeyPatch, zoo: str, engine: Engine, name: str, way: str | None) -> None:
    keywords: dict[str, Any] = {}
    if name == "create_connector_v0":
        monkeypatch.setenv("VLLM_USE_V1", "0")
    if way == "call":
        keywords["allow_module_paths"] = False
    elif way == "process":
        forbid_module_paths()
    elif way == "environment":
        monkeypatch.setenv("KV_FACTORY_ALLOW_MODULE_PATHS", "0")
    config = engine(
        "V0" if name.endswith("v0") else "Two",
        kv_connector_module_path=zoo,
        kv_connector_extra_config={"spec_name": "OldSpec", "spec_module_path": zoo},
    )
    if way is None:
        USES[name](config)
        return
    kind, key = ("connector", "kv_connector_module_path")
    if "spec" in name:
        kind, key = ("offloading spec", "spec_module_path")
    subject = "OldSpec" if "spec" in name else config.kv_transfer_config.kv_connector
    with pytest.raises(ConfigError) as refused:
        USES[name](config, **keywords)
    assert str(refused.value) == (
        f"{kind} {subject!r}: {key} 'kvf_zoo' is refused, because {REASONS[way]}; "
        "use a name that is registered or that an installed package offers"
    )


@pytest.mark.parametrize("child_path", [None, "kvf_zoo"])
@pytest.mark.parametrize("allowed", [True, False])
def test_children_created_within_a_call(zoo: str, engine: Engine, child_path: str | None, allowed: bool) -> None:
    KVConnectorFactory.register_connector("Parent", zoo, "Parent")
    KVConnectorFactory.register_connector("Two", zoo, "Two")
    child = {"kv_connector": "Two", "kv_role": "kv_both", "kv_connector_module_path": child_path}
    config = engine("Parent", kv_connector_extra_config={"connectors": [child]})
    if child_path and not allowed:
        with pytest.raises(ConfigError, match="'Two': kv_connector_module_path 'kvf_zoo' is refused"):
            KVConnectorFactory.create_connector(config, WORKER, None, allow_module_paths=allowed)
    else:
        made: Any = KVConnectorFactory.create_connector(config, WORKER, None, allow_module_paths=allowed)
        assert [child_class.__name__ for child_class in made.classes] == ["Two"]
    assert module_paths_allowed(), "a call's prohibition outlived it"


@pytest.mark.parametrize(
    "name", ["create_connector_v0", "create_connector_v1", "create_spec", "supports_hma_config"]
)
def test_what_is_called_within_a_call_may_name_no_module_either(
    monkeypatch: pytest.MonkeyPatch, folder: Path, zoo: str, engine: Engine, name: str
) -> None:
    monkeypatch.setenv("VLLM_USE_V1", "0" if name.endswith("v0") else "1")
    base = {"create_connector_v0": "V0", "create_spec": "OldSpec"}.get(name, "Other")
    (folder / "kvf_looks.py").write_text(
        f"import kv_factory, {zoo}\n"
        f"class Looks({zoo}.{base}):\n"
        "    def __init__(self, *given):\n"
        "        raise LookupError(kv_factory.module_paths_allowed())\n"
        "    all_children_support_hma = __init__\n"
    )
    KVConnectorFactory.register_connector("Looks", "kvf_looks", "Looks")
    OffloadingSpecFactory.register_spec("Looks", "kvf_looks", "Looks")
    config = engine("Looks", kv_connector_extra_config={"spec_name": "Looks"})
    for allowed in (True, False):
        with pytest.raises(LookupError, match=rf"^{allowed}$"):
            USES[name](config, allow_module_paths=allowed)


def test_the_nearest_reason_is_told_when_there_are_several(zoo: str, engine: Engine) -> None:
    forbid_module_paths()
    with pytest.raises(ConfigError, match="because the call said allow_module_paths=False;"):
        USES["create_connector"](engine("Two", kv_connector_module_path=zoo), allow_module_paths=False)


def test_a_call_can_only_take_away(zoo: str, engine: Engine) -> None:
    forbid_module_paths()
    config = engine("Two", kv_connector_module_path=zoo)
    with pytest.raises(ConfigError, match="refused"):
        KVConnectorFactory.create_connector(config, WORKER, None, allow_module_paths=True)


def test_isolation_puts_the_prohibition_of_a_call_back() -> None:
    with limit_module_paths(allow_module_paths=False):
        with isolated_module_paths():
            assert module_paths_allowed()
        assert not module_paths_allowed()
        with pytest.raises(LookupError), isolated_module_paths():
            raise LookupError
        assert not module_paths_allowed()
    assert module_paths_allowed()


def test_a_known_name_is_used_when_its_module_path_is_not_asked(zoo: str, engine: Engine) -> None:
    KVConnectorFactory.register_connector("Two", zoo, "Two")
    config = engine("Two", kv_connector_module_path="kvf_nowhere")
    KVConnectorFactory.create_connector_v1(config, WORKER, allow_module_paths=False)


def test_the_advice_to_use_a_module_path_is_not_given(engine: Engine) -> None:
    with pytest.raises(ConfigError) as refused:
        KVConnectorFactory.create_connector(engine("Two"), WORKER, None, allow_module_paths=False)
    assert str(refused.value) == "unknown connector 'Two'; known: none"


def test_where_nothing_was_said_they_are_allowed() -> None:
    """As in a thread that was just begun; these tests' own is isolated, which says so."""
    assert Context().run(module_paths_allowed)


def test_they_are_allowed_in_a_process_that_has_just_begun() -> None:
    script = "import kv_factory; print(kv_factory.module_paths_allowed())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "True\n"


def test_isolation_ends_a_prohibition() -> None:
    with kv_factory.isolated():
        forbid_module_paths()
        assert not module_paths_allowed()
        with kv_factory.isolated():
            assert module_paths_allowed()
        assert not module_paths_allowed()
    assert module_paths_allowed()


def test_a_bad_value_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KV_FACTORY_ALLOW_MODULE_PATHS", "no")
    with pytest.raises(ConfigError) as refused:
        OffloadingSpecFactory.get_spec_cls(
            SimpleNamespace(extra_config={"spec_name": "A", "spec_module_path": "b"})  # type: ignore[arg-type]
        )
    assert str(refused.value) == "KV_FACTORY_ALLOW_MODULE_PATHS: expected 0, 1, true or false, got 'no'"
