"""Bad input about specs, registrations and generations, and the exact words with which it is refused."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kv_api
from kv_api import ConfigError, KVConnectorRole
from kv_factory import KVConnectorFactory, OffloadingSpecFactory

ITS_CLASSES = "AbstractSpec, OldSpec, Spec"

# Extra config, or what is given in its place -> the error.
SPECS: dict[str, tuple[Any, str]] = {
    "the default is not installed": (
        {},
        "offloading spec 'CPUOffloadingSpec' is not installed: install the package kv-offload-cpu",
    ),
    "an unknown name": (
        {"spec_name": "DiskSpec"},
        "unknown offloading spec 'DiskSpec'; known: none; "
        "spec_module_path names the module of one that is not registered",
    ),
    "a mistyped well-known name": (
        {"spec_name": "CpuOffloadSpec"},
        "unknown offloading spec 'CpuOffloadSpec'; known: none; "
        "did you mean 'CPUOffloadingSpec'? It is in the package kv-offload-cpu, which is not installed",
    ),
    "a name of the wrong type": ({"spec_name": None}, "spec_name: expected str, got None (NoneType)"),
    "a module path of the wrong type": (
        {"spec_name": "Spec", "spec_module_path": 1},
        "spec_module_path: expected str, got 1 (int)",
    ),
    "an empty module path": (
        {"spec_name": "Spec", "spec_module_path": ""},
        "spec_module_path: expected the name of a module or nothing, got an empty string",
    ),
    "no such class": (
        {"spec_name": "Sepc", "spec_module_path": "kvf_zoo"},
        "offloading spec 'Sepc' (kvf_zoo:Sepc, from spec_module_path): "
        f"module 'kvf_zoo' has no 'Sepc'; it has: {ITS_CLASSES}; did you mean 'Spec'?",
    ),
    "a connector": (
        {"spec_name": "Two", "spec_module_path": "kvf_zoo"},
        "offloading spec 'Two' (kvf_zoo:Two, from spec_module_path): "
        "Two is no offloading spec: it doesn't derive from OffloadingSpec",
    ),
    "no mapping": (
        5,
        "config: expected extra config, an OffloadingConfig or an engine's configuration, got a value of type int",
    ),
    "an OffloadingConfig without a mapping": (
        SimpleNamespace(extra_config=[]),
        "extra_config: expected a mapping, got a value of type list",
    ),
    "an engine's configuration without KV transfer": (
        SimpleNamespace(kv_transfer_config=None),
        "kv_transfer_config: not set, so there is nothing to create",
    ),
    "an engine's configuration without a mapping": (
        SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector="A", kv_connector_extra_config=None)),
        "kv_connector_extra_config: expected a mapping, got None",
    ),
    "an engine's configuration that has no place for a mapping": (
        SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector="A")),
        "kv_connector_extra_config: expected a mapping, got None",
    ),
}


@pytest.mark.parametrize("case", SPECS)
def test_a_spec_that_cannot_be_had_is_refused_in_these_words(zoo: str, case: str) -> None:
    extra, message = SPECS[case]
    with pytest.raises(ConfigError) as refused:
        OffloadingSpecFactory.get_spec_cls(extra)
    assert str(refused.value) == message


def offloading(**extra: Any) -> Any:
    return SimpleNamespace(extra_config={"spec_module_path": "kvf_zoo", **extra})


def engine_with(**extra: Any) -> Any:
    extra = {"spec_module_path": "kvf_zoo", **extra}
    return SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector="A", kv_connector_extra_config=extra))


# Arguments of create_spec -> the error.
SPEC_CALLS: dict[str, tuple[tuple[Any, ...], str]] = {
    "a new spec, created the old way": (
        (engine_with(spec_name="Spec"), None),
        "offloading spec 'Spec' (kvf_zoo:Spec, from spec_module_path): "
        "its constructor takes (config), but it is called as (config, kv_cache_config)",
    ),
    "an old spec, created the new way": (
        (offloading(spec_name="OldSpec"),),
        "offloading spec 'OldSpec' (kvf_zoo:OldSpec, from spec_module_path): "
        "its constructor takes (config, kv_cache_config), but it is called as (offloading_config)",
    ),
    "an abstract spec": (
        (offloading(spec_name="AbstractSpec"),),
        "offloading spec 'AbstractSpec' (kvf_zoo:AbstractSpec, from spec_module_path): "
        "AbstractSpec is abstract; it lacks get_manager, get_worker",
    ),
    "an engine's configuration alone": (
        (engine_with(spec_name="Spec"),),
        "config: expected an OffloadingConfig, got a value of type SimpleNamespace; "
        "an engine's configuration needs a kv_cache_config beside it",
    ),
    "an OffloadingConfig with a kv_cache_config": (
        (offloading(spec_name="Spec"), None),
        "config: expected an engine's configuration with a kv_transfer_config, "
        "got a value of type SimpleNamespace",
    ),
}


@pytest.mark.parametrize("case", SPEC_CALLS)
def test_a_spec_that_cannot_be_made_is_refused_in_these_words(zoo: str, case: str) -> None:
    arguments, message = SPEC_CALLS[case]
    with pytest.raises(ConfigError) as refused:
        OffloadingSpecFactory.create_spec(*arguments)
    assert str(refused.value) == message


# Arguments of register_connector -> the error.
REGISTRATIONS: dict[str, tuple[tuple[Any, ...], str]] = {
    "twice": (
        ("A", "b", "C"),
        "connector 'A' is already registered as kvf_zoo:Two; can't register b:C too",
    ),
    "no name": (("", "b", "C"), "connector '': name must be a non-empty string, got ''"),
    "no module": (("B", None, "C"), "connector 'B': module_path must be a non-empty string, got None"),
    "no class": (("B", "b", str), "connector 'B': class_name must be a non-empty string, got <class 'str'>"),
}


@pytest.mark.parametrize("case", REGISTRATIONS)
def test_a_wrong_registration_is_refused_in_these_words(case: str) -> None:
    KVConnectorFactory.register_connector("A", "kvf_zoo", "Two")
    arguments, message = REGISTRATIONS[case]
    with pytest.raises(ConfigError) as refused:
        KVConnectorFactory.register_connector(*arguments)
    assert str(refused.value) == message
    assert KVConnectorFactory._registry.names() == ["A"]
    assert [str(offer.target) for offer in KVConnectorFactory._registry.offers("A")] == ["kvf_zoo:Two"]


def test_a_name_that_is_unknown_or_none_is_refused(zoo: str) -> None:
    with pytest.raises(kv_api.UnknownNameError) as unknown:
        KVConnectorFactory.get_connector_class_by_name("A")
    assert str(unknown.value) == "unknown connector 'A'; known: none"
    with pytest.raises(ConfigError) as refused:
        KVConnectorFactory.get_connector_class_by_name(["A"])  # type: ignore[arg-type]
    assert str(refused.value) == "connector_name: expected str, got ['A'] (list)"


# VLLM_USE_V1, what is asked for -> the error.
GENERATIONS: dict[str, tuple[str | None, str, str]] = {
    "not set": (None, "V0", "asked for a V0 connector, but VLLM_USE_V1 says V1: it is not set, its default is 1"),
    "on": ("1", "V0", "asked for a V0 connector, but VLLM_USE_V1 says V1: it is '1'"),
    "off": ("false", "V1", "asked for a V1 connector, but VLLM_USE_V1 says V0: it is 'false'"),
    "off, in capitals": ("FALSE ", "V1", "asked for a V1 connector, but VLLM_USE_V1 says V0: it is 'FALSE '"),
    "any other number": ("-2", "V0", "asked for a V0 connector, but VLLM_USE_V1 says V1: it is '-2'"),
    "nonsense": ("maybe", "V1", "VLLM_USE_V1: expected 0, 1, true or false, got 'maybe'"),
    "empty": ("", "V0", "VLLM_USE_V1: expected 0, 1, true or false, got ''"),
}


@pytest.mark.parametrize("case", GENERATIONS)
def test_the_generation_that_the_environment_rules_out_is_refused(
    monkeypatch: pytest.MonkeyPatch, register: Callable[..., None], engine: Callable[..., Any], case: str
) -> None:
    register("V0", "Two")
    value, asked, message = GENERATIONS[case]
    if value is not None:
        monkeypatch.setenv("VLLM_USE_V1", value)
    creates = {
        "V0": lambda: KVConnectorFactory.create_connector_v0(0, 0, engine("V0")),
        "V1": lambda: KVConnectorFactory.create_connector_v1(engine("Two"), KVConnectorRole.WORKER),
    }
    with pytest.raises(ConfigError) as refused:
        creates[asked]()
    assert str(refused.value) == message


def test_a_v0_connector_whose_constructor_takes_something_else_is_refused(
    monkeypatch: pytest.MonkeyPatch, folder: Path, zoo: str, engine: Callable[..., Any]
) -> None:
    monkeypatch.setenv("VLLM_USE_V1", "0")
    (folder / "kvf_odd.py").write_text(
        f"import {zoo}\nclass Odd({zoo}.V0):\n    def __init__(self, config): ...\n"
    )
    with pytest.raises(ConfigError) as refused:
        KVConnectorFactory.create_connector_v0(0, 0, engine("Odd", kv_connector_module_path="kvf_odd"))
    assert str(refused.value) == (
        "connector 'Odd' (kvf_odd:Odd, from kv_connector_module_path): "
        "its constructor takes (config), but it is called as (rank, local_rank, config)"
    )


def test_a_v1_connector_in_the_place_of_a_v0_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, register: Callable[..., None], engine: Callable[..., Any]
) -> None:
    monkeypatch.setenv("VLLM_USE_V1", "0")
    register("Two")
    with pytest.raises(ConfigError) as refused:
        KVConnectorFactory.create_connector_v0(0, 0, engine("Two"))
    assert str(refused.value) == (
        "connector 'Two' (kvf_zoo:Two, registered): asked for a V0 connector (KVConnectorBase), "
        "found a V1 connector (KVConnectorBase_V1); create that with create_connector"
    )


def test_one_that_knows_one_group_is_refused_where_there_may_be_several(
    register: Callable[..., None], engine: Callable[..., Any]
) -> None:
    register("Three")
    with pytest.raises(ConfigError) as refused:
        KVConnectorFactory.create_connector(engine("Three", hma_off=False), KVConnectorRole.WORKER, None)
    assert str(refused.value) == (
        "connector 'Three' (kvf_zoo:Three, registered): it supports one KV cache group only, but the engine may "
        "use several; "
        "set disable_hybrid_kv_cache_manager=True (--disable-hybrid-kv-cache-manager) or use a connector that "
        "derives from SupportsHMA"
    )
