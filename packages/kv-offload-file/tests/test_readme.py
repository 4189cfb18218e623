"""The example runs as printed, and the tables have all that there is."""

import doctest
import re
from pathlib import Path

from kv_offload_file import FileOptions

README = Path(__file__).parent.parent / "README.md"


def test_example():
    failed, tried = doctest.testfile(str(README), module_relative=False)
    assert (failed, tried > 10) == (0, True)


def test_all_settings_are_listed():
    [table] = re.findall(r"^## Settings\n(.*?)^## ", README.read_text(), re.MULTILINE | re.DOTALL)
    assert {*re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)))} == {
        *FileOptions.__dataclass_fields__
    }
