"""``kv-sim zoo``: its table, and that it fails when a bug gets away."""

import re

import pytest

from kv_sim.cli import main
from kv_sim.examples.catalogue import MEMORY
from kv_sim.examples.memory import MemoryConnector
from kv_sim.violation import Invariant
from kv_sim.zoo.hits import FullHit
from kv_sim.zoo.planted import Planted, plant


def planted_are(monkeypatch: pytest.MonkeyPatch, *bugs: Planted) -> None:
    monkeypatch.setattr("kv_sim.zoo.command.PLANTED", bugs)
    monkeypatch.setattr("kv_sim.zoo.command.PATIENCE", 3)
    monkeypatch.setattr("kv_sim.zoo.command.HISTORIES", 3)


def test_a_row_for_each_in_the_order_of_the_registry(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kv_sim.zoo.command.HISTORIES", 10)
    # Both are found in the first history, and within ten somebody else catches each.
    assert main(["zoo", "SmallerRanks", "FullHit", "--jobs", "2", "--seed", "77"]) == 0
    head, first, second, sum_ = capsys.readouterr().out.splitlines()
    assert head.split() == [
        "bug",
        "issue",
        "expected",
        "caught",
        "by",
        "histories",
        "found",
        "actions",
        "shrunk",
        "else",
    ]
    assert re.fullmatch(
        r"FullHit +LMCache#5151 +PROTOCOL +PROTOCOL +1 +\d+\.\d\d s +\d +\d+\.\d\d s  .*HITS.*", first
    )
    assert re.fullmatch(r"SmallerRanks +#50821 +GEOMETRY +GEOMETRY +\d+ +\d.* s +\d+ +\d.* s  CONTENT", second)
    assert re.match(r"2 of 2 found; median \d+\.\d\d s to find \(longest .* s\), \d.* actions left", sum_)


def test_one_that_gets_away_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    planted_are(monkeypatch, plant(MemoryConnector, "#1", Invariant.CONTENT, MEMORY))
    assert main(["zoo", "--jobs", "1"]) == 1
    row, sum_ = capsys.readouterr().out.splitlines()[1:]
    assert re.fullmatch(r"MemoryConnector +#1 +CONTENT +nobody +3", row)
    assert sum_ == "0 of 1 found"


def test_one_that_somebody_else_catches_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planted_are(monkeypatch, plant(FullHit, "#1", Invariant.CONTENT, MEMORY))
    assert main(["zoo", "--jobs", "1"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "FullHit: caught by PROTOCOL, which is not expected to"


def test_the_list_says_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "--list", "OneReportIsEnough"]) == 0
    assert capsys.readouterr().out.split(maxsplit=3) == [
        "OneReportIsEnough",
        "#23917",
        "NO-CRASH",
        "One rank's report counts for all.\n",
    ]


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "SmallRanks"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("kv-sim zoo: unknown planted bug 'SmallRanks'; known: AbortBeforeAllocationLeaks, ")
    assert error.endswith("; did you mean 'SmallerRanks'?\n")
