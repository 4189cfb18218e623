"""Importing kv_api costs a known set of standard-library modules, and nothing else."""

import json
import subprocess
import sys

import pytest

import kv_api

# All that `dataclasses`, `enum`, `typing`, `contextlib`, `array` and `warnings` pull in, on 3.11 to 3.15.
KNOWN = {
    "_ast", "_collections", "_contextvars", "_functools", "_opcode", "_opcode_metadata", "_operator",
    "_py_warnings", "_sre", "_tokenize", "_types", "_typing", "_weakrefset", "annotationlib", "array", "ast",
    "collections", "contextlib", "copy", "copyreg", "dataclasses", "dis", "enum", "functools", "importlib",
    "inspect", "io", "itertools", "keyword", "linecache", "opcode", "operator", "re", "reprlib", "token",
    "tokenize", "types", "typing", "warnings", "weakref",
}  # fmt: skip

SCRIPT = """
import sys
before = set(sys.modules)
import kv_api
import json
print(json.dumps(sorted(name for name in set(sys.modules) - before)))
"""


def modules_after_import() -> set[str]:
    done = subprocess.run(
        [sys.executable, "-I", "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60
    )
    return {name for name in json.loads(done.stdout) if not name.startswith("json")}


def test_nothing_but_known_modules_is_imported() -> None:
    added = modules_after_import()
    ours = {name for name in added if name.split(".")[0] == "kv_api"}
    assert "kv_api.connector" in ours
    others = {name.split(".")[0] for name in added - ours} - {"_json", "encodings"}
    assert others <= KNOWN, f"new imports: {sorted(others - KNOWN)}"


def test_connectors_do_not_load_what_they_do_not_need() -> None:
    added = modules_after_import()
    assert not added & {
        "kv_api.contract",
        "kv_api.load_store_spec",
        "kv_api.offload",
        "kv_api.offload_config",
        "kv_api.layout",
    }


def test_what_is_imported_later_is_listed_before() -> None:
    script = "import sys, kv_api; print('OffloadingSpec' in dir(kv_api), 'kv_api.offload' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["True", "False"]


def test_every_public_name_is_there_also_those_that_are_imported_later() -> None:
    for name in kv_api.__all__:
        assert getattr(kv_api, name) is not None
    assert {*kv_api.__all__, "__name__"} <= set(dir(kv_api))
    with pytest.raises(AttributeError, match=r"module 'kv_api' has no attribute 'OffloadingSpek'; did you mean"):
        kv_api.OffloadingSpek  # type: ignore[attr-defined]  # noqa: B018
