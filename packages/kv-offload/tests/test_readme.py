"""The README's example runs as printed."""

import doctest
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_readme(monkeypatch):
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    failed, tried = doctest.testfile(str(README), module_relative=False)
    assert (failed, tried > 5) == (0, True)


def test_fifteen_lines():
    assert README.read_text().count(">>> ") <= 15
