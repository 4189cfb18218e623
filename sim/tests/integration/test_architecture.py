"""ARCHITECTURE.md names files that are there, and of each invariant all files that look after it."""

import ast
import re
from pathlib import Path

import pytest

from kv_sim.violation import Invariant

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
SOURCES = [*ROOT.glob("packages/*/src"), ROOT / "sim" / "src"]
FILES = {file.relative_to(source).as_posix() for source in SOURCES for file in source.rglob("*.py")}
FILES |= {f"{name.rpartition('/')[0]}/" for name in FILES}
SIM = ROOT / "sim" / "src" / "kv_sim"
NOT_THE_TESTBED = ("zoo", "examples", "replay")
"""What breaks invariants on purpose, and what replays traces."""
REPORT = {"fail", "violation", "Violation"}


def rows(title: str) -> list[list[str]]:
    """The cells of a section's tables, without their heads."""
    section = TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    bodies = re.findall(r"^\|-.*\n((?:\|.*\n?)*)", section, re.MULTILINE)
    lines = [line for body in bodies for line in body.splitlines()]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def named(cell: str) -> list[str]:
    """The files and folders that a cell names."""
    return [name for name in re.findall(r"`([^`]*)`", cell) if name.endswith((".py", "/"))]


def files_of(package: str, name: str) -> set[str]:
    """The files of a package that a name may stand for."""
    return {file for file in FILES if file.startswith(package) and f"/{file}".endswith(f"/{name}")}


LISTED = [*rows("Where to look"), *rows("Where something new goes")]


@pytest.mark.parametrize("row", LISTED, ids=lambda row: row[0])
def test_where_to_look_there_is_something(row: list[str]) -> None:
    package = ""
    for name in named(" ".join(row[1:])):
        if name.startswith("kv_"):
            package = name.partition("/")[0]
        place = ROOT / name
        assert files_of(package, name) or place.exists() or (ROOT / "packages" / name).exists(), name
    for begun in re.findall(r"`(docs/decisions/\d{4}-)…`", " ".join(row[1:])):
        assert list(ROOT.glob(f"{begun}*")), begun


def test_whoever_begins_threads_is_in_the_row_on_threads() -> None:
    [row] = [row for row in LISTED if row[0].startswith("which threads")]
    begins = re.compile(r"\b(Thread|ThreadPoolExecutor)\(")
    files = {file.name for file in ROOT.glob("packages/*/src/**/*.py") if begins.search(file.read_text("utf-8"))}
    assert files <= {Path(name).name for name in named(row[1])}


def judges(source: str) -> set[Invariant]:
    """The invariants that a module finds broken: it hands them to who reports that, or to a helper of its own."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2].lstrip("_") in REPORT:
            found |= {
                Invariant[text[10:]] for text in map(ast.unparse, node.args) if text.startswith("Invariant.")
            }
    return found


def test_each_invariant_has_a_row_with_all_who_look_after_it() -> None:
    told = {
        Invariant(row[0]): set().union(*(files_of("kv_sim", name) for name in named(row[2])))
        for row in rows("What must never break")
    }
    assert told.keys() == set(Invariant)
    for file in sorted(SIM.rglob("*.py")):
        if file.relative_to(SIM).parts[0] not in NOT_THE_TESTBED:
            for invariant in judges(file.read_text(encoding="utf-8")):
                assert file.relative_to(SIM.parent).as_posix() in told[invariant], f"{invariant}: {file.name}"


def test_who_judges_is_seen() -> None:
    source = """
referee.fail(Invariant.NO_CRASH, "x")
raise Violation(Invariant.WORK, "x")
self._fail("x", Invariant.OWNERSHIP)
Invariant.HITS
"""
    assert judges(source) == {Invariant.NO_CRASH, Invariant.WORK, Invariant.OWNERSHIP}
