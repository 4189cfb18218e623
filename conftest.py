"""Hypothesis profiles of every package's tests: how hard to look, and when.

pytest reads this file for each package because it lies beside the configuration in pyproject.toml,
also when what is tested is an installed wheel.

* `dev` (the default): enough to notice a mistake while typing.
* `ci`: what a default run of nox uses. Not derandomized: nox passes the commit as the seed, so that
  runs vary and yet replay.
* `again`: what nox uses where the same tests run once more, with another interpreter or other siblings.
* `nightly`: for a machine that has nothing else to do.
"""

import os
import sys
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("dev", max_examples=50, deadline=None, derandomize=False)
settings.register_profile("ci", max_examples=100, deadline=None, derandomize=False, database=None, print_blob=True)
settings.register_profile("again", settings.get_profile("ci"), max_examples=20)
settings.register_profile("nightly", max_examples=10_000, deadline=None, derandomize=False, print_blob=True)
settings.load_profile("dev")


def pytest_sessionstart() -> None:
    """Refuse to test anything but what is installed, when the session in noxfile.py says what that is."""
    name = os.environ.get("TESTED_MODULE")
    if name:
        file = Path(import_module(name).__file__ or "")
        if not file.is_relative_to(sys.prefix):
            raise pytest.UsageError(f"{name} is to be tested from its wheel, but it was imported from {file}")
