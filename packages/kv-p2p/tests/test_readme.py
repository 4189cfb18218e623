"""The examples run as printed."""

import doctest
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["README.md", "FIRST_FAMILY.md"])
def test_examples(name):
    failed, tried = doctest.testfile(str(PACKAGE / name), module_relative=False)
    assert (failed, tried > 5) == (0, True)


@pytest.mark.parametrize("name", ["README.md", "FIRST_FAMILY.md"])
def test_fifteen_lines(name):
    assert (PACKAGE / name).read_text().count(">>> ") <= 15
