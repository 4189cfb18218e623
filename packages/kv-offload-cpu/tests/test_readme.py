"""The example in the README runs as printed."""

import doctest
from pathlib import Path


def test_the_example_runs_as_printed():
    readme = Path(__file__).parents[1] / "README.md"
    result = doctest.testfile(str(readme), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert result.attempted > 5
    assert result.failed == 0
