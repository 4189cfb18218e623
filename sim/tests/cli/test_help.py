"""The help of every command: each option has one, and all are written alike."""

import argparse
import platform
import re
from importlib import metadata
from typing import Any

import pytest

from kv_sim.cli.main import COMMANDS, main
from kv_sim.cli.options import parser_of
from kv_sim.cli.version import PACKAGES, version_lines
from kv_sim.subject import Trait

METAVARS = ("A,B", "A-B", "CHECKER", "DIR", "FILE", "J", "JSON", "M", "N", "NAME", "S")
"""Of the commands that drive connectors; a trace's are its own."""


def commands() -> Any:
    """All that can stand in the place of COMMAND."""
    [added] = [action for action in parser_of(COMMANDS)._actions if action.dest == "command"]
    return added


def test_commands_are_listed_with_what_they_do() -> None:
    listed = {choice.dest: choice.help for choice in commands()._choices_actions}
    assert list(listed) == list(COMMANDS)
    for name, text in listed.items():
        assert re.match("[a-z]+ [a-z]", text), name
        assert commands().choices[name].description == text[0].upper() + text[1:]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_its_help(name: str) -> None:
    for action in commands().choices[name]._actions:
        if action.help == argparse.SUPPRESS or not action.option_strings:
            continue
        said = action.help or ""
        assert re.match(r"[a-z]|[A-Z]{2,}s? ", said), f"{action.option_strings}: {said!r}"
        known = action.metavar in (None, *METAVARS) or name in ("replay", "size")
        assert known, f"{action.option_strings}: {action.metavar}"
        takes = action.nargs != 0 and action.choices is None
        assert (action.metavar is not None) == takes, action.option_strings


ORDER = {
    "fuzz": "connector extra traits call_timeout serves_peers serves_peers shares_store seed seeds histories "
    "jobs actions log perfetto save digest without engine",
    "replay-schedule": "file connector extra traits call_timeout serves_peers serves_peers shares_store engine "
    "log perfetto",
    "conform": "name spec extra traits call_timeout serves_peers serves_peers shares_store probe keep_going "
    "histories seed actions without engine save",
    "growth": "name spec extra traits call_timeout serves_peers serves_peers shares_store without engine",
    "campaign": "minutes histories jobs engine seed actions save",
    "zoo": "names list jobs seed",
    "subjects": "",
}


@pytest.mark.parametrize("name", ORDER)
def test_options_stand_in_this_order(name: str) -> None:
    actions = [action for action in commands().choices[name]._actions if action.dest != "help"]
    assert [action.dest for action in actions] == ORDER[name].split()
    for action in actions:
        if not action.option_strings:
            assert (action.dest, action.metavar) in {("file", "FILE"), ("name", "NAME"), ("names", "BUG")}
            assert action.help is None or re.match("[a-z]", action.help)


def test_every_trait_can_be_claimed() -> None:
    [traits] = [action for action in commands().choices["fuzz"]._actions if action.dest == "traits"]
    assert traits.help == f"what the connector claims to support: {', '.join(Trait)}, or none"


def test_versions_are_those_that_are_installed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    first, *lines, python = capsys.readouterr().out.splitlines()
    assert ended.value.code == 0 and first == f"kv-sim {metadata.version('kv-sim')}"
    assert f"kv-api {metadata.version('kv-api')}" in lines and f"kv-p2p {metadata.version('kv-p2p')}" in lines
    assert python.startswith(f"Python {platform.python_version()} (")


def test_the_version_of_what_is_not_there_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kv_sim.cli.version.PACKAGES", ("kv-of-nobody", "kv-api", "kv-of-nobody"))
    assert [line.split()[0] for line in version_lines()] == ["kv-api", "Python"]


def test_versions_are_told_of_everything_that_kv_sim_needs() -> None:
    needed = {re.split("[^a-z0-9-]", one)[0] for one in metadata.requires("kv-sim") or () if "extra" not in one}
    assert needed - {"numpy"} <= {*PACKAGES}
