"""The command line's answers to what it can't do."""

import sys

import pytest

from kv_vllm.__main__ import main


@pytest.fixture
def no_vllm(monkeypatch):
    """There is no vLLM, whatever this environment has."""
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setitem(sys.modules, "vllm.version", None)


@pytest.mark.parametrize("command", ["drift", "differential", "fuzz"])
def test_without_vllm_it_says_so(command, no_vllm, capsys):
    assert main([command]) == 2
    assert "needs the installed vLLM, and none can be imported" in capsys.readouterr().err


def test_an_unknown_subject_is_named_with_the_known_ones(capsys):
    assert main(["differential", "--subject", "latter"]) == 2
    assert "unknown subject 'latter'; known: memory, later, patient" in capsys.readouterr().err


def test_an_unknown_subject_to_fuzz_is_named_with_those_of_vllm(capsys):
    assert main(["fuzz", "--subject", "example"]) == 2
    assert "unknown subject 'example'; known: vllm-example, vllm-example+example" in capsys.readouterr().err


@pytest.mark.parametrize("seeds", ["", "x", "5-x", "9-3"])
def test_seeds_that_are_none(seeds, capsys):
    with pytest.raises(SystemExit) as end:
        main(["differential", "--seeds", seeds])
    assert end.value.code == 2
    assert f"{seeds!r} is neither a seed nor a range" in capsys.readouterr().err
