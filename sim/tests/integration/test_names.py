"""NAMES.md of each package is what its docstrings say, and nothing that is exported is missing in it."""

import pytest
from kv_sim_names import document_of, exported, markdown, packages, tables_of

PACKAGES = packages()


def test_every_package_exports_something() -> None:
    assert len(PACKAGES) == len([*document_of(PACKAGES[0]).parents[1].glob("kv-*")])


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_is_there_once_and_says_what_it_is(package: str) -> None:
    said = [one for names in tables_of(package).values() for one in names.items()]
    assert sorted(name for name, _ in said) == sorted(exported(package))
    assert [name for name, text in said if not text] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_the_printed_tables_are_the_committed_ones(package: str) -> None:
    document = document_of(package).read_text(encoding="utf-8")
    assert document.endswith(f"\n\n{markdown(package)}\n"), "run python sim/tests/support/kv_sim_names.py"


@pytest.mark.parametrize("package", PACKAGES)
def test_the_package_s_page_leads_there(package: str) -> None:
    readme = document_of(package).with_name("README.md").read_text(encoding="utf-8")
    assert "[NAMES.md](NAMES.md)" in readme
