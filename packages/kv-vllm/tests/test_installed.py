"""Which vLLM is installed, and with what settings it is imported."""

import logging
import os
import sys
from types import SimpleNamespace

import pytest

from kv_vllm.installed import SETTINGS, MissingError, vllm_version


@pytest.fixture
def installed(monkeypatch):
    """Stands for an installed vLLM of some version; nothing is set in the environment."""
    for name in SETTINGS:
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    logger = logging.getLogger("vllm")
    monkeypatch.setattr(logger, "level", logger.level)

    def stands_for(version, *, is_imported=False):
        monkeypatch.delitem(sys.modules, "vllm", raising=False)
        if is_imported:
            monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace())
        monkeypatch.setitem(sys.modules, "vllm.version", SimpleNamespace(__version__=version))

    return stands_for


@pytest.mark.parametrize(
    ("text", "version"),
    [("0.33.0", (0, 33)), ("0.32.1+cpu", (0, 32)), ("10.2.dev5", (10, 2)), ("1.100", (1, 100)), ("1.0", (1, 0))],
)
def test_the_version_as_far_as_the_contract_goes(installed, text, version):
    installed(text)
    assert vllm_version() == version


@pytest.mark.parametrize("text", ["dev", "v0.33", "7"])
def test_a_version_that_tells_nothing(installed, text):
    installed(text)
    with pytest.raises(MissingError) as error:
        vllm_version()
    assert str(error.value) == f"the installed vLLM has version {text!r}; expected a version like 0.33.0"


def test_it_is_small_quiet_and_has_no_network_unless_the_user_says_so(installed, monkeypatch):
    installed("0.33.0")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "info")
    vllm_version()
    assert {name: os.environ[name] for name in SETTINGS} == {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "info",
        "HF_HUB_OFFLINE": "1",
    }
    assert logging.getLogger("vllm").level == logging.INFO
    monkeypatch.delenv("VLLM_LOGGING_LEVEL")
    vllm_version()
    assert (os.environ["VLLM_LOGGING_LEVEL"], logging.getLogger("vllm").level) == ("CRITICAL", logging.CRITICAL)


def test_a_server_keeps_its_log_and_its_network(installed):
    installed("0.33.0", is_imported=True)
    before = logging.getLogger("vllm").level, dict(os.environ)
    assert vllm_version() == (0, 33)
    assert (logging.getLogger("vllm").level, dict(os.environ)) == before
