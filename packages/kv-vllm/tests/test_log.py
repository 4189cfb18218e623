"""What our packages log, inside a vLLM: it comes where vLLM's own lines do."""

import logging

import pytest

from kv_vllm import versions
from kv_vllm.log import OURS, join_vllms_log

NOBODY = logging.Logger("nobody", logging.WARNING)


class Kept(logging.Handler):
    """Keeps who said what."""

    def __init__(self):
        super().__init__()
        self.told = []

    def emit(self, record):
        self.told.append((record.name, record.getMessage()))


@pytest.fixture
def vllms(monkeypatch):
    """vLLM's logger as a server has it; ours are below one without handlers: pytest gives some to the root."""
    handler, logger = Kept(), logging.getLogger("vllm")
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "propagate", False)
    before = logger.level
    logger.setLevel(logging.INFO)
    for ours in map(logging.getLogger, OURS):
        monkeypatch.setattr(ours, "parent", NOBODY)
        assert not ours.isEnabledFor(logging.INFO)
    yield handler
    logger.setLevel(before)


def say():
    for name in OURS:
        logging.getLogger(name).info("of %s", name)


def test_what_ours_log_comes_where_vllms_lines_do(vllms, monkeypatch):
    monkeypatch.setattr(versions, "vllm_version", lambda: (0, 33))
    versions.require_version.cache_clear()
    versions.require_version()
    versions.require_version.cache_clear()
    say()
    assert vllms.told == [(name, f"of {name}") for name in OURS]


def test_loggers_that_have_handlers_are_left_alone(vllms, monkeypatch):
    own = Kept()
    monkeypatch.setattr(logging.getLogger("kv_p2p"), "handlers", [own])
    join_vllms_log()
    say()
    assert [name for name, _ in vllms.told] == [name for name in OURS if name != "kv_p2p"]


def test_loggers_that_somebody_above_them_handles_are_left_alone(vllms, monkeypatch):
    above = logging.Logger("above", logging.INFO)
    above.handlers = [Kept()]
    monkeypatch.setattr(logging.getLogger("kv_p2p"), "parent", above)
    join_vllms_log()
    assert logging.getLogger("kv_p2p").parent is above


@pytest.mark.parametrize("what", ["quiet", "without handlers"])
def test_warnings_are_not_lost_in_a_vllm_that_shows_none(vllms, monkeypatch, what):
    if what == "quiet":
        logging.getLogger("vllm").setLevel(logging.CRITICAL)
    else:
        monkeypatch.setattr(logging.getLogger("vllm"), "handlers", [])
    join_vllms_log()
    assert {logging.getLogger(name).parent for name in OURS} == {NOBODY}
