"""The table of vLLM's own tests, and what a source file defines."""

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).parents[1] / "long" / "vllms_tests.txt"
VERDICTS = ("passes", "fails", "skips", "not run")


class Row(NamedTuple):
    """One line. ``name`` is that of a test, or of a class of tests."""

    verdict: str
    name: str
    reason: str
    covered_by: tuple[str, ...]

    @property
    def file(self):
        return self.name.partition("::")[0]


def read_table(text):
    """The rows of the table."""
    rows = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            verdict, name, reason, covered_by = line.split("\t")
            rows.append(Row(verdict, name, reason, () if covered_by == "-" else tuple(covered_by.split(", "))))
    return rows


@cache
def names_of_tests(source):
    """The names of the tests in a file, those in classes after the name of the class."""
    body = ast.parse(source).body
    classes = [node for node in body if isinstance(node, ast.ClassDef)]
    return [f"{node.name}::{inner}" for node in classes for inner in _functions(node.body)] + _functions(body)


def _functions(nodes):
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node.name for node in nodes if isinstance(node, functions) and node.name.startswith("test")]
