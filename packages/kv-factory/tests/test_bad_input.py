"""Bad input about connectors, and the exact words with which it is refused."""

import os
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from kv_api import ConfigError, KVConnectorRole
from kv_factory import KVConnectorFactory

BASES = "KVConnectorBase or KVConnectorBase_V1"
FITTING = "Abstract, Hma, Other, Parent, Raises, Strange, Three, Two, V0"


def create(**transfer: Any) -> None:
    transfer.setdefault("kv_connector_module_path", None)
    config = SimpleNamespace(kv_transfer_config=SimpleNamespace(**transfer))
    KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, None)  # type: ignore[arg-type]


def create_from(config: Any, role: Any = KVConnectorRole.WORKER) -> None:
    KVConnectorFactory.create_connector(config, role, None)


# What a configuration says of a connector -> the error.
CONNECTORS: dict[str, tuple[dict[str, Any], str]] = {
    "no name": ({"kv_connector": None}, "kv_connector: not set, so there is no name to look up"),
    "a name of the wrong type": ({"kv_connector": 5}, "kv_connector: expected str, got 5 (int)"),
    "an empty name": (
        {"kv_connector": ""},
        "unknown connector ''; known: Hmaa, Three; "
        "kv_connector_module_path names the module of one that is not registered",
    ),
    "an unknown name": (
        {"kv_connector": "Nixl"},
        "unknown connector 'Nixl'; known: Hmaa, Three; "
        "kv_connector_module_path names the module of one that is not registered",
    ),
    "a mistyped name": (
        {"kv_connector": "Tree"},
        "unknown connector 'Tree'; known: Hmaa, Three; did you mean 'Three'?; "
        "kv_connector_module_path names the module of one that is not registered",
    ),
    "a well-known name": (
        {"kv_connector": "OffloadingConnector"},
        "connector 'OffloadingConnector' is not installed: install the package kv-offload",
    ),
    "another well-known name": (
        {"kv_connector": "MultiConnector"},
        "connector 'MultiConnector' is not installed: install the package kv-multi",
    ),
    "a mistyped well-known name": (
        {"kv_connector": "MultiConector"},
        "unknown connector 'MultiConector'; known: Hmaa, Three; "
        "did you mean 'MultiConnector'? It is in the package kv-multi, which is not installed",
    ),
    "an empty module path": (
        {"kv_connector": "Three", "kv_connector_module_path": ""},
        "kv_connector_module_path: expected the name of a module or nothing, got an empty string",
    ),
    "a module path of the wrong type": (
        {"kv_connector": "Three", "kv_connector_module_path": Path("a.py")},
        f"kv_connector_module_path: expected str, got {Path('a.py')!r} ({type(Path()).__name__})",
    ),
    "a module that is not there": (
        {"kv_connector": "A", "kv_connector_module_path": "kvf_nowhere.b"},
        "connector 'A' (kvf_nowhere.b:A, from kv_connector_module_path): there is no module 'kvf_nowhere'",
    ),
    "a relative module": (
        {"kv_connector": "A", "kv_connector_module_path": ".b"},
        "connector 'A' (.b:A, from kv_connector_module_path): importing '.b' failed: TypeError: the 'package' "
        "argument is required to perform a relative import for '.b'",
    ),
    "a module that raises": (
        {"kv_connector": "A", "kv_connector_module_path": "kvf_raises"},
        "connector 'A' (kvf_raises:A, from kv_connector_module_path): "
        "importing 'kvf_raises' failed: RuntimeError: no such device (kvf_raises.py:1)",
    ),
    "a module that raises without a word": (
        {"kv_connector": "A", "kv_connector_module_path": "kvf_mute"},
        "connector 'A' (kvf_mute:A, from kv_connector_module_path): "
        "importing 'kvf_mute' failed: RuntimeError (kvf_mute.py:1)",
    ),
    "a module that exits": (
        {"kv_connector": "A", "kv_connector_module_path": "kvf_exits"},
        "connector 'A' (kvf_exits:A, from kv_connector_module_path): "
        "importing 'kvf_exits' failed: SystemExit: 3 (kvf_exits.py:1)",
    ),
    "a module that lacks what it needs": (
        {"kv_connector": "A", "kv_connector_module_path": "kvf_needs"},
        "connector 'A' (kvf_needs:A, from kv_connector_module_path): "
        "importing 'kvf_needs' failed: ModuleNotFoundError: No module named 'kvf_absent' (kvf_needs.py:1)",
    ),
    "a module that lacks another whose name its own begins with": (
        {"kv_connector": "A", "kv_connector_module_path": "kvf_absently"},
        "connector 'A' (kvf_absently:A, from kv_connector_module_path): "
        "importing 'kvf_absently' failed: ModuleNotFoundError: No module named 'kvf_absent' (kvf_absently.py:1)",
    ),
    "a module that is lazy and breaks": (
        {"kv_connector": "A", "kv_connector_module_path": "kvf_lazy"},
        "connector 'A' (kvf_lazy:A, from kv_connector_module_path): "
        "getting 'A' failed: ImportError: A needs a newer driver",
    ),
    "a module that is lazy and breaks otherwise": (
        {"kv_connector": "A", "kv_connector_module_path": "kvf_wrongly_lazy"},
        "connector 'A' (kvf_wrongly_lazy:A, from kv_connector_module_path): "
        "getting 'A' failed: TypeError: A has 3 of 2 arguments",
    ),
    "a module without the class": (
        {"kv_connector": "Tvo", "kv_connector_module_path": "kvf_zoo"},
        "connector 'Tvo' (kvf_zoo:Tvo, from kv_connector_module_path): "
        f"module 'kvf_zoo' has no 'Tvo'; it has: {FITTING}; did you mean 'Two'?",
    ),
    "a module that has something of nearly that name": (
        {"kv_connector": "functoin", "kv_connector_module_path": "kvf_zoo"},
        "connector 'functoin' (kvf_zoo:functoin, from kv_connector_module_path): "
        f"module 'kvf_zoo' has no 'functoin'; it has: {FITTING}; did you mean 'function'?",
    ),
    "a module that has the bases themselves": (
        {"kv_connector": "A", "kv_connector_module_path": "kvf_bases"},
        "connector 'A' (kvf_bases:A, from kv_connector_module_path): module 'kvf_bases' has no 'A'; it has: Two",
    ),
    "a module without any class": (
        {"kv_connector": "A", "kv_connector_module_path": "kvf_empty"},
        "connector 'A' (kvf_empty:A, from kv_connector_module_path): module 'kvf_empty' has no 'A', "
        "and none of its kind",
    ),
    "a module without a spec": (
        {"kv_connector": "A", "kv_connector_module_path": "kvf_specless"},
        "connector 'A' (kvf_specless:A, from kv_connector_module_path): "
        "module 'kvf_specless' has no 'A', and none of its kind",
    ),
    "a module that looks itself up": (
        {"kv_connector": "A", "kv_connector_module_path": "kvf_circle"},
        "connector 'A' (kvf_circle:A, from kv_connector_module_path): importing 'kvf_circle' failed: ConfigError: "
        "connector 'Circle' (kvf_circle:Circle, registered): module 'kvf_circle' has no 'Circle' yet: "
        "it is still being imported (a circular import?)",
    ),
    "no class": (
        {"kv_connector": "__name__", "kv_connector_module_path": "kvf_zoo"},
        "connector '__name__' (kvf_zoo:__name__, from kv_connector_module_path): "
        f"expected a class derived from {BASES}, got 'kvf_zoo'",
    ),
    "no connector": (
        {"kv_connector": "NoConnector", "kv_connector_module_path": "kvf_zoo"},
        "connector 'NoConnector' (kvf_zoo:NoConnector, from kv_connector_module_path): "
        f"NoConnector is no connector: it doesn't derive from {BASES}",
    ),
    "a connector of somebody else's family": (
        {"kv_connector": "Foreign", "kv_connector_module_path": "kvf_zoo"},
        "connector 'Foreign' (kvf_zoo:Foreign, from kv_connector_module_path): Foreign is no connector: "
        f"it doesn't derive from kv_api's {BASES} (its base kvf_zoo.KVConnectorBase_V1 is another class)",
    ),
    "a grandchild of somebody else's families": (
        {"kv_connector": "Grandchild", "kv_connector_module_path": "kvf_zoo"},
        "connector 'Grandchild' (kvf_zoo:Grandchild, from kv_connector_module_path): Grandchild is no connector: "
        f"it doesn't derive from kv_api's {BASES} (its base kvf_zoo.KVConnectorBase_V1 is another class)",
    ),
    "V0 for V1": (
        {"kv_connector": "V0", "kv_connector_module_path": "kvf_zoo"},
        "connector 'V0' (kvf_zoo:V0, from kv_connector_module_path): "
        "asked for a V1 connector (KVConnectorBase_V1), found a V0 connector (KVConnectorBase); create that "
        "with create_connector_v0, with VLLM_USE_V1=0",
    ),
    "an abstract class": (
        {"kv_connector": "Abstract", "kv_connector_module_path": "kvf_zoo"},
        "connector 'Abstract' (kvf_zoo:Abstract, from kv_connector_module_path): Abstract is abstract; it lacks "
        "build_connector_meta, get_num_new_matched_tokens, save_kv_layer, start_load_kv, "
        "update_state_after_alloc, wait_for_layer_load",
    ),
    "a constructor that nobody knows": (
        {"kv_connector": "Strange", "kv_connector_module_path": "kvf_zoo"},
        "connector 'Strange' (kvf_zoo:Strange, from kv_connector_module_path): its constructor takes "
        "(vllm_config, role, kv_cache_config, more), "
        "but it is called as (config, role, kv_cache_config) or (config, role)",
    ),
}


@pytest.mark.parametrize("case", CONNECTORS)
def test_a_connector_that_cannot_be_had_is_refused_in_these_words(zoo: str, folder: Path, case: str) -> None:
    modules = {
        "kvf_raises": "raise RuntimeError('no such device')",
        "kvf_empty": "",
        "kvf_specless": "__spec__ = None",
        "kvf_mute": "raise RuntimeError",
        "kvf_bases": f"from kv_api import KVConnectorBase, KVConnectorBase_V1\nfrom {zoo} import Two",
        "kvf_exits": "raise SystemExit(3)",
        "kvf_needs": "import kvf_absent",
        "kvf_absently": "import kvf_absent",
        "kvf_lazy": "def __getattr__(name):\n    raise ImportError(f'{name} needs a newer driver')",
        "kvf_wrongly_lazy": "def __getattr__(name):\n    raise TypeError(f'{name} has 3 of 2 arguments')",
        "kvf_circle": "from kv_factory import KVConnectorFactory as F\nF.get_connector_class_by_name('Circle')",
    }
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    KVConnectorFactory.register_connector("Three", zoo, "Three")
    KVConnectorFactory.register_connector("Hmaa", zoo, "Hma")
    transfer, message = CONNECTORS[case]
    if "circle" in message:
        KVConnectorFactory.register_connector("Circle", "kvf_circle", "Circle")
    with pytest.raises(ConfigError) as refused:
        create(**transfer)
    assert str(refused.value) == message
    assert isinstance(refused.value, ValueError)


def test_a_failed_import_has_its_cause(folder: Path) -> None:
    (folder / "kvf_raises.py").write_text("raise RuntimeError('no such device')")
    KVConnectorFactory.register_connector("A", "kvf_raises", "A")
    with pytest.raises(ConfigError, match=r"^connector 'A' \(kvf_raises:A, registered\): importing") as refused:
        KVConnectorFactory.get_connector_class_by_name("A")
    assert isinstance(refused.value.__cause__, RuntimeError)


def test_whoever_interrupts_an_import_is_let_through(folder: Path) -> None:
    (folder / "kvf_slow.py").write_text("raise KeyboardInterrupt")
    KVConnectorFactory.register_connector("A", "kvf_slow", "A")
    with pytest.raises(KeyboardInterrupt):
        KVConnectorFactory.get_connector_class_by_name("A")


def test_a_failed_import_is_tried_again(folder: Path, zoo: str) -> None:
    KVConnectorFactory.register_connector("A", "kvf_late", "Two")
    with pytest.raises(ConfigError, match="there is no module 'kvf_late'"):
        KVConnectorFactory.get_connector_class_by_name("A")
    before = folder.stat()
    (folder / "kvf_late.py").write_text(f"from {zoo} import Two")
    os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))  # as if the clock of the file system stood still
    KVConnectorFactory.refresh_entry_points()
    assert KVConnectorFactory.get_connector_class_by_name("A").__name__ == "Two"


# What is given in place of an engine's configuration -> the error.
CONFIGS: dict[str, tuple[Any, str]] = {
    "None": (None, "config: expected an engine's configuration with a kv_transfer_config, got None"),
    "a number": (
        5,
        "config: expected an engine's configuration with a kv_transfer_config, got a value of type int",
    ),
    "without KV transfer": (
        SimpleNamespace(kv_transfer_config=None),
        "kv_transfer_config: not set, so there is nothing to create",
    ),
    "with a dict": (
        SimpleNamespace(kv_transfer_config={"kv_connector": "A"}),
        "kv_transfer_config: expected a KVTransferConfig, got a value of type dict; "
        "KVTransferConfig.from_mapping makes one",
    ),
    "with a mapping that is no dict": (
        SimpleNamespace(kv_transfer_config=MappingProxyType({"kv_connector": "A"})),
        "kv_transfer_config: expected a KVTransferConfig, got a value of type mappingproxy; "
        "KVTransferConfig.from_mapping makes one",
    ),
    "with a string": (
        SimpleNamespace(kv_transfer_config="A"),
        "kv_transfer_config: expected a KVTransferConfig, got a value of type str",
    ),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_what_is_no_configuration_is_refused_in_these_words(case: str) -> None:
    config, message = CONFIGS[case]
    with pytest.raises(ConfigError) as refused:
        create_from(config)
    assert str(refused.value) == message


@pytest.mark.parametrize("role", ["worker", 1, None])
def test_what_is_no_role_is_refused_with_the_choices(
    register: Callable[..., None], engine: Callable[..., Any], role: Any
) -> None:
    register("Three")
    message = f"role: expected KVConnectorRole.SCHEDULER or KVConnectorRole.WORKER, got {role!r}"
    for create_it in (create_from, KVConnectorFactory.create_connector_v1):
        with pytest.raises(ConfigError) as refused:
            create_it(engine("Three"), role)
        assert str(refused.value) == message
