"""The example in the README runs as printed."""

import doctest
import sys
from pathlib import Path

import pytest


@pytest.mark.once
def test_the_example_runs_as_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "hasty", raising=False)  # the example adds it
    readme = Path(__file__).parents[1] / "README.md"
    result = doctest.testfile(
        str(readme), module_relative=False, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )
    sys.modules.pop("hasty", None)
    assert result.attempted > 12
    assert result.failed == 0
