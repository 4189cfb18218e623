"""What vLLM finds in ``kv_vllm`` by name, and with which versions it works."""

import logging

import pytest

import kv_vllm
from kv_api import ConfigError
from kv_vllm import versions
from kv_vllm.drift.pairs import INTERFACE
from kv_vllm.versions import judge_version


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(AttributeError) as refused:
        kv_vllm.OffloadConnector  # noqa: B018
    assert str(refused.value) == (
        "module 'kv_vllm' has no attribute 'OffloadConnector'; it exports "
        "HostOffloadingSpec, MultiConnector, OffloadingConnector, P2PConnector, RecordingConnector, "
        "TraceConnector, inside_vllm"
    )


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("kv_absent.parts", "kv_vllm.Some needs the package kv-absent: install kv-vllm[connectors]"),
        ("somebody_elses", "No module named 'somebody_elses'"),
    ],
)
def test_a_package_that_is_not_installed_is_named(module, said, monkeypatch):
    monkeypatch.setitem(kv_vllm._EXPORTS, "Some", module)
    with pytest.raises(ModuleNotFoundError) as missing:
        kv_vllm.Some  # noqa: B018
    assert (str(missing.value), missing.value.name) == (said, module.partition(".")[0])


def test_what_it_exports_is_listed():
    assert set(kv_vllm.__all__) <= set(dir(kv_vllm))


def no_drift(show):
    show("vLLM 0.34: 1 intended differences, 0 others")
    return True


def drift(show):
    show("vLLM 0.34: 1 intended differences, 1 others")
    show("  intended  A.b: missing there  (why)")
    show("  DRIFT     KVConnectorBase_V1.get_more: missing here")
    return False


@pytest.mark.parametrize("version", [(0, 32), (0, 33)])
def test_versions_that_were_tried_are_not_compared(version):
    assert judge_version(version, drift) is None


def test_another_version_is_compared():
    assert judge_version((0, 34), no_drift) == (
        "these connectors were tested with vLLM 0.32, 0.33, not with 0.34; the interface is the same"
    )


def test_a_version_that_cannot_work_is_refused_with_what_drift_prints():
    with pytest.raises(ConfigError) as refused:
        judge_version((0, 34), drift)
    assert str(refused.value) == (
        "the connector interface of vLLM 0.34 differs from that of 0.32, 0.33:\n"
        "vLLM 0.34: 1 intended differences, 1 others\n"
        "  DRIFT     KVConnectorBase_V1.get_more: missing here"
    )


def test_the_installed_version_is_judged_once_by_the_interface(monkeypatch, caplog):
    compared = []
    monkeypatch.setattr(versions, "vllm_version", lambda: (0, 34))

    def compare(show, pairs, looked_for):
        compared.append((pairs, looked_for))
        return no_drift(show)

    monkeypatch.setattr(versions, "drift", compare)
    versions.require_version.cache_clear()
    with caplog.at_level(logging.WARNING, "kv_vllm"):
        versions.require_version()
        versions.require_version()
    versions.require_version.cache_clear()
    assert compared == [(INTERFACE, ())]
    assert [(record.name, record.getMessage()) for record in caplog.records] == [
        (
            "kv_vllm",
            "these connectors were tested with vLLM 0.32, 0.33, not with 0.34; the interface is the same",
        )
    ]


def test_of_a_version_that_was_tried_nothing_is_said(monkeypatch, caplog):
    monkeypatch.setattr(versions, "vllm_version", lambda: (0, 33))
    versions.require_version.cache_clear()
    with caplog.at_level(logging.WARNING, "kv_vllm"):
        versions.require_version()
    versions.require_version.cache_clear()
    assert not caplog.messages
