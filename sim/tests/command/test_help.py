"""The help of every command: each option has one, and all are written alike."""

import argparse
import re
from typing import Any

import pytest

from kv_sim.command.cli import COMMANDS
from kv_sim.command.options import parser_of
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
    "fuzz": "connector extra traits call_timeout seed seeds histories actions log perfetto save digest without "
    "engine",
    "replay-schedule": "file connector extra traits call_timeout engine log perfetto",
    "conform": "name spec extra traits call_timeout probe keep_going histories seed actions engine save",
    "growth": "name spec extra traits call_timeout engine",
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
    assert traits.help == f"what it claims: {','.join(Trait)}, or none"
