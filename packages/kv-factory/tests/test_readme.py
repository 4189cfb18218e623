"""The example in the README runs as printed."""

import doctest
import sys
from pathlib import Path
from types import ModuleType

import pytest


def test_the_example_runs_as_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    # As in a script: the module that registers its own class can be imported by its name.
    script = ModuleType("kvf_readme")
    monkeypatch.setitem(sys.modules, script.__name__, script)
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    example = doctest.DocTestParser().get_doctest(text, {}, "README.md", "README.md", 0)
    example.globs = vars(script)
    result = doctest.DocTestRunner().run(example, clear_globs=False)
    assert result.attempted > 5
    assert result.failed == 0
