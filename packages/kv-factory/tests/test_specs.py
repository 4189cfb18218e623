"""What ``OffloadingSpecFactory`` creates, from each kind of configuration."""

import sys
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from kv_factory import OffloadingSpecFactory


def test_extra_config_is_found_wherever_it_is(zoo: str) -> None:
    OffloadingSpecFactory.register_spec("A", zoo, "Spec")
    extra = {"spec_name": "A"}
    transfer = SimpleNamespace(kv_connector="X", kv_connector_extra_config=extra)
    given: list[Any] = [
        extra,
        MappingProxyType(extra),
        SimpleNamespace(extra_config=extra),
        SimpleNamespace(extra_config=MappingProxyType(extra)),
        SimpleNamespace(kv_transfer_config=transfer),
    ]
    for config in given:
        assert OffloadingSpecFactory.get_spec_cls(config) is sys.modules[zoo].Spec


def test_the_new_way_gives_the_offloading_config(zoo: str) -> None:
    OffloadingSpecFactory.register_spec("A", zoo, "Spec")
    config: Any = SimpleNamespace(extra_config={"spec_name": "A"})
    made: Any = OffloadingSpecFactory.create_spec(config)
    assert made.given == {"config": config}


def test_the_old_way_may_be_given_by_name(zoo: str) -> None:
    OffloadingSpecFactory.register_spec("A", zoo, "OldSpec")
    transfer = SimpleNamespace(kv_connector="X", kv_connector_extra_config={"spec_name": "A"})
    config: Any = SimpleNamespace(kv_transfer_config=transfer)
    made: Any = OffloadingSpecFactory.create_spec(config=config, kv_cache_config=None)
    assert made.given == {"config": config, "kv_cache_config": None}


def test_a_known_name_wins(zoo: str) -> None:
    OffloadingSpecFactory.register_spec("Spec", zoo, "OldSpec")
    extra = {"spec_name": "Spec", "spec_module_path": zoo}
    assert OffloadingSpecFactory.get_spec_cls(extra) is sys.modules[zoo].OldSpec


def test_an_empty_module_path_is_refused_even_if_the_name_is_known(zoo: str) -> None:
    OffloadingSpecFactory.register_spec("Mine", zoo, "Spec")
    with pytest.raises(ValueError, match="spec_module_path: expected the name of a module or nothing"):
        OffloadingSpecFactory.get_spec_cls({"spec_name": "Mine", "spec_module_path": ""})


def test_a_known_name_wins_even_when_it_is_broken(zoo: str) -> None:
    OffloadingSpecFactory.register_spec("Spec", "kvf_nowhere", "Spec")
    with pytest.raises(ValueError, match="there is no module 'kvf_nowhere'"):
        OffloadingSpecFactory.get_spec_cls({"spec_name": "Spec", "spec_module_path": zoo})


def test_connectors_and_specs_have_names_of_their_own(zoo: str) -> None:
    from kv_factory import KVConnectorFactory

    OffloadingSpecFactory.register_spec("A", zoo, "Spec")
    KVConnectorFactory.register_connector("A", zoo, "Two")
    assert OffloadingSpecFactory.get_spec_cls({"spec_name": "A"}).__name__ == "Spec"
    assert KVConnectorFactory.get_connector_class_by_name("A").__name__ == "Two"
