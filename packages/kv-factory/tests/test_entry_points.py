"""Entry points of real distributions: folders as pip leaves them, on ``sys.path``."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from typing import Any

import pytest

import kv_factory
from kv_api import ConfigError
from kv_factory import KVConnectorFactory, OffloadingSpecFactory
from kv_factory.__main__ import main

Install = Callable[..., None]


@pytest.fixture
def install(folder: Path) -> Install:
    """Leave in a folder on ``sys.path`` what pip leaves there of a distribution."""

    def install(name: str, version: str, **groups: str) -> None:
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text("".join(f"[{group}]\n{lines}\n" for group, lines in groups.items()))

    return install


@pytest.fixture(autouse=True)
def real_search(isolated: None) -> Iterator[None]:
    """Look for what is really installed: what a test installs and, in a developer's environment, more."""
    with kv_factory.isolated():
        yield
        KVConnectorFactory._registry.check()
        OffloadingSpecFactory._registry.check()


def test_an_installed_package_needs_no_registration(zoo: str, install: Install) -> None:
    install("kvf-one", "1.0", kv_connectors=f"One = {zoo} : Two", kv_offload_specs=f"One = {zoo}:Spec [extra]")
    assert zoo not in sys.modules
    assert KVConnectorFactory.get_connector_class_by_name("One") is sys.modules[zoo].Two
    assert OffloadingSpecFactory.get_spec_cls({"spec_name": "One"}) is sys.modules[zoo].Spec


@pytest.mark.parametrize("factory", [KVConnectorFactory, OffloadingSpecFactory])
def test_one_factory_may_be_isolated_by_itself_and_finds_what_is_installed(
    zoo: str, install: Install, factory: Any
) -> None:
    install("kvf-one", "1.0", kv_connectors=f"One = {zoo}:Two", kv_offload_specs=f"One = {zoo}:Spec")
    factory._registry.register("Mine", zoo, "Two")
    with factory.isolated():
        names = factory._registry.names()
    assert "One" in names
    assert "Mine" not in names
    assert "Mine" in factory._registry.names()


def test_what_was_registered_wins(zoo: str, install: Install) -> None:
    install("kvf-one", "1.0", kv_connectors=f"One = {zoo}:Two")
    KVConnectorFactory.register_connector("One", zoo, "Three")
    assert KVConnectorFactory.get_connector_class_by_name("One").__name__ == "Three"


def test_two_distributions_with_one_name_fail_at_use(zoo: str, install: Install) -> None:
    install("kvf-one", "1.0", kv_connectors=f"One = {zoo}:Two\nOnlyOne = {zoo}:Two")
    install("kvf-two", "2.0", kv_connectors=f"One = {zoo}:Three")
    assert KVConnectorFactory.get_connector_class_by_name("OnlyOne").__name__ == "Two"
    with pytest.raises(ConfigError) as refused:
        KVConnectorFactory.get_connector_class_by_name("One")
    assert str(refused.value) == (
        "connector 'One' is offered more than once: kvf_zoo:Three (from kvf-two 2.0) and kvf_zoo:Two "
        "(from kvf-one 1.0); uninstall one, or register the one you want"
    )
    KVConnectorFactory.register_connector("One", zoo, "Other")
    assert KVConnectorFactory.get_connector_class_by_name("One").__name__ == "Other"


def test_a_known_entry_point_wins_over_a_module_path_for_v1(
    zoo: str, install: Install, engine: Callable[..., object]
) -> None:
    import kv_api

    install("kvf-one", "1.0", kv_connectors=f"Two = {zoo}:Other")
    config = engine("Two", kv_connector_module_path=zoo)
    made = KVConnectorFactory.create_connector_v1(config, kv_api.KVConnectorRole.WORKER)  # type: ignore[arg-type]
    assert type(made).__name__ == "Other"


def test_an_installed_well_known_name_is_like_any_other(zoo: str, install: Install) -> None:
    install("kvf-cpu", "1.0", kv_offload_specs=f"CPUOffloadingSpec = {zoo}:Spec")
    names = OffloadingSpecFactory._registry.offers("CPUOffloadingSpec")
    assert "from kvf-cpu 1.0" in [offer.origin for offer in names]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("kvf_nowhere:A", "connector 'One' (kvf_nowhere:A, from kvf-one 1.0): there is no module 'kvf_nowhere'"),
        ("kvf_zoo", "connector 'One' (kvf_zoo:, from kvf-one 1.0): expected 'module:class'"),
        (":Two", "connector 'One' (:Two, from kvf-one 1.0): expected 'module:class'"),
        (
            "kvf_zoo:Twoo",
            "connector 'One' (kvf_zoo:Twoo, from kvf-one 1.0): module 'kvf_zoo' has no 'Twoo'; "
            "it has: Abstract, Hma, Other, Parent, Raises, Strange, Three, Two, V0; did you mean 'Two'?",
        ),
        (
            "kvf_zoo:function",
            "connector 'One' (kvf_zoo:function, from kvf-one 1.0): "
            "expected a class derived from KVConnectorBase or KVConnectorBase_V1, got <function function at ",
        ),
    ],
)
def test_a_broken_entry_point_names_its_distribution(zoo: str, install: Install, value: str, message: str) -> None:
    install("kvf-one", "1.0", kv_connectors=f"One = {value}")
    with pytest.raises(ConfigError) as refused:
        KVConnectorFactory.get_connector_class_by_name("One")
    if sys.version_info >= (3, 15) and value == ":Two":
        message = "entry points can't be read: those of kvf-one 1.0 are malformed"  # Python itself refuses it
    assert re.sub(r"0x\w+>$", "", str(refused.value)) == message


@pytest.mark.parametrize("left", [None, b"", b"Name: \xff\n"], ids=["no file", "empty", "no text"])
def test_a_distribution_that_lost_its_metadata(
    zoo: str, folder: Path, install: Install, left: bytes | None
) -> None:
    install("kvf-one", "1.0", kv_connectors=f"One = {zoo}:Two")
    file = folder / "kvf_one-1.0.dist-info" / "METADATA"
    file.unlink() if left is None else file.write_bytes(left)
    [offer] = KVConnectorFactory._registry.offers("One")
    assert offer.origin == "from an unnamed distribution"


def test_a_distribution_without_a_version(zoo: str, folder: Path, install: Install) -> None:
    install("kvf-one", "1.0", kv_connectors=f"One = {zoo}:Two")
    (folder / "kvf_one-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: kvf-one\n")
    [offer] = KVConnectorFactory._registry.offers("One")
    assert offer.origin == "from kvf-one"


def test_an_entry_point_of_nobody(monkeypatch: pytest.MonkeyPatch, zoo: str) -> None:
    points = [EntryPoint("One", f"{zoo}:Two", "kv_connectors")]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)
    [offer] = KVConnectorFactory._registry.offers("One")
    assert offer.origin == "from an unknown distribution"


def test_nobody_is_to_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(group: str) -> None:
        raise OSError("no such disk")

    monkeypatch.setattr("importlib.metadata.entry_points", fail)
    with pytest.raises(ConfigError) as refused:
        KVConnectorFactory.get_connector_class_by_name("One")
    assert str(refused.value) == "entry points can't be read: something is wrong with what is installed"


@pytest.mark.parametrize("order", [1, -1])
def test_malformed_entry_points_name_their_distribution(
    zoo: str, install: Install, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, order: int
) -> None:
    install("kvf-one", "1.0", kv_connectors="no line of this kind")
    found = [*distributions()][::order]
    monkeypatch.setattr("importlib.metadata.distributions", lambda: found)
    with pytest.raises(ConfigError) as refused:
        KVConnectorFactory.get_connector_class_by_name("One")
    assert str(refused.value) == "entry points can't be read: those of kvf-one 1.0 are malformed"
    assert main([]) == 1
    assert capsys.readouterr().err == f"kv_factory: {refused.value}\n"
    KVConnectorFactory.register_connector("One", zoo, "Two")
    assert KVConnectorFactory.get_connector_class_by_name("One").__name__ == "Two"


def test_what_is_installed_later_is_seen_after_a_refresh(zoo: str, install: Install) -> None:
    with pytest.raises(ConfigError, match="unknown connector 'One'"):
        KVConnectorFactory.get_connector_class_by_name("One")
    install("kvf-one", "1.0", kv_connectors=f"One = {zoo}:Two")
    with pytest.raises(ConfigError, match="unknown connector 'One'"):
        KVConnectorFactory.get_connector_class_by_name("One")
    KVConnectorFactory.refresh_entry_points()
    assert KVConnectorFactory.get_connector_class_by_name("One").__name__ == "Two"
    with pytest.raises(ConfigError, match="unknown offloading spec 'One'"):
        OffloadingSpecFactory.get_spec_cls({"spec_name": "One"})
    install("kvf-two", "1.0", kv_offload_specs=f"One = {zoo}:Spec")
    OffloadingSpecFactory.refresh_entry_points()
    assert OffloadingSpecFactory.get_spec_cls({"spec_name": "One"}).__name__ == "Spec"


def test_the_list_of_what_is_installed(zoo: str, folder: Path, install: Install, tmp_path: Path) -> None:
    """In another process, as a user runs it."""
    install("kvf-one", "1.0", kv_connectors=f"One = {zoo}:Two\nClash = {zoo}:Two\nBroken = kvf_loud:A")
    install("kvf-two", "2.0", kv_connectors=f"Clash = {zoo}:Three", kv_offload_specs=f"Two = {zoo}:Spec")
    (folder / "kvf_loud.py").write_text("print('a message that is no JSON')\nraise RuntimeError('no such device')")
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", "kv_factory", "--json"],
        capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path, env=environment,
    )  # fmt: skip
    assert "a message that is no JSON" in done.stderr
    listed = {(row["kind"], row["name"]): row for row in json.loads(done.stdout)}
    assert listed["connector", "One"] == {
        "kind": "connector", "name": "One", "target": "kvf_zoo:Two", "origin": "kvf-one 1.0",
        "importable": True, "error": None,
    }  # fmt: skip
    assert listed["offloading spec", "Two"]["origin"] == "kvf-two 2.0"
    clash, broken = listed["connector", "Clash"], listed["connector", "Broken"]
    assert (clash["target"], clash["origin"]) == ("kvf_zoo:Three, kvf_zoo:Two", "kvf-two 2.0, kvf-one 1.0")
    assert (clash["importable"], clash["error"]) == (False, "offered more than once")
    assert broken["error"] == "importing 'kvf_loud' failed: RuntimeError: no such device (kvf_loud.py:2)"
