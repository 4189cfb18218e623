"""Hypothesis profiles of every package's tests: how hard to look, and when.

pytest reads this file for each package because it lies beside the configuration in pyproject.toml,
also when what is tested is an installed wheel.

* `dev` (the default): enough to notice a mistake while typing.
* `ci`: what a default run of nox uses; as many examples. Not derandomized: nox passes the commit as the seed, so
  that runs vary and yet replay.
* `again`: what nox uses where the same tests run once more, with another interpreter or other siblings. Of the
  cases of one test every seventh is run then, the first among them; and no test that is marked `once`.
* `sample`: what nox uses where hardly anything is another, as between the oldest Python and the newest. Of what
  `again` runs it is every fifth test.
* `nightly`: for a machine that has nothing else to do.
"""

import gc
import os
import sys
from collections import defaultdict
from collections.abc import Generator, Iterator
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies

settings.register_profile("dev", max_examples=50, deadline=None, derandomize=False)
settings.register_profile("ci", max_examples=50, deadline=None, derandomize=False, database=None, print_blob=True)
settings.register_profile("again", settings.get_profile("ci"), max_examples=7)
settings.register_profile("sample", settings.get_profile("again"))
settings.register_profile("nightly", max_examples=10_000, deadline=None, derandomize=False, print_blob=True)
settings.load_profile("dev")

FEWER = settings.get_profile("ci").max_examples // settings.get_profile("again").max_examples
"""How many times fewer examples, and cases, than in the profile `ci`."""
SAMPLED = 5
"""One of so many tests is in a sample."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what another session runs: most cases of a test of which others are run, and what is run once."""
    profile = config.getoption("--hypothesis-profile")
    if profile in ("again", "sample"):
        few = [*_few(items)]
        kept = {item.nodeid: item for item in (few if profile == "again" else few[::SAMPLED])}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
        items[:] = kept.values()


def _few(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    cases: defaultdict[str, dict[object, int]] = defaultdict(dict)
    for item in items:
        callspec = getattr(item, "callspec", None)
        case = {} if callspec is None else dict(callspec.indices)
        seed = case.pop("seed", 0)
        known = cases[item.nodeid.partition("[")[0]]
        number = known.setdefault(tuple(case.items()), len(known))
        is_once = item.get_closest_marker("once") is not None
        if not is_once and seed % FEWER == number % FEWER == 0:
            yield item


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without Python's collector: there is nothing to find yet, and it would look again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Let Python's collector pass over the tests themselves, which stay to the end.

    Before that Hypothesis looks for what it has to seed: old ones don't find what is passed over.
    """
    _first()
    gc.freeze()


@settings(max_examples=1, database=None)
@given(strategies.none())
def _first(nothing: None) -> None:
    """An example of nothing."""


def pytest_sessionstart() -> None:
    """Refuse to test anything but what is installed, when the session in noxfile.py says what that is."""
    name = os.environ.get("TESTED_MODULE")
    if name:
        file = Path(import_module(name).__file__ or "")
        if not file.is_relative_to(sys.prefix):
            raise pytest.UsageError(f"{name} is to be tested from its wheel, but it was imported from {file}")
