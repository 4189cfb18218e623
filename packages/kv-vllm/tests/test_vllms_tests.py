"""The table of vLLM's own tests: what stands in it is complete, and the tests of ours that it names exist."""

from collections import Counter
from pathlib import Path

import pytest
from kv_vllm_table import FILE, VERDICTS, Row, names_of_tests, read_table

PACKAGES = Path(__file__).parents[2]
ROWS = read_table(FILE.read_text())


def missing(rows, folder):
    """Tests that rows name and that aren't there; of packages that aren't there nothing can be said."""
    told = []
    for name in sorted({name for row in rows for name in row.covered_by}):
        file, _, test = name.partition("::")
        if (folder / file.partition("/")[0]).is_dir():
            source = (folder / file).read_text() if (folder / file).is_file() else ""
            told += [] if test in names_of_tests(source) else [name]
    return told


@pytest.mark.once
def test_the_tests_of_ours_exist():
    assert not missing(ROWS, PACKAGES)
    assert any(name.startswith("kv-vllm/") for row in ROWS for name in row.covered_by)


def test_one_that_does_not_is_named(tmp_path):
    (tmp_path / "kv-multi").mkdir()
    (tmp_path / "kv-multi" / "test_it.py").write_text("class TestIt:\n    def test_there(self): ...\n")
    names = (
        "kv-multi/test_it.py::TestIt::test_there",
        "kv-multi/test_it.py::test_gone",
        "kv-multi/no.py::test_it",
    )
    assert missing([Row("fails", "f::t", "private: x", (*names, "other/test_it.py::test_it"))], tmp_path) == [
        "kv-multi/no.py::test_it",
        "kv-multi/test_it.py::test_gone",
    ]


def test_each_row_says_what_it_must():
    assert [name for name, count in Counter(row.name for row in ROWS).items() if count > 1] == []
    assert {row.verdict for row in ROWS} == set(VERDICTS)
    assert [row.name for row in ROWS if (row.reason == "-") != (row.verdict == "passes")] == []
    assert [row.name for row in ROWS if row.verdict == "passes" and row.covered_by] == []
    uncovered = {row.reason for row in ROWS if row.verdict != "passes" and not row.covered_by}
    assert [reason for reason in uncovered if not reason.startswith("not ours: ")] == []


@pytest.mark.parametrize("verdict", VERDICTS)
def test_there_are_rows_of_each_kind(verdict):
    assert sum(row.verdict == verdict for row in ROWS) >= 3
