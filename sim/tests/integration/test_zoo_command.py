"""``kv-sim zoo``: its table, and that it fails when a bug gets away."""

import re
from dataclasses import replace

import pytest

from kv_sim.actions import Action, Kind
from kv_sim.cli.main import main
from kv_sim.config import WorldConfig
from kv_sim.examples.catalogue import MEMORY
from kv_sim.examples.memory import MemoryConnector
from kv_sim.fuzz import Failure
from kv_sim.subject import Subject
from kv_sim.violation import Invariant, Violation
from kv_sim.zoo.hits import FullHit, ShortKeys
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
    assert main(["zoo", "SmallerRanks", "FullHit", "--jobs", "2", "--seed", "81"]) == 0
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


class Scripted:
    """Stands for the hunt: who is found after how many histories, by whom and when, and what is left of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = iter([1.0, 1.25, 2.75, 10.0, 12.5, 13.0, 20.0, 21.0])
        self.asked: list[tuple[str, range, frozenset[Invariant]]] = []
        for name, stand_in in {
            "hunt": self.hunt,
            "killers": self.killers,
            "shrink": lambda failure: replace(failure, history=failure.history[1:]),
            "perf_counter": lambda: next(self.times),
        }.items():
            monkeypatch.setattr(f"kv_sim.zoo.command.{name}", stand_in)

    def hunt(self, subject: Subject, seeds: range) -> tuple[int, Failure | None]:
        self.asked.append((subject.kv_connector, seeds, frozenset()))
        histories, invariant, actions = {
            "FullHit": (7, Invariant.CONTENT, 4),
            "ShortKeys": (1, Invariant.HITS, 13),
            "MemoryConnector": (400, None, 0),
        }[subject.kv_connector]
        if invariant is None:
            return histories, None
        history = [Action(Kind.STEP)] * actions
        return histories, Failure(subject, WorldConfig(), history, Violation(invariant, "said"))

    def killers(self, subject: Subject, seeds: range, without: frozenset[Invariant]) -> set[Invariant]:
        self.asked.append((subject.kv_connector, seeds, without))
        return {Invariant.WORK, Invariant.HITS, Invariant.CONTENT} if subject.kv_connector == "FullHit" else set()


def test_the_table_is_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted = Scripted(monkeypatch)
    bugs = [
        plant(FullHit, "LMCache#5151", Invariant.PROTOCOL, MEMORY, Invariant.CONTENT),
        plant(ShortKeys, "#7", Invariant.HITS, MEMORY),
        plant(MemoryConnector, "", Invariant.CONTENT, MEMORY),
    ]
    monkeypatch.setattr("kv_sim.zoo.command.PLANTED", bugs)
    assert main(["zoo", "--jobs", "1", "--seed", "0x10"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "bug                        issue            expected     caught by    histories    found actions   shrunk"
        "  else",
        "FullHit                    LMCache#5151     PROTOCOL     CONTENT              7   0.25 s       3   1.50 s"
        "  CONTENT, HITS, WORK",
        "ShortKeys                  #7               HITS         HITS                 1   2.50 s      12   0.50 s"
        "  survives 200",
        "MemoryConnector                             CONTENT      not caught         400",
        "2 of 3 found; median 1.38 s to find (longest 2.5 s), 7.5 actions left (most 12), shrunk in 1.00 s",
    ]
    assert scripted.asked == [
        ("FullHit", range(16, 416), frozenset()),
        ("FullHit", range(16, 216), {Invariant.PROTOCOL}),
        ("ShortKeys", range(16, 416), frozenset()),
        ("ShortKeys", range(16, 216), {Invariant.HITS}),
        ("MemoryConnector", range(16, 416), frozenset()),
    ]


def test_one_that_gets_away_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    planted_are(monkeypatch, plant(MemoryConnector, "#1", Invariant.CONTENT, MEMORY))
    assert main(["zoo", "--jobs", "1"]) == 1
    row, sum_ = capsys.readouterr().out.splitlines()[1:]
    assert re.fullmatch(r"MemoryConnector +#1 +CONTENT +not caught +3", row)
    assert sum_ == "0 of 1 found"


def test_one_that_somebody_else_catches_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planted_are(monkeypatch, plant(FullHit, "#1", Invariant.CONTENT, MEMORY))
    assert main(["zoo", "--jobs", "1", "--seed", "81"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "FullHit: caught by PROTOCOL, which is not an expected checker"


def test_the_list_says_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "--list", "OneReportIsEnough"]) == 0
    assert capsys.readouterr().out.split(maxsplit=3) == [
        "OneReportIsEnough",
        "#23917",
        "NO-CRASH",
        "A job counts as ended on all ranks when one rank reports it.\n",
    ]


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "SmallRanks"]) == 2
    assert capsys.readouterr().err == (
        "kv-sim zoo: unknown planted bug 'SmallRanks'; did you mean 'SmallerRanks'?; kv-sim zoo --list says which "
        "there are\n"
    )
