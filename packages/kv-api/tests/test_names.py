"""The table of names is that of the docstrings, and nothing that is exported is missing in it."""

from pathlib import Path

import pytest
from kv_api_names import markdown, modules, names_of

import kv_api

NAMES = [name for module in modules() for name in names_of(module)]


def test_every_name_is_there_once() -> None:
    assert sorted(NAMES) == sorted(kv_api.__all__)


@pytest.mark.parametrize("module", modules())
def test_every_name_says_what_it_is(module: str) -> None:
    assert all(names_of(module).values())


def test_the_printed_table_is_the_committed_one() -> None:
    document = Path(__file__).parents[1].joinpath("NAMES.md").read_text(encoding="utf-8")
    assert document.endswith(f"\n\n{markdown()}\n"), "run tests/support/kv_api_names.py and put it into NAMES.md"
